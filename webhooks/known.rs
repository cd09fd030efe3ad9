//! What a replica knows of the cluster. Filled by watches elsewhere; here it is only read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_core::location::Location;
use berth_core::queue::{Band, Entry, Order, View};
use jiff::Timestamp;
use parking_lot::Mutex;

/// The watch caches of a replica.
pub trait Known: Send + Sync + 'static {
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
