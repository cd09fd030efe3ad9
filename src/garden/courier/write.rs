//! Writes of the courier, in both clusters.

use std::fmt::Debug;

use berth_api::garden::carried::{is_ours, lacks};
use berth_api::garden::report::Problem;
use berth_api::keys::{EXCLUDE_FROM_BACKUP, FIELD_MANAGER};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cache::ObjectCache;
use super::secrets::Credentials;
use crate::client::{is_conflict, is_not_found};

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("failed to {what} {kind} {name}")]
    Api { what: &'static str, kind: String, name: String, source: Box<kube::Error> },
    #[error(
        "{kind} {name} in the member cluster is somebody else's: rename one of the two, or delete that one"
    )]
    Foreign { kind: String, name: String },
    #[error("{}", .0.description)]
    Elsewhere(Problem),
    #[error("the hub has not said yet what its Secret {name} holds")]
    Unanswered { name: String },
}

impl Failure {
    pub fn of<K: Resource<DynamicType = ()>>(what: &'static str, name: &str, error: kube::Error) -> Self {
        Self::Api { what, kind: K::kind(&()).into_owned(), name: name.to_owned(), source: Box::new(error) }
    }

    pub fn foreign<K: Resource<DynamicType = ()>>(name: &str) -> Self {
        Self::Foreign { kind: K::kind(&()).into_owned(), name: name.to_owned() }
    }

    /// Somebody else was faster, or has yet to speak: nothing is wrong, and it is looked at again.
    pub fn passes(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_conflict(source),
            Self::Unanswered { .. } => true,
            Self::Foreign { .. } | Self::Elsewhere(_) => false,
        }
    }
}

/// One kind to write to, and what is known of it.
pub struct Desk<'a, K> {
    pub api: Api<K>,
    pub known: &'a ObjectCache<K>,
}

impl<K> Desk<'_, K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    /// Server-side: what others set besides stays.
    pub async fn apply(&self, object: &K) -> Result<(), Failure> {
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let name = object.name_any();
        let answer = self.api.patch(&name, &params, &Patch::Apply(object)).await;
        self.known.note(answer.map_err(|error| Failure::of::<K>("apply", &name, error))?);
        Ok(())
    }

    /// As it was seen, or not at all. `metadata` and `rest` are merged in.
    pub async fn patch(&self, found: &K, mut metadata: Value, rest: Value) -> Result<(), Failure> {
        metadata["resourceVersion"] = json!(found.resource_version());
        let mut change = rest;
        change["metadata"] = metadata;
        let name = found.name_any();
        let answer = self.api.patch(&name, &params(), &Patch::Merge(change)).await;
        self.known.note(answer.map_err(|error| Failure::of::<K>("patch", &name, error))?);
        Ok(())
    }

    pub async fn annotate(&self, found: &K, annotations: Value) -> Result<(), Failure> {
        self.patch(found, json!({"annotations": annotations}), json!({})).await
    }

    /// Of the status; as it was seen, or not at all.
    pub async fn patch_status(&self, found: &K, status: Value) -> Result<(), Failure> {
        let change = json!({"metadata": {"resourceVersion": found.resource_version()}, "status": status});
        let name = found.name_any();
        let answer = self.api.patch_status(&name, &params(), &Patch::Merge(change)).await;
        self.known.note(answer.map_err(|error| Failure::of::<K>("report on", &name, error))?);
        Ok(())
    }

    /// That very object. Gone already is as good.
    pub async fn delete(&self, found: &K) -> Result<(), Failure> {
        let preconditions = Preconditions { uid: found.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let name = found.name_any();
        match self.api.delete(&name, &params).await {
            Err(error) if !is_not_found(&error) && !is_conflict(&error) => {
                Err(Failure::of::<K>("delete", &name, error))
            }
            _ => Ok(()),
        }
    }

    /// # Errors
    /// When there is an object of that name that was not made for a hub.
    pub async fn ensure_ours(&self, name: &str) -> Result<(), Failure> {
        let foreign = match self.known.get(name) {
            Some(found) => !is_ours(found.meta()),
            // Those that are somebody else's are not watched everywhere.
            None => {
                let found = self.api.get_metadata_opt(name).await;
                let found = found.map_err(|error| Failure::of::<K>("get", name, error))?;
                found.is_some_and(|found| !is_ours(&found.metadata))
            }
        };
        if foreign { Err(Failure::foreign::<K>(name)) } else { Ok(()) }
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// A Secret of ours with these contents; written only where it is not so already.
pub async fn keep_secret(
    desk: &Desk<'_, Secret>,
    name: &str,
    labels: &[(&str, &str)],
    data: &Credentials,
) -> Result<(), Failure> {
    let data = data.iter().map(|(key, value)| (key.clone(), ByteString(value.clone()))).collect();
    // Whoever reads an archive is not to find the keys to the bucket that it is in.
    let labels = labels.iter().chain([&(EXCLUDE_FROM_BACKUP, "true")]);
    let labels = labels.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
    let is_so =
        |found: &Secret| found.data.clone().unwrap_or_default() == data && !lacks(&found.metadata, &metadata);
    if desk.known.get(name).is_some_and(|found| is_so(&found)) {
        return Ok(());
    }
    desk.ensure_ours(name).await?;
    desk.apply(&Secret { metadata, data: Some(data), ..Secret::default() }).await
}
