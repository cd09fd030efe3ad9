//! Which data may be removed for a hub. The courier writes down what the hub says; the executor asks as long as it removes.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::LazyLock;
use std::task::Poll;
use std::time::{Duration, Instant};

use berth_api::garden::member_objects::{hub_uid, is_ours};
use berth_core::garden::leave::{Moment, counts, is_stale};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use crate::pace::passed;

/// What is under way is looked after at least this often.
const TICK: Duration = Duration::from_secs(1);

pub fn now() -> Moment {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    Moment { steady: passed(BEGIN.elapsed()), wall: Timestamp::now() }
}

/// By UID of the hub's object: when the hub was last asked, and said that its data is to be removed by us. Nothing of it
/// outlives the process.
#[derive(Default)]
pub struct Leave(Mutex<HashMap<String, Moment>>);

impl Leave {
    pub fn give(&self, uid: &str, asked: Moment) {
        let mut given = self.0.lock();
        given.retain(|_, before| counts(*before, asked));
        given.insert(uid.to_owned(), asked);
    }

    pub fn withdraw(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    pub fn withdraw_all(&self) {
        self.0.lock().clear();
    }

    pub fn is_given(&self, uid: &str) -> bool {
        self.0.lock().get(uid).is_some_and(|asked| counts(*asked, now()))
    }

    /// It was said just now.
    pub fn is_fresh(&self, uid: &str) -> bool {
        self.0.lock().get(uid).is_some_and(|asked| !is_stale(*asked, now()))
    }
}

/// May data of this object go? What was not made for a hub is deleted by whoever may do so. `leave`: `None` where nobody asks a
/// hub.
pub fn may_go(leave: Option<&Leave>, object: &ObjectMeta) -> bool {
    let is_given = |uid| leave.is_some_and(|leave| leave.is_given(uid));
    !is_ours(object) || hub_uid(object).is_some_and(is_given)
}

/// Does `work` while it may be done; `None`: it was broken off.
pub async fn during<T>(is_given: impl Fn() -> bool, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    poll_fn(|context| {
        // Whoever waits for a store is woken to ask, too.
        while ticks.poll_tick(context).is_ready() {}
        if is_given() { work.as_mut().poll(context).map(Some) } else { Poll::Ready(None) }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use berth_api::keys;
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn leave_is_for_one_object_until_it_is_withdrawn() {
        let leave = Leave::default();
        leave.give("one", now());
        assert!(leave.is_given("one") && leave.is_fresh("one") && !leave.is_given("two"));
        leave.withdraw("one");
        assert!(!leave.is_given("one") && !leave.is_fresh("one"));
        let long_ago = Moment { wall: Timestamp::UNIX_EPOCH, ..now() };
        leave.give("old", long_ago);
        assert!(!leave.is_given("old"));
        leave.give("one", now());
        leave.give("two", now());
        leave.withdraw_all();
        assert!(!leave.is_given("one") && !leave.is_given("two"));
    }

    #[test]
    fn what_was_made_for_a_hub_goes_by_its_word_alone() {
        let object = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            ObjectMeta { labels: Some(labels.collect()), ..ObjectMeta::default() }
        };
        let leave = Leave::default();
        leave.give("told", now());
        let of = |uid| object(&[(keys::CARRIED_FOR, "ship"), (keys::HUB_UID, uid)]);
        for (metadata, asks, goes) in [
            (object(&[]), false, true),
            (object(&[]), true, true),
            (of("told"), true, true),
            (of("told"), false, false),
            (of("other"), true, false),
            (object(&[(keys::CARRIED_FOR, "ship")]), true, false),
        ] {
            assert_eq!(may_go(asks.then_some(&leave), &metadata), goes, "{metadata:?} {asks}");
        }
    }

    #[tokio::test]
    async fn work_goes_on_while_it_may_and_no_further() {
        let steps = AtomicU32::new(0);
        let work = async {
            for _ in 0..10 {
                sleep(Duration::from_millis(5)).await;
                steps.fetch_add(1, Ordering::Relaxed);
            }
        };
        assert_eq!(during(|| steps.load(Ordering::Relaxed) < 3, work).await, None);
        assert_eq!(steps.load(Ordering::Relaxed), 3);
        assert_eq!(during(|| true, async { 1 }).await, Some(1));
        let is_given = std::cell::Cell::new(true);
        let hangs = async {
            is_given.set(false);
            std::future::pending::<()>().await;
        };
        assert_eq!(during(|| is_given.get(), hangs).await, None, "what hangs is left, too");
    }
}
