//! What a task of the runner does, and what it reports of its Backup.

use std::sync::Arc;

use berth_api::velero::Backup;
use berth_core::operation::OperationCounts;
use berth_core::stage::Stage;
use kube::ResourceExt as _;
use tokio::time::timeout;
use tracing::{info, warn};

use super::PERIOD;
use crate::backup::engine::{Engine, Signals};
use crate::backup::status::WriteError;
use crate::events::{EventReason, Events};
use crate::queue::BackupCache;
use crate::queue::refusals::is_refusal;
use crate::queue::writer::tell_unwritable;
use crate::text::chain;

/// The task of a Backup that has its slot.
pub(super) struct RunTask {
    pub engine: Engine,
    pub reporter: WriteReporter,
    pub name: String,
    pub uid: String,
    pub signals: Signals,
}

impl RunTask {
    /// Takes up a Backup that no process runs.
    pub async fn recover(self) {
        let Self { engine, reporter, name, uid, signals } = self;
        let tell = |note: &str| reporter.events.tell(EventReason::Resumed, &name, &uid, note);
        match engine.recover(&name, &uid, signals, tell).await {
            Ok(Some(backup)) => reporter.written(&uid, &backup),
            Ok(None) => {}
            Err(error) => reporter.failed(&name, &uid, &error),
        }
    }

    /// Runs a Backup that is ReadyToStart.
    pub async fn run(self) {
        let Self { engine, reporter, name, uid, signals } = self;
        let (stop, deleted) = (signals.stop.clone(), signals.deleted.clone());
        match engine.run(&name, &uid, signals).await {
            Ok(Some(backup)) => {
                reporter.written(&uid, &backup);
                return;
            }
            Ok(None) => {}
            Err(error) => reporter.failed(&name, &uid, &error),
        }
        // Wait before the next attempt, whatever the error was, unless there can be none.
        tokio::select! {
            _ = timeout(PERIOD, stop.cancelled()) => {}
            () = deleted.cancelled() => {}
        }
    }
}

/// Reports what a task has written of a Backup, or could not write, and counts refused writes.
pub(super) struct WriteReporter {
    pub store: Arc<BackupCache>,
    pub events: Events,
}

impl WriteReporter {
    /// The Backup as the task's last write left it. The queue does not wait for the watch to show
    /// it, because another backup may wait for the slot.
    pub fn written(&self, uid: &str, backup: &Backup) {
        self.store.refusals.written(uid);
        self.tell_operations(backup);
        self.store.observe_write(backup);
    }

    /// Tells of a Backup that has begun to wait for its operations, or waits no more.
    fn tell_operations(&self, backup: &Backup) {
        let OperationCounts { attempted, completed, failed } = backup.operations();
        let (name, uid) = (backup.name_any(), backup.uid().unwrap_or_default());
        match Stage::of(backup.phase().as_str()) {
            Some(Stage::Waiting) if completed + failed == 0 => {
                let note =
                    format!("all objects are stored; {attempted} data movements go on, without a slot");
                self.events.tell(EventReason::OperationsBegun, &name, &uid, note);
            }
            Some(Stage::Finalizing) => {
                let note = format!("{completed} of {attempted} data movements completed, {failed} failed");
                self.events.tell(EventReason::OperationsEnded, &name, &uid, note);
            }
            _ => {}
        }
    }

    pub fn failed(&self, name: &str, uid: &str, error: &WriteError) {
        match error {
            WriteError::Gone => info!(%name, "the Backup is gone"),
            WriteError::NotBegun(why) => warn!(%name, %why, "could not begin the backup: trying again"),
            WriteError::Frozen(_) => {
                warn!(%name, %error, "pods of a dead run may still be frozen: trying again")
            }
            WriteError::Waits(why) => {
                warn!(%name, %why, "could not follow the operations of a backup: trying again")
            }
            error => warn!(%name, error = chain(error), "could not write the Backup"),
        }
        let (WriteError::Refused(error) | WriteError::Time(Some(error))) = error else { return };
        if is_refusal(error) && self.store.refusals.refused(uid) {
            tell_unwritable(&self.events, name, uid, error);
        }
    }
}
