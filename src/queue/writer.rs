//! The only writer of positions and ReadyToStart. Each write is one merge patch on the version that was decided on.

use std::sync::Arc;
use std::time::Duration;

use berth_api::keys::{self, FIELD_MANAGER};
use berth_api::velero::{Backup, BackupPhase};
use berth_core::queue::{Entry, Phase};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{info, warn};

use super::Store;
use crate::client::{is_conflict, is_not_found};
use crate::metrics::QueueMetrics;
use crate::telemetry::chain;

const WRITE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Writer {
    api: Api<Backup>,
    store: Arc<Store>,
    metrics: QueueMetrics,
}

impl Writer {
    pub fn new(client: Client, namespace: &str, store: Arc<Store>, metrics: QueueMetrics) -> Self {
        Self { api: Api::namespaced(client, namespace), store, metrics }
    }

    /// To ReadyToStart. `false`: look again.
    pub async fn start(&self, entry: &Entry) -> bool {
        let status = json!({"phase": BackupPhase::ReadyToStart.as_str(), "queuePosition": null});
        self.write(entry, json!({}), status).await
    }

    /// To its end, without having run.
    pub async fn end(&self, entry: &Entry, reason: &str) -> bool {
        let status = json!({
            "phase": BackupPhase::Failed.as_str(),
            "queuePosition": null,
            "failureReason": reason,
            "completionTimestamp": Time(Timestamp::now()),
        });
        self.write(entry, json!({}), status).await
    }

    /// Its exact place. What the webhook did not see gets its time mark here.
    pub async fn place(&self, entry: &Entry, place: u32, mark: Timestamp) {
        let status = json!({"phase": BackupPhase::Queued.as_str(), "queuePosition": place});
        let metadata = if entry.phase == Phase::New {
            info!(name = %entry.name, place, "queued: the webhook had not seen it");
            json!({"annotations": {keys::ENQUEUED_AT: format!("{mark:.6}")}})
        } else {
            json!({})
        };
        if self.write(entry, metadata, status).await {
            self.metrics.positions_written.inc();
        }
    }

    async fn write(&self, entry: &Entry, mut metadata: Value, status: Value) -> bool {
        let Some(item) =
            self.store.get(&entry.name).filter(|item| Arc::as_ptr(&item.entry) == std::ptr::from_ref(entry))
        else {
            return false;
        };
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("resourceVersion".to_owned(), json!(item.resource_version));
            metadata.insert("uid".to_owned(), json!(entry.uid));
        }
        let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match timeout(WRITE, self.api.patch(&entry.name, &params, &patch)).await {
            Ok(Ok(backup)) => {
                self.store.observe_write(&backup);
                true
            }
            Ok(Err(error)) if is_not_found(&error) => {
                self.store.forget(&entry.name, &entry.uid);
                false
            }
            Ok(Err(error)) if is_conflict(&error) => {
                self.metrics.conflicts.inc();
                false
            }
            Ok(Err(error)) => {
                warn!(name = %entry.name, error = chain(&error), "failed to write the place in the queue");
                false
            }
            Err(_) => {
                warn!(name = %entry.name, "writing the place in the queue took too long");
                false
            }
        }
    }
}
