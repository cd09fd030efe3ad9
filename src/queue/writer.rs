//! The only writer of positions and of phase ReadyToStart. Each write is one merge patch on the
//! resourceVersion that was decided on. After a conflict the Backup is read: if nothing of it has
//! changed that the decision depended on, the write is sent once more, on these fields in place of
//! the version. So nobody keeps a Backup in its place, or in a slot, by patching it without a
//! pause.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::{Backup, BackupStatus};
use berth_core::queue::{QueueEntry, QueuePhase};
use jiff::Timestamp;
use json_patch::jsonptr::PointerBuf;
use kube::api::Api;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{info, warn};

use super::{BackupCache, seen};
use crate::client::is_unprocessable;
use crate::events::{EventReason, Events};
use crate::metrics::QueueMetrics;
use crate::patch::{kept, merge_into};
use crate::queue::refusals::is_refusal;
use crate::text::chain;
use crate::write::{Write, WriteResult, patch_to_fit, patch_where};

const READ: Duration = Duration::from_secs(10);
/// Annotations by which people steer the queue; a change of one may change the decision.
const STEERING: [&str; 3] = [keys::HOLD, keys::CANCEL, keys::FIRST];

/// Writes what Backups get that end without having run.
#[derive(Clone, Copy)]
pub struct EndedBackupSettings {
    pub default_ttl: Duration,
    /// The controller runs backups itself, so it may write the effective spec.
    pub writes_spec: bool,
}

#[derive(Clone)]
pub struct QueueWriter {
    api: Api<Backup>,
    keeping: EndedBackupSettings,
    store: Arc<BackupCache>,
    metrics: QueueMetrics,
    events: Events,
}

impl QueueWriter {
    pub fn new(
        client: Client,
        namespace: &str,
        keeping: EndedBackupSettings,
        store: Arc<BackupCache>,
        metrics: QueueMetrics,
        events: Events,
    ) -> Self {
        Self { api: Api::namespaced(client, namespace), keeping, store, metrics, events }
    }

    /// Sets phase ReadyToStart. `false`: the write failed, decide again.
    pub async fn start(&self, entry: &QueueEntry) -> bool {
        self.write(entry, json!({"status": BackupStatus::ready()})).await
    }

    /// Ends a Backup that has not run.
    pub async fn end(&self, entry: &QueueEntry, reason: &str) -> bool {
        self.finish(entry, BackupStatus::failed(reason, Timestamp::now())).await
    }

    /// Ends a Backup because its spec is invalid.
    pub async fn refuse(&self, entry: &QueueEntry, why: &[String]) -> bool {
        self.finish(entry, BackupStatus::invalid(why)).await
    }

    /// Adds the fields that every ended Backup has.
    async fn finish(&self, entry: &QueueEntry, status: Value) -> bool {
        let found = match timeout(READ, self.api.get_opt(&entry.name)).await {
            Ok(Ok(Some(found))) if found.uid().as_ref() == Some(&entry.uid) => found,
            Ok(Ok(_)) => {
                self.store.forget(&entry.name, &entry.uid);
                return false;
            }
            Ok(Err(error)) => {
                warn!(name = %entry.name, error = chain(&error), "failed to read a Backup that is to end: the next cycle tries again");
                self.count(entry, &error);
                return false;
            }
            Err(_) => {
                warn!(name = %entry.name, "failed to read a Backup that is to end in time: the next cycle tries again");
                return false;
            }
        };
        let EndedBackupSettings { default_ttl, writes_spec } = self.keeping;
        let mut patch = kept(&found, &self.store.locations(), default_ttl, Timestamp::now());
        if let Some(patch) = patch.as_object_mut().filter(|_| !writes_spec) {
            patch.remove("spec");
        }
        merge_into(&mut patch, json!({"status": status}));
        self.write(entry, patch).await
    }

    /// Writes its exact position. A Backup that the webhook did not see gets its time mark here,
    /// and one that supersedes another gets that one's time mark.
    pub async fn place(&self, entry: &QueueEntry, place: u32, inherits: Option<Timestamp>) {
        let mut annotations = BTreeMap::new();
        if entry.phase == QueuePhase::New {
            info!(name = %entry.name, place, "queued: the webhook had not seen it");
            annotations.insert(keys::ENQUEUED_AT, format!("{:.6}", entry.arrived()));
        }
        if let Some(since) = inherits {
            annotations.insert(keys::WAITS_SINCE, format!("{since:.6}"));
        }
        let mut patch = json!({"status": BackupStatus::queued(place)});
        if !annotations.is_empty() {
            patch["metadata"] = json!({"annotations": annotations});
        }
        if self.write(entry, patch).await {
            self.metrics.positions_written.inc();
        }
    }

    async fn write(&self, entry: &QueueEntry, patch: Value) -> bool {
        let Some(item) = self.store.get(&entry.name).filter(|item| item.entry.decides_as(entry)) else {
            return false;
        };
        let decided_on = Write::to(&entry.name).uid(Some(&entry.uid)).version(Some(&item.resource_version));
        let mut answer = patch_to_fit(&self.api, decided_on, patch.clone()).await;
        let answered_again = matches!(answer, WriteResult::Conflict(_));
        if answered_again {
            self.metrics.conflicts.inc();
            let Some(again) = self.write_again(entry, &patch).await else { return false };
            answer = again;
        }
        match answer {
            WriteResult::Written(backup) => {
                self.store.refusals.written(&entry.uid);
                self.store.observe_write(&backup);
                return true;
            }
            WriteResult::Gone(_) => self.store.forget(&entry.name, &entry.uid),
            // The next cycle decides on what stands there by then.
            WriteResult::Conflict(_) => {}
            WriteResult::Refused(error) if is_unprocessable(&error) && answered_again => {}
            WriteResult::Refused(error) => {
                warn!(name = %entry.name, error = chain(&error), "failed to write what the queue has decided of a Backup: the next cycle tries again");
                self.count(entry, &error);
            }
            WriteResult::TimedOut => {
                warn!(name = %entry.name, "failed to write what the queue has decided of a Backup in time: the next cycle tries again")
            }
        }
        false
    }

    /// Writes on the fields that the decision depended on. `None`: one of them has changed, or the
    /// Backup cannot be read.
    async fn write_again(&self, entry: &QueueEntry, patch: &Value) -> Option<WriteResult<Backup>> {
        let found = timeout(READ, self.api.get_opt(&entry.name)).await.ok()?.ok()??;
        let now = seen::entry(&found, &self.store.settings().order)?;
        if !now.decides_as(entry) {
            return None;
        }
        let read = serde_json::to_value(&found).ok()?;
        let uid = PointerBuf::from_tokens(["metadata", "uid"]);
        let phase = read.pointer("/status/phase").map(|_| PointerBuf::from_tokens(["status", "phase"]));
        let steering = read.pointer("/metadata/annotations").into_iter().flat_map(|_| STEERING);
        let steering = steering.map(|key| PointerBuf::from_tokens(["metadata", "annotations", key]));
        let fields: Vec<PointerBuf> = [uid].into_iter().chain(phase).chain(steering).collect();
        Some(patch_where(&self.api, Write::to(&entry.name), &fields, &read, patch).await)
    }

    /// What cannot be read to be written is refused as well.
    fn count(&self, entry: &QueueEntry, error: &kube::Error) {
        if is_refusal(error) && self.store.refusals.refused(&entry.uid) {
            tell_unwritable(&self.events, &entry.name, &entry.uid, error);
        }
    }
}

/// Reports that a Backup is out of the queue.
pub fn tell_unwritable(events: &Events, name: &str, uid: &str, error: &kube::Error) {
    let why = chain(error);
    warn!(%name, error = %why, "took a Backup out of the queue, because the API server refuses every write to it: allow them, or delete the Backup");
    events.tell(
        EventReason::Unwritable,
        name,
        uid,
        format!("removed from the queue, because every write is refused: {why}"),
    );
}

#[cfg(test)]
mod tests;
