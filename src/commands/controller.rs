//! `berth controller`: one replica leads, the others wait.

use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use berth_garden_core::hub::HubSettings;
use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::args::ControllerArgs;
use crate::backup::discovery::Discovery;
use crate::backup::engine::{Engine, VolumeDefaults};
use crate::backup::exec::Kubelets;
use crate::backup::list::REQUESTS_AT_ONCE;
use crate::backup::metrics::BackupMetrics;
use crate::backup::removals::Removals;
use crate::backup::turns::Turns;
use crate::backup::upload::PART;
use crate::certificates::ca_bundles::CaBundles;
use crate::certificates::{CaBundleMonitor, CertificateKeeper};
use crate::client::Clients;
use crate::data_movement::OwnMovements;
use crate::events::Events;
use crate::garden::hub::Hub;
use crate::health::{self, Pulse};
use crate::leader::{LEASE, LeaseAnnotations, LeaseCandidate, identity};
use crate::lifecycle::age::AgeMetrics;
use crate::lifecycle::known::KnownBackups;
use crate::lifecycle::schedule::metrics::ScheduleMetrics;
use crate::lifecycle::sync::metrics::SyncMetrics;
use crate::lifecycle::velero_controllers::VeleroControllers;
use crate::lifecycle::{Lifecycle, Links, serve_downloads};
use crate::metrics::{GardenMetrics, MoverMetrics, QueueMetrics};
use crate::movers::granting::Granting;
use crate::movers::ledger::GrantSignPeriods;
use crate::movers::placing::Placing;
use crate::movers::volumes::MoverVolumes;
use crate::movers::{NodeCache, configuration_watch, reporter};
use crate::node_agent::repositories::Repositories;
use crate::queue::cache::reflect_queue;
use crate::queue::cycle::Cycle;
use crate::queue::gate::{Gate, Stopped};
use crate::queue::reporter::QueueReporter;
use crate::queue::writer::{EndedBackupSettings, QueueWriter};
use crate::queue::{self, BackupCache};
use crate::settings::{Certificates, Executor};
use crate::storage::{LocationChecker, Opener};
use crate::{backup, shutdown};

/// Packers of a run: one per core, up to this many, because each holds some MiB.
pub(super) const PACKERS: usize = 8;
/// A new leader whose first list takes longer logs that it waits.
const SLOW_LIST: Duration = Duration::from_secs(30);

pub async fn run(args: ControllerArgs) -> anyhow::Result<()> {
    let stop = shutdown::on_signal()?;
    let clients = Clients::new(args.common.kubeconfig.as_deref()).await?;
    let mut registry = Registry::default();
    let metrics = LeaderMetrics::new(args.common.executor, &mut registry);
    let hub = args.hub.settings(&args.common.garden_namespace)?;
    let pulse = Pulse::default();
    health::serve(args.common.reports.health_address, pulse.clone(), || true, registry, stop.clone())?;
    let namespace = args.common.namespace.as_str();
    if let (Some(address), Some(links)) = (args.download_address, links(&args, &clients)) {
        let roots = args.folders.filesystem_roots.clone().into();
        serve_downloads(address, links, Opener::new(clients.call.clone(), namespace, roots), stop.clone())?;
    }
    let candidate =
        LeaseCandidate::new(clients.call.clone(), namespace, LEASE, identity(), args.lease_duration);
    let candidate = Arc::new(candidate);
    let notes = candidate.notes();
    notes.put(keys::CONCURRENT_BACKUPS, args.common.concurrent_backups.to_string());
    notes.put(keys::EXECUTOR, args.common.executor.as_str().to_owned());
    notes.put(keys::CONTROLLERS, String::new());
    notes.put(keys::VERSION, env!("CARGO_PKG_VERSION").to_owned());
    notes.put(keys::NODE_AGENT_CONFIGMAP, args.common.node_agent_configmap.clone().unwrap_or_default());
    notes.put(keys::QUEUE_ORDER, berth_api::order::to_json(&args.common.order())?);
    while !stop.is_cancelled() {
        tokio::select! {
            () = candidate.acquire() => {}
            () = stop.cancelled() => break,
        }
        let work = lead(&args, &clients, &metrics, &hub, notes, pulse.clone(), stop.clone());
        let is_lost = tokio::select! {
            _ = candidate.keep_beside() => true,
            () = work => false,
        };
        if !is_lost {
            candidate.release().await;
            break;
        }
        metrics.forget();
        warn!("no longer leading: everything stops here");
    }
    info!("stopped");
    Ok(())
}

/// The metrics that the leader sets.
struct LeaderMetrics {
    queue: QueueMetrics,
    movers: MoverMetrics,
    garden: GardenMetrics,
    backups: BackupMetrics,
    schedules: ScheduleMetrics,
    sync: SyncMetrics,
    ages: AgeMetrics,
}

impl LeaderMetrics {
    fn new(executor: Executor, registry: &mut Registry) -> Self {
        let (queue, movers, garden) =
            (QueueMetrics::new(registry), MoverMetrics::new(registry), GardenMetrics::new(registry));
        let (backups, schedules, sync, ages) = match executor {
            Executor::Berth => (
                BackupMetrics::new(registry),
                ScheduleMetrics::new(registry),
                SyncMetrics::new(registry),
                AgeMetrics::new(registry),
            ),
            // Velero counts the backups that it runs.
            Executor::Velero => Default::default(),
        };
        Self { queue, movers, garden, backups, schedules, sync, ages }
    }

    /// Clears what the next leader sets.
    fn forget(&self) {
        self.backups.forget();
        self.schedules.forget();
        self.sync.forget();
        self.ages.forget();
    }
}

/// The work of the leader. It ends after `stop`, when the running Backups have ended or are handed
/// over, and is dropped at once when the Lease is lost. It leaves no state in memory: the next
/// leader begins from a list.
async fn lead(
    args: &ControllerArgs,
    clients: &Clients,
    metrics: &LeaderMetrics,
    hub: &HubSettings,
    notes: &LeaseAnnotations,
    pulse: Pulse,
    stop: CancellationToken,
) {
    let namespace = args.common.namespace.as_str();
    let client = || clients.call.clone();
    let store = Arc::new(BackupCache::new(queue::QueueSettings {
        slots: usize::from(args.common.concurrent_backups),
        order: args.common.order(),
    }));
    let keeper = CertificateKeeper {
        client: client(),
        watch: clients.watch.clone(),
        lead_time: args.ca_lead_time,
        namespace: namespace.to_owned(),
        secret: args.common.certificate_secret.clone(),
        configuration: args.webhook_configuration.clone(),
        names: certificate_names(args, namespace),
    };
    let watcher = CaBundleMonitor {
        trust: CaBundles { client: client(), configuration: args.webhook_configuration.clone() },
        metrics: metrics.queue.clone(),
    };
    let certificates = async {
        match args.certificates {
            Certificates::SelfManaged => keeper.run().await,
            Certificates::CertManager => watcher.run().await,
        }
    };
    let not_checked = Stopped {
        why: "whether backups can be run here is still being looked into".to_owned(),
        can_queue: false,
    };
    let stopped = Arc::new(watch::Sender::new(Some(not_checked)));
    let gate = Gate {
        client: client(),
        namespace: namespace.to_owned(),
        executor: args.common.executor,
        store: Arc::clone(&store),
        metrics: metrics.queue.clone(),
        stopped: Arc::clone(&stopped),
        configuration: args.webhook_configuration.clone(),
        notes: notes.clone(),
    };
    let (events, sending) = Events::new(client(), namespace, metrics.queue.events_dropped.clone());
    let movers = lead_movers(args, clients, &metrics.movers, events.clone());
    let hub = Hub {
        clients: clients.clone(),
        settings: hub.clone(),
        events: events.clone(),
        metrics: metrics.garden.clone(),
    };
    metrics.queue.leading.set(1);
    let keeping = EndedBackupSettings {
        default_ttl: args.default_backup_ttl,
        writes_spec: matches!(args.common.executor, Executor::Berth),
    };
    let writer = QueueWriter::new(
        client(),
        namespace,
        keeping,
        Arc::clone(&store),
        metrics.queue.clone(),
        events.clone(),
    );
    let reporter = QueueReporter::new(metrics.queue.clone(), events.clone(), notes.clone());
    let cycle = Cycle::new(Arc::clone(&store), writer, stopped.subscribe(), reporter, pulse);
    let executing = async {
        match args.common.executor {
            Executor::Berth => {
                execute(args, clients, &store, events.clone(), metrics, notes.clone(), stop.clone()).await;
            }
            Executor::Velero => stop.cancelled().await,
        }
    };
    let working = async {
        let mut changed = store.changed();
        while !store.is_synced() && !stop.is_cancelled() {
            tokio::select! {
                _ = changed.changed() => {}
                () = tokio::time::sleep(SLOW_LIST) => warn!("the Backups could not be listed yet"),
                () = stop.cancelled() => {}
            }
        }
        tokio::join!(executing, cycle.run(stop.clone()));
    };
    tokio::select! {
        () = working => {}
        () = reflect_queue(&clients.watch, namespace, &store) => warn!("the watch of Backups ended"),
        () = async { tokio::join!(certificates, gate.keep(), sending, movers, hub.run()); } => {}
    }
}

/// Grants places to data movers, reports faults of their placement, and has the data moved that is
/// left to berth. Runs for ever.
async fn lead_movers(args: &ControllerArgs, clients: &Clients, metrics: &MoverMetrics, events: Events) {
    let namespace = args.common.namespace.as_str();
    let configmap = args.common.node_agent_configmap.as_deref();
    let node_cache = Arc::new(NodeCache::default());
    let volumes = MoverVolumes::new(clients.call.clone(), namespace);
    let placing = Placing { node_cache: Arc::clone(&node_cache), volumes };
    let granting = Granting {
        clients: clients.clone(),
        namespace: namespace.to_owned(),
        patience: args.common.movers.patience(),
        signs: GrantSignPeriods::new(args.common.movers.mover_grants_silent_after),
        node_cache: Arc::clone(&node_cache),
        events: events.clone(),
        metrics: metrics.clone(),
    };
    let own = OwnMovements {
        clients: clients.clone(),
        namespace: namespace.to_owned(),
        host_pods: args.host_pods_folder.clone(),
        node_cache: Arc::clone(&node_cache),
        events: events.clone(),
        metrics: metrics.own.clone(),
    };
    tokio::join!(
        node_cache.follow(&clients.watch, namespace),
        configuration_watch::follow(&clients.watch, namespace, configmap, &node_cache),
        reporter::configuration(&placing, namespace, &events, metrics),
        reporter::missed(&clients.watch, namespace, &placing, &events, metrics),
        granting.run(),
        own.run(),
    );
}

/// Runs Backups that are ReadyToStart, checks storage locations, and runs the controllers of a
/// backup's life.
async fn execute(
    args: &ControllerArgs,
    clients: &Clients,
    store: &Arc<BackupCache>,
    events: Events,
    metrics: &LeaderMetrics,
    notes: LeaseAnnotations,
    stop: CancellationToken,
) {
    let (client, namespace) = (clients.call.clone(), args.common.namespace.as_str());
    let roots = args.folders.filesystem_roots.clone().into();
    let opener = Opener::new(client.clone(), namespace, roots);
    let checker =
        LocationChecker::new(client.clone(), namespace, opener.clone(), args.store_validation_frequency)
            .writing(args.store_write_check_frequency)
            .keeping_one_default(events.clone());
    let secret = args.repository_secret.clone();
    let repositories = Arc::new(Repositories::new(client.clone(), namespace, secret, opener.clone()));
    let removals = Removals::default();
    let lifecycle = Lifecycle {
        clients: clients.clone(),
        namespace: namespace.to_owned(),
        opener: opener.clone(),
        repositories: Arc::clone(&repositories),
        events: events.clone(),
        links: links(args, clients),
        certificate_secret: args.common.certificate_secret.clone(),
        disabled: args.disable_controllers.iter().copied().collect(),
        backups: Arc::clone(store),
        metrics: metrics.backups.clone(),
        schedule_metrics: metrics.schedules.clone(),
        schedule: args.schedule(),
        notes,
        velero_controllers: VeleroControllers::default(),
        known: Arc::new(KnownBackups::default()),
        sync_period: args.backup_sync_period,
        sync_metrics: metrics.sync.clone(),
        namespace_metrics: usize::try_from(args.namespace_metrics).unwrap_or(usize::MAX),
        age_metrics: metrics.ages.clone(),
        removals: removals.clone(),
        cluster: Arc::default(),
    };
    let engine = Engine {
        discovery: Arc::new(Discovery::new(client.clone())),
        opener,
        repositories,
        client,
        namespace: namespace.to_owned(),
        // The watch client, because a hook may be silent for as long as a watch.
        exec: Arc::new(Kubelets { client: clients.watch.clone() }),
        workers: usize::from(args.common.item_block_worker_count),
        packers: std::thread::available_parallelism().map_or(1, usize::from).min(PACKERS),
        page_size: args.client_page_size,
        list_retry: args.list_retry_timeout,
        requests: Arc::new(Semaphore::new(REQUESTS_AT_ONCE)),
        default_ttl: args.default_backup_ttl,
        volumes: VolumeDefaults {
            watches: clients.watch.clone(),
            files: args.default_volumes_to_fs_backup,
            moves: args.default_snapshot_move_data,
            files_timeout: args.fs_backup_timeout,
        },
        after_interruption: args.after_interruption.into(),
        part_size: PART,
        metrics: metrics.backups.clone(),
        since: tokio::time::Instant::now(),
        own: Arc::default(),
        data_of_deleted: Arc::default(),
        removals,
        cluster: Arc::default(),
        turns: Turns::default(),
    };
    let uploads = Arc::new(backup::operations::shown::UploadCache::default());
    let runner = backup::runner::Runner {
        engine,
        store: Arc::clone(store),
        uploads: Arc::clone(&uploads),
        events,
        stop,
        drain: args.drain_timeout.unwrap_or_default(),
    };
    tokio::select! {
        () = runner.run() => {}
        () = checker.run() => {}
        () = lifecycle.run() => {}
        () = uploads.follow(&clients.watch, namespace) => {}
        () = metrics.backups.keep(&clients.call, namespace) => {}
    }
}

/// How links to files of folders are made, if berth serves them.
fn links(args: &ControllerArgs, clients: &Clients) -> Option<Links> {
    Some(Links {
        client: clients.call.clone(),
        namespace: args.common.namespace.clone(),
        secret: args.common.certificate_secret.clone(),
        url: args.download_url.clone()?,
    })
}

fn certificate_names(args: &ControllerArgs, namespace: &str) -> Vec<String> {
    let service = &args.webhook_service;
    let service = [format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")];
    let url = args.download_url.as_deref().and_then(|url| url.strip_prefix("https://"));
    let host = url.map(|rest| match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address.to_owned(),
        None => rest.split(['/', ':']).next().unwrap_or(rest).to_owned(),
    });
    let mut names: Vec<String> = service.into_iter().chain(args.webhook_names.iter().cloned()).collect();
    names.extend(host.filter(|host| !host.is_empty() && !names.contains(host)));
    names
}
