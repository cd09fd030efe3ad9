//! `berth controller`: one leads, the others wait.

use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::Backup;
use kube::runtime::watcher;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::args::ControllerArgs;
use crate::backup::discovery::Discovery;
use crate::backup::executor::Executor;
use crate::backup::run::Engine;
use crate::certificates::Keeper;
use crate::client::Clients;
use crate::leader::Candidate;
use crate::mirror::mirror;
use crate::queue::Store;
use crate::queue::cycle::Cycle;
use crate::storage::{Checker, Opener};
use crate::{health, shutdown};

/// Name of the Lease that the leader holds.
pub const LEASE: &str = "berth-controller";
/// How long the first list of a new leader may take before it says so.
const SLOW_LIST: Duration = Duration::from_secs(30);

pub async fn run(args: ControllerArgs) -> anyhow::Result<()> {
    let stop = shutdown::on_signal()?;
    let clients = Clients::new(args.common.kubeconfig.as_deref()).await?;
    health::serve(args.common.health_address, || true, stop.clone()).await?;
    let identity = identity();
    let namespace = args.common.namespace.as_str();
    let candidate = Candidate::new(clients.call.clone(), namespace, LEASE, identity, args.lease_duration)
        .telling(keys::CONCURRENT_BACKUPS, args.common.concurrent_backups.to_string());
    while !stop.is_cancelled() {
        tokio::select! {
            () = candidate.acquire() => {}
            () = stop.cancelled() => break,
        }
        tokio::select! {
            () = candidate.keep() => warn!("no longer leading: everything stops here"),
            () = lead(&args, &clients, stop.clone()) => {
                candidate.release().await;
                break;
            }
        }
    }
    info!("stopped");
    Ok(())
}

/// Everything that only one may do. Ends after `stop`, when the running backups have ended; dropped at once
/// when leadership is lost. Nothing survives it: the next leader begins from one list.
async fn lead(args: &ControllerArgs, clients: &Clients, stop: CancellationToken) {
    let namespace = args.common.namespace.as_str();
    let store = Arc::new(Store::default());
    let watching = mirror::<Backup>(clients.watch.clone(), namespace, watcher::Config::default(), |change| {
        store.observe(change)
    });
    let keeper = Keeper {
        client: clients.call.clone(),
        namespace: namespace.to_owned(),
        secret: args.common.certificate_secret.clone(),
        configuration: args.webhook_configuration.clone(),
        names: certificate_names(&args.webhook_service, namespace, &args.webhook_names),
    };
    let checker = Checker::new(clients.call.clone(), namespace, args.store_validation_frequency);
    let engine = Engine {
        client: clients.call.clone(),
        namespace: namespace.to_owned(),
        discovery: Arc::new(Discovery::new(clients.call.clone())),
        opener: Opener::new(clients.call.clone(), namespace),
        workers: usize::from(args.item_block_worker_count),
        page_size: args.client_page_size,
        list_retry: args.list_retry_timeout,
        default_ttl: args.default_backup_ttl,
    };
    let slots = usize::from(args.common.concurrent_backups);
    let cycle = Cycle::new(clients.call.clone(), namespace, Arc::clone(&store), slots);
    let executor = Executor { engine, store: Arc::clone(&store), stop };
    let working = async {
        let mut changed = store.changed();
        while !store.is_synced() {
            if tokio::time::timeout(SLOW_LIST, changed.changed()).await.is_err() {
                warn!("the Backups could not be listed yet");
            }
        }
        tokio::select! {
            () = executor.run() => {}
            () = cycle.run() => {}
        }
    };
    tokio::select! {
        () = working => {}
        () = watching => warn!("the watch of Backups ended"),
        () = async { tokio::join!(keeper.run(), checker.run()); } => {}
    }
}

/// Who we are in the Lease: the pod's name, and something that a restart changes.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").ok().or_else(|| {
        std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned())
    });
    let started = jiff::Timestamp::now().as_microsecond();
    format!("{}_{}_{started:x}", host.unwrap_or_else(|| "berth".to_owned()), std::process::id())
}

fn certificate_names(service: &str, namespace: &str, more: &[String]) -> Vec<String> {
    let service = [format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")];
    service.into_iter().chain(more.iter().cloned()).collect()
}
