//! What a run writes to its Backup while it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::{BackupPhase, BackupStatus};
use serde_json::json;
use tracing::warn;

use super::engine::RunFailure;
use super::frozen::FrozenPods;
use super::ledger::ObjectLedger;
use super::status::{BackupWriter, WriteError};
use crate::text::chain;

/// How often the progress is written.
pub(super) const PROGRESS: Duration = Duration::from_secs(1);
/// How long one write that hooks wait for is tried.
const RECORD: Duration = Duration::from_secs(5);

/// Counts of a run, shared by its tasks.
pub struct Counters {
    /// Objects known so far: taken, or announced by the server.
    pub total: AtomicU64,
    pub done: Arc<AtomicU64>,
}

/// Writes the progress, the number of objects in the checkpoint, and the pods that may be frozen:
/// once a second, and whenever a hook waits for it, but only if something has changed. Returns when
/// the Backup is not this run's any more.
pub(super) async fn keep_record(
    record: &mut BackupWriter,
    counters: &Counters,
    ledger: &ObjectLedger,
    frozen: &FrozenPods,
) -> RunFailure {
    // The progress does not go back, even if an earlier run had come further.
    let before = record.progress();
    let mut told = before;
    loop {
        tokio::select! {
            () = tokio::time::sleep(PROGRESS) => {}
            () = frozen.wanted() => {}
        }
        let done = counters.done.load(Ordering::Relaxed).max(before.1);
        let now = (counters.total.load(Ordering::Relaxed).max(done).max(before.0), done);
        let asked = frozen.asked();
        let runs = record.runs();
        let kept = runs.kept(ledger.kept());
        if now != told || asked.is_some() || kept != runs {
            let mut patch = json!({});
            if now != told {
                patch["status"] = BackupStatus::progressed(now.0, now.1);
            }
            if let Some(asked) = &asked {
                patch["metadata"]["annotations"][keys::FROZEN] = json!(asked.pods);
            }
            if kept != runs {
                patch["metadata"]["annotations"][keys::RUNS] = json!(kept.to_string());
            }
            let patience = if asked.is_some() { RECORD } else { PROGRESS };
            match record.merge(&patch, BackupPhase::InProgress, patience).await {
                Ok(()) => {
                    told = now;
                    if let Some(asked) = &asked {
                        frozen.stands(asked);
                    }
                }
                Err(error @ (WriteError::Gone | WriteError::Phase(_) | WriteError::Taken)) => {
                    return RunFailure::Write(error);
                }
                Err(error) => {
                    if let (WriteError::Refused(_), Some(asked)) = (&error, &asked) {
                        frozen.refuse(asked);
                    }
                    let name = kube::ResourceExt::name_any(record.object());
                    warn!(%name, error = chain(&error), "could not write the progress of the backup: trying again");
                }
            }
        }
    }
}
