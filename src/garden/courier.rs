//! The courier copies what the hub decided for this seed into the member cluster, with credentials,
//! and reports back. It creates storage locations of entries, and tells the hub that the seed is
//! alive. A cluster that uses another one's name syncs nothing ([`heartbeat`]).
//!
//! For each bucket and entry it freezes a view ([`freeze`]), has core plan one step
//! ([`berth_garden_core::member`]), acts ([`act`]), and looks again. It remembers nothing, so the
//! next leader begins with one list. While the hub cannot be reached, what it last said stands; but
//! data is removed only while the hub confirms it.

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

use berth_api::keys;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_garden_api::member_objects::is_ours;
use futures::{StreamExt, stream};
use kube::{Resource, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::client::Clients;
use crate::garden::deletion_permits::DeletionPermits;
use crate::pace::paced;
use crate::text::chain;
use heartbeat::{ClusterIdentity, Heart};
use quiet::QuietEntries;
use view::{HubCaches, MemberCaches};
use write::CourierError;

/// A pass begins at least this often.
const PERIOD: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// Changes that come within this time are handled in one pass.
const GATHER: Duration = Duration::from_millis(20);
const AT_ONCE: usize = 16;
/// How long the first lists may take before the log says so.
const SLOW_LIST: Duration = Duration::from_secs(30);

/// Settings of a courier.
#[derive(Clone)]
pub struct CourierSettings {
    /// Name of this cluster's Seed in the hub.
    pub seed: String,
    /// Namespace of the BackupStorageLocations.
    pub namespace: String,
    /// Namespace of the credentials of buckets, in both clusters.
    pub garden_namespace: String,
}

pub struct Courier {
    settings: CourierSettings,
    hub_clients: Clients,
    clients: Clients,
    hub: HubCaches,
    member: MemberCaches,
    changes: Arc<watch::Sender<u64>>,
    /// What the hub permits to be removed.
    permits: Arc<DeletionPermits>,
    identity: watch::Sender<ClusterIdentity>,
    quiet: QuietEntries,
}

impl Courier {
    pub fn new(
        settings: CourierSettings,
        hub_clients: Clients,
        clients: Clients,
        permits: Arc<DeletionPermits>,
    ) -> Self {
        let changes = Arc::new(watch::Sender::default());
        let hub = HubCaches::new(&settings.garden_namespace, &changes);
        let member = MemberCaches::new(&settings.namespace, &settings.garden_namespace, &changes);
        let identity = watch::Sender::new(ClusterIdentity::Unknown);
        let quiet = QuietEntries::default();
        Self { settings, hub_clients, clients, hub, member, changes, permits, identity, quiet }
    }

    /// Runs while this process leads.
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
            self.sync(),
        );
    }

    async fn sync(&self) {
        let mut changed = self.changes.subscribe();
        while !self.hub.is_synced() || !self.member.is_synced() {
            if timeout(SLOW_LIST, changed.changed()).await.is_err() {
                warn!(
                    hub = self.hub.is_synced(),
                    member = self.member.is_synced(),
                    "waiting for the first lists"
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

    /// Waits until the hub has said that no other cluster is the seed.
    async fn become_the_seed(&self, identity: &mut watch::Receiver<ClusterIdentity>) {
        if *identity.borrow_and_update() == ClusterIdentity::Ours {
            return;
        }
        // What the hub permitted, it permitted to another cluster.
        self.permits.revoke_all();
        loop {
            let found = *identity.borrow_and_update();
            match found {
                ClusterIdentity::Ours => break,
                // That cluster writes there.
                ClusterIdentity::Anothers => self.close().await,
                ClusterIdentity::Unknown => {}
            }
            let _ = timeout(paced(PERIOD), identity.changed()).await;
        }
        info!(seed = %self.settings.seed, "syncing");
    }

    /// Makes all locations read-only that lead into entries' directories. Once this cluster is the
    /// seed, it opens its own again.
    async fn close(&self) {
        for location in self.member.locations.all() {
            let is_shared = is_ours(location.meta()) || location.labels().contains_key(keys::HUB_UID);
            if !is_shared || location.spec.access_mode == Some(AccessMode::ReadOnly) {
                continue;
            }
            let name = location.name_any();
            let change = json!({"spec": {"accessMode": AccessMode::ReadOnly}});
            match self.locations().patch(&location, json!({}), change).await {
                Ok(()) => warn!(name, "made a location read-only: another cluster is the seed"),
                Err(failure) => warn!(name, error = chain(&failure), "could not make a location read-only"),
            }
        }
    }

    /// Handles every object once. `false`: something failed.
    async fn pass(&self) -> bool {
        self.hub.want_credentials(&self.settings.seed);
        let buckets = names([
            self.hub.buckets.all().iter().map(|bucket| bucket.name_any()).collect(),
            ours(&self.member.buckets.all()),
        ]);
        let entries = names([
            self.hub.entries.all().iter().map(|entry| entry.name_any()).collect(),
            ours(&self.member.entries.all()),
            // Locations that people led into an entry's directory.
            entries_of(&self.member.locations.all()),
            // The Secret is removed last when a location is taken away.
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

    fn settled(&self, kind: &str, name: &str, outcome: Result<(), CourierError>) -> bool {
        match outcome {
            Ok(()) => true,
            Err(failure) if failure.passes() => {
                debug!(kind, name, error = chain(&failure), "not yet");
                false
            }
            Err(failure) => {
                warn!(kind, name, error = chain(&failure), "could not sync an object");
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
