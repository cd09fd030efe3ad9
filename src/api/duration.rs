//! Durations as Go writes them: `720h0m0s`, `1.5h`, `90m`, `0s`.

use std::time::Duration;

use berth_core::duration::{Wrong, nanoseconds};
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
    /// # Errors
    /// Why the text cannot be used.
    pub fn get(&self) -> Result<Option<Duration>, DurationError> {
        let text = self.0.as_str();
        if text.is_empty() {
            return Ok(None);
        }
        match nanoseconds(text) {
            Ok(0) => Ok(None),
            Ok(some) => match u64::try_from(some) {
                Ok(some) => Ok(Some(Duration::from_nanos(some))),
                Err(_) => Err(DurationError::Negative(text.to_owned())),
            },
            Err(Wrong::Syntax) => Err(DurationError::Syntax(text.to_owned())),
            Err(Wrong::Range) => Err(DurationError::Range(text.to_owned())),
        }
    }
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
