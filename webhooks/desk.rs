//! Where reviews are answered: one per replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use berth_core::guard::Roles;
use jiff::Timestamp;
use prometheus_client::registry::Registry;

use crate::intake::{Intake, TurnedAway};
use crate::known::{Known, Recent};
use crate::tally::{Answer, Ration, Tally};

/// Secrets that are read in one second. Whoever can reach the port could ask for one after the other.
const SECRETS: usize = 100;

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
        Roles {
            queue: is(&self.queue),
            executor: is(&self.executor),
            lifecycle: is(&self.lifecycle),
            ..Roles::default()
        }
    }
}

fn register(tally: &Tally, intake: &Intake, registry: &mut Registry) {
    let admission = registry.sub_registry_with_prefix("berth_admission");
    tally.register(admission);
    intake.register(admission);
}

/// Every metric of a replica, each with a value: for the reference, because a family without values is not encoded.
pub fn register_with_values(registry: &mut Registry) {
    let tally = Tally::default();
    tally.answered("backup", Answer::Allowed, Duration::ZERO);
    tally.turned_away("backup", TurnedAway::Late);
    register(&tally, &Intake::default(), registry);
}

/// What is known, what was answered just now, and the time.
pub struct Desk<K> {
    known: K,
    recent: Recent,
    identities: Identities,
    tally: Tally,
    intake: Arc<Intake>,
    secrets: Ration,
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
            intake: Arc::default(),
            secrets: Ration::new(SECRETS),
            clock,
            last_mark: AtomicI64::new(0),
        }
    }

    pub(crate) fn roles(&self, user: &str) -> Roles {
        self.identities.roles(user)
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// May one more Secret be read?
    pub(crate) fn may_read_secret(&self, now: Instant) -> bool {
        self.secrets.take(now)
    }

    /// What this replica counts.
    pub fn register(&self, registry: &mut Registry) {
        register(&self.tally, &self.intake, registry);
    }

    /// For the listener, which lets connections in.
    pub fn intake(&self) -> &Arc<Intake> {
        &self.intake
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
