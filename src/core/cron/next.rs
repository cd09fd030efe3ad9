//! The next time of an expression with five fields.
//!
//! The search goes through months, days, hours and minutes as robfig/cron does, with the same steps
//! of local time, because on days on which a zone changes its clocks the steps decide what is
//! found.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::Fields;
use super::clock::{ZonedTime, seconds};
use crate::glob::Effort;

/// A search ends with the fifth year after the one in which it began.
const YEARS: i16 = 5;
/// Many more steps than a search of five years takes. Where a zone left out a whole day, the search
/// for the next day would stand still.
const STEPS: u32 = 20_000;
const HOUR: i64 = 3600;
/// Where a day has no midnight, the search for a day goes back by less than this.
const BACK: i64 = 24 * HOUR;
/// One step, in those of [`Effort`].
const COST: usize = 100;

/// What became of the search in one field.
enum FieldSearchResult {
    /// The field allows this.
    Here,
    /// The field began anew with a later month, day or hour, so that the fields before it have to
    /// be looked at again.
    Wrapped,
}

struct Search<'a> {
    fields: &'a Fields,
    at: ZonedTime<'a>,
    /// Has a field been moved on? Before that the smaller ones are those of the beginning.
    moved: bool,
    steps: u32,
    bounds: SearchLimits<'a>,
}

/// How far a search goes.
#[derive(Clone, Copy)]
pub(super) struct SearchLimits<'a> {
    /// Seconds since 1970.
    pub(super) until: i64,
    pub(super) effort: Option<&'a Effort>,
}

impl SearchLimits<'_> {
    pub(super) const NONE: Self = Self { until: i64::MAX, effort: None };
}

/// The first time after `after`.
pub(super) fn next(
    fields: &Fields,
    zone: &TimeZone,
    after: Timestamp,
    bounds: SearchLimits<'_>,
) -> Option<Timestamp> {
    let Fields { minute, hour, day_of_month, month, day_of_week, .. } = *fields;
    // An empty field allows nothing, and the search would go through five years of minutes.
    if minute == 0 || hour == 0 || month == 0 || (day_of_month == 0 && day_of_week == 0) {
        return None;
    }
    let at = ZonedTime::new(zone, seconds(after).checked_add(1)?);
    let last_year = at.local()?.year().checked_add(YEARS)?;
    let mut search = Search { fields, at, moved: false, steps: 0, bounds };
    loop {
        if search.at.local()?.year() > last_year {
            return None;
        }
        let found = match search.month()? {
            FieldSearchResult::Wrapped => continue,
            FieldSearchResult::Here => search.day()?,
        };
        let found = match found {
            FieldSearchResult::Wrapped => continue,
            FieldSearchResult::Here => search.hour()?,
        };
        let found = match found {
            FieldSearchResult::Wrapped => continue,
            FieldSearchResult::Here => search.minute()?,
        };
        if let FieldSearchResult::Here = found {
            return Timestamp::from_second(search.at.second()).ok();
        }
    }
}

impl Search<'_> {
    fn step(&mut self) -> Option<()> {
        self.steps += 1;
        let is_near = self.at.second().saturating_sub(BACK) <= self.bounds.until;
        let may_go_on = self.bounds.effort.is_none_or(|effort| effort.spend(COST));
        (self.steps < STEPS && is_near && may_go_on).then_some(())
    }

    /// A step within a day, where the search only goes forward.
    fn step_ahead(&mut self) -> Option<()> {
        self.step()?;
        (self.at.second() <= self.bounds.until).then_some(())
    }

    fn month(&mut self) -> Option<FieldSearchResult> {
        loop {
            let local = self.at.local()?;
            if has(self.fields.month, local.month()) {
                return Some(FieldSearchResult::Here);
            }
            self.step()?;
            let (year, month) = (i64::from(local.year()), i64::from(local.month()));
            if !std::mem::replace(&mut self.moved, true) {
                self.at = self.at.on(year, month, 1, 0)?;
            }
            let local = self.at.local()?;
            let (year, month, day) =
                (i64::from(local.year()), i64::from(local.month()), i64::from(local.day()));
            self.at = self.at.on(year, month + 1, day, second_of_day(local))?;
            if self.at.local()?.month() == 1 {
                return Some(FieldSearchResult::Wrapped);
            }
        }
    }

    fn day(&mut self) -> Option<FieldSearchResult> {
        loop {
            let local = self.at.local()?;
            if self.is_day(local) {
                return Some(FieldSearchResult::Here);
            }
            self.step()?;
            if !std::mem::replace(&mut self.moved, true) {
                let (year, month, day) = date(local);
                self.at = self.at.on(year, month, day, 0)?;
            }
            let local = self.at.local()?;
            let (year, month, day) = date(local);
            self.at = self.at.on(year, month, day + 1, second_of_day(local))?;
            // The day has no midnight.
            let hour = i64::from(self.at.local()?.hour());
            if hour > 12 {
                self.at = self.at.plus((24 - hour) * HOUR);
            } else if hour > 0 {
                self.at = self.at.plus(-hour * HOUR);
            }
            if self.at.local()?.day() == 1 {
                return Some(FieldSearchResult::Wrapped);
            }
        }
    }

    fn is_day(&self, local: jiff::civil::DateTime) -> bool {
        let of_month = has(self.fields.day_of_month, local.day());
        let of_week = has(self.fields.day_of_week, local.weekday().to_sunday_zero_offset());
        if self.fields.both_days { of_month && of_week } else { of_month || of_week }
    }

    fn hour(&mut self) -> Option<FieldSearchResult> {
        loop {
            let local = self.at.local()?;
            if has(self.fields.hour, local.hour()) {
                return Some(FieldSearchResult::Here);
            }
            self.step_ahead()?;
            if !std::mem::replace(&mut self.moved, true) {
                let (year, month, day) = date(local);
                self.at = self.at.on(year, month, day, i64::from(local.hour()) * HOUR)?;
            }
            self.at = self.at.plus(HOUR);
            if self.at.local()?.hour() == 0 {
                return Some(FieldSearchResult::Wrapped);
            }
        }
    }

    /// The minute, at its beginning.
    fn minute(&mut self) -> Option<FieldSearchResult> {
        loop {
            let local = self.at.local()?;
            let is_allowed = has(self.fields.minute, local.minute());
            if is_allowed && local.second() == 0 {
                return Some(FieldSearchResult::Here);
            }
            self.step_ahead()?;
            if is_allowed {
                // The minute has begun already: all fields are looked at with the next one.
                self.moved = true;
                self.at = self.at.plus(60 - i64::from(local.second()));
                return Some(FieldSearchResult::Wrapped);
            }
            if !std::mem::replace(&mut self.moved, true) {
                self.at = self.at.whole_minute();
            }
            self.at = self.at.plus(60);
            if self.at.local()?.minute() == 0 {
                return Some(FieldSearchResult::Wrapped);
            }
        }
    }
}

fn date(local: jiff::civil::DateTime) -> (i64, i64, i64) {
    (local.year().into(), local.month().into(), local.day().into())
}

fn second_of_day(local: jiff::civil::DateTime) -> i64 {
    i64::from(local.hour()) * HOUR + i64::from(local.minute()) * 60 + i64::from(local.second())
}

fn has(values: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| values.checked_shr(value).is_some_and(|rest| rest & 1 == 1))
}
