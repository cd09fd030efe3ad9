//! Object locks: a store does not remove locked data before its time.

use jiff::{SignedDuration, Timestamp};

/// A bucket's default. Ordered by strength: of the same days, compliance is the stronger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DefaultLockMode {
    Governance,
    Compliance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    pub mode: DefaultLockMode,
    pub days: u32,
}

/// What to do about a bucket's default lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockChange {
    Keep,
    Set(Lock),
    /// It protects more than is wanted, in mode or in time, and berth does not weaken that.
    Stronger(Lock),
}

pub fn change(wanted: Option<Lock>, found: Option<Lock>) -> LockChange {
    match (wanted, found) {
        (None, _) => LockChange::Keep,
        (Some(wanted), None) => LockChange::Set(wanted),
        (Some(wanted), Some(found)) if wanted == found => LockChange::Keep,
        (Some(wanted), Some(found)) if found.mode > wanted.mode || found.days > wanted.days => {
            LockChange::Stronger(found)
        }
        (Some(wanted), Some(_)) => LockChange::Set(wanted),
    }
}

/// Longest pause before locked data is tried again, because locks can be lifted before their time.
pub const LOOK: SignedDuration = SignedDuration::from_hours(1);

/// Shortest such pause, because a store whose clock is behind still keeps data whose lock has ended
/// by this process's clock.
const PAUSE: SignedDuration = SignedDuration::from_secs(5);

/// When to try again to remove data that is locked until then, as far as is known.
pub fn look_again(until: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let after = |time| now.saturating_add(time).unwrap_or(Timestamp::MAX);
    until.unwrap_or(Timestamp::MAX).clamp(after(PAUSE), after(LOOK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_only_grows() {
        let lock = |mode, days| Lock { mode, days };
        let (weak, strong) = (lock(DefaultLockMode::Governance, 1), lock(DefaultLockMode::Compliance, 2));
        assert_eq!(change(None, Some(weak)), LockChange::Keep);
        assert_eq!(change(Some(weak), None), LockChange::Set(weak));
        assert_eq!(change(Some(weak), Some(weak)), LockChange::Keep);
        assert_eq!(change(Some(strong), Some(weak)), LockChange::Set(strong));
        assert_eq!(change(Some(weak), Some(strong)), LockChange::Stronger(strong));
        let longer = lock(DefaultLockMode::Governance, 30);
        assert_eq!(
            change(Some(strong), Some(longer)),
            LockChange::Stronger(longer),
            "shorter is weaker, whatever the mode"
        );
    }

    #[test]
    fn it_is_looked_at_again_when_the_time_comes_and_at_least_each_hour() {
        let now = Timestamp::UNIX_EPOCH;
        let after = |hours| now + SignedDuration::from_mins(hours);
        assert_eq!(look_again(None, now), after(60));
        assert_eq!(look_again(Some(after(10)), now), after(10));
        assert_eq!(look_again(Some(after(600)), now), after(60));
        let late = now + SignedDuration::from_secs(5);
        assert_eq!((look_again(Some(now), now), look_again(Some(Timestamp::MIN), now)), (late, late));
        assert_eq!(look_again(Some(Timestamp::MAX), Timestamp::MAX), Timestamp::MAX);
    }
}
