//! Reads expressions.

use std::ops::Range;

use jiff::tz::TimeZone;

use super::{Cron, CronFault, CronPart, CronRule, Fields, LONGEST, zone};
use crate::duration::{Wrong, nanoseconds};

/// A part of the expression with its place in it.
#[derive(Clone, Copy)]
struct ExpressionSlice<'t> {
    whole: &'t str,
    text: &'t str,
    start: usize,
}

impl<'t> ExpressionSlice<'t> {
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }

    fn fault(&self, part: CronPart, why: impl Into<String>) -> CronFault {
        CronFault::new(part, self.whole, self.range(), why)
    }

    /// The piece between these bytes of it.
    fn part(&self, range: Range<usize>) -> Self {
        let start = self.start + range.start;
        Self { text: self.text.get(range).unwrap_or_default(), start, ..*self }
    }

    fn trim(&self) -> Self {
        let start = self.text.len() - self.text.trim_start().len();
        let end = self.text.trim_end().len().max(start);
        self.part(start..end)
    }

    fn split(&self, is_between: impl Fn(char) -> bool) -> Vec<Self> {
        let mut pieces = Vec::new();
        let mut start = 0;
        for (at, separator) in self.text.match_indices(is_between) {
            pieces.push(self.part(start..at));
            start = at + separator.len();
        }
        pieces.push(self.part(start..self.text.len()));
        pieces
    }

    /// Without empty pieces.
    fn words(&self, is_between: impl Fn(char) -> bool) -> Vec<Self> {
        let mut words = self.split(is_between);
        words.retain(|word| !word.text.is_empty());
        words
    }
}

pub(super) fn parse(text: &str) -> Result<Cron, CronFault> {
    let whole = ExpressionSlice { whole: text, text, start: 0 };
    if text.is_empty() {
        return Err(whole.fault(CronPart::Expression, "is empty"));
    }
    if text.len() > LONGEST {
        let why = format!("has {} bytes, and at most {LONGEST} are taken", text.len());
        return Err(whole.fault(CronPart::Expression, why));
    }
    let (rest, zone, named) = match ["TZ=", "CRON_TZ="].iter().find(|prefix| text.starts_with(**prefix)) {
        Some(prefix) => {
            let end = text.find(' ').unwrap_or(text.len());
            let name = whole.part(prefix.len()..end);
            if end == text.len() {
                return Err(name.fault(CronPart::Zone, "is not followed by a space and an expression"));
            }
            (whole.part(end..text.len()).trim(), find_zone(name)?, Some(name.text.to_owned()))
        }
        None => (whole, TimeZone::UTC, None),
    };
    let rule = if rest.text.starts_with('@') { by_name(rest)? } else { CronRule::Fields(fields(rest)?) };
    Ok(Cron { rule, zone, named })
}

fn find_zone(name: ExpressionSlice<'_>) -> Result<TimeZone, CronFault> {
    zone::named(name.text).ok_or_else(|| match zone::similar(name.text) {
        Some(similar) => name.fault(CronPart::Zone, format!("is not known; is {similar} meant?")),
        None => name.fault(CronPart::Zone, "is not known"),
    })
}

/// The values that a field can have.
struct FieldRange {
    part: CronPart,
    least: u32,
    most: u32,
    names: &'static [&'static str],
}

const MINUTES: FieldRange = FieldRange { part: CronPart::Minute, least: 0, most: 59, names: &[] };
const HOURS: FieldRange = FieldRange { part: CronPart::Hour, least: 0, most: 23, names: &[] };
const DAYS_OF_MONTH: FieldRange = FieldRange { part: CronPart::DayOfMonth, least: 1, most: 31, names: &[] };
const MONTHS: FieldRange = FieldRange {
    part: CronPart::Month,
    least: 1,
    most: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const DAYS_OF_WEEK: FieldRange = FieldRange {
    part: CronPart::DayOfWeek,
    least: 0,
    most: 6,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

/// The values that an entry or a field allows.
#[derive(Clone, Copy, Default)]
struct Values {
    bits: u64,
    /// It has a `*` or `?` without steps.
    is_any: bool,
}

impl Values {
    fn one(value: u32) -> Self {
        Self { bits: 1 << value, is_any: false }
    }

    fn all(bounds: &FieldRange) -> Self {
        let bits = (bounds.least..=bounds.most).fold(0, |bits, value| bits | 1 << value);
        Self { bits, is_any: true }
    }
}

fn rule(minute: Values, hour: Values, day_of_month: Values, month: Values, day_of_week: Values) -> Fields {
    Fields {
        minute: minute.bits,
        hour: hour.bits,
        day_of_month: day_of_month.bits,
        month: month.bits,
        day_of_week: day_of_week.bits,
        both_days: day_of_month.is_any || day_of_week.is_any,
    }
}

fn by_name(text: ExpressionSlice<'_>) -> Result<CronRule, CronFault> {
    let (zero, one) = (Values::one(0), Values::one(1));
    let (hours, days, months, weekdays) =
        (Values::all(&HOURS), Values::all(&DAYS_OF_MONTH), Values::all(&MONTHS), Values::all(&DAYS_OF_WEEK));
    Ok(CronRule::Fields(match text.text {
        "@yearly" | "@annually" => rule(zero, zero, one, one, weekdays),
        "@monthly" => rule(zero, zero, one, months, weekdays),
        "@weekly" => rule(zero, zero, days, months, zero),
        "@daily" | "@midnight" => rule(zero, zero, days, months, weekdays),
        "@hourly" => rule(zero, hours, days, months, weekdays),
        name => {
            const EVERY: &str = "@every ";
            if !name.starts_with(EVERY) {
                return Err(text.fault(CronPart::Name, "is not one of the names"));
            }
            return Ok(CronRule::Every(every(text.part(EVERY.len()..name.len()))?));
        }
    }))
}

fn fields(text: ExpressionSlice<'_>) -> Result<Fields, CronFault> {
    let found = text.words(char::is_whitespace);
    let [minute, hour, day_of_month, month, day_of_week] = found.as_slice() else {
        let count = found.len();
        let fields = if count == 1 { "field" } else { "fields" };
        return Err(text.fault(CronPart::Expression, format!("has {count} {fields} where five are needed")));
    };
    Ok(rule(
        field(*minute, &MINUTES)?,
        field(*hour, &HOURS)?,
        field(*day_of_month, &DAYS_OF_MONTH)?,
        field(*month, &MONTHS)?,
        field(*day_of_week, &DAYS_OF_WEEK)?,
    ))
}

/// Entries, separated by commas.
fn field(text: ExpressionSlice<'_>, bounds: &FieldRange) -> Result<Values, CronFault> {
    let mut values = Values::default();
    for one in text.words(|c| c == ',') {
        let more = entry(one, bounds)?;
        values = Values { bits: values.bits | more.bits, is_any: values.is_any || more.is_any };
    }
    Ok(values)
}

/// `*`, a number or a range, with or without steps.
fn entry(text: ExpressionSlice<'_>, bounds: &FieldRange) -> Result<Values, CronFault> {
    let part = bounds.part;
    let pieces = text.split(|c| c == '/');
    let (range, steps) = match pieces.as_slice() {
        [range] => (*range, None),
        [range, steps] => (*range, Some(*steps)),
        _ => return Err(text.fault(part, "has more than one /")),
    };
    let ends = range.split(|c| c == '-');
    let (first, last, is_any) = match ends.as_slice() {
        // What follows the * after a hyphen counts for nothing.
        [star, ..] if matches!(star.text, "*" | "?") => (bounds.least, bounds.most, true),
        [one] => {
            let first = value(*one, bounds)?;
            // With steps a single number is where they begin.
            (first, if steps.is_some() { bounds.most.max(first) } else { first }, false)
        }
        [first, last] => {
            let (low, high) = (value(*first, bounds)?, value(*last, bounds)?);
            if low > high {
                return Err(range.fault(part, "ends before it begins, and ranges do not wrap around"));
            }
            (low, high, false)
        }
        _ => return Err(range.fault(part, "has more than one -")),
    };
    let step = match steps {
        Some(steps) => match number(steps, part)? {
            0 => return Err(steps.fault(part, "is no step: steps are 1 or more")),
            step => step,
        },
        None => 1,
    };
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    let bits = (first..=last).step_by(step).fold(0, |bits, value| bits | 1 << value);
    Ok(Values { bits, is_any: is_any && step == 1 })
}

/// A number or a name, within the bounds of the field.
fn value(text: ExpressionSlice<'_>, bounds: &FieldRange) -> Result<u32, CronFault> {
    let names = bounds.names.iter().zip(bounds.least..);
    if let Some((_, value)) = names.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text.text)) {
        return Ok(value);
    }
    let number = number(text, bounds.part)?;
    if number < bounds.least.into() {
        return Err(text.fault(bounds.part, format!("is below {}", bounds.least)));
    }
    u32::try_from(number)
        .ok()
        .filter(|value| *value <= bounds.most)
        .ok_or_else(|| text.fault(bounds.part, format!("is above {}", bounds.most)))
}

/// A number as Go's `Atoi` reads it.
fn number(text: ExpressionSlice<'_>, part: CronPart) -> Result<u64, CronFault> {
    let digits = text.text.strip_prefix('+').unwrap_or(text.text);
    if text.text.is_empty() {
        return Err(text.fault(part, "lacks a number"));
    }
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(text.fault(part, "is no number"));
    }
    let number = digits.parse::<u64>().ok().filter(|number| i64::try_from(*number).is_ok());
    number.ok_or_else(|| text.fault(part, "is too large"))
}

/// The seconds of a duration; at least one.
fn every(text: ExpressionSlice<'_>) -> Result<i64, CronFault> {
    match nanoseconds(text.text) {
        Ok(nanoseconds) => Ok((nanoseconds / 1_000_000_000).max(1)),
        Err(Wrong::Syntax) => Err(text.fault(CronPart::Every, "is no duration")),
        Err(Wrong::Range) => Err(text.fault(CronPart::Every, "is longer than about 292 years")),
    }
}
