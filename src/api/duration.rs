//! Durations as Go writes them: `720h0m0s`, `1.5h`, `90m`, `0s`.

use std::time::Duration;

use berth_core::violation::{Field, Violations};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

// Every text is accepted when an object is parsed, so that one malformed field does not hide the
// faults of the others; `get` validates it.
/// A duration as Go writes it, for example 720h0m0s or 1h30m.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct GoDuration(pub String);

/// Why a text is not a valid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("{0:?} is not a duration: write numbers with units, as in 720h, 1h30m or 90s")]
    Syntax(String),
    #[error("{0:?} is out of range: at most about 292 years")]
    Range(String),
    #[error("{0:?} is negative: write 0s for the default")]
    Negative(String),
}

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl GoDuration {
    /// Formats like Go's `Duration.String` for whole seconds: `720h0m0s`, `1m30s`, `0s`.
    pub fn from_duration(duration: Duration) -> Self {
        let seconds = duration.as_secs();
        let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        Self(match (h, m, s) {
            (0, 0, s) => format!("{s}s"),
            (0, m, s) => format!("{m}m{s}s"),
            (h, m, s) => format!("{h}h{m}m{s}s"),
        })
    }

    /// The duration; `None` for an empty text and for zero, which both mean "use the default".
    ///
    /// Source of the grammar: Go's `time.ParseDuration`, 64-bit nanoseconds.
    pub fn get(&self) -> Result<Option<Duration>, DurationError> {
        let text = self.0.as_str();
        if text.is_empty() {
            return Ok(None);
        }
        let (negative, digits) = match text.as_bytes().first() {
            Some(b'-') => (true, text.get(1..).unwrap_or_default()),
            Some(b'+') => (false, text.get(1..).unwrap_or_default()),
            _ => (false, text),
        };
        let nanoseconds = if digits == "0" { 0 } else { self.nanoseconds(digits)? };
        match nanoseconds {
            0 => Ok(None),
            _ if negative => Err(DurationError::Negative(text.to_owned())),
            some => Ok(Some(Duration::from_nanos(some))),
        }
    }

    fn nanoseconds(&self, mut rest: &str) -> Result<u64, DurationError> {
        let syntax = || DurationError::Syntax(self.0.clone());
        let range = || DurationError::Range(self.0.clone());
        if rest.is_empty() {
            return Err(syntax());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let whole = take_digits(&mut rest);
            let fraction = match rest.strip_prefix('.') {
                Some(after) => {
                    rest = after;
                    Some(take_digits(&mut rest))
                }
                None => None,
            };
            if whole.is_empty() && fraction.is_none_or(str::is_empty) {
                return Err(syntax());
            }
            let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
            let (unit, after) = rest.split_at(end);
            rest = after;
            let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(syntax)?;
            let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| range())? };
            let part = whole.checked_mul(*scale).ok_or_else(range)?;
            let part = part.checked_add(part_of(fraction.unwrap_or_default(), *scale)).ok_or_else(range)?;
            total = total.checked_add(part).filter(|t| *t <= i64::MAX as u64).ok_or_else(range)?;
        }
        Ok(total)
    }
}

fn take_digits<'a>(rest: &mut &'a str) -> &'a str {
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, after) = rest.split_at(end);
    *rest = after;
    digits
}

/// `0.fraction × scale`, truncated below a nanosecond.
fn part_of(fraction: &str, scale: u64) -> u64 {
    let (mut value, mut unit) = (0, u128::from(scale) * 1_000_000_000_000);
    for digit in fraction.bytes().take(12) {
        unit /= 10;
        value += u128::from(digit - b'0') * unit;
    }
    u64::try_from(value / 1_000_000_000_000).unwrap_or(u64::MAX)
}

/// Like [`GoDuration::get`]; a malformed duration is reported with its field.
pub(crate) fn duration(text: Option<&GoDuration>, at: &Field, found: &mut Violations) -> Option<Duration> {
    match text.map(GoDuration::get).transpose() {
        Ok(value) => value.flatten(),
        Err(error) => {
            found.push(at.clone(), error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn get(text: &str) -> Result<Option<Duration>, DurationError> {
        GoDuration(text.to_owned()).get()
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, seconds) in [
            ("720h0m0s", 2_592_000.0),
            ("1h30m", 5400.0),
            ("1.5h", 5400.0),
            ("90s", 90.0),
            ("+5m", 300.0),
            (".5s", 0.5),
            ("1.s", 1.0),
            ("100ms", 0.1),
            ("1µs", 1e-6),
        ] {
            assert_eq!(get(text), Ok(Some(Duration::from_secs_f64(seconds))), "{text}");
        }
        for zero in ["", "0", "0s", "0h0m0s", "-0"] {
            assert_eq!(get(zero), Ok(None), "{zero:?}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for bad in ["30", "1d", "h", ".", "1h 30m", "PT1H", "1h-5m", "--1h", "-", "1.2.3s"] {
            assert!(matches!(get(bad), Err(DurationError::Syntax(_))), "{bad:?}: {:?}", get(bad));
        }
        assert!(matches!(get("99999999999999999999h"), Err(DurationError::Range(_))));
        assert!(matches!(get("2562048h"), Err(DurationError::Range(_))), "just over 2^63 nanoseconds");
        assert!(get("2562047h").is_ok());
        assert!(matches!(get("-1h"), Err(DurationError::Negative(_))));
    }

    #[test]
    fn durations_are_printed_as_go_prints_them() {
        for (seconds, text) in [(2_592_000, "720h0m0s"), (90, "1m30s"), (600, "10m0s"), (5, "5s"), (0, "0s")]
        {
            assert_eq!(GoDuration::from_duration(Duration::from_secs(seconds)).0, text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_never_panics(text in "\\PC{0,24}") {
            let _ = get(&text);
        }

        #[test]
        fn what_is_printed_is_read_back(seconds in 1_u64..9_000_000_000) {
            let duration = Duration::from_secs(seconds);
            prop_assert_eq!(GoDuration::from_duration(duration).get(), Ok(Some(duration)));
        }
    }
}
