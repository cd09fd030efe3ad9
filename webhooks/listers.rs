//! Read access to a replica's watch caches. The process that runs the watches implements it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::node_agent::ReclaimPolicy;
use berth_core::affinity::AffinityDecision;
use berth_core::location::Location;
use berth_core::mover::placement::{MoverRef, PodConstraints};
use berth_core::queue::{Band, QueueEntry, QueueOrder, QueueView};
use berth_core::schedule::preview::Others;
use berth_core::volume::takers::Takers;
use berth_garden_core::check::SecretLookup;
use berth_garden_core::{self as garden, SecretRef};
use jiff::Timestamp;

/// Read access to what a replica has cached about data movers.
pub trait MoverListers: Send + Sync + 'static {
    /// Where this pod may run. `None`: nothing is configured for it, or no known data mover owns
    /// it.
    ///
    /// # Errors
    /// Why that cannot be decided.
    fn place(
        &self,
        mover: &MoverRef<'_>,
        pod: &PodConstraints,
    ) -> impl Future<Output = Result<Option<AffinityDecision>, String>> + Send;
    /// Are data movers prepared only after a leader has granted them a place?
    fn are_granted(&self) -> bool;
    /// Name of the node-agents' ConfigMap.
    fn configuration(&self) -> Option<String>;
    /// Reclaim policies by name of the StorageClass. `None`: the classes have not been listed yet.
    fn classes(&self) -> Option<BTreeMap<String, ReclaimPolicy>>;
    /// Lends who could take the data of volumes.
    fn with_takers<T>(&self, look: impl FnOnce(&Takers<'_>) -> T) -> T;
}

/// Read access to what a replica has cached about shared buckets.
pub trait GardenListers: Send + Sync + 'static {
    /// The objects of hub and member. `None`: some kind of them has not been listed yet.
    fn garden(&self) -> Option<Arc<garden::GardenView>>;
    /// Resolves at the next change of [`GardenListers::garden`].
    fn garden_changed(&self) -> impl Future<Output = ()> + Send;
    /// Reads a Secret from the API server, because no Secret is cached. Takes well under a second.
    fn credentials(&self, secret: &SecretRef) -> impl Future<Output = SecretLookup> + Send;
}

/// Read access to all watch caches of a replica.
pub trait Listers: MoverListers + GardenListers {
    /// Has every watch listed once, and is there a key to serve with?
    fn ready(&self) -> bool;
    /// Why no Backup can be queued in this cluster, whatever it asks for. `None`: Backups can be
    /// queued.
    fn cannot_queue(&self) -> Option<String>;
    /// Does berth's own engine run queued Backups? It does not support every field that Velero
    /// does.
    fn runs_backups(&self) -> bool;
    /// Waiting and running Backups: at least those that decide the answer to this newcomer.
    fn queue(&self, newcomer: &QueueEntry, now: Timestamp) -> QueueView;
    /// Has the watch shown the Backup of this answer, even if that Backup is gone by now, or does
    /// it show another one of its name? The API server refuses to create a second one.
    fn has_seen(&self, answered: &QueueEntry) -> bool;
    fn locations(&self) -> Arc<Vec<Location>>;
    /// The Schedules that are not paused. `None`: they have not been listed yet.
    fn schedules(&self) -> Option<Others>;
    /// By what waiting Backups are ordered.
    fn order(&self) -> &QueueOrder;
    /// When the Backup of this UID in this view may start. `None`: this cannot be estimated
    /// quickly.
    fn expected_start(&self, view: &QueueView, uid: &str, now: Timestamp) -> Option<Band<Timestamp>>;
    /// Starts a watchdog: unless the returned guard is dropped within `limit`, the liveness probe
    /// fails.
    fn within(&self, limit: Duration) -> impl Sized + Send;
    /// Resolves at the next change of [`Listers::locations`].
    fn locations_changed(&self) -> impl Future<Output = ()> + Send;
}
