//! Positions: what a newcomer gets, and how many corrections may be written.

use jiff::{SignedDuration, Timestamp};

use super::view::{Entry, Phase, View};

/// Time mark of a newcomer: now, or just after the latest mark that is known, so that no clock that stands still,
/// jumps back or lags behind that of another replica lets it pass those that were here before. Marks of a day
/// ahead and more are somebody's mistake, and are left behind.
pub fn mark(view: &View, now: Timestamp) -> Timestamp {
    let sane = now.saturating_add(SignedDuration::from_hours(24)).unwrap_or(Timestamp::MAX);
    let known = view.backups.iter().filter(|b| b.phase != Phase::New).filter_map(|b| b.enqueued_at);
    let latest = known.filter(|mark| *mark < sane).max();
    let after = latest.and_then(|mark| mark.saturating_add(SignedDuration::from_micros(1)).ok());
    after.map_or(now, |after| after.max(now))
}

/// By arrival: one past the last known position of a Queued backup. Otherwise its place among those that wait;
/// those behind it move up when they are renumbered.
pub fn position_of_newcomer(view: &View, newcomer: &Entry) -> u32 {
    let place = if view.order.is_by_arrival() {
        view.backups.iter().filter(|b| b.phase == Phase::Queued).map(|b| b.position).max().unwrap_or(0)
    } else {
        let standing = view.standing(newcomer);
        let ahead = |b: &Entry| !b.phase.is_running() && view.standing(b) < standing;
        u32::try_from(view.backups.iter().filter(|b| ahead(b)).count()).unwrap_or(u32::MAX)
    };
    place.saturating_add(1)
}

/// How many positions may be rewritten now. Every dequeue earns a write, and so does time, so a start
/// costs O(1) writes however long the queue is; the head of the queue is exact at once, the tail follows
/// when the queue is calm. The order is right all the while: positions never swap.
#[derive(Clone, Debug)]
pub struct RenumberBudget {
    saved: f64,
    at: Timestamp,
}

impl RenumberBudget {
    pub const PER_DEQUEUE: f64 = 1.0;
    pub const PER_SECOND: f64 = 5.0;
    pub const MOST: f64 = 50.0;

    pub fn new(now: Timestamp) -> Self {
        Self { saved: Self::PER_SECOND, at: now }
    }

    /// Writes allowed at `now`, after `dequeued` backups have left the queue since the last call.
    pub fn earn(&mut self, dequeued: usize, now: Timestamp) -> usize {
        let seconds = now.duration_since(self.at).as_secs_f64().max(0.0);
        self.at = now;
        let earned = seconds * Self::PER_SECOND + dequeued as f64 * Self::PER_DEQUEUE;
        self.saved = (self.saved + earned).min(Self::MOST);
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
    fn a_dequeue_earns_a_write_and_a_second_five() {
        let start = Timestamp::UNIX_EPOCH;
        let mut budget = RenumberBudget::new(start);
        let first = budget.earn(0, start);
        budget.spend(first);
        assert_eq!(budget.earn(0, start), 0);
        assert_eq!(budget.earn(3, start), 3);
        budget.spend(3);
        assert_eq!(budget.earn(0, start + jiff::SignedDuration::from_secs(1)), 5);
        assert_eq!(
            budget.earn(0, start + jiff::SignedDuration::from_hours(1)),
            RenumberBudget::MOST as usize
        );
    }

    #[test]
    fn a_clock_that_goes_back_earns_nothing() {
        let start = Timestamp::UNIX_EPOCH;
        let mut budget = RenumberBudget::new(start);
        budget.spend(10);
        assert_eq!(budget.earn(0, start - jiff::SignedDuration::from_hours(1)), 0);
    }
}
