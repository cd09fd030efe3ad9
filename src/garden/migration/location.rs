//! The location whose backups are moved, and the entry's location: where they lead, and the one
//! write that changes it.

use std::collections::BTreeMap;

use berth_api::keys;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_api::velero::{
    BackupStorageLocation, BackupStorageLocationPhase, BackupStorageLocationSpec, BackupStorageLocationStatus,
};
use berth_garden_api::member_objects::{hub_uid, is_ours};
use kube::ResourceExt;
use kube::api::Api;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::error::{MigrationError, api_error};
use super::{LOOK, Migration};
use crate::write::{self, Write};

/// Value of the annotation by which a location is held for this.
pub(super) const HELD_FOR: &str = "migration";

impl Migration {
    /// One write leads the location to its new place; then it is validated, and opened again.
    pub(super) async fn cut_over(
        &self,
        to: &BackupStorageLocationSpec,
        tell: &impl Fn(&str),
    ) -> Result<(), MigrationError> {
        // The entry may have moved to another cluster meanwhile.
        self.entry_location().await?;
        let location = self.location(&self.from).await?;
        if !leads_to(&location.spec, to) {
            tell("backups go to the shared bucket from now on");
            let lead = json!({
                // With this label, admission lets the location lead there.
                "metadata": {"labels": {keys::BACKUP_ENTRY: self.entry}},
                "spec": {
                    "provider": to.provider,
                    "config": replacement(location.spec.config.as_ref(), to.config.as_ref()),
                    "credential": to.credential,
                    "objectStorage": {
                        "bucket": to.object_storage.bucket,
                        "prefix": to.object_storage.prefix,
                        "caCert": to.object_storage.ca_cert,
                        "caCertRef": to.object_storage.ca_cert_ref,
                    },
                    "accessMode": AccessMode::ReadOnly,
                },
                "status": BackupStorageLocationStatus::unchecked(),
            });
            self.patch(lead).await?;
        }
        let began = Instant::now();
        loop {
            let location = self.location(&self.from).await?;
            let status = location.status.clone().unwrap_or_default();
            let checked = status.last_validation_time.is_some();
            if checked && status.phase == Some(BackupStorageLocationPhase::Available) {
                break;
            }
            if began.elapsed() > self.patience {
                let why = status.message.unwrap_or_else(|| "it has not been validated yet".to_owned());
                return Err(MigrationError::NotAvailable(self.from.clone(), self.patience.as_secs(), why));
            }
            sleep(LOOK).await;
        }
        self.patch(json!({"spec": {"accessMode": AccessMode::ReadWrite}})).await?;
        self.annotate_hold(None).await
    }

    pub(super) async fn location(&self, name: &str) -> Result<BackupStorageLocation, MigrationError> {
        let found = self.locations().get_opt(name).await.map_err(api_error("get the storage location"))?;
        found.ok_or_else(|| MigrationError::NoLocation(name.to_owned(), self.namespace.clone(), ""))
    }

    /// The location was not made for a hub.
    pub(super) async fn own_location(&self) -> Result<BackupStorageLocation, MigrationError> {
        let found = self.location(&self.from).await?;
        if is_ours(&found.metadata) {
            return Err(MigrationError::Carried(self.from.clone(), keys::CARRIED_FOR));
        }
        Ok(found)
    }

    pub(super) async fn entry_location(&self) -> Result<BackupStorageLocation, MigrationError> {
        let found = self.location(&self.entry).await;
        let found = found
            .ok()
            .filter(|found| found.labels().get(keys::BACKUP_ENTRY).is_some_and(|entry| *entry == self.entry));
        if found.as_ref().is_some_and(|found| found.spec.access_mode == Some(AccessMode::ReadOnly)) {
            return Err(MigrationError::Closed(self.entry.clone()));
        }
        found.ok_or_else(|| {
            let hint = " that was made for a BackupEntry: make the entry in the hub first";
            MigrationError::NoLocation(self.entry.clone(), self.namespace.clone(), hint)
        })
    }

    pub(super) fn locations(&self) -> Api<BackupStorageLocation> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) async fn annotate_hold(&self, value: Option<&str>) -> Result<(), MigrationError> {
        let location = self.location(&self.from).await?;
        let found = location.annotations().get(keys::HOLD);
        // A hold that a person set is removed by a person.
        if found.is_some_and(|found| found != HELD_FOR) {
            return Ok(());
        }
        self.patch(json!({"metadata": {"annotations": {keys::HOLD: value}}})).await
    }

    pub(super) async fn patch(&self, change: Value) -> Result<(), MigrationError> {
        let patched = write::patch(&self.locations(), Write::to(&self.from), change).await;
        patched.written().map(drop).map_err(api_error("change the storage location"))
    }
}

/// UID of the hub's entry; without a hub, that of the location that stands for it. Another entry of
/// the same name has another UID.
pub(super) fn entry_uid(location: &BackupStorageLocation) -> String {
    let uid = hub_uid(&location.metadata).map(str::to_owned).or_else(|| location.uid());
    uid.unwrap_or_default()
}

/// Do both lead to the same directory?
pub(super) fn leads_to(a: &BackupStorageLocationSpec, b: &BackupStorageLocationSpec) -> bool {
    let prefix = |spec: &BackupStorageLocationSpec| {
        spec.object_storage.prefix.as_deref().unwrap_or_default().trim_matches('/').to_owned()
    };
    let at = |spec: &BackupStorageLocationSpec, key: &str| {
        spec.config
            .as_ref()
            .and_then(|config| config.get(key))
            .map(|url| url.trim_end_matches('/').to_owned())
    };
    // Azure: without an address, it is the account's usual one.
    let account = |spec: &BackupStorageLocationSpec| {
        let name = at(spec, "storageAccount")?;
        let uri = at(spec, "storageAccountURI");
        Some(uri.unwrap_or_else(|| format!("https://{name}.blob.core.windows.net")))
    };
    a.provider == b.provider
        && a.object_storage.bucket == b.object_storage.bucket
        && prefix(a) == prefix(b)
        && at(a, "s3Url") == at(b, "s3Url")
        && at(a, "path") == at(b, "path")
        && account(a) == account(b)
        && at(a, "storeEndpoint") == at(b, "storeEndpoint")
}

/// A merge patch that removes the old settings.
fn replacement(old: Option<&BTreeMap<String, String>>, new: Option<&BTreeMap<String, String>>) -> Value {
    let gone = old.into_iter().flatten().map(|(key, _)| (key.clone(), Value::Null));
    let kept = new.into_iter().flatten().map(|(key, value)| (key.clone(), json!(value)));
    gone.chain(kept).collect::<serde_json::Map<_, _>>().into()
}
