//! What the webhook answers from, and what it reports: the watch caches, when a replica is ready,
//! and the Events of reviews.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::node_agent::ReclaimPolicy;
use berth_certs::CurrentKey;
use berth_core::affinity::{AffinityDecision, AffinityFinding};
use berth_core::location::Location;
use berth_core::mover::grant::Mover;
use berth_core::mover::placement::{MoverRef, PodConstraints};
use berth_core::queue::{Band, QueueEntry, QueueOrder, QueueView};
use berth_core::schedule::preview::Others;
use berth_core::violation::tellable;
use berth_core::volume::takers::Takers;
use berth_garden_core as garden;
use berth_garden_core::check::SecretLookup;
use berth_webhooks::listers::{GardenListers, MoverListers};
use berth_webhooks::{EventRecorder, Listers};
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tracing::warn;

use crate::events::{EventReason, Events};
use crate::garden::admission_view::SharedBuckets;
use crate::health;
use crate::lifecycle::schedule::plans::Plans;
use crate::movers::ledger::InForce;
use crate::movers::objects::reference;
use crate::movers::placing::Placing;
use crate::movers::snapshot_classes::SnapshotClasses;
use crate::pace::paced;
use crate::queue::{BackupCache, definition};
use crate::settings::Executor;

/// Start times are estimated only for queues up to this length, because the API server waits for
/// the answer.
const ESTIMATE_MOST: usize = 32;
/// After this time a replica becomes ready without the caches of nodes, shared buckets and the
/// like, so that Backups are queued even if it may not read those.
const PATIENCE: Duration = Duration::from_secs(15);

/// What the webhook answers from.
pub struct AdmissionCaches {
    pub store: BackupCache,
    pub key: Arc<CurrentKey>,
    /// Why Backups cannot be queued at all.
    pub cannot_queue: watch::Sender<Option<String>>,
    pub executor: Executor,
    pub placing: Placing,
    pub snapshot_classes: SnapshotClasses,
    pub plans: Plans,
    pub ledger: InForce,
    pub garden: SharedBuckets,
    pub started: Instant,
    pub pulse: health::Pulse,
}

impl AdmissionCaches {
    /// Checks again and again whether the definition of Backups lets them be queued. Never returns.
    pub async fn watch_definition(&self, client: &Client) {
        loop {
            let why = definition::check(client).await.err();
            let changed = self.cannot_queue.send_replace(why.clone()) != why;
            if let Some(why) = why.filter(|_| changed) {
                warn!(%why, "Backups are let through unqueued");
            }
            tokio::time::sleep(paced(definition::PERIOD)).await;
        }
    }
}

/// The caches, as the webhook reads them. Clones share them.
#[derive(Clone)]
pub struct WebhookCaches(pub Arc<AdmissionCaches>);

impl MoverListers for WebhookCaches {
    fn place(
        &self,
        mover: &MoverRef<'_>,
        pod: &PodConstraints,
    ) -> impl Future<Output = Result<Option<AffinityDecision>, String>> + Send {
        self.0.placing.decide(mover, pod)
    }

    /// Only while a leader grants places, because a gate that nobody opens would be worse than
    /// none.
    fn are_granted(&self) -> bool {
        self.0.ledger.is_kept()
    }

    fn configuration(&self) -> Option<String> {
        self.0.placing.node_cache.read(|state| state.configuration.name.clone())
    }

    fn classes(&self) -> Option<BTreeMap<String, ReclaimPolicy>> {
        self.0.placing.node_cache.read(|state| state.has_classes().then(|| state.reclaim_policies()))
    }

    fn with_takers<T>(&self, look: impl FnOnce(&Takers<'_>) -> T) -> T {
        self.0.snapshot_classes.read(|drivers| {
            self.0.placing.node_cache.read(|state| {
                let (agents, own_agents) = (state.has_agents(), state.has_own_agents());
                look(&Takers { agents, own_agents, drivers, provisioners: state.provisioners() })
            })
        })
    }
}

impl GardenListers for WebhookCaches {
    fn garden(&self) -> Option<Arc<garden::GardenView>> {
        self.0.garden.view()
    }

    fn garden_changed(&self) -> impl Future<Output = ()> + Send {
        self.0.garden.changed()
    }

    fn credentials(&self, secret: &garden::SecretRef) -> impl Future<Output = SecretLookup> + Send {
        self.0.garden.credentials(secret)
    }
}

impl Listers for WebhookCaches {
    fn ready(&self) -> bool {
        let knows = self.0.placing.node_cache.is_synced()
            && self.0.ledger.is_known()
            && self.0.garden.view().is_some();
        let patient = self.0.started.elapsed() < PATIENCE;
        self.0.store.is_synced() && self.0.key.is_set() && (knows || !patient)
    }

    fn cannot_queue(&self) -> Option<String> {
        self.0.cannot_queue.borrow().clone()
    }

    fn runs_backups(&self) -> bool {
        self.0.executor == Executor::Berth
    }

    fn queue(&self, newcomer: &QueueEntry, now: Timestamp) -> QueueView {
        self.0.store.view_facing(newcomer, now, ESTIMATE_MOST)
    }

    fn has_seen(&self, answered: &QueueEntry) -> bool {
        self.0.store.has_seen(answered)
    }

    fn locations(&self) -> Arc<Vec<Location>> {
        self.0.store.locations()
    }

    fn schedules(&self) -> Option<Others> {
        self.0.plans.known()
    }

    fn locations_changed(&self) -> impl Future<Output = ()> + Send {
        self.0.store.locations_changed()
    }

    fn order(&self) -> &QueueOrder {
        &self.0.store.settings().order
    }

    fn expected_start(&self, view: &QueueView, uid: &str, now: Timestamp) -> Option<Band<Timestamp>> {
        let of = |index: usize| view.backups.get(index).is_some_and(|entry| entry.uid == uid);
        let expected = self.0.store.expectations(view, now, ESTIMATE_MOST);
        expected.into_iter().find(|e| of(e.backup))?.start
    }

    fn within(&self, limit: Duration) -> impl Sized + Send {
        self.0.pulse.within(limit)
    }
}

/// Hands Events to the task that sends them.
pub struct ReviewEvents {
    pub events: Events,
    pub namespace: String,
}

impl EventRecorder for ReviewEvents {
    fn placement(&self, mover: &MoverRef<'_>, finding: &AffinityFinding) {
        let about = Mover::new(mover.kind, mover.name, mover.uid, Timestamp::UNIX_EPOCH);
        let about = reference(&self.namespace, &about);
        self.events.tell_about(EventReason::Placement, about, finding.to_string());
    }

    fn foreign_queue(&self, name: &str, uid: &str, user: &str) {
        let user = tellable(user);
        warn!(name = %tellable(name), %user, "refused another queue's write to a Backup: start Velero with --disable-controllers=backup-queue");
        let note = format!(
            "refused to {user}, which runs a queue of its own: start Velero with --disable-controllers=backup-queue"
        );
        self.events.tell(EventReason::ForeignQueue, name, uid, note);
    }
}
