//! Positions: the one that a new Backup gets, and how many corrections may be written.

use jiff::{SignedDuration, Timestamp};

use super::view::{QueueEntry, QueuePhase, QueueView};

/// The largest clock skew between the machines of a cluster.
pub const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(60);
/// The longest admission: the API server sets creationTimestamp after the webhook has written its
/// mark.
const ADMISSION: SignedDuration = SignedDuration::from_secs(2);

/// Can the webhook have written this mark? Any user can write one while the webhook is down, but
/// the creationTimestamp comes from the API server, so a mark far from it is forged. An unlikely
/// mark is ignored.
pub fn is_likely(mark: Timestamp, created_at: Timestamp) -> bool {
    let after = mark.duration_since(created_at);
    -ADMISSION <= after && after <= CLOCKS_DIFFER
}

/// The latest time that a clock of this cluster can show.
pub(super) fn latest_sane(now: Timestamp) -> Timestamp {
    now.saturating_add(CLOCKS_DIFFER).unwrap_or(Timestamp::MAX)
}

/// Time mark of a new Backup: now, or just after the latest known mark. So a clock that stands
/// still, jumps back or lags behind that of another replica does not let the new Backup pass
/// earlier ones. Marks in the far future are ignored, because no clock of this cluster can have
/// written them.
pub fn mark(view: &QueueView, now: Timestamp) -> Timestamp {
    let sane = latest_sane(now);
    let known = view.backups.iter().filter(|b| b.phase != QueuePhase::New).filter_map(|b| b.enqueued_at);
    let latest = known.filter(|mark| *mark <= sane).max();
    let after = latest.and_then(|mark| mark.saturating_add(SignedDuration::from_micros(1)).ok());
    after.map_or(now, |after| after.max(now))
}

/// In the order of arrival: one past the last known position of a Queued backup. Otherwise its
/// place among the waiting backups; those behind it move back when they are renumbered.
pub fn position_of_newcomer(view: &QueueView, newcomer: &QueueEntry) -> u32 {
    let place = if view.order.is_by_arrival() {
        view.backups.iter().filter(|b| b.phase == QueuePhase::Queued).map(|b| b.position).max().unwrap_or(0)
    } else {
        let key = view.queue_key(newcomer);
        let ahead = |b: &QueueEntry| !b.phase.is_running() && view.queue_key(b) < key;
        u32::try_from(view.backups.iter().filter(|b| ahead(b)).count()).unwrap_or(u32::MAX)
    };
    place.saturating_add(1)
}

/// How many positions may be rewritten now. Only time earns writes, so a start costs none, however
/// long the queue is. A slow queue soon shows exact places, from its head on; a fast one needs its
/// writes for starts. The order stays right meanwhile, because it does not depend on positions.
#[derive(Clone, Debug)]
pub struct RenumberBudget {
    saved: f64,
    at: Timestamp,
}

impl RenumberBudget {
    pub const PER_SECOND: f64 = 5.0;
    /// The rate while nothing starts, because no other writes compete.
    pub const PER_CALM_SECOND: f64 = 50.0;
    pub const MOST: f64 = 50.0;

    pub fn new(now: Timestamp) -> Self {
        Self { saved: Self::PER_SECOND, at: now }
    }

    /// Number of writes allowed at `now`. `calm`: no backup was started lately.
    pub fn earn(&mut self, now: Timestamp, calm: bool) -> usize {
        let rate = if calm { Self::PER_CALM_SECOND } else { Self::PER_SECOND };
        let seconds = now.duration_since(self.at).as_secs_f64().max(0.0);
        self.at = now;
        self.saved = (self.saved + seconds * rate).min(Self::MOST);
        self.saved as usize
    }

    pub fn spend(&mut self, writes: usize) {
        self.saved = (self.saved - writes as f64).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_earns_five_writes_and_an_hour_not_many_more() {
        let start = Timestamp::UNIX_EPOCH;
        let mut budget = RenumberBudget::new(start);
        let first = budget.earn(start, false);
        budget.spend(first);
        assert_eq!(budget.earn(start, false), 0);
        assert_eq!(budget.earn(start + SignedDuration::from_secs(1), false), 5);
        budget.spend(5);
        assert_eq!(budget.earn(start + SignedDuration::from_millis(1_500), true), 25);
        assert_eq!(budget.earn(start + SignedDuration::from_hours(1), true), RenumberBudget::MOST as usize);
    }

    #[test]
    fn a_mark_is_as_old_as_its_backup() {
        let created = Timestamp::UNIX_EPOCH;
        for (seconds, likely) in [(-3600, false), (-3, false), (-1, true), (0, true), (60, true), (61, false)]
        {
            assert_eq!(is_likely(created + SignedDuration::from_secs(seconds), created), likely, "{seconds}");
        }
    }

    #[test]
    fn a_clock_that_goes_back_earns_nothing() {
        let start = Timestamp::UNIX_EPOCH;
        let mut budget = RenumberBudget::new(start);
        budget.spend(10);
        assert_eq!(budget.earn(start - SignedDuration::from_hours(1), true), 0);
    }
}
