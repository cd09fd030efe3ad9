//! What berth reports of a movement: its status, Events, log messages and metrics.

use std::collections::HashMap;

use berth_api::velero::DataMoverStatus;
use berth_core::limits;
use berth_core::mover::grant::{Mover, MoverPhase};
use berth_core::mover::own::OwnFault;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{Item, OwnMovements};
use crate::events::EventReason;
use crate::movers::objects::{api, reference};
use crate::text::{beginning, chain};
use crate::write::{Write, WriteResult, patch_metadata};

impl OwnMovements {
    /// Remembers why a movement does not continue, and logs that once.
    pub(super) fn tell(&self, item: &Item, told: &Mutex<HashMap<String, String>>, why: &str) {
        // The API server's answer may quote what users have written.
        let why = beginning(why, limits::STATUS_MESSAGE).into_owned();
        let before = told.lock().insert(item.mover.uid.clone(), why.clone());
        if before.as_ref() != Some(&why) {
            let Mover { kind, name, .. } = &item.mover;
            warn!(%kind, %name, why, "a data movement cannot continue yet");
        }
    }

    pub(super) fn reason(
        &self,
        item: &Item,
        fault: OwnFault,
        told: &Mutex<HashMap<String, String>>,
    ) -> String {
        let of_pod = item.pod.as_ref().map(|pod| pod.why.clone()).filter(|why| !why.is_empty());
        let why = of_pod.or_else(|| told.lock().get(&item.mover.uid).cloned());
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        format!("{fault}{why}")
    }

    pub(super) async fn end(&self, item: &Item, phase: MoverPhase, message: &str) {
        self.write(item, ended(phase, message)).await;
    }

    /// Writes on the version that was seen. `false`: not written, because the object has changed;
    /// the next pass decides again.
    pub(super) async fn write(&self, item: &Item, change: Value) -> bool {
        let Mover { kind, name, .. } = &item.mover;
        let metadata = item.object.metadata();
        let as_seen =
            Write::to(name).uid(metadata.uid.as_deref()).version(metadata.resource_version.as_deref());
        let phase = change.pointer("/status/phase").and_then(Value::as_str).map(str::to_owned);
        let message = change.pointer("/status/message").and_then(Value::as_str).map(str::to_owned);
        match patch_metadata(&api(self.client(), &self.namespace, *kind), as_seen, change).await {
            WriteResult::Written(_) => {
                if let Some(phase) = phase {
                    info!(%kind, %name, phase, message, "a data movement changed its phase");
                }
                true
            }
            WriteResult::Conflict(_) | WriteResult::Gone(_) => false,
            answer => {
                let error = answer.written().err().map(|error| chain(&error)).unwrap_or_default();
                warn!(%kind, %name, error, "could not write the status of a data movement");
                false
            }
        }
    }

    fn event(&self, item: &Item, what: EventReason, note: impl Into<String>) {
        self.events.tell_about(what, reference(&self.namespace, &item.mover), note);
    }

    pub(super) fn report_accepted(&self, item: &Item) {
        let made = if item.object.is_of_files() { "its pod" } else { "its claim and its pod" };
        self.event(item, EventReason::MovementAccepted, format!("berth makes {made}"));
    }

    /// Reports that its pod was lost, and is removed.
    pub(super) fn report_replaced(&self, item: &Item, why: &str) {
        self.metrics.replaced.inc();
        let why = if why.is_empty() { "it was ended from outside" } else { why };
        self.event(item, EventReason::MoverPodReplaced, format!("its pod is made again: {why}"));
    }

    /// Reports that it has ended, and that everything that was created for it is removed. The write
    /// before this succeeds once, whichever process wrote the end, so it is counted once.
    pub(super) fn report_ended(&self, item: &Item) {
        let Mover { kind, phase, .. } = item.mover;
        let status = item.object.status().unwrap_or_default();
        let bytes = status.progress.and_then(|progress| u64::try_from(progress.bytes_done?).ok());
        let seconds = status
            .start_timestamp
            .zip(status.completion_timestamp)
            .map(|(start, end)| end.0.duration_since(start.0).as_secs_f64().max(0.0));
        self.metrics.ended(kind, phase, bytes.unwrap_or(0), seconds);
        if phase == MoverPhase::Failed {
            let why = status.message.unwrap_or_default();
            self.event(item, EventReason::MovementFailed, why);
        }
    }
}

pub(super) fn ended(phase: MoverPhase, message: &str) -> Value {
    let message: String = message.chars().take(limits::STATUS_MESSAGE).collect();
    json!({"status": DataMoverStatus::ended(phase, &message, Timestamp::now())})
}
