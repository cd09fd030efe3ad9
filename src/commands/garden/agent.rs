//! `berth garden agent`: runs in a member cluster. One replica leads, the others wait.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tracing::{info, warn};

use crate::args::garden::AgentArgs;
use crate::client::Clients;
use crate::events::Events;
use crate::garden::courier::{Courier, CourierSettings};
use crate::garden::deletion_permits::DeletionPermits;
use crate::garden::executor::ExtensionExecutor;
use crate::leader::{LeaseCandidate, identity};
use crate::{health, shutdown};

/// Name of the Lease that the leading agent holds.
const LEASE: &str = "berth-garden-agent";

pub async fn run(args: AgentArgs) -> anyhow::Result<()> {
    let stop = shutdown::on_signal()?;
    let clients = Clients::new(args.kubeconfig.as_deref()).await?;
    let hub = match (&args.hub_kubeconfig, &args.seed) {
        (Some(kubeconfig), Some(seed)) => {
            let settings = CourierSettings {
                seed: seed.clone(),
                namespace: args.namespace.clone(),
                garden_namespace: args.garden_namespace.clone(),
            };
            Some((settings, Clients::new(Some(kubeconfig)).await?))
        }
        // Without a hub the agent acts on the objects of a gardenlet or a person.
        _ => None,
    };
    let mut registry = Registry::default();
    let dropped = crate::metrics::agent_events_dropped(&mut registry);
    health::serve(args.reports.health_address, health::Pulse::default(), || true, registry, stop.clone())?;
    let client = clients.call.clone();
    let candidate =
        Arc::new(LeaseCandidate::new(client, &args.namespace, LEASE, identity(), args.lease_duration));
    while !stop.is_cancelled() {
        tokio::select! {
            () = candidate.acquire() => {}
            () = stop.cancelled() => break,
        }
        tokio::select! {
            _ = candidate.keep_beside() => warn!("no longer leading: everything stops here"),
            () = lead(&args, &clients, hub.as_ref(), &dropped) => {}
            // Not waited for, because the next leader completes unfinished work.
            () = stop.cancelled() => {
                candidate.release().await;
                break;
            }
        }
    }
    info!("stopped");
    Ok(())
}

/// The work of the leader. Runs for ever; it is dropped with all its state at once when the Lease
/// is lost.
async fn lead(
    args: &AgentArgs,
    clients: &Clients,
    hub: Option<&(CourierSettings, Clients)>,
    events_dropped: &Counter,
) {
    let (events, sending) = Events::new(clients.call.clone(), &args.namespace, events_dropped.clone());
    let permits = hub.map(|_| Arc::new(DeletionPermits::default()));
    let executor = ExtensionExecutor {
        call: clients.call.clone(),
        watch: clients.watch.clone(),
        namespace: args.garden_namespace.clone(),
        permits: permits.clone(),
        events,
        roots: args.folders.filesystem_roots.clone().into(),
    };
    let carrying = async {
        if let (Some((settings, hub)), Some(permits)) = (hub, permits) {
            Courier::new(settings.clone(), hub.clone(), clients.clone(), permits).run().await;
        }
    };
    tokio::join!(executor.run(), carrying, sending);
}
