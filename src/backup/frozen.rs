//! Records on the Backup which pods may be frozen. A worker that is about to run the hooks of a pod
//! waits until the pod is recorded; one writer records what all workers ask for in one write. A
//! removed pod leaves the record with the next write, because a record that is kept too long does
//! no harm.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_core::hook::{PodId, write_frozen};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::exec::HookError;

/// How long a worker waits for a record.
const PATIENCE: Duration = Duration::from_secs(60);
/// A record that was written longer ago may belong to another leader by now: a leader that is held
/// up for longer than its Lease lasts leads no more without knowing it. A small part of the
/// shortest Lease.
const FRESH: Duration = Duration::from_secs(2);

pub struct FrozenPods {
    state: Mutex<FrozenPodsState>,
    wanted: Notify,
    /// Number of the last change that is recorded.
    written: watch::Sender<u64>,
    /// Cancelled when the API server has refused a record.
    refused: CancellationToken,
}

struct FrozenPodsState {
    pods: BTreeSet<PodId>,
    /// Number of changes so far.
    change: u64,
    /// When the last successful write was sent.
    written_at: Instant,
}

/// A record to be written.
pub struct FrozenPodsRecord {
    pub pods: Value,
    change: u64,
    at: Instant,
}

impl Default for FrozenPods {
    fn default() -> Self {
        let state = FrozenPodsState { pods: BTreeSet::new(), change: 0, written_at: Instant::now() };
        Self {
            state: Mutex::new(state),
            wanted: Notify::new(),
            written: watch::Sender::new(0),
            refused: CancellationToken::new(),
        }
    }
}

impl FrozenPods {
    /// Adds a pod; returns when it is recorded.
    ///
    /// # Errors
    /// When the write takes too long or was refused.
    pub async fn add(&self, pod: &PodId) -> Result<(), HookError> {
        let change = self.change(|pods| {
            pods.insert(pod.clone());
        });
        self.wait(change).await
    }

    /// Makes sure that the record is still ours.
    ///
    /// # Errors
    /// As [`FrozenPods::add`].
    pub async fn renew(&self) -> Result<(), HookError> {
        if self.state.lock().written_at.elapsed() < FRESH {
            return Ok(());
        }
        let change = self.change(|_| ());
        self.wait(change).await
    }

    pub fn remove(&self, pod: &PodId) {
        self.change(|pods| {
            pods.remove(pod);
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<PodId>)) -> u64 {
        let mut state = self.state.lock();
        change(&mut state.pods);
        state.change += 1;
        state.change
    }

    async fn wait(&self, change: u64) -> Result<(), HookError> {
        self.wanted.notify_one();
        let mut written = self.written.subscribe();
        let stands = async { written.wait_for(|last| *last >= change).await.is_ok() };
        tokio::select! {
            biased;
            () = self.refused.cancelled() => Err(HookError::NotOnRecord),
            stands = timeout(PATIENCE, stands) => match stands {
                Ok(true) => Ok(()),
                _ => Err(HookError::NotOnRecord),
            },
        }
    }

    /// Resolves when a worker waits for a write.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// What must be written, if anything is not recorded yet.
    pub fn asked(&self) -> Option<FrozenPodsRecord> {
        let state = self.state.lock();
        if state.change == *self.written.borrow() || self.refused.is_cancelled() {
            return None;
        }
        let pods = if state.pods.is_empty() { Value::Null } else { write_frozen(&state.pods).into() };
        Some(FrozenPodsRecord { pods, change: state.change, at: Instant::now() })
    }

    /// Notes that the write was refused, for example because the Backup's annotations are full:
    /// every worker that waits for a record, now or later, fails, and everything else is written
    /// without it.
    pub fn refuse(&self, asked: &FrozenPodsRecord) {
        if !asked.pods.is_null() {
            self.refused.cancel();
        }
    }

    /// Notes that the write succeeded.
    pub fn stands(&self, asked: &FrozenPodsRecord) {
        self.state.lock().written_at = asked.at;
        self.written.send_replace(asked.change);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str) -> PodId {
        PodId { namespace: "shop".to_owned(), name: name.to_owned(), uid: "u".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_answered_by_a_write_that_has_his_pod_and_one_write_has_many() {
        let frozen = FrozenPods::default();
        let (a, b, c) = (pod("a"), pod("b"), pod("c"));
        let write = async {
            frozen.wanted().await;
            let first = frozen.asked().unwrap();
            assert_eq!(first.pods, json!("shop/a/u,shop/b/u"));
            frozen.stands(&first);
            assert!(frozen.asked().is_none(), "nobody asks for more");
        };
        let (added, ()) = tokio::join!(async { tokio::join!(frozen.add(&a), frozen.add(&b)) }, write);
        assert!(added.0.is_ok() && added.1.is_ok());
        // What comes off waits for nobody, and goes with the next.
        frozen.remove(&a);
        let write = async {
            frozen.wanted().await;
            let second = frozen.asked().unwrap();
            assert_eq!(second.pods, json!("shop/b/u,shop/c/u"));
            frozen.stands(&second);
        };
        let (added, ()) = tokio::join!(frozen.add(&c), write);
        assert!(added.is_ok());
        frozen.remove(&b);
        frozen.remove(&c);
        assert_eq!(frozen.asked().unwrap().pods, Value::Null);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_began_before_does_not_answer_and_one_that_never_ends_is_given_up() {
        let frozen = FrozenPods::default();
        let (a, b) = (pod("a"), pod("b"));
        let write = async {
            frozen.wanted().await;
            let before = frozen.asked().unwrap();
            let late = frozen.add(&b);
            let story = async {
                tokio::task::yield_now().await;
                frozen.stands(&before);
            };
            let (late, ()) = tokio::join!(late, story);
            late
        };
        let (first, late) = tokio::join!(frozen.add(&a), write);
        assert!(first.is_ok());
        assert!(matches!(late, Err(HookError::NotOnRecord)));
    }

    #[tokio::test(start_paused = true)]
    async fn where_a_record_is_refused_nobody_waits_for_one_any_more() {
        let frozen = FrozenPods::default();
        let (a, b, c) = (pod("a"), pod("b"), pod("c"));
        let begun = Instant::now();
        let write = async {
            frozen.wanted().await;
            frozen.refuse(&frozen.asked().unwrap());
        };
        let (added, ()) = tokio::join!(async { tokio::join!(frozen.add(&a), frozen.add(&b)) }, write);
        let late = frozen.add(&c).await;
        for answer in [added.0, added.1, late] {
            assert!(matches!(answer, Err(HookError::NotOnRecord)), "{answer:?}");
        }
        assert!(begun.elapsed().is_zero() && frozen.asked().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_asked_for_again_when_it_is_not_fresh_any_more() {
        let frozen = FrozenPods::default();
        let asked = frozen.asked();
        assert!(asked.is_none() && frozen.renew().await.is_ok());
        tokio::time::advance(FRESH).await;
        let write = async {
            frozen.wanted().await;
            let asked = frozen.asked().unwrap();
            frozen.stands(&asked);
        };
        let (renewed, ()) = tokio::join!(frozen.renew(), write);
        assert!(renewed.is_ok());
    }
}
