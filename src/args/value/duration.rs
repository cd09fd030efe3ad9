//! Durations in Go's notation, printed as Go prints them.

use std::time::Duration;

use berth_api::GoDuration;

/// A duration of 0 or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoTime(pub Duration);

/// # Errors
/// When Go would not read it, or it is negative.
pub fn go_time(text: &str) -> Result<GoTime, String> {
    if text.is_empty() {
        return Err("is empty: write numbers with units, as in 720h, 1h30m or 90s".to_owned());
    }
    let duration = GoDuration(text.to_owned()).get().map_err(|error| error.to_string())?;
    Ok(GoTime(duration.unwrap_or_default()))
}

/// As Go's `Duration.String`: `720h0m0s`, `1m30.5s`, `1.5ms`, `0s`.
pub fn go_text(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    let fraction = |scale: u128, unit: &str| {
        let (whole, rest) = (nanoseconds / scale, nanoseconds % scale);
        if rest == 0 {
            return format!("{whole}{unit}");
        }
        let width = scale.to_string().len() - 1;
        let digits = format!("{rest:0width$}");
        format!("{whole}.{}{unit}", digits.trim_end_matches('0'))
    };
    match nanoseconds {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanoseconds}ns"),
        1_000..1_000_000 => fraction(1_000, "µs"),
        1_000_000..1_000_000_000 => fraction(1_000_000, "ms"),
        _ => {
            let (hours, minutes) = (duration.as_secs() / 3600, duration.as_secs() / 60 % 60);
            let seconds = Duration::new(duration.as_secs() % 60, duration.subsec_nanos());
            let seconds = seconds_text(seconds);
            match (hours, minutes) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

fn seconds_text(seconds: Duration) -> String {
    match seconds.subsec_nanos() {
        0 => format!("{}s", seconds.as_secs()),
        rest => {
            let digits = format!("{rest:09}");
            format!("{}.{}s", seconds.as_secs(), digits.trim_end_matches('0'))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_printed_as_go_prints_them() {
        for (text, printed) in [
            ("720h", "720h0m0s"),
            ("1.5h", "1h30m0s"),
            ("90s", "1m30s"),
            ("90.5s", "1m30.5s"),
            ("100ms", "100ms"),
            ("1500us", "1.5ms"),
            ("1ns", "1ns"),
            ("1.25us", "1.25µs"),
            ("0", "0s"),
            ("3600000ms", "1h0m0s"),
            ("61m", "1h1m0s"),
            ("1.000000001s", "1.000000001s"),
        ] {
            assert_eq!(go_text(go_time(text).unwrap().0), printed, "{text}");
        }
        for bad in ["", "30", "1d", "-1h", "one hour"] {
            assert!(go_time(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(nanoseconds in 0_u64..9_000_000_000_000_000_000) {
            let duration = Duration::from_nanos(nanoseconds);
            prop_assert_eq!(go_time(&go_text(duration)), Ok(GoTime(duration)));
        }
    }
}
