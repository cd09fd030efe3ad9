//! Permits to remove data for a hub. The courier grants and revokes them by what the hub says; the
//! executor checks them as long as it removes.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::LazyLock;
use std::task::Poll;
use std::time::{Duration, Instant};

use berth_garden_api::member_objects::{hub_uid, is_ours};
use berth_garden_core::deletion_permit::{ClockReading, is_stale, is_valid};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use crate::pace::passed;

/// How often a removal that is under way checks its permit, at least.
const TICK: Duration = Duration::from_secs(1);

pub fn now() -> ClockReading {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    ClockReading { steady: passed(BEGIN.elapsed()), wall: Timestamp::now() }
}

/// By UID of the hub's object: when the hub was last asked and answered that this seed should
/// remove its data. Permits do not outlive the process.
#[derive(Default)]
pub struct DeletionPermits(Mutex<HashMap<String, ClockReading>>);

impl DeletionPermits {
    pub fn grant(&self, uid: &str, asked: ClockReading) {
        let mut granted = self.0.lock();
        granted.retain(|_, before| is_valid(*before, asked));
        granted.insert(uid.to_owned(), asked);
    }

    pub fn revoke(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    pub fn revoke_all(&self) {
        self.0.lock().clear();
    }

    pub fn is_granted(&self, uid: &str) -> bool {
        self.0.lock().get(uid).is_some_and(|asked| is_valid(*asked, now()))
    }

    /// The hub was asked a moment ago.
    pub fn is_fresh(&self, uid: &str) -> bool {
        self.0.lock().get(uid).is_some_and(|asked| !is_stale(*asked, now()))
    }
}

/// May data of this object be removed? An object that was not made for a hub needs no permit.
/// `permits`: `None` where no courier asks a hub.
pub fn may_remove(permits: Option<&DeletionPermits>, object: &ObjectMeta) -> bool {
    let is_granted = |uid| permits.is_some_and(|permits| permits.is_granted(uid));
    !is_ours(object) || hub_uid(object).is_some_and(is_granted)
}

/// Does `work` while it is permitted; `None`: it was broken off.
pub async fn while_permitted<T>(is_permitted: impl Fn() -> bool, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    poll_fn(|context| {
        // A task that waits for a store is woken to check, too.
        while ticks.poll_tick(context).is_ready() {}
        if is_permitted() { work.as_mut().poll(context).map(Some) } else { Poll::Ready(None) }
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
    fn a_permit_is_for_one_object_until_it_is_revoked() {
        let permits = DeletionPermits::default();
        permits.grant("one", now());
        assert!(permits.is_granted("one") && permits.is_fresh("one") && !permits.is_granted("two"));
        permits.revoke("one");
        assert!(!permits.is_granted("one") && !permits.is_fresh("one"));
        let long_ago = ClockReading { wall: Timestamp::UNIX_EPOCH, ..now() };
        permits.grant("old", long_ago);
        assert!(!permits.is_granted("old"));
        permits.grant("one", now());
        permits.grant("two", now());
        permits.revoke_all();
        assert!(!permits.is_granted("one") && !permits.is_granted("two"));
    }

    #[test]
    fn what_was_made_for_a_hub_is_removed_only_with_its_permit() {
        let object = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            ObjectMeta { labels: Some(labels.collect()), ..ObjectMeta::default() }
        };
        let permits = DeletionPermits::default();
        permits.grant("told", now());
        let of = |uid| object(&[(keys::CARRIED_FOR, "ship"), (keys::HUB_UID, uid)]);
        for (metadata, asks, goes) in [
            (object(&[]), false, true),
            (object(&[]), true, true),
            (of("told"), true, true),
            (of("told"), false, false),
            (of("other"), true, false),
            (object(&[(keys::CARRIED_FOR, "ship")]), true, false),
        ] {
            assert_eq!(may_remove(asks.then_some(&permits), &metadata), goes, "{metadata:?} {asks}");
        }
    }

    #[tokio::test]
    async fn work_goes_on_while_it_is_permitted_and_no_further() {
        let steps = AtomicU32::new(0);
        let work = async {
            for _ in 0..10 {
                sleep(Duration::from_millis(5)).await;
                steps.fetch_add(1, Ordering::Relaxed);
            }
        };
        assert_eq!(while_permitted(|| steps.load(Ordering::Relaxed) < 3, work).await, None);
        assert_eq!(steps.load(Ordering::Relaxed), 3);
        assert_eq!(while_permitted(|| true, async { 1 }).await, Some(1));
        let is_given = std::cell::Cell::new(true);
        let hangs = async {
            is_given.set(false);
            std::future::pending::<()>().await;
        };
        assert_eq!(while_permitted(|| is_given.get(), hangs).await, None, "what hangs is left, too");
    }
}
