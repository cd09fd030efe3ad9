//! The Restores of a backup that is deleted, and their files.

use anyhow::{Context as _, anyhow};
use berth_core::deletion::RestoreTimes;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tracing::warn;

use super::calls::{list, written};
use super::carrying::Carrying;
use crate::storage::BackupLayout;
use crate::write::{Write, delete, patch};

/// A finalizer that Velero's server removes after it has removed the files of a Restore. berth has
/// removed these files by then.
const FINALIZER: &str = "restores.velero.io/external-resources-finalizer";

fn phase(restore: &DynamicObject) -> &str {
    restore.data.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default()
}

/// When the Restore ran. When it was removed says nothing of that: somebody may remove it weeks
/// after it ended, and another cluster may have written files of a Restore of this name meanwhile.
fn times(restore: &DynamicObject) -> RestoreTimes {
    let time = |pointer: &str| restore.data.pointer(pointer)?.as_str()?.parse::<Timestamp>().ok();
    RestoreTimes { started: time("/status/startTimestamp"), ended: time("/status/completionTimestamp") }
}

impl Carrying<'_> {
    fn restores(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("velero.io", "v1", "Restore");
        self.dynamic(&ApiResource::from_gvk_with_plural(&kind, "restores"))
    }

    /// The Restores of the backup: those that have ended, and the others.
    pub(super) async fn look_at_restores(&self) -> anyhow::Result<(Vec<DynamicObject>, Vec<DynamicObject>)> {
        let is_of_backup = |restore: &DynamicObject| {
            let of = restore.data.pointer("/spec/backupName").and_then(Value::as_str);
            let goes = restore.metadata.deletion_timestamp.is_some();
            let is_ours = restore.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
            // A Restore that is being deleted and only waits for finalizers of others is done.
            of == Some(self.backup_name()) && (!goes || is_ours)
        };
        let all = list(&self.restores(), None, is_of_backup).await.context("failed to list the Restores")?;
        let has_ended = |restore: &DynamicObject| {
            let ends = ["Completed", "PartiallyFailed", "Failed", "FailedValidation"];
            ends.contains(&phase(restore)) || restore.metadata.deletion_timestamp.is_some()
        };
        Ok(all.into_iter().partition(has_ended))
    }

    /// Removes Restores that have ended. Their files are removed first.
    pub(super) async fn remove_restores(
        &self,
        layout: Option<&BackupLayout>,
        restores: &[DynamicObject],
    ) -> anyhow::Result<()> {
        let api = self.restores();
        for restore in restores {
            let name = restore.name_any();
            // A Restore that was refused has stored nothing, so files of its name belong to
            // somebody else.
            if let Some(layout) = layout.filter(|_| phase(restore) != "FailedValidation") {
                let removed = layout.remove_restore(&name, times(restore)).await;
                let left = removed.map_err(|error| anyhow!(crate::text::chain(&error)));
                let left = left.with_context(|| format!("failed to remove the files of Restore {name}"))?;
                let Some(left) = left else { return Ok(()) };
                if left > 0 {
                    warn!(
                        backup = self.backup_name(),
                        folder = %layout.restore_folder(&name),
                        files = left,
                        "leaving files of a Restore of this name, because they were not written while the Restore of this cluster ran"
                    );
                }
            }
            let mut that_one = restore.clone();
            let finalizers = restore.metadata.finalizers.clone().unwrap_or_default();
            if finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
                let left: Vec<&String> =
                    finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
                let change = json!({"metadata": {"finalizers": left}});
                match patch(&api, Write::on(restore), change).await {
                    crate::write::WriteResult::Written(now) => that_one = now,
                    answer => {
                        written(answer).with_context(|| format!("failed to release Restore {name}"))?;
                        continue;
                    }
                }
            }
            let uid = that_one.metadata.uid.as_deref();
            written(delete(&api, Write::to(&name).uid(uid)).await)
                .with_context(|| format!("failed to remove Restore {name}"))?;
        }
        Ok(())
    }
}
