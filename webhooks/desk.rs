//! Where reviews are answered: one per replica.

use std::sync::atomic::{AtomicI64, Ordering};

use berth_core::guard::Roles;
use jiff::Timestamp;

use crate::known::{Known, Recent};
use crate::tally::Tally;

/// User names of those who may write what others may not.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    pub queue: Vec<String>,
    pub executor: Vec<String>,
    pub lifecycle: Vec<String>,
}

impl Identities {
    fn roles(&self, user: &str) -> Roles {
        let is = |list: &[String]| list.iter().any(|known| known == user);
        Roles { queue: is(&self.queue), executor: is(&self.executor), lifecycle: is(&self.lifecycle) }
    }
}

/// What is known, what was answered just now, and the time.
pub struct Desk<K> {
    known: K,
    recent: Recent,
    identities: Identities,
    tally: Tally,
    clock: fn() -> Timestamp,
    last_mark: AtomicI64,
}

impl<K: Known> Desk<K> {
    pub fn new(known: K, identities: Identities, clock: fn() -> Timestamp) -> Self {
        Self {
            known,
            recent: Recent::default(),
            identities,
            tally: Tally::default(),
            clock,
            last_mark: AtomicI64::new(0),
        }
    }

    pub(crate) fn roles(&self, user: &str) -> Roles {
        self.identities.roles(user)
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub fn known(&self) -> &K {
        &self.known
    }

    pub(crate) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// `now` in whole microseconds, later than every mark before it: a mark names one answer of this replica.
    pub(crate) fn mark(&self, now: Timestamp) -> Timestamp {
        let now = now.as_microsecond();
        let next = |last: i64| Some(now.max(last.saturating_add(1)));
        let last =
            self.last_mark.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        let mark = now.max(last.saturating_add(1));
        Timestamp::from_microsecond(mark).unwrap_or(Timestamp::MAX)
    }
}
