//! Writes of the courier, in both clusters.

use std::fmt::Debug;

use berth_api::keys::EXCLUDE_FROM_BACKUP;
use berth_garden_api::member_objects::{is_ours, lacks};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cache::ObjectCache;
use super::secrets::SecretData;
use crate::client::is_conflict;
use crate::write::{self, Write, WriteResult};

#[derive(Debug, thiserror::Error)]
pub enum CourierError {
    #[error("failed to {what} {kind} {name}")]
    Api { what: &'static str, kind: String, name: String, source: Box<kube::Error> },
    #[error(
        "{kind} {name} in the member cluster was not made for a hub: rename one of the two, or delete that one"
    )]
    Foreign { kind: String, name: String },
    #[error("the hub has not said yet what its Secret {name} contains")]
    Unanswered { name: String },
    #[error("more steps are left than one pass takes")]
    Unfinished,
}

impl CourierError {
    pub fn of<K: Resource<DynamicType = ()>>(what: &'static str, name: &str, error: kube::Error) -> Self {
        Self::Api { what, kind: K::kind(&()).into_owned(), name: name.to_owned(), source: Box::new(error) }
    }

    pub fn foreign<K: Resource<DynamicType = ()>>(name: &str) -> Self {
        Self::Foreign { kind: K::kind(&()).into_owned(), name: name.to_owned() }
    }

    /// Another writer was faster, or the hub has yet to answer: nothing is wrong, and the next pass
    /// looks again.
    pub fn passes(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_conflict(source),
            Self::Unanswered { .. } | Self::Unfinished => true,
            Self::Foreign { .. } => false,
        }
    }
}

/// Objects of one kind, to write to, and their watch cache.
pub struct WriteTarget<'a, K> {
    pub api: Api<K>,
    pub cache: &'a ObjectCache<K>,
}

impl<K> WriteTarget<'_, K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    /// By server-side apply, so fields that others set stay.
    pub async fn apply(&self, object: &K) -> Result<(), CourierError> {
        let name = object.name_any();
        let answer = write::apply(&self.api, Write::to(&name), object).await;
        self.take("apply", &name, answer)
    }

    /// Merges `metadata` and `rest` into the object, on the resourceVersion that was seen.
    pub async fn patch(&self, found: &K, metadata: Value, rest: Value) -> Result<(), CourierError> {
        let mut change = rest;
        change["metadata"] = metadata;
        let answer = write::patch(&self.api, as_seen(found), change).await;
        self.take("patch", &found.name_any(), answer)
    }

    pub async fn annotate(&self, found: &K, annotations: Value) -> Result<(), CourierError> {
        self.patch(found, json!({"annotations": annotations}), json!({})).await
    }

    /// Merges into the status, on the resourceVersion that was seen.
    pub async fn patch_status(&self, found: &K, status: Value) -> Result<(), CourierError> {
        let answer = write::patch_status(&self.api, as_seen(found), json!({"status": status})).await;
        self.take("report on", &found.name_any(), answer)
    }

    /// Takes the written object into the watch cache, which would show it only later.
    fn take(&self, what: &'static str, name: &str, answer: WriteResult<K>) -> Result<(), CourierError> {
        let written = answer.written().map_err(|error| CourierError::of::<K>(what, name, error))?;
        self.cache.note(written);
        Ok(())
    }

    /// Deletes the object with this UID. One that is gone already counts as deleted.
    pub async fn delete(&self, found: &K) -> Result<(), CourierError> {
        let name = found.name_any();
        match write::delete(&self.api, Write::to(&name).uid(found.meta().uid.as_deref())).await {
            WriteResult::Gone(_) | WriteResult::Conflict(_) => Ok(()),
            answer => answer.written().map_err(|error| CourierError::of::<K>("delete", &name, error)),
        }
    }

    /// # Errors
    /// When there is an object of that name that was not made for a hub.
    pub async fn ensure_ours(&self, name: &str) -> Result<(), CourierError> {
        let foreign = match self.cache.get(name) {
            Some(found) => !is_ours(found.meta()),
            // Objects that were not made for a hub are not watched everywhere.
            None => {
                let found = self.api.get_metadata_opt(name).await;
                let found = found.map_err(|error| CourierError::of::<K>("get", name, error))?;
                found.is_some_and(|found| !is_ours(&found.metadata))
            }
        };
        if foreign { Err(CourierError::foreign::<K>(name)) } else { Ok(()) }
    }
}

fn as_seen<K: Resource>(found: &K) -> Write<'_> {
    Write::on(found).uid(None)
}

impl WriteTarget<'_, Secret> {
    /// Writes a Secret of ours; core plans this only where it is not so already.
    pub async fn keep(&self, wanted: &Secret) -> Result<(), CourierError> {
        self.ensure_ours(&wanted.name_any()).await?;
        self.apply(wanted).await
    }
}

/// A Secret of ours with these contents.
pub fn secret(name: &str, labels: &[(&str, &str)], data: &SecretData) -> Secret {
    let data = data.iter().map(|(key, value)| (key.clone(), ByteString(value.clone()))).collect();
    // An archive in a bucket must not contain the keys to that bucket.
    let labels = labels.iter().chain([&(EXCLUDE_FROM_BACKUP, "true")]);
    let labels = labels.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
    Secret { metadata, data: Some(data), ..Secret::default() }
}

/// Has `found` all that `wanted` has, and the same contents?
pub fn is_kept(found: &Secret, wanted: &Secret) -> bool {
    found.data.clone().unwrap_or_default() == wanted.data.clone().unwrap_or_default()
        && !lacks(&found.metadata, &wanted.metadata)
}
