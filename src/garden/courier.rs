//! Between a hub and a member cluster: what the hub gave to this seed goes down, with its credentials; what became of it goes
//! up. Storage locations are made of entries, and the hub hears that the seed is alive.
//!
//! Freeze, decide ([`berth_core::garden::handover`]), act, one step for each object, and look again. Nothing is remembered:
//! whoever leads next begins with one list. While the hub cannot be reached, it is taken to say what it last said; but data
//! is removed only while it says so.

mod entry;
mod handover;
mod heartbeat;
mod known;
mod leaving;
mod location;
mod orders;
mod secrets;
mod view;
mod write;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::garden::carried::is_ours;
use berth_api::keys;
use futures::{StreamExt, stream};
use kube::{Resource, ResourceExt};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::client::Clients;
use crate::garden::leave::Leave;
use crate::telemetry::chain;
use leaving::Quiet;
use view::{Hub, Member};
use write::Failure;

/// Looks again at least this often.
const PERIOD: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// One look takes in many changes.
const GATHER: Duration = Duration::from_millis(20);
const AT_ONCE: usize = 16;
/// How long the first lists may take before that is said.
const SLOW_LIST: Duration = Duration::from_secs(30);

/// What a courier is told.
#[derive(Clone)]
pub struct Settings {
    /// Name of the Seed that this cluster is in the hub.
    pub seed: String,
    /// Of the BackupStorageLocations.
    pub namespace: String,
    /// With the credentials of buckets, in both clusters.
    pub garden_namespace: String,
}

pub struct Courier {
    settings: Settings,
    hub_clients: Clients,
    clients: Clients,
    hub: Hub,
    member: Member,
    changes: Arc<watch::Sender<u64>>,
    /// What the hub says may be removed.
    leave: Arc<Leave>,
    quiet: Quiet,
}

impl Courier {
    pub fn new(settings: Settings, hub_clients: Clients, clients: Clients, leave: Arc<Leave>) -> Self {
        let changes = Arc::new(watch::Sender::default());
        let hub = Hub::new(&settings.garden_namespace, &changes);
        let member = Member::new(&settings.namespace, &settings.garden_namespace, &changes);
        let quiet = Quiet::default();
        Self { settings, hub_clients, clients, hub, member, changes, leave, quiet }
    }

    /// For ever, while this process leads.
    pub async fn run(&self) {
        tokio::join!(
            self.hub.follow(&self.hub_clients.watch),
            self.member.follow(&self.clients.watch),
            heartbeat::run(&self.hub_clients.call, &self.settings.seed),
            self.carry(),
        );
    }

    async fn carry(&self) {
        let mut changed = self.changes.subscribe();
        while !self.hub.is_synced() || !self.member.is_synced() {
            if timeout(SLOW_LIST, changed.changed()).await.is_err() {
                warn!(
                    hub = self.hub.is_synced(),
                    member = self.member.is_synced(),
                    "not everything could be listed yet"
                );
            }
        }
        info!(seed = %self.settings.seed, "carrying");
        loop {
            changed.mark_unchanged();
            let pace = if self.pass().await && self.quiet.is_empty() { PERIOD } else { RETRY };
            let _ = timeout(pace, changed.changed()).await;
            sleep(GATHER).await;
        }
    }

    /// Every object once. `false`: something failed.
    async fn pass(&self) -> bool {
        self.hub.want_credentials(&self.settings.seed);
        let buckets = names([
            self.hub.buckets.all().iter().map(|bucket| bucket.name_any()).collect(),
            ours(&self.member.buckets.all()),
        ]);
        let entries = names([
            self.hub.entries.all().iter().map(|entry| entry.name_any()).collect(),
            ours(&self.member.entries.all()),
            // Those, too, that people led into an entry's directory.
            entries_of(&self.member.locations.all()),
            // The last that is left of a location.
            entries_of(&self.member.location_secrets.all()),
        ]);
        self.quiet.keep(&entries);
        let buckets = stream::iter(buckets)
            .map(async |name| self.settled("bucket", &name, self.bucket(&name).await))
            .buffer_unordered(AT_ONCE)
            .fold(true, async |all, one| all & one)
            .await;
        let entries = stream::iter(entries)
            .map(async |name| self.settled("entry", &name, self.entry(&name).await))
            .buffer_unordered(AT_ONCE)
            .fold(true, async |all, one| all & one)
            .await;
        buckets & entries
    }

    fn settled(&self, kind: &str, name: &str, outcome: Result<(), Failure>) -> bool {
        match outcome {
            Ok(()) => true,
            Err(failure) if failure.passes() => {
                debug!(kind, name, error = chain(&failure), "not yet");
                false
            }
            Err(failure) => {
                warn!(kind, name, error = chain(&failure), "could not be carried");
                false
            }
        }
    }
}

fn ours<K: Resource<DynamicType = ()>>(objects: &[Arc<K>]) -> BTreeSet<String> {
    objects.iter().filter(|object| is_ours(object.meta())).map(|object| object.name_any()).collect()
}

fn entries_of<K: ResourceExt>(objects: &[Arc<K>]) -> BTreeSet<String> {
    objects.iter().filter_map(|object| object.labels().get(keys::BACKUP_ENTRY).cloned()).collect()
}

fn names<const N: usize>(sets: [BTreeSet<String>; N]) -> BTreeSet<String> {
    sets.into_iter().flatten().collect()
}
