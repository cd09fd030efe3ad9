//! Heartbeats. A heartbeat carries its sender's time, and that clock may be wrong by minutes. So
//! what counts is when a heartbeat was seen to change, by this process's own clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::assignment::SILENT;
use super::deletion_permit::ClockReading;

/// A larger difference of clocks is reported. Smaller ones are not, because heartbeats are in whole
/// seconds, and take a moment to arrive.
pub const SKEW: SignedDuration = SignedDuration::from_secs(5);

/// What follows from the heartbeats of one sender, by this process's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatStatus {
    /// When the last heartbeat was seen.
    pub seen: Option<Timestamp>,
    /// Until then it is unknown whether the sender is silent, because this process has not listened
    /// for long enough.
    pub unknown_until: Option<Timestamp>,
    /// By how much its clock is ahead of this one, if that has changed; zero: it is right again.
    pub skew: Option<SignedDuration>,
}

/// What was seen of one sender since this process began.
#[derive(Clone, Debug)]
struct Sender {
    beat: Option<Timestamp>,
    first: Duration,
    /// When the heartbeat was last seen to change.
    changed: Option<Duration>,
    told: SignedDuration,
}

/// By name of the sender.
#[derive(Clone, Debug, Default)]
pub struct Senders(BTreeMap<String, Sender>);

impl Senders {
    /// Forgets all other senders.
    pub fn keep(&mut self, names: &BTreeSet<&str>) {
        self.0.retain(|name, _| names.contains(name.as_str()));
    }

    /// `beat`: the present heartbeat, by the sender's clock.
    pub fn listen(&mut self, name: &str, beat: Option<Timestamp>, now: ClockReading) -> HeartbeatStatus {
        let is_recent = beat.is_some_and(|beat| now.wall.duration_since(beat).abs() <= SILENT);
        let sender = self.0.entry(name.to_owned()).or_insert_with(|| Sender {
            beat,
            first: now.steady,
            // What an earlier leader saw would count as well.
            changed: is_recent.then_some(now.steady),
            told: SignedDuration::ZERO,
        });
        let mut skew = None;
        if let Some(news) = beat.filter(|_| beat != sender.beat) {
            (sender.beat, sender.changed) = (beat, Some(now.steady));
            skew = sender.compare(news.duration_since(now.wall));
        }
        let unknown_until = sender.changed.is_none() && beat.is_some();
        HeartbeatStatus {
            seen: sender.changed.and_then(|at| past(now, at)),
            unknown_until: unknown_until
                .then(|| past(now, sender.first)?.checked_add(SILENT).ok())
                .flatten()
                .filter(|until| *until >= now.wall),
            skew,
        }
    }
}

impl Sender {
    /// `Some`: a change to report.
    fn compare(&mut self, found: SignedDuration) -> Option<SignedDuration> {
        let found = if found.abs() > SKEW { found } else { SignedDuration::ZERO };
        let is_news = found.saturating_sub(self.told).abs() > SKEW || found.is_zero() && !self.told.is_zero();
        is_news.then(|| {
            self.told = found;
            found
        })
    }
}

/// Senders that entries name and that are missing, and since when. In a hub that is being restored,
/// and where a Seed is created again, they appear in a moment.
#[derive(Clone, Debug, Default)]
pub struct MissingSenders(BTreeMap<String, Duration>);

impl MissingSenders {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `names`: those that are missing now. Returns those that have been missing for so long that
    /// they were deleted.
    pub fn look(&mut self, names: &BTreeSet<&str>, now: ClockReading) -> BTreeSet<String> {
        self.0.retain(|name, _| names.contains(name.as_str()));
        for name in names {
            self.0.entry((*name).to_owned()).or_insert(now.steady);
        }
        let is_over = |since: &Duration| now.steady.saturating_sub(*since) >= SILENT.unsigned_abs();
        self.0.iter().filter(|(_, since)| is_over(since)).map(|(name, _)| name.clone()).collect()
    }
}

/// A time of the steady clock, by the present wall clock.
fn past(now: ClockReading, at: Duration) -> Option<Timestamp> {
    let ago = SignedDuration::try_from(now.steady.saturating_sub(at)).ok()?;
    now.wall.checked_sub(ago).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn now(second: i64) -> ClockReading {
        ClockReading { steady: Duration::from_secs(second.unsigned_abs()), wall: at(second) }
    }

    #[test]
    fn who_was_not_there_for_long_was_deleted() {
        let mut missing = MissingSenders::default();
        let mut look = |names: &[&str], second| {
            missing.look(&names.iter().copied().collect(), now(second)).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(look(&["a"], 0), [""; 0]);
        assert_eq!(look(&["a", "b"], 39), [""; 0]);
        assert_eq!(look(&["a", "b"], 40), ["a"]);
        // It came back, and goes once more.
        assert_eq!(look(&["b"], 50), [""; 0]);
        assert_eq!(look(&["a", "b"], 80), ["b"]);
        assert_eq!(look(&["a"], 120), ["a"]);
        assert_eq!(look(&[], 200), [""; 0]);
        assert!(missing.is_empty());
    }

    #[test]
    fn a_wrong_clock_that_goes_on_is_a_sign_of_life() {
        for skew in [-3600, -60, 45, 3600] {
            let mut senders = Senders::default();
            let first = senders.listen("a", Some(at(100 + skew)), now(100));
            assert_eq!((first.seen, first.unknown_until), (None, Some(at(140))), "{skew}");
            let signs = senders.listen("a", Some(at(110 + skew)), now(110));
            assert_eq!(signs.seen, Some(at(110)), "{skew}");
            assert_eq!(signs.skew, Some(SignedDuration::from_secs(skew)), "{skew}");
            // The same again is none, and it is not told twice.
            let signs = senders.listen("a", Some(at(110 + skew)), now(130));
            assert_eq!((signs.seen, signs.skew), (Some(at(110)), None));
            let signs = senders.listen("a", Some(at(131 + skew)), now(130));
            assert_eq!((signs.seen, signs.skew), (Some(at(130)), None), "a second more is nothing");
            let right = senders.listen("a", Some(at(139)), now(140));
            assert_eq!(right.skew, Some(SignedDuration::ZERO), "it was set right");
        }
    }

    #[test]
    fn what_another_process_may_have_seen_counts_and_what_is_old_does_not_at_once() {
        for (beat, wanted) in
            [(60, Some(at(100))), (100, Some(at(100))), (140, Some(at(100))), (59, None), (141, None)]
        {
            let signs = Senders::default().listen("a", Some(at(beat)), now(100));
            assert_eq!(signs.seen, wanted, "{beat}");
            assert_eq!(signs.unknown_until.is_some(), wanted.is_none(), "{beat}");
        }
        let mut senders = Senders::default();
        senders.listen("a", Some(at(0)), now(100));
        assert_eq!(senders.listen("a", Some(at(0)), now(140)).unknown_until, Some(at(140)));
        assert_eq!(
            senders.listen("a", Some(at(0)), now(141)),
            HeartbeatStatus::default(),
            "it was silent for long enough"
        );
        assert_eq!(Senders::default().listen("never", None, now(100)), HeartbeatStatus::default());
    }

    #[test]
    fn our_own_clock_may_be_set_and_nobody_dies_of_it() {
        let mut senders = Senders::default();
        senders.listen("a", Some(at(100)), now(100));
        let set = ClockReading { steady: Duration::from_secs(105), wall: at(4000) };
        assert_eq!(senders.listen("a", Some(at(100)), set).seen, Some(at(3995)));
    }

    #[test]
    fn who_is_no_longer_there_is_forgotten() {
        let mut senders = Senders::default();
        senders.listen("a", Some(at(100)), now(100));
        senders.keep(&BTreeSet::from(["b"]));
        assert_eq!(senders.listen("a", Some(at(100)), now(200)).seen, None);
    }
}
