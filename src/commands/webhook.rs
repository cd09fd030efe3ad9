//! `berth webhook`: any number of replicas, without a leader, and without state besides watch
//! caches.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_api::node_agent::ReclaimPolicy;
use berth_certs::{ClientAuthority, CurrentKey};
use berth_core::affinity::{AffinityDecision, AffinityFinding};
use berth_core::location::Location;
use berth_core::mover::grant::Mover;
use berth_core::queue::{Band, QueueEntry, QueueOrder, QueueView};
use berth_core::schedule::preview::Others;
use berth_core::violation::tellable;
use berth_core::volume::takers::Takers;
use berth_garden_core as garden;
use berth_garden_core::check::SecretLookup;
use berth_webhooks::listers::{GardenListers, MoverListers};
use berth_webhooks::placement::{MoverRef, PodConstraints};
use berth_webhooks::{AdmissionState, EventRecorder, Identities, Listers, router, server};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::args::WebhookArgs;
use crate::certificates::KeyReloader;
use crate::certificates::ca_bundles::CaBundles;
use crate::certificates::follow::CertificateMetrics;
use crate::client::Clients;
use crate::events::{EventReason, Events};
use crate::garden::admission_view::SharedBuckets;
use crate::lifecycle::schedule::plans::Plans;
use crate::movers::configuration;
use crate::movers::ledger::{GrantSignPeriods, InForce};
use crate::movers::nudge;
use crate::movers::objects::reference;
use crate::movers::placing::Placing;
use crate::movers::snapshot_classes::SnapshotClasses;
use crate::movers::volumes::MoverVolumes;
use crate::pace::paced;
use crate::queue::cache::reflect_queue;
use crate::queue::{BackupCache, QueueSettings, definition};
use crate::settings::Executor;
use crate::{health, shutdown};

/// Start times are estimated only for queues up to this length, because the API server waits for
/// the answer.
const ESTIMATE_MOST: usize = 32;

struct Caches {
    store: BackupCache,
    key: Arc<CurrentKey>,
    cannot_queue: watch::Sender<Option<String>>,
    executor: Executor,
    placing: Placing,
    snapshot_classes: SnapshotClasses,
    plans: Plans,
    ledger: InForce,
    garden: SharedBuckets,
    started: Instant,
    pulse: health::Pulse,
}

/// After this time a replica becomes ready without the caches of nodes, shared buckets and the
/// like, so that Backups are queued even if it may not read those.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Clone)]
struct WebhookCaches(Arc<Caches>);

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
struct ReviewEvents {
    events: Events,
    namespace: String,
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

fn client_authority(file: &Path) -> anyhow::Result<ClientAuthority> {
    let read = || Ok::<_, anyhow::Error>(ClientAuthority::parse(&std::fs::read(file)?)?);
    read().with_context(|| format!("--client-ca {} cannot be used", file.display()))
}

pub async fn run(args: WebhookArgs) -> anyhow::Result<()> {
    let WebhookArgs {
        common,
        listen,
        client_ca,
        shutdown_delay,
        webhook_configuration,
        queue_identities,
        executor_identities,
        lifecycle_identities,
        without_velero,
    } = args;
    let stop = shutdown::on_signal()?;
    let listener =
        crate::listen::listen(listen).with_context(|| format!("--listen {listen} cannot be used"))?;
    let client_ca = client_ca.as_deref().map(client_authority).transpose()?;
    let clients = Clients::new(common.kubeconfig.as_deref()).await?;
    let namespace = common.namespace.as_str();
    let mut registry = Registry::default();
    let events_dropped = crate::metrics::webhook_events_dropped(&mut registry);
    let (events, sending) = Events::new(clients.call.clone(), namespace, events_dropped);
    let settings = QueueSettings { slots: usize::from(common.concurrent_backups), order: common.order() };
    let cannot_queue = watch::Sender::new(None);
    let placing =
        Placing { node_cache: Arc::default(), volumes: MoverVolumes::new(clients.call.clone(), namespace) };
    let caches = Arc::new(Caches {
        store: BackupCache::new(settings),
        key: Arc::default(),
        cannot_queue,
        executor: common.executor,
        placing,
        snapshot_classes: SnapshotClasses::default(),
        plans: Plans::default(),
        ledger: InForce::new(GrantSignPeriods::new(common.movers.mover_grants_silent_after)),
        garden: SharedBuckets::new(clients.call.clone(), &common.garden_namespace),
        started: Instant::now(),
        pulse: health::Pulse::default(),
    });
    let shared = WebhookCaches(Arc::clone(&caches));
    let executor = match common.executor {
        Executor::Berth => "berth-controller",
        Executor::Velero => "velero",
    };
    let or = |given: Vec<String>, account: &str| {
        if given.is_empty() { vec![format!("system:serviceaccount:{namespace}:{account}")] } else { given }
    };
    let identities = Identities {
        queue: or(queue_identities, "berth-controller"),
        executor: or(executor_identities, executor),
        lifecycle: if without_velero { lifecycle_identities } else { or(lifecycle_identities, "velero") },
    };
    let recorder = ReviewEvents { events: events.clone(), namespace: namespace.to_owned() };
    let state = Arc::new(AdmissionState::new(shared.clone(), recorder, identities, Timestamp::now));
    state.register(&mut registry);
    let counts = CertificateMetrics::default();
    counts.register(&mut registry);
    // After SIGTERM the replica is unready at once, and live until its end.
    let asked = stop.clone();
    let ready = move || shared.ready() && !asked.is_cancelled();
    health::serve(
        common.reports.health_address,
        caches.pulse.clone(),
        ready,
        registry,
        CancellationToken::new(),
    )?;

    let watching = reflect_queue(&clients.watch, namespace, &caches.store);
    let trust = CaBundles { client: clients.call.clone(), configuration: webhook_configuration };
    let keys = KeyReloader {
        client: clients.watch.clone(),
        namespace: namespace.to_owned(),
        secret: common.certificate_secret.clone(),
        current: Arc::clone(&caches.key),
        counts,
        events,
        trust,
    }
    .follow();
    let looking = async {
        loop {
            let why = definition::check(&clients.call).await.err();
            let changed = caches.cannot_queue.send_replace(why.clone()) != why;
            if let Some(why) = why.filter(|_| changed) {
                warn!(%why, "Backups are let through unqueued");
            }
            tokio::time::sleep(paced(definition::PERIOD)).await;
        }
    };
    let configmap = common.node_agent_configmap.as_deref();
    let movers = async {
        let node_cache = &caches.placing.node_cache;
        tokio::join!(
            node_cache.follow(&clients.watch, namespace),
            configuration::follow(&clients.watch, namespace, configmap, node_cache),
            caches.placing.volumes.follow(&clients.watch),
            caches.snapshot_classes.follow(&clients.watch),
            caches.ledger.follow(&clients, namespace),
        );
    };
    let nudging = nudge::when_silent(&clients.call, namespace, caches.ledger.silent());
    let plans = caches.plans.follow(&clients.watch, namespace);
    let buckets = caches.garden.follow(&clients.watch);
    let delay = shutdown_delay.unwrap_or_default();
    let asks_for_certificate = client_ca.is_some();
    let tls = Arc::new(caches.key.server_config(client_ca)?);
    let intake = Arc::clone(state.intake());
    info!(%listen, %namespace, asks_for_certificate, "answering admission reviews");
    let serving = server::serve(listener, tls, router(state), intake, stop.cancelled_owned(), delay);
    tokio::select! {
        served = serving => served.context("the HTTPS server ended"),
        () = async { tokio::join!(watching, keys, sending, looking, movers, nudging, plans, buckets); } => anyhow::bail!("a watch ended"),
    }
}
