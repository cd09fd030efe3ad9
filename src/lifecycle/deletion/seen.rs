//! What a deletion decides on, as it is read off objects.

use std::collections::BTreeMap;

use anyhow::Context as _;
use berth_api::keys::{self, is_set};
use berth_api::velero::backup_storage_location::{AccessMode, BackupStorageLocationSpec};
use berth_api::velero::{BackupStorageLocation, BackupStorageLocationPhase, DeleteBackupRequest};
use berth_core::deletion::{DeletionBackup, DeletionLocation};
use berth_core::location::{DEFAULT_LOCATION, choose};
use berth_core::sync::is_name;
use kube::api::{Api, DynamicObject};
use kube::{Resource as _, ResourceExt as _};
use serde_json::Value;
use tokio::time::timeout;

use super::calls::{CALL, told};
use super::carrying::Carrying;

impl Carrying<'_> {
    /// Does a Backup store in another place than in this location?
    pub(super) async fn is_elsewhere(
        &self,
        backup: &DynamicObject,
        location: Option<&BackupStorageLocation>,
    ) -> anyhow::Result<bool> {
        let named = backup.data.pointer("/spec/storageLocation").and_then(Value::as_str).unwrap_or_default();
        let Some(location) = location.filter(|location| location.name_any() != named) else {
            return Ok(false);
        };
        let theirs = self.location(named).await?;
        Ok(theirs.is_none_or(|theirs| place(&theirs.spec) != place(&location.spec)))
    }

    pub(super) async fn location(&self, wanted: &str) -> anyhow::Result<Option<BackupStorageLocation>> {
        let api: Api<BackupStorageLocation> =
            Api::namespaced(self.lifecycle.clients.call.clone(), &self.lifecycle.namespace);
        if !wanted.is_empty() {
            // What no object can be called would become part of the request's address.
            return if is_name(wanted) { self.get(&api, wanted).await } else { Ok(None) };
        }
        let listed = crate::client::list(&self.lifecycle.clients.call, &self.lifecycle.namespace);
        let listed = timeout(CALL, listed).await.context("the API server did not answer in time")?;
        let mut all: Vec<BackupStorageLocation> = listed.map_err(told)?.items;
        let known: Vec<_> = all.iter().map(BackupStorageLocation::decided).collect();
        let chosen = choose(&known, wanted).map_or(DEFAULT_LOCATION, |location| location.name.as_str());
        let position = all.iter().position(|location| location.name_any() == chosen);
        Ok(position.map(|position| all.swap_remove(position)))
    }
}

/// The name of the location. Before a deletion has begun nobody but the Backup is believed.
pub(super) fn wanted_location(request: &DeleteBackupRequest, backup: Option<&DynamicObject>) -> String {
    let of_backup = backup.map(|backup| {
        backup.data.pointer("/spec/storageLocation").and_then(Value::as_str).unwrap_or_default().to_owned()
    });
    let recorded = || request.annotations().get(keys::DELETES_IN).cloned();
    of_backup.or_else(recorded).unwrap_or_default()
}

/// Where the files of a location are.
fn place(spec: &BackupStorageLocationSpec) -> (&str, &str, &str, Option<&BTreeMap<String, String>>) {
    let prefix = spec.object_storage.prefix.as_deref().unwrap_or_default().trim_matches('/');
    (spec.provider.as_str(), spec.object_storage.bucket.as_str(), prefix, spec.config.as_ref())
}

pub(super) fn seen_backup(backup: &DynamicObject) -> DeletionBackup<'_> {
    let annotations = backup.annotations();
    let kept = annotations.get(keys::KEEP).filter(|_| is_set(annotations, keys::KEEP));
    DeletionBackup {
        uid: backup.meta().uid.as_deref().unwrap_or_default(),
        created: backup.meta().creation_timestamp.as_ref().map(|time| time.0),
        phase: backup.data.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default(),
        kept: kept.map(String::as_str),
        leaves_volumes: is_set(annotations, keys::FORGET_VOLUMES),
        files_go: is_set(annotations, keys::FILES_GO),
        is_going: backup.meta().deletion_timestamp.is_some(),
        is_elsewhere: false,
    }
}

pub(super) fn seen_location<'a>(
    location: Option<&BackupStorageLocation>,
    name: &'a str,
) -> DeletionLocation<'a> {
    let Some(location) = location else { return DeletionLocation::Missing(name) };
    let phase = location.status.as_ref().and_then(|status| status.phase);
    match location.spec.access_mode {
        Some(AccessMode::ReadOnly) => DeletionLocation::ReadOnly(name),
        _ if phase == Some(BackupStorageLocationPhase::Unavailable) => DeletionLocation::Unavailable(name),
        _ => DeletionLocation::Usable,
    }
}
