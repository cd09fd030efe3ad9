//! Of two who migrate from one location, one: for stores that cannot make a write depend on what
//! was read. Whoever is at it says so on the location, and says so again all the time. Nobody's
//! clock is compared with another's: a mark is dead when it has not changed for [`DEAD`] before the
//! eyes of whoever wants to take over.

use jiff::SignedDuration;

/// How often whoever is at it says so.
pub const RENEW: SignedDuration = SignedDuration::from_secs(3);
/// So long after it last did, it may still act as the one; a machine that slept has to ask first.
pub const TRUST: SignedDuration = SignedDuration::from_secs(10);
/// A mark that was the same for so long is nobody's. Longer than [`TRUST`], or there would be two.
pub const DEAD: SignedDuration = SignedDuration::from_secs(15);

/// What to do about a mark on the location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationClaimStep {
    Take,
    /// It may be dead: look again.
    Watch,
    /// It changed: somebody lives.
    Refuse,
}

/// `found`: the mark as it is; `first`: as it was when it was first seen, `watched` ago.
pub fn step(found: Option<&str>, first: Option<&str>, watched: SignedDuration) -> MigrationClaimStep {
    match found {
        None => MigrationClaimStep::Take,
        Some(found) if first.is_some_and(|first| first != found) => MigrationClaimStep::Refuse,
        Some(_) if first.is_some() && watched >= DEAD => MigrationClaimStep::Take,
        Some(_) => MigrationClaimStep::Watch,
    }
}

/// May whoever renewed its mark so long ago still act?
pub fn is_held(ago: SignedDuration) -> bool {
    ago.abs() < TRUST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_changes_is_alive_and_one_that_does_not_is_dead_in_time() {
        let seconds = SignedDuration::from_secs;
        assert_eq!(step(None, None, seconds(0)), MigrationClaimStep::Take);
        assert_eq!(step(None, Some("a 1"), seconds(1)), MigrationClaimStep::Take, "it let go");
        assert_eq!(step(Some("a 1"), None, seconds(0)), MigrationClaimStep::Watch);
        assert_eq!(step(Some("a 1"), Some("a 1"), seconds(14)), MigrationClaimStep::Watch);
        assert_eq!(step(Some("a 1"), Some("a 1"), seconds(15)), MigrationClaimStep::Take);
        assert_eq!(step(Some("a 2"), Some("a 1"), seconds(4)), MigrationClaimStep::Refuse);
        assert_eq!(
            step(Some("b 1"), Some("a 1"), seconds(20)),
            MigrationClaimStep::Refuse,
            "somebody else was faster"
        );
    }

    #[test]
    fn whoever_slept_acts_no_more_before_anybody_takes_over() {
        assert!(is_held(SignedDuration::ZERO) && is_held(RENEW));
        assert!(!is_held(TRUST) && !is_held(DEAD));
        assert!(!is_held(-TRUST), "a clock that was set back tells nothing");
        const { assert!(TRUST.as_secs() < DEAD.as_secs() && 3 * RENEW.as_secs() < TRUST.as_secs()) };
    }
}
