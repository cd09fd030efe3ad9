//! Between a hub and a member cluster: what the hub gave to this seed goes down, with its credentials; what became of it goes
//! up. Storage locations are made of entries, and the hub hears that the seed is alive. A cluster that comes in another one's
//! name does none of it ([`heartbeat`]).
//!
//! Freeze, decide ([`berth_core::garden::handover`]), act, one step for each object, and look again. Nothing is remembered:
//! whoever leads next begins with one list. While the hub cannot be reached, it is taken to say what it last said; but data
//! is removed only while it says so.

mod act;
mod cache;
mod freeze;
mod heartbeat;
mod quiet;
mod secrets;
mod view;
mod write;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::garden::member_objects::is_ours;
use berth_api::keys;
use berth_api::velero::backup_storage_location::AccessMode;
use futures::{StreamExt, stream};
use kube::{Resource, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::client::Clients;
use crate::garden::leave::Leave;
use crate::pace::paced;
use crate::text::chain;
use heartbeat::{Heart, Identity};
use quiet::QuietEntries;
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
    identity: watch::Sender<Identity>,
    quiet: QuietEntries,
}

impl Courier {
    pub fn new(settings: Settings, hub_clients: Clients, clients: Clients, leave: Arc<Leave>) -> Self {
        let changes = Arc::new(watch::Sender::default());
        let hub = Hub::new(&settings.garden_namespace, &changes);
        let member = Member::new(&settings.namespace, &settings.garden_namespace, &changes);
        let identity = watch::Sender::new(Identity::Unknown);
        let quiet = QuietEntries::default();
        Self { settings, hub_clients, clients, hub, member, changes, leave, identity, quiet }
    }

    /// For ever, while this process leads.
    pub async fn run(&self) {
        let heart = Heart {
            hub: &self.hub_clients.call,
            member: &self.clients.call,
            seed: &self.settings.seed,
            identity: &self.identity,
        };
        tokio::join!(
            self.hub.follow(&self.hub_clients.watch),
            self.member.follow(&self.clients.watch),
            heart.run(),
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
        let mut identity = self.identity.subscribe();
        loop {
            self.become_the_seed(&mut identity).await;
            changed.mark_unchanged();
            let pace = if self.pass().await && self.quiet.is_empty() { paced(PERIOD) } else { RETRY };
            tokio::select! {
                _ = timeout(pace, changed.changed()) => {}
                _ = identity.changed() => {}
            }
            sleep(GATHER).await;
        }
    }

    /// Until the hub has said that no other cluster is the seed.
    async fn become_the_seed(&self, identity: &mut watch::Receiver<Identity>) {
        if *identity.borrow_and_update() == Identity::Ours {
            return;
        }
        // What the hub said was said to another cluster.
        self.leave.withdraw_all();
        loop {
            let found = *identity.borrow_and_update();
            match found {
                Identity::Ours => break,
                // That one writes there.
                Identity::Anothers => self.close().await,
                Identity::Unknown => {}
            }
            let _ = timeout(paced(PERIOD), identity.changed()).await;
        }
        info!(seed = %self.settings.seed, "carrying");
    }

    /// Makes all locations read-only that lead into entries' directories. Whoever is the seed opens its own again.
    async fn close(&self) {
        for location in self.member.locations.all() {
            let is_shared = is_ours(location.meta()) || location.labels().contains_key(keys::HUB_UID);
            if !is_shared || location.spec.access_mode == Some(AccessMode::ReadOnly) {
                continue;
            }
            let name = location.name_any();
            let change = json!({"spec": {"accessMode": AccessMode::ReadOnly}});
            match self.locations().patch(&location, json!({}), change).await {
                Ok(()) => warn!(name, "another cluster is the seed: this location is read-only from now on"),
                Err(failure) => warn!(name, error = chain(&failure), "it could not be made read-only"),
            }
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
        self.quiet.retain(&entries);
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
