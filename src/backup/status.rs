//! Writes to the Backup that runs: each on the version last seen, repeated until it stands or the object is
//! not ours any more.

use std::time::Duration;

use berth_api::keys::{self, FIELD_MANAGER};
use berth_api::velero::{Backup, BackupPhase};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::client::{is_conflict, is_not_found};
use crate::queue::refusals::{is_lasting, is_too_large};
use crate::telemetry::chain;

const CALL: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Deleted, or another object of the same name stands there.
    #[error("the Backup is gone")]
    Gone,
    #[error("the Backup is in phase {0}, which is not ours to change")]
    Phase(String),
    #[error("the Backup could not be written in time")]
    Time(#[source] Option<kube::Error>),
    #[error("the Backup stays ReadyToStart: {0}")]
    NotBegun(String),
    #[error("the API server refused the write")]
    Refused(#[source] kube::Error),
}

/// The Backup as it stands on the API server, fields unknown to us included.
pub struct Record {
    api: Api<DynamicObject>,
    object: DynamicObject,
    uid: String,
}

impl Record {
    /// # Errors
    /// When it is gone, or another one than `uid`.
    pub async fn read(client: Client, namespace: &str, name: &str, uid: &str) -> Result<Self, WriteError> {
        let api = Api::namespaced_with(client, namespace, &ApiResource::erase::<Backup>(&()));
        let object = match timeout(CALL, api.get_opt(name)).await {
            Ok(Ok(Some(object))) => object,
            Ok(Ok(None)) => return Err(WriteError::Gone),
            Ok(Err(error)) => return Err(WriteError::Refused(error)),
            Err(_) => return Err(WriteError::Time(None)),
        };
        let record = Self { api, object, uid: uid.to_owned() };
        if record.object.uid().as_deref() == Some(uid) { Ok(record) } else { Err(WriteError::Gone) }
    }

    pub fn object(&self) -> &DynamicObject {
        &self.object
    }

    /// # Errors
    /// When a field is not of the type that Velero gives it.
    pub fn backup(&self) -> Result<Backup, serde_json::Error> {
        serde_json::from_value(serde_json::to_value(&self.object)?)
    }

    pub fn phase(&self) -> &str {
        self.object.data.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default()
    }

    /// Merges `patch` into the object while it is in `from`, trying for as long as `patience`.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn merge(
        &mut self,
        patch: &Value,
        from: BackupPhase,
        patience: Duration,
    ) -> Result<(), WriteError> {
        let begun = Instant::now();
        let (mut patch, mut shrunk) = (patch.clone(), false);
        loop {
            if self.phase() != from.as_str() {
                return Err(WriteError::Phase(self.phase().to_owned()));
            }
            let error = match timeout(CALL, self.try_merge(&patch)).await {
                Ok(Ok(object)) => {
                    self.object = object;
                    return Ok(());
                }
                Ok(Err(error)) if is_not_found(&error) => return Err(WriteError::Gone),
                Ok(Err(error)) if is_conflict(&error) => {
                    self.look_again().await?;
                    None
                }
                // Who wrote which field is room that it needs now.
                Ok(Err(error)) if is_too_large(&error) && !shrunk => {
                    patch["metadata"]["managedFields"] = json!([{}]);
                    shrunk = true;
                    continue;
                }
                Ok(Err(error)) if is_lasting(&error) => return Err(WriteError::Refused(error)),
                Ok(Err(error)) => Some(error),
                Err(_) => None,
            };
            if begun.elapsed() >= patience {
                return Err(WriteError::Time(error));
            }
            if let Some(error) = error {
                warn!(name = %self.object.name_any(), error = chain(&error), "writing the Backup failed: trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Ends the Backup with this status. Where that is too large, or a failure that the API server refuses, with its phase
    /// alone, by a write that leaves the object smaller than it was: a Backup that nobody can end keeps its slot. What else is
    /// refused of a backup that is stored is tried again by whoever settles it, with all that is known of it.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn end(
        &mut self,
        status: &Value,
        from: BackupPhase,
        patience: Duration,
    ) -> Result<(), WriteError> {
        let whole = self.merge(&json!({"status": status}), from, patience).await;
        let stored = [BackupPhase::Completed, BackupPhase::PartiallyFailed];
        let is_stored = stored.iter().any(|phase| status["phase"] == phase.as_str());
        match &whole {
            Err(WriteError::Refused(error)) if !is_stored || is_too_large(error) => {}
            _ => return whole,
        }
        let patch = json!({
            "metadata": {"managedFields": [{}], "annotations": {keys::RESOLVED_NAMESPACES: null}},
            "status": {"phase": status["phase"], "queuePosition": null, "progress": null},
        });
        self.merge(&patch, from, patience).await
    }

    async fn try_merge(&self, patch: &Value) -> Result<DynamicObject, kube::Error> {
        let mut patch = patch.clone();
        if let Some(root) = patch.as_object_mut() {
            let metadata = root.entry("metadata").or_insert_with(|| json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("resourceVersion".into(), json!(self.object.resource_version()));
                metadata.insert("uid".into(), json!(self.uid));
            }
        }
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.api.patch(&self.object.name_any(), &params, &Patch::Merge(patch)).await
    }

    async fn look_again(&mut self) -> Result<(), WriteError> {
        match timeout(CALL, self.api.get_opt(&self.object.name_any())).await {
            Ok(Ok(Some(object))) if object.meta().uid.as_ref() == Some(&self.uid) => self.object = object,
            Ok(Ok(_)) => return Err(WriteError::Gone),
            // The next attempt finds out.
            Ok(Err(_)) | Err(_) => tokio::time::sleep(PAUSE).await,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
