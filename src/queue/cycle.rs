//! One cycle: freeze, decide, act. Runs only while this process leads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::keys::{self, FIELD_MANAGER};
use berth_api::velero::{Backup, BackupPhase};
use berth_core::queue::{Cause, Entry, Phase, Plan, RenumberBudget, View, plan};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use super::Store;
use super::teller::Teller;
use crate::client::{is_conflict, is_not_found};
use crate::events::What;
use crate::telemetry::chain;

/// Looks again at least this often, whatever the watch shows.
const PERIOD: Duration = Duration::from_secs(5);
/// Looks again this soon while positions are still to be corrected.
const RENUMBER: Duration = Duration::from_millis(500);
const WRITE: Duration = Duration::from_secs(10);
const WRITES_AT_ONCE: usize = 8;
/// Something could start, and nothing moved for so long: what we know of the cluster must be wrong.
const WATCHDOG: Duration = Duration::from_secs(15);

/// Failure reason of what people canceled.
pub const CANCELED: &str = "Canceled: somebody asked for it";

pub struct Cycle {
    api: Api<Backup>,
    store: Arc<Store>,
    stopped: watch::Receiver<Option<String>>,
    budget: RenumberBudget,
    teller: Teller,
    /// Since when something should have started.
    overdue: Option<Instant>,
}

impl Cycle {
    pub fn new(
        client: Client,
        namespace: &str,
        store: Arc<Store>,
        stopped: watch::Receiver<Option<String>>,
        teller: Teller,
    ) -> Self {
        let api = Api::namespaced(client, namespace);
        let budget = RenumberBudget::new(Timestamp::now());
        Self { api, store, stopped, budget, teller, overdue: None }
    }

    /// For ever.
    pub async fn run(mut self) {
        let mut changed = self.store.changed();
        loop {
            changed.mark_unchanged();
            self.stopped.mark_unchanged();
            let begun = Instant::now();
            let pace = self.once().await;
            self.teller.metrics.cycle.observe(begun.elapsed().as_secs_f64());
            // Both senders live as long as we do.
            tokio::select! {
                _ = timeout(pace, changed.changed()) => {}
                _ = self.stopped.changed() => {}
            }
        }
    }

    async fn once(&mut self) -> Duration {
        if !self.store.is_synced() {
            return PERIOD;
        }
        let now = Timestamp::now();
        let view = self.store.view(self.stopped.borrow().clone(), now);
        let decided = plan(&view);
        self.teller.tell(&view, &decided);
        for end in &decided.end {
            if let Some(entry) = view.backups.get(end.backup) {
                self.end(&view, entry, &end.cause).await;
            }
        }
        let mut started = 0;
        for entry in decided.start.iter().filter_map(|i| view.backups.get(*i)) {
            // In order, one after the other: a later one never starts before an earlier one has.
            if !self.start(entry).await {
                self.watch_over(&decided, started);
                return RENUMBER;
            }
            started += 1;
        }
        self.watch_over(&decided, started);
        let left = self.renumber(&view, &decided, started).await;
        if left { RENUMBER } else { PERIOD }
    }

    /// Writes as many positions as the budget allows. Are there more?
    async fn renumber(&mut self, view: &View, decided: &Plan, started: usize) -> bool {
        let budget = self.budget.earn(started, Timestamp::now());
        let wrong = decided.renumber(view, usize::MAX).count();
        let writes: Vec<_> = decided.renumber(view, budget).collect();
        self.budget.spend(writes.len());
        let left = wrong > writes.len();
        let this = &*self;
        let writes =
            writes.into_iter().filter_map(|w| view.backups.get(w.backup).map(|entry| (entry, w.place)));
        futures::stream::iter(writes)
            .for_each_concurrent(WRITES_AT_ONCE, |(entry, place)| this.place(entry, place))
            .await;
        left
    }

    /// Slots free, something runnable, nothing moved: says so, and lists everything anew.
    fn watch_over(&mut self, decided: &Plan, started: usize) {
        if decided.start.len() == started {
            self.overdue = None;
            return;
        }
        let since = *self.overdue.get_or_insert_with(Instant::now);
        if since.elapsed() >= WATCHDOG {
            warn!(
                runnable = decided.start.len(),
                "backups could start, and nothing moves: listing everything anew"
            );
            self.teller.metrics.watchdog_trips.inc();
            self.store.ask_for_relist();
            self.overdue = None;
        }
    }

    async fn start(&self, entry: &Entry) -> bool {
        let status = json!({"phase": BackupPhase::ReadyToStart.as_str(), "queuePosition": null});
        let written = self.write(entry, json!({}), status).await;
        if written {
            self.teller.dequeued(entry, Timestamp::now());
        }
        written
    }

    async fn end(&self, view: &View, entry: &Entry, cause: &Cause) {
        let (what, reason) = match cause {
            Cause::Canceled => (What::Canceled, CANCELED.to_owned()),
            Cause::Superseded { by } => {
                let by = view.backups.get(*by).map(|entry| entry.name.as_str()).unwrap_or_default();
                (
                    What::Superseded,
                    format!("Superseded: {by}, a later backup of the same schedule, takes its place"),
                )
            }
        };
        let status = json!({
            "phase": BackupPhase::Failed.as_str(),
            "queuePosition": null,
            "failureReason": reason,
            "completionTimestamp": Time(Timestamp::now()),
        });
        if self.write(entry, json!({}), status).await {
            self.teller.ended(entry, what, &reason);
        }
    }

    async fn place(&self, entry: &Entry, place: u32) {
        let status = json!({"phase": BackupPhase::Queued.as_str(), "queuePosition": place});
        // What the webhook did not see gets its mark here.
        let metadata = match (entry.phase, entry.enqueued_at) {
            (Phase::New, None) => {
                info!(name = %entry.name, place, "queued: the webhook had not seen it");
                json!({"annotations": {keys::ENQUEUED_AT: format!("{:.6}", Timestamp::now())}})
            }
            _ => json!({}),
        };
        if self.write(entry, metadata, status).await {
            self.teller.metrics.positions_written.inc();
        }
    }

    /// One merge patch on the version that was decided on. `false`: look again.
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
                self.teller.metrics.conflicts.inc();
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
