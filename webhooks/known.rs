//! What a replica knows of the cluster. Filled by watches elsewhere; here it is only read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::node_agent::ReclaimPolicy;
use berth_core::affinity::{Decision, Finding, Term, Toleration};
use berth_core::garden::check::Credentials;
use berth_core::garden::{self, SecretRef};
use berth_core::location::Location;
use berth_core::mover::MoverKind;
use berth_core::queue::{Band, Entry, Order, View};
use jiff::Timestamp;
use parking_lot::Mutex;

/// The object that a pod of a data mover works for.
#[derive(Clone, Copy, Debug)]
pub struct Mover<'a> {
    pub kind: MoverKind,
    pub name: &'a str,
    pub uid: &'a str,
}

/// What the pod of a data mover says about where it may run.
#[derive(Clone, Debug, Default)]
pub struct MoverPod {
    /// Of its required node affinity. Empty: there is none.
    pub terms: Vec<Term>,
    pub tolerations: Vec<Toleration>,
    /// Its `nodeSelector` for `kubernetes.io/hostname`.
    pub selected_node: Option<String>,
    /// It is on that node already.
    pub node: Option<String>,
}

/// What a replica knows of data movers.
pub trait KnownMovers: Send + Sync + 'static {
    /// Where this pod may run. `None`: nothing is configured, or it is nobody's.
    ///
    /// # Errors
    /// Why that is not known.
    fn place(
        &self,
        mover: &Mover<'_>,
        pod: &MoverPod,
    ) -> impl Future<Output = Result<Option<Decision>, String>> + Send;
    /// People should know this of a mover.
    fn tell(&self, mover: &Mover<'_>, finding: &Finding);
    /// May only as many movers be prepared as are granted?
    fn are_granted(&self) -> bool;
    /// Name of the node-agents' ConfigMap.
    fn configuration(&self) -> Option<String>;
    /// StorageClasses. `None`: they have not been listed yet.
    fn classes(&self) -> Option<BTreeMap<String, ReclaimPolicy>>;
}

/// What a replica knows of shared buckets.
pub trait KnownGarden: Send + Sync + 'static {
    /// Hub and member as the watches have shown them. `None`: not all of it has been listed yet.
    fn garden(&self) -> Option<Arc<garden::View>>;
    /// Resolves at the next change of [`KnownGarden::garden`].
    fn garden_changed(&self) -> impl Future<Output = ()> + Send;
    /// A Secret, asked for now: it is in nobody's cache. Takes well under a second.
    fn credentials(&self, secret: &SecretRef) -> impl Future<Output = Credentials> + Send;
}

/// The watch caches of a replica.
pub trait Known: KnownMovers + KnownGarden {
    /// Has every watch listed once, and is there a key to serve with?
    fn ready(&self) -> bool;
    /// Why no Backup can be queued in this cluster, whatever is done.
    fn cannot_queue(&self) -> Option<String>;
    /// Waiting and running backups.
    fn queue(&self) -> View;
    /// Has the watch shown a Backup with this time mark, whatever became of it?
    fn has_seen(&self, mark: Timestamp) -> bool;
    fn locations(&self) -> Arc<Vec<Location>>;
    /// How those that wait are ordered.
    fn order(&self) -> &Order;
    /// When the backup of this UID in this view may start, where that can be told quickly.
    fn expected_start(&self, view: &View, uid: &str, now: Timestamp) -> Option<Band<Timestamp>>;
    /// Another queue wanted to move this Backup, and was refused.
    fn foreign_queue(&self, name: &str, uid: &str, user: &str);
    /// Resolves at the next change of [`Known::locations`].
    fn locations_changed(&self) -> impl Future<Output = ()> + Send;
}

/// A replica's own answers of the last moments, which its watch does not show yet. Without them, creates in
/// quick succession would all get the same position.
#[derive(Debug, Default)]
pub struct Recent(Mutex<VecDeque<(Instant, Arc<Entry>)>>);

impl Recent {
    /// An answer that has not shown up by then never will: the create was refused by somebody else.
    const KEEP: Duration = Duration::from_secs(10);
    /// More creates than these within [`Recent::KEEP`] are not remembered one by one.
    const MOST: usize = 20_000;

    /// Adds to the view what was answered and not `seen` since, and asks `decide` for the next answer while
    /// nobody else can: the newcomer, which is remembered if `remember` says so, and stands in the view afterwards.
    pub fn with<T>(
        &self,
        view: &mut View,
        seen: impl Fn(Timestamp) -> bool,
        now: Instant,
        remember: bool,
        decide: impl FnOnce(&View) -> (T, Entry),
    ) -> T {
        let mut recent = self.0.lock();
        recent.retain(|(at, entry)| {
            now.saturating_duration_since(*at) < Self::KEEP
                && entry.enqueued_at.is_some_and(|mark| !seen(mark))
        });
        view.backups.extend(recent.iter().map(|(_, entry)| Arc::clone(entry)));
        let (answer, newcomer) = decide(view);
        let newcomer = Arc::new(newcomer);
        if remember {
            if recent.len() >= Self::MOST {
                recent.pop_front();
            }
            recent.push_back((now, Arc::clone(&newcomer)));
        }
        view.backups.push(newcomer);
        answer
    }
}
