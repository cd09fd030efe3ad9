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
    /// Does berth's own engine run what is queued? It does not serve all that Velero does.
    fn runs_backups(&self) -> bool;
    /// Waiting and running backups: at least those on which depends what this newcomer is told.
    fn queue(&self, newcomer: &Entry, now: Timestamp) -> View;
    /// Has the watch shown a Backup with this time mark, whatever became of it?
    fn has_seen(&self, mark: Timestamp) -> bool;
    fn locations(&self) -> Arc<Vec<Location>>;
    /// How those that wait are ordered.
    fn order(&self) -> &Order;
    /// When the backup of this UID in this view may start, where that can be told quickly.
    fn expected_start(&self, view: &View, uid: &str, now: Timestamp) -> Option<Band<Timestamp>>;
    /// Another queue wanted to move this Backup, and was refused.
    fn foreign_queue(&self, name: &str, uid: &str, user: &str);
    /// What begins now hangs if what is given is not dropped within `limit`: the kubelet is told then.
    fn within(&self, limit: Duration) -> impl Sized + Send;
    /// Resolves at the next change of [`Known::locations`].
    fn locations_changed(&self) -> impl Future<Output = ()> + Send;
}

/// A replica's own answers of the last moments, which its watch does not show yet. Without them, creates in
/// quick succession would all get the same position.
#[derive(Debug, Default)]
pub struct Recent(Mutex<Answers>);

#[derive(Debug, Default)]
struct Answers {
    entries: VecDeque<Answered>,
    /// Bytes of what they answered.
    bytes: usize,
    /// How many there have ever been.
    given: u64,
}

#[derive(Debug)]
struct Answered {
    at: Instant,
    /// Of the object that was asked about.
    bytes: usize,
    entry: Arc<Entry>,
}

impl Recent {
    /// An answer that has not shown up by then never will: the create was refused by somebody else.
    const KEEP: Duration = Duration::from_secs(10);
    /// More creates than these within [`Recent::KEEP`] are not remembered one by one.
    const MOST: usize = 20_000;
    /// Nor those that are larger than these together: names and lists of whoever asks are kept.
    const MOST_BYTES: usize = 16 * 1024 * 1024;
    /// How often an answer is worked out anew, because another one was given meanwhile. After that two of them may name
    /// the same position until the controller writes theirs; their marks differ all the same.
    const TRIES: usize = 4;

    /// Adds to the view what was answered and not `seen` since, and asks `decide` for the next answer, again if somebody
    /// was faster: nobody waits for whoever decides long. The newcomer is remembered if `remember` gives its size in bytes,
    /// and stands in the view afterwards.
    pub fn with<T>(
        &self,
        view: &mut View,
        seen: impl Fn(Timestamp) -> bool,
        now: Instant,
        remember: Option<usize>,
        mut decide: impl FnMut(&View) -> (T, Arc<Entry>),
    ) -> T {
        let shown = view.backups.len();
        let mut tries = 1;
        loop {
            view.backups.truncate(shown);
            let given = self.add_to(view, &seen, now);
            let (answer, newcomer) = decide(view);
            let mut answers = self.0.lock();
            if remember.is_some() && answers.given != given && tries < Self::TRIES {
                tries += 1;
                continue;
            }
            if let Some(bytes) = remember {
                answers.given = answers.given.wrapping_add(1);
                answers.bytes = answers.bytes.saturating_add(bytes);
                answers.entries.push_back(Answered { at: now, bytes, entry: Arc::clone(&newcomer) });
                while answers.entries.len() > Self::MOST || answers.bytes > Self::MOST_BYTES {
                    let Some(oldest) = answers.entries.pop_front() else { break };
                    answers.bytes = answers.bytes.saturating_sub(oldest.bytes);
                }
            }
            view.backups.push(newcomer);
            return answer;
        }
    }

    /// How many had been given by then.
    fn add_to(&self, view: &mut View, seen: &impl Fn(Timestamp) -> bool, now: Instant) -> u64 {
        let mut answers = self.0.lock();
        answers.entries.retain(|one| {
            now.saturating_duration_since(one.at) < Self::KEEP
                && one.entry.enqueued_at.is_some_and(|mark| !seen(mark))
        });
        answers.bytes = answers.entries.iter().map(|one| one.bytes).sum();
        view.backups.extend(answers.entries.iter().map(|one| Arc::clone(&one.entry)));
        answers.given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_answered_is_shown_and_remembered_without_a_copy_of_what_it_takes() {
        let (recent, now) = (Recent::default(), Instant::now());
        let mark = Timestamp::UNIX_EPOCH;
        let mut newcomer = Arc::new(Entry { name: "b".to_owned(), ..Entry::default() });
        let taken = Arc::as_ptr(&newcomer);
        let mut decisions = 0;
        let mut view = View::default();
        recent.with(
            &mut view,
            |_| false,
            now,
            Some(1),
            |_| {
                decisions += 1;
                if decisions == 1 {
                    // Somebody is faster.
                    let other = Arc::new(Entry { enqueued_at: Some(mark), ..Entry::default() });
                    recent.with(&mut View::default(), |_| false, now, Some(1), |_| ((), Arc::clone(&other)));
                }
                Arc::make_mut(&mut newcomer).enqueued_at = Some(mark);
                ((), Arc::clone(&newcomer))
            },
        );
        assert_eq!((decisions, view.backups.len()), (2, 2));
        assert_eq!(view.backups.last().map(Arc::as_ptr), Some(taken));
        let mut next = View::default();
        recent.with(
            &mut next,
            |_| false,
            now,
            None,
            |view| {
                assert_eq!(view.backups.last().map(Arc::as_ptr), Some(taken));
                ((), Arc::default())
            },
        );
    }
}
