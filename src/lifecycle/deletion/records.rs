//! The steps of a deletion that only write down how far it is. Each is written on the version that
//! was looked at, so what the write answers is what the next look would find.

use anyhow::Context as _;
use berth_api::keys;
use berth_api::velero::delete_backup_request::DeleteBackupRequestStatus;
use berth_api::velero::{BackupPhase, BackupStatus};
use berth_core::deletion::DeletionStep;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tracing::info;

use super::calls::as_written;
use super::carrying::{Carrying, DeletionFindings};
use super::seen::seen_backup;
use crate::patch::{digest, merge_into};
use crate::write::{Write, patch, patch_to_fit};

impl Carrying<'_> {
    /// Takes a step that removes nothing, and takes in what was written. `false`: what is there now
    /// is not known.
    pub(super) async fn record(
        &mut self,
        step: &DeletionStep,
        found: &mut DeletionFindings,
    ) -> anyhow::Result<bool> {
        if *step == DeletionStep::Claim && found.backup.is_none() {
            // Nobody can hold a Backup that is gone.
            self.claim(found).await?;
            return Ok(true);
        }
        let backup = found.backup.as_ref().context("the Backup is gone")?;
        match step {
            DeletionStep::Begin => {
                let location = found.location.as_ref().map(|location| location.name_any());
                let change = json!({
                    "metadata": {
                        "labels": {
                            keys::BACKUP_NAME: keys::label_value(self.backup_name(), digest),
                            keys::BACKUP_UID: backup.uid(),
                        },
                        "annotations": {keys::DELETES_IN: location},
                    },
                    "status": DeleteBackupRequestStatus::in_progress(),
                });
                let now = as_written(patch(&self.api(), Write::on(&found.request), change).await)
                    .context("failed to write the request")?;
                let Some(now) = now else { return Ok(false) };
                info!(backup = self.backup_name(), uid = backup.uid(), "began to delete a backup");
                found.request = now;
            }
            DeletionStep::Claim => {
                // To look takes a while, and no cluster brings back what a deletion has claimed. So
                // a hold that has come since must be seen before.
                let now = self.get(&self.backups(), self.backup_name()).await?;
                if now.as_ref().map(seen_backup) != Some(seen_backup(backup)) {
                    return Ok(false);
                }
                self.claim(found).await?;
            }
            DeletionStep::Mark { files_go } => {
                let mut change = json!({"status": BackupStatus::in_phase(BackupPhase::Deleting)});
                if *files_go {
                    merge_into(&mut change, that_files_go());
                }
                let now = self.change_backup(backup, change).await;
                let now = now.context("failed to make the Backup Deleting")?;
                self.count_begun();
                let Some(now) = now else { return Ok(false) };
                found.backup = Some(now);
            }
            DeletionStep::Record => {
                let now = self.change_backup(backup, that_files_go()).await;
                let now =
                    now.context("failed to write to the Backup that the removal of its files begins")?;
                let Some(now) = now else { return Ok(false) };
                found.backup = Some(now);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `None`: the Backup is gone.
    async fn change_backup(
        &self,
        backup: &DynamicObject,
        change: Value,
    ) -> anyhow::Result<Option<DynamicObject>> {
        as_written(patch_to_fit(&self.backups(), Write::on(backup), change).await)
    }
}

fn that_files_go() -> Value {
    json!({"metadata": {"annotations": {keys::FILES_GO: "true"}}})
}
