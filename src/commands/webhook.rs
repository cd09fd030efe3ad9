//! `berth webhook`: any number of replicas, without a leader, and without state besides watch
//! caches.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use berth_certs::ClientAuthority;
use berth_webhooks::{AdmissionState, Identities, Listers as _, router, server};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::admission::{AdmissionCaches, ReviewEvents, WebhookCaches};
use crate::args::WebhookArgs;
use crate::certificates::KeyReloader;
use crate::certificates::ca_bundles::CaBundles;
use crate::certificates::follow::CertificateMetrics;
use crate::client::Clients;
use crate::events::Events;
use crate::garden::admission_view::SharedBuckets;
use crate::lifecycle::schedule::plans::Plans;
use crate::movers::configuration_watch;
use crate::movers::ledger::{GrantSignPeriods, InForce};
use crate::movers::nudge;
use crate::movers::placing::Placing;
use crate::movers::snapshot_classes::SnapshotClasses;
use crate::movers::volumes::MoverVolumes;
use crate::queue::cache::reflect_queue;
use crate::queue::{BackupCache, QueueSettings};
use crate::settings::Executor;
use crate::{health, shutdown};

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
    let caches = Arc::new(AdmissionCaches {
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
    let looking = caches.watch_definition(&clients.call);
    let configmap = common.node_agent_configmap.as_deref();
    let movers = async {
        let node_cache = &caches.placing.node_cache;
        tokio::join!(
            node_cache.follow(&clients.watch, namespace),
            configuration_watch::follow(&clients.watch, namespace, configmap, node_cache),
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
