//! When a Schedule is due: cron expressions as Velero reads them, which is as the standard parser
//! of robfig/cron v3 does. There are five fields (minute, hour, day of month, month, day of week),
//! names like `@daily`, `@every` with a duration, and a time zone in front (`CRON_TZ=` or `TZ=`).
//!
//! The same expressions are accepted, and the same times follow, those around a change of clocks
//! included: a time that a day does not have is left out, and one that it has twice counts twice.
//! The tests compare both with what that parser says ([`parse`] and [`next`] against
//! `cron/robfig.txt`).
//!
//! Two things differ. An expression of more than [`LONGEST`] bytes is refused. Without a zone in
//! front the zone is UTC, where Velero's is that of its container, which is UTC unless somebody
//! changed it.

mod clock;
mod fault;
mod next;
mod parse;
mod zone;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::glob::Effort;
use next::SearchLimits;

pub use fault::{CronFault, CronPart};

/// The time zone of this name, as Go finds it. `Local` is UTC.
pub fn zone(name: &str) -> Option<TimeZone> {
    zone::named(name)
}

/// Most bytes of an expression.
pub const LONGEST: usize = 1000;

/// A cron expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Cron {
    rule: CronRule,
    zone: TimeZone,
    /// The name of the zone as it is written in front. `None`: there is none.
    named: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CronRule {
    Fields(Fields),
    /// Seconds between two times.
    Every(i64),
}

/// The values that each field allows, one bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fields {
    minute: u64,
    hour: u64,
    day_of_month: u64,
    month: u64,
    day_of_week: u64,
    /// One of the two fields of days allows every day because it has a `*` or `?`, so that a day
    /// must match both. Otherwise it is enough that it matches one.
    both_days: bool,
}

impl Cron {
    /// Reads an expression.
    ///
    /// # Errors
    /// The first fault: where it is, and what is allowed there.
    pub fn parse(text: &str) -> Result<Self, CronFault> {
        parse::parse(text)
    }

    /// The first time after `after`. `None`: there is none within five years.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.rule {
            CronRule::Fields(fields) => next::next(fields, &self.zone, after, SearchLimits::NONE),
            CronRule::Every(seconds) => at(clock::seconds(after).checked_add(*seconds)?),
        }
    }

    /// The first time after `after` and not after `until`. The nearer `until` is, the less it
    /// costs; `None` as well if the effort is spent before the answer is known.
    pub fn next_until(&self, after: Timestamp, until: Timestamp, effort: &Effort) -> Option<Timestamp> {
        let bounds = SearchLimits { until: clock::seconds(until), effort: Some(effort) };
        let next = match &self.rule {
            CronRule::Fields(fields) => next::next(fields, &self.zone, after, bounds),
            CronRule::Every(_) => self.next(after),
        };
        next.filter(|next| *next <= until)
    }

    /// A time from which on [`Cron::next`] goes through all times after `now`, for a Schedule whose
    /// times are counted from `reference`.
    pub fn begin(&self, reference: Timestamp, now: Timestamp) -> Timestamp {
        match self.rule {
            CronRule::Fields(_) => now.max(reference),
            CronRule::Every(_) => self.last_until(reference, now).unwrap_or(reference),
        }
    }

    /// The last time after `after` and not after `until`, without going through all of them.
    pub fn last_until(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        if let CronRule::Every(every) = self.rule {
            let (from, to) = (clock::seconds(after), clock::seconds(until));
            let count = to.checked_sub(from)?.checked_div(every)?;
            return (count > 0).then(|| at(from + count * every)).flatten();
        }
        let first = self.next(after).filter(|first| *first <= until)?;
        // The last one is not before `low`, which is such a time, and not after `high`.
        let (mut low, mut last) = (clock::seconds(first), first);
        let mut high = clock::seconds(until);
        while low < high {
            let middle = low + (high - low) / 2;
            match at(middle).and_then(|middle| self.next(middle)).filter(|next| *next <= until) {
                Some(next) => (low, last) = (clock::seconds(next), next),
                None => high = middle,
            }
        }
        Some(last)
    }

    /// The first few times after `after`.
    pub fn upcoming(&self, after: Timestamp, most: usize) -> Vec<Timestamp> {
        std::iter::successors(self.next(after), |last| self.next(*last)).take(most).collect()
    }

    /// The zone that is written in front of the expression.
    pub fn zone(&self) -> Option<(&str, &TimeZone)> {
        Some((self.named.as_deref()?, &self.zone))
    }
}

fn at(second: i64) -> Option<Timestamp> {
    Timestamp::from_second(second).ok()
}

#[cfg(test)]
mod tests;
