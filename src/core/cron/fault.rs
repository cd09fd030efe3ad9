//! What is wrong with an expression, and where.

use std::fmt;
use std::ops::Range;

/// A part of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CronPart {
    Expression,
    Zone,
    Name,
    Every,
    Minute,
    Hour,
    DayOfMonth,
    Month,
    DayOfWeek,
}

impl CronPart {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expression => "expression",
            Self::Zone => "time zone",
            Self::Name => "name",
            Self::Every => "@every",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
        }
    }

    /// What may stand there.
    pub fn allowed(self) -> &'static str {
        match self {
            Self::Expression => {
                "five fields (minute, hour, day of month, month, day of week) as in 0 2 * * *, or @hourly, @daily, @weekly, @monthly, @yearly, @every 6h"
            }
            Self::Zone => "names of the time zone database as in Europe/Berlin, and a space after them",
            Self::Name => "@yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, @every 6h",
            Self::Every => "durations as in 6h, 1h30m or 90s",
            Self::Minute => "0-59, *, ranges as 0-30, steps as */15, and lists of them as 0,30",
            Self::Hour => "0-23, *, ranges as 8-18, steps as */6, and lists of them as 2,14",
            Self::DayOfMonth => "1-31, *, ?, ranges as 1-7, steps as */2, and lists of them as 1,15",
            Self::Month => "1-12 or JAN-DEC, *, ranges as 1-6, steps as */3, and lists of them as 1,7",
            Self::DayOfWeek => {
                "0-6 (Sunday is 0) or SUN-SAT, *, ?, ranges as MON-FRI, steps as */2, and lists of them as 1,4"
            }
        }
    }
}

/// One fault of an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CronFault {
    pub part: CronPart,
    /// The bytes of the expression that are wrong.
    pub bytes: Range<usize>,
    /// The same in characters, counted from 1, the last one included.
    characters: (usize, usize),
    /// What stands there.
    found: String,
    why: String,
}

/// Most characters of the expression that a message repeats.
const SHOWN: usize = 40;

impl CronFault {
    pub(super) fn new(part: CronPart, text: &str, bytes: Range<usize>, why: impl Into<String>) -> Self {
        let found = text.get(bytes.clone()).unwrap_or_default();
        let before = text.get(..bytes.start).unwrap_or_default().chars().count();
        let count = found.chars().count();
        let mut shown: String = found.chars().take(SHOWN).collect();
        if count > SHOWN {
            shown.push('…');
        }
        Self { part, bytes, characters: (before + 1, before + count), found: shown, why: why.into() }
    }
}

impl fmt::Display for CronFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, characters: (first, last), found, why, .. } = self;
        let (name, allowed) = (part.name(), part.allowed());
        if found.is_empty() {
            return write!(f, "{name} {why}; allowed: {allowed}");
        }
        write!(f, "{name} {found:?} (")?;
        if first < last {
            write!(f, "characters {first} to {last}")?;
        } else {
            write!(f, "character {first}")?;
        }
        write!(f, ") {why}; allowed: {allowed}")
    }
}
