//! One cycle: freeze, decide, act. Runs only while this process leads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys::{self, FIELD_MANAGER};
use berth_api::velero::{Backup, BackupPhase};
use berth_core::queue::{Entry, Phase, Plan, Reason, RenumberBudget, View, plan};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{info, warn};

use super::Store;
use crate::client::{is_conflict, is_not_found};
use crate::telemetry::chain;

/// Looks again at least this often, whatever the watch shows.
const PERIOD: Duration = Duration::from_secs(5);
/// Looks again this soon while positions are still to be corrected.
const RENUMBER: Duration = Duration::from_millis(500);
const WRITE: Duration = Duration::from_secs(10);
const WRITES_AT_ONCE: usize = 8;

/// Failure reason of what people canceled.
pub const CANCELED: &str = "Canceled: somebody asked for it";

pub struct Cycle {
    api: Api<Backup>,
    store: Arc<Store>,
    slots: usize,
    budget: RenumberBudget,
    /// Reason last logged per backup UID, so that each is told once.
    told: HashMap<String, Reason>,
}

impl Cycle {
    pub fn new(client: Client, namespace: &str, store: Arc<Store>, slots: usize) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, store, slots, budget: RenumberBudget::new(Timestamp::now()), told: HashMap::new() }
    }

    /// For ever.
    pub async fn run(mut self) {
        let mut changed = self.store.changed();
        loop {
            changed.mark_unchanged();
            let pace = self.once().await;
            // The sender lives as long as the store, which we hold.
            let _ = timeout(pace, changed.changed()).await;
        }
    }

    async fn once(&mut self) -> Duration {
        if !self.store.is_synced() {
            return PERIOD;
        }
        let view = self.store.view(self.slots);
        let decided = plan(&view);
        self.tell(&view, &decided);
        for entry in decided.cancel.iter().filter_map(|i| view.backups.get(*i)) {
            self.cancel(entry).await;
        }
        let mut started = 0;
        for entry in decided.start.iter().filter_map(|i| view.backups.get(*i)) {
            // In order, one after the other: a later one never starts before an earlier one has.
            if !self.start(entry).await {
                return RENUMBER;
            }
            started += 1;
        }
        let budget = self.budget.earn(started, Timestamp::now());
        let wrong = decided.renumber(&view, usize::MAX).count();
        let writes: Vec<_> = decided.renumber(&view, budget).collect();
        self.budget.spend(writes.len());
        let left = wrong > writes.len();
        let store = &self.store;
        let api = &self.api;
        let writes =
            writes.into_iter().filter_map(|w| view.backups.get(w.backup).map(|entry| (entry, w.place)));
        futures::stream::iter(writes)
            .for_each_concurrent(WRITES_AT_ONCE, |(entry, place)| place_at(api, store, entry, place))
            .await;
        if left { RENUMBER } else { PERIOD }
    }

    async fn start(&self, entry: &Entry) -> bool {
        let status = json!({"phase": BackupPhase::ReadyToStart.as_str(), "queuePosition": null});
        let written = write(&self.api, &self.store, entry, json!({}), status).await;
        if written {
            let wait = Timestamp::now().duration_since(entry.created_at);
            info!(name = %entry.name, wait_seconds = wait.as_secs_f64(), "dequeued");
        }
        written
    }

    async fn cancel(&self, entry: &Entry) {
        let status = json!({
            "phase": BackupPhase::Failed.as_str(),
            "queuePosition": null,
            "failureReason": CANCELED,
            "completionTimestamp": Time(Timestamp::now()),
        });
        if write(&self.api, &self.store, entry, json!({}), status).await {
            info!(name = %entry.name, "canceled while it waited");
        }
    }

    /// Logs why a backup is passed over, once per reason.
    fn tell(&mut self, view: &View, decided: &Plan) {
        let mut told = HashMap::with_capacity(decided.waiting.len());
        for waiting in &decided.waiting {
            let Some(entry) = view.backups.get(waiting.backup) else { continue };
            if self.told.get(&entry.uid) != Some(&waiting.reason)
                && let Reason::Overlap { with, namespaces, .. } = &waiting.reason
            {
                let namespaces = namespaces.join(",");
                info!(name = %entry.name, place = waiting.place, %with, %namespaces, "passed over: namespaces in conflict");
            }
            told.insert(entry.uid.clone(), waiting.reason.clone());
        }
        self.told = told;
    }
}

async fn place_at(api: &Api<Backup>, store: &Store, entry: &Entry, place: u32) {
    let status = json!({"phase": BackupPhase::Queued.as_str(), "queuePosition": place});
    // What the webhook did not see gets its mark here.
    let metadata = match (entry.phase, entry.enqueued_at) {
        (Phase::New, None) => {
            info!(name = %entry.name, place, "queued: the webhook had not seen it");
            json!({"annotations": {keys::ENQUEUED_AT: format!("{:.6}", Timestamp::now())}})
        }
        _ => json!({}),
    };
    write(api, store, entry, metadata, status).await;
}

/// One merge patch on the version that was decided on. `false`: look again.
async fn write(api: &Api<Backup>, store: &Store, entry: &Entry, mut metadata: Value, status: Value) -> bool {
    let Some(item) =
        store.get(&entry.name).filter(|item| Arc::as_ptr(&item.entry) == std::ptr::from_ref(entry))
    else {
        return false;
    };
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("resourceVersion".to_owned(), json!(item.resource_version));
        metadata.insert("uid".to_owned(), json!(entry.uid));
    }
    let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match timeout(WRITE, api.patch(&entry.name, &params, &patch)).await {
        Ok(Ok(backup)) => {
            store.observe_write(&backup);
            true
        }
        Ok(Err(error)) if is_not_found(&error) => {
            store.forget(&entry.name, &entry.uid);
            false
        }
        Ok(Err(error)) if is_conflict(&error) => false,
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
