//! Local dates and times of a zone, and the way back, as Go's package `time` computes them where a
//! local time does not exist, or exists twice.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Whole seconds since 1970, rounded down.
pub(super) fn seconds(at: Timestamp) -> i64 {
    at.as_nanosecond().div_euclid(1_000_000_000).try_into().unwrap_or(i64::MAX)
}

const DAY: i64 = 86_400;

/// A moment in a zone.
#[derive(Clone, Copy)]
pub(super) struct ZonedTime<'z> {
    zone: &'z TimeZone,
    second: i64,
}

impl<'z> ZonedTime<'z> {
    pub(super) fn new(zone: &'z TimeZone, second: i64) -> Self {
        Self { zone, second }
    }

    /// Seconds since 1970.
    pub(super) fn second(self) -> i64 {
        self.second
    }

    fn with(self, second: i64) -> Self {
        Self { second, ..self }
    }

    /// So many seconds later.
    pub(super) fn plus(self, seconds: i64) -> Self {
        self.with(self.second.saturating_add(seconds))
    }

    /// The beginning of its minute.
    pub(super) fn whole_minute(self) -> Self {
        self.with(self.second - self.second.rem_euclid(60))
    }

    /// Its local date and time. `None`: it is out of the calendar's range.
    pub(super) fn local(self) -> Option<DateTime> {
        let at = Timestamp::from_second(self.second).ok()?;
        Some(self.zone.to_datetime(at))
    }

    fn offset(self, second: i64) -> Option<i64> {
        let at = Timestamp::from_second(second).ok()?;
        Some(i64::from(self.zone.to_offset(at).seconds()))
    }

    /// The moment of a local time of this zone; months and days beyond their ends belong to later
    /// ones. A time that does not exist becomes one by the offset before or after the gap, and of
    /// one that exists twice it is the one that Go takes.
    pub(super) fn on(self, year: i64, month: i64, day: i64, second_of_day: i64) -> Option<Self> {
        let local = days(year, month)?.checked_add(day - 1)?.checked_mul(DAY)?.checked_add(second_of_day)?;
        let guess = self.offset(local)?;
        let offset = if guess == 0 { 0 } else { self.offset(local.checked_sub(guess)?)? };
        Some(self.with(local.checked_sub(offset)?))
    }
}

/// Days from 1970 to the first day of a month, in the Gregorian calendar.
fn days(year: i64, month: i64) -> Option<i64> {
    let (year, month) = (year.checked_add((month - 1).div_euclid(12))?, (month - 1).rem_euclid(12) + 1);
    // Years begin in March here, so that the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let of_year = (153 * month + 2) / 5;
    Some(year.checked_mul(365)? + leap_days + of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn days_are_counted_as_the_calendar_has_them() {
        let epoch = date(1970, 1, 1);
        for year in [1600, 1899, 1900, 1970, 1999, 2000, 2026, 2100, 2400] {
            for month in 1..=12_i8 {
                let expected = date(year, month, 1).since(epoch).unwrap().get_days();
                assert_eq!(days(year.into(), month.into()), Some(i64::from(expected)), "{year}-{month}");
            }
        }
        assert_eq!(days(2025, 13), days(2026, 1));
        assert_eq!(days(2025, 25), days(2027, 1));
    }
}
