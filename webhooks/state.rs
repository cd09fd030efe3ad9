//! What the handlers of one replica share.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use berth_core::guard::Roles;
use jiff::Timestamp;
use prometheus_client::registry::Registry;

use crate::assumed::Assumed;
use crate::events::EventRecorder;
use crate::intake::{Intake, TurnedAway};
use crate::listers::Listers;
use crate::metrics::{AdmissionMetrics, Ration, ReviewOutcome};

/// At most this many Secrets are read in one second, because any client that reaches the port could
/// make the webhook read one after the other.
const SECRETS: usize = 100;

/// User names that may write fields which only one component may change.
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

fn register(metrics: &AdmissionMetrics, intake: &Intake, registry: &mut Registry) {
    let admission = registry.sub_registry_with_prefix("berth_admission");
    metrics.register(admission);
    intake.register(admission);
}

/// Registers every metric of a replica with a value, for the reference: a family without values is
/// not encoded.
pub fn register_with_values(registry: &mut Registry) {
    let metrics = AdmissionMetrics::default();
    metrics.answered("backup", ReviewOutcome::Allowed, Duration::ZERO);
    metrics.turned_away("backup", TurnedAway::Late);
    register(&metrics, &Intake::default(), registry);
}

/// Watch caches, Events, assumed Backups, limits, metrics and the clock of one replica.
pub struct AdmissionState<K> {
    listers: K,
    events: Box<dyn EventRecorder>,
    assumed: Assumed,
    identities: Identities,
    metrics: AdmissionMetrics,
    intake: Arc<Intake>,
    secrets: Ration,
    clock: fn() -> Timestamp,
    last_mark: AtomicI64,
}

impl<K: Listers> AdmissionState<K> {
    pub fn new(
        listers: K,
        events: impl EventRecorder,
        identities: Identities,
        clock: fn() -> Timestamp,
    ) -> Self {
        Self {
            listers,
            events: Box::new(events),
            assumed: Assumed::default(),
            identities,
            metrics: AdmissionMetrics::default(),
            intake: Arc::default(),
            secrets: Ration::new(SECRETS),
            clock,
            last_mark: AtomicI64::new(0),
        }
    }

    pub(crate) fn roles(&self, user: &str) -> Roles {
        self.identities.roles(user)
    }

    pub(crate) fn metrics(&self) -> &AdmissionMetrics {
        &self.metrics
    }

    /// Takes one of the Secret reads of this second. `false`: none is left.
    pub(crate) fn may_read_secret(&self, now: Instant) -> bool {
        self.secrets.take(now)
    }

    /// Registers the metrics of this replica.
    pub fn register(&self, registry: &mut Registry) {
        register(&self.metrics, &self.intake, registry);
    }

    /// The limits, for the listener that accepts connections.
    pub fn intake(&self) -> &Arc<Intake> {
        &self.intake
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub fn listers(&self) -> &K {
        &self.listers
    }

    pub(crate) fn events(&self) -> &dyn EventRecorder {
        self.events.as_ref()
    }

    pub(crate) fn assumed(&self) -> &Assumed {
        &self.assumed
    }

    /// A time mark: `now` in whole microseconds, and later than every earlier mark, because a mark
    /// identifies one answer of this replica.
    pub(crate) fn mark(&self, now: Timestamp) -> Timestamp {
        let now = now.as_microsecond();
        let next = |last: i64| Some(now.max(last.saturating_add(1)));
        let last =
            self.last_mark.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        let mark = now.max(last.saturating_add(1));
        Timestamp::from_microsecond(mark).unwrap_or(Timestamp::MAX)
    }
}
