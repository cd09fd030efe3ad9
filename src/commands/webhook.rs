//! `berth webhook`: any number of replicas, no leader, no state but its watch caches.

use std::sync::Arc;

use anyhow::Context as _;
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_certs::CurrentKey;
use berth_core::location::Location;
use berth_core::queue::View;
use berth_webhooks::{Desk, Identities, Known, router, server};
use jiff::Timestamp;
use kube::runtime::watcher;
use tokio::sync::watch;
use tracing::info;

use crate::args::WebhookArgs;
use crate::backup::prepare::known_location;
use crate::client::Clients;
use crate::mirror::{Change, mirror};
use crate::queue::Store;
use crate::{certificates, health, shutdown};

struct Caches {
    slots: usize,
    queue: Store,
    /// `None` until they have been listed.
    locations: watch::Sender<Option<Arc<Vec<Location>>>>,
    key: Arc<CurrentKey>,
}

#[derive(Clone)]
struct Shared(Arc<Caches>);

impl Known for Shared {
    fn ready(&self) -> bool {
        self.0.queue.is_synced() && self.0.locations.borrow().is_some() && self.0.key.is_set()
    }

    fn queue(&self) -> View {
        self.0.queue.view(self.0.slots)
    }

    fn has_seen(&self, mark: Timestamp) -> bool {
        self.0.queue.has_seen(mark)
    }

    fn locations(&self) -> Arc<Vec<Location>> {
        self.0.locations.borrow().clone().unwrap_or_default()
    }

    fn locations_changed(&self) -> impl Future<Output = ()> + Send {
        let mut changes = self.0.locations.subscribe();
        async move {
            // The sender lives as long as we do.
            let _ = changes.changed().await;
        }
    }
}

pub async fn run(args: WebhookArgs) -> anyhow::Result<()> {
    let WebhookArgs { common, listen, queue_identities, executor_identities, lifecycle_identities } = args;
    let stop = shutdown::on_signal()?;
    let listener =
        std::net::TcpListener::bind(listen).with_context(|| format!("--listen {listen} cannot be used"))?;
    listener.set_nonblocking(true)?;
    let clients = Clients::new(common.kubeconfig.as_deref()).await?;
    let caches = Arc::new(Caches {
        slots: usize::from(common.concurrent_backups),
        queue: Store::default(),
        locations: watch::Sender::new(None),
        key: Arc::default(),
    });
    let shared = Shared(Arc::clone(&caches));
    let ready = shared.clone();
    health::serve(common.health_address, move || ready.ready(), stop.clone()).await?;

    let namespace = common.namespace.as_str();
    let everything = watcher::Config::default;
    let backups = mirror::<Backup>(clients.watch.clone(), namespace, everything(), |change| {
        caches.queue.observe(change)
    });
    let locations = mirror_locations(&clients, namespace, &caches.locations);
    let keys = certificates::follow(
        clients.watch.clone(),
        namespace,
        &common.certificate_secret,
        Arc::clone(&caches.key),
    );
    let tls = Arc::new(caches.key.server_config()?);
    let or = |given: Vec<String>, account: &str| {
        if given.is_empty() { vec![format!("system:serviceaccount:{namespace}:{account}")] } else { given }
    };
    let identities = Identities {
        queue: or(queue_identities, "berth-controller"),
        executor: or(executor_identities, "berth-controller"),
        lifecycle: or(lifecycle_identities, "velero"),
    };
    let desk = Arc::new(Desk::new(shared, identities, Timestamp::now));
    info!(%listen, %namespace, "answering admission reviews");
    let serving = server::serve(listener, tls, router(desk), stop.clone().cancelled_owned());
    tokio::select! {
        served = serving => served.context("the HTTPS server ended"),
        () = async { tokio::join!(backups, locations, keys); } => anyhow::bail!("a watch ended"),
    }
}

async fn mirror_locations(
    clients: &Clients,
    namespace: &str,
    known: &watch::Sender<Option<Arc<Vec<Location>>>>,
) {
    let everything = watcher::Config::default();
    mirror::<BackupStorageLocation>(clients.watch.clone(), namespace, everything, |change| {
        known.send_modify(|known| {
            let mut locations = known.as_deref().cloned().unwrap_or_default();
            match change {
                Change::All(all) => locations = all.iter().map(known_location).collect(),
                Change::Applied(location) => {
                    let location = known_location(&location);
                    locations.retain(|other| other.name != location.name);
                    locations.push(location);
                }
                Change::Deleted(name) => locations.retain(|other| other.name != name),
            }
            locations.sort_by(|a, b| a.name.cmp(&b.name));
            *known = Some(Arc::new(locations));
        });
    })
    .await;
}
