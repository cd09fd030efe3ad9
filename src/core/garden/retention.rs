//! When the data of deleted entries is removed. A deletion cannot be undone, so the data stays for
//! a while: its grace.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp, TimestampRound, Unit};

/// What a cluster is for (source: Gardener's purposes of a Shoot).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    Evaluation,
    Testing,
    Development,
    Infrastructure,
    Production,
}

impl Purpose {
    pub const ALL: [Self; 5] =
        [Self::Evaluation, Self::Testing, Self::Development, Self::Infrastructure, Self::Production];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Evaluation => "evaluation",
            Self::Testing => "testing",
            Self::Development => "development",
            Self::Infrastructure => "infrastructure",
            Self::Production => "production",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|purpose| purpose.as_str() == text)
    }
}

/// What a grace applies to: everything, a provider of stores, or entries of one purpose there.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GraceScope {
    pub provider: Option<String>,
    pub purpose: Option<Purpose>,
}

/// How long data stays after its entry was deleted. Without a period: not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grace(BTreeMap<GraceScope, SignedDuration>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the same is given a grace twice: say it once")]
pub struct DuplicateGrace;

impl Grace {
    /// # Errors
    /// When two periods have the same scope.
    pub fn new(
        periods: impl IntoIterator<Item = (GraceScope, SignedDuration)>,
    ) -> Result<Self, DuplicateGrace> {
        let mut all = BTreeMap::new();
        for (whose, period) in periods {
            if all.insert(whose, period).is_some() {
                return Err(DuplicateGrace);
            }
        }
        Ok(Self(all))
    }

    /// The most specific period. An entry without a purpose gets the longest period that any
    /// purpose has at its provider, because it may be for anything.
    pub fn period(&self, provider: &str, purpose: Option<Purpose>) -> SignedDuration {
        let here = |purpose| self.0.get(&GraceScope { provider: Some(provider.to_owned()), purpose });
        let general = here(None).or_else(|| self.0.get(&GraceScope::default())).copied().unwrap_or_default();
        let of = |purpose| here(Some(purpose)).copied().unwrap_or(general);
        match purpose {
            Some(purpose) => of(purpose),
            None => Purpose::ALL.into_iter().map(of).fold(general, SignedDuration::max),
        }
    }
}

/// A deleted entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    pub at: Timestamp,
    /// `None`: its bucket is not known.
    pub grace: Option<SignedDuration>,
    /// A person asked to skip the grace.
    pub is_forced: bool,
    /// A person asked to leave the data in the store.
    pub is_forgotten: bool,
    /// Its own seed is there, and can give it up properly.
    pub is_kept: bool,
    /// Its data was released before.
    pub is_released: bool,
    /// A seed has reported that all of its data is gone.
    pub is_removed: bool,
}

/// What happens to a deleted entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraceDecision {
    /// Its data stays, at least until then, in whole seconds.
    Stay { until: Timestamp },
    /// It is unknown where its data is, which does not count as gone.
    Lost,
    /// A seed removes the data.
    Go,
    /// The data stays in the store, and there is no seed that has to give it up first: record the
    /// end.
    Forget,
    /// The data is gone: record the end.
    Gone,
}

/// A grace is over strictly after its end.
pub fn fate(deletion: &Deletion, now: Timestamp) -> GraceDecision {
    let Deletion { at, grace, is_forced, is_forgotten, is_kept, is_released, is_removed } = *deletion;
    match grace {
        _ if is_removed => GraceDecision::Gone,
        _ if is_forgotten && (!is_kept || grace.is_none()) => GraceDecision::Forget,
        None => GraceDecision::Lost,
        _ if is_released || is_forced || is_forgotten => GraceDecision::Go,
        Some(grace) => match whole(at.saturating_add(grace).unwrap_or(Timestamp::MAX)) {
            until if now > until => GraceDecision::Go,
            until => GraceDecision::Stay { until },
        },
    }
}

/// What decides on the end of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketUse {
    pub is_deleted: bool,
    /// Entries that have a place there or name it.
    pub entries: usize,
    /// Its profile is there and has no fault, or it has no profile.
    pub is_wanted: bool,
    /// Since when it has been neither wanted nor used.
    pub idle_since: Option<Timestamp>,
    /// A seed has reported that it is gone.
    pub is_removed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketFate {
    Stay,
    /// Neither wanted nor used: it is deleted at that time, unless that changes.
    Idle {
        until: Timestamp,
    },
    /// Delete it.
    Retire,
    /// It is deleted, and waits for entries in it.
    Held,
    /// A seed removes it.
    Go,
    Gone,
}

/// `delay`: how long an idle bucket stays. A seed that is away for minutes must not cost a name,
/// because names are global and others could take it.
pub fn bucket_fate(of: &BucketUse, delay: SignedDuration, now: Timestamp) -> BucketFate {
    match *of {
        BucketUse { is_removed: true, is_deleted: true, .. } => BucketFate::Gone,
        BucketUse { is_deleted: true, entries: 0, .. } => BucketFate::Go,
        BucketUse { is_deleted: true, .. } => BucketFate::Held,
        BucketUse { is_wanted: false, entries: 0, idle_since, .. } => {
            match idle_since.unwrap_or(now).saturating_add(delay).unwrap_or(Timestamp::MAX) {
                until if idle_since.is_some() && now > until => BucketFate::Retire,
                until => BucketFate::Idle { until },
            }
        }
        BucketUse { .. } => BucketFate::Stay,
    }
}

/// Rounded up to whole seconds, as the wire has times.
pub fn whole(time: Timestamp) -> Timestamp {
    let up = TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Ceil);
    time.round(up).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn grace(of: &[(&str, Option<Purpose>, i64)]) -> Grace {
        let one = |(provider, purpose, hours): &(&str, Option<Purpose>, i64)| {
            let provider = Some((*provider).to_owned()).filter(|provider| !provider.is_empty());
            (GraceScope { provider, purpose: *purpose }, HOUR * i32::try_from(*hours).unwrap())
        };
        Grace::new(of.iter().map(one)).unwrap()
    }

    #[test]
    fn the_most_specific_grace_counts() {
        use Purpose::{Evaluation, Production};
        let all = grace(&[
            ("", None, 1),
            ("aws", None, 2),
            ("aws", Some(Production), 9),
            ("aws", Some(Evaluation), 0),
        ]);
        for (provider, purpose, hours) in [
            ("gcp", Some(Production), 1),
            ("gcp", None, 1),
            ("aws", Some(Production), 9),
            ("aws", Some(Evaluation), 0),
            ("aws", Some(Purpose::Testing), 2),
            ("aws", None, 9),
        ] {
            assert_eq!(all.period(provider, purpose), HOUR * hours, "{provider} {purpose:?}");
        }
        assert_eq!(Grace::default().period("aws", None), SignedDuration::ZERO);
        let twice = [(GraceScope::default(), HOUR), (GraceScope::default(), HOUR)];
        assert_eq!(Grace::new(twice), Err(DuplicateGrace));
    }

    const DELETION: Deletion = Deletion {
        at: Timestamp::UNIX_EPOCH,
        grace: Some(HOUR),
        is_forced: false,
        is_forgotten: false,
        is_kept: true,
        is_released: false,
        is_removed: false,
    };

    #[test]
    fn data_goes_after_its_grace_and_not_before() {
        let stays = GraceDecision::Stay { until: at(3600) };
        assert_eq!(fate(&DELETION, at(0)), stays);
        assert_eq!(fate(&DELETION, at(3600)), stays);
        assert_eq!(fate(&DELETION, at(3601)), GraceDecision::Go);
        assert_eq!(fate(&Deletion { is_forced: true, ..DELETION }, at(0)), GraceDecision::Go);
        assert_eq!(fate(&Deletion { is_released: true, ..DELETION }, at(0)), GraceDecision::Go);
        assert_eq!(fate(&Deletion { is_removed: true, ..DELETION }, at(0)), GraceDecision::Gone);
        assert_eq!(fate(&Deletion { is_forgotten: true, ..DELETION }, at(0)), GraceDecision::Go);
        let orphan = Deletion { is_forgotten: true, is_kept: false, ..DELETION };
        assert_eq!(fate(&orphan, at(0)), GraceDecision::Forget);
        let lost = Deletion { grace: None, is_forced: true, is_released: true, ..DELETION };
        assert_eq!(fate(&lost, at(9999)), GraceDecision::Lost);
        assert_eq!(
            fate(&Deletion { is_forgotten: true, ..lost }, at(0)),
            GraceDecision::Forget,
            "whoever is there"
        );
        let short = Deletion { grace: Some(SignedDuration::from_millis(1500)), ..DELETION };
        assert_eq!(fate(&short, at(1)), GraceDecision::Stay { until: at(2) });
    }

    #[test]
    fn a_bucket_goes_when_nobody_has_wanted_or_used_it_for_long() {
        let idle = BucketUse {
            is_deleted: false,
            entries: 0,
            is_wanted: false,
            idle_since: Some(at(0)),
            is_removed: false,
        };
        let fate = |of: BucketUse, second| bucket_fate(&of, HOUR, at(second));
        assert_eq!(fate(idle, 3600), BucketFate::Idle { until: at(3600) });
        assert_eq!(fate(idle, 3601), BucketFate::Retire);
        assert_eq!(fate(BucketUse { idle_since: None, ..idle }, 9000), BucketFate::Idle { until: at(12600) });
        assert_eq!(fate(BucketUse { entries: 1, ..idle }, 9000), BucketFate::Stay);
        assert_eq!(fate(BucketUse { is_wanted: true, ..idle }, 9000), BucketFate::Stay);
        let deleted = BucketUse { is_deleted: true, ..idle };
        assert_eq!(fate(deleted, 0), BucketFate::Go);
        assert_eq!(fate(BucketUse { is_wanted: true, ..deleted }, 0), BucketFate::Go);
        assert_eq!(fate(BucketUse { entries: 1, ..deleted }, 9000), BucketFate::Held);
        assert_eq!(fate(BucketUse { is_removed: true, ..deleted }, 0), BucketFate::Gone);
        // Of a hub that came back from a time when it was not deleted.
        assert_eq!(fate(BucketUse { is_removed: true, entries: 1, ..idle }, 9000), BucketFate::Stay);
    }

    proptest! {
        #[test]
        fn nothing_goes_early_and_everything_goes_in_the_end(
            deleted in 0i64..10_000, grace in 0i64..10_000, now in 0i64..40_000, forced: bool
        ) {
            let deletion = Deletion {
                at: at(deleted), grace: Some(SignedDuration::from_secs(grace)), is_forced: forced, ..DELETION
            };
            let goes = fate(&deletion, at(now)) == GraceDecision::Go;
            prop_assert_eq!(goes, forced || now > deleted + grace);
        }
    }
}
