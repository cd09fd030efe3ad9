//! Durations as Go writes them: `720h0m0s`, `1.5h`, `90m`, `-5s`, `0`.

/// Why a text is no duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Syntax,
    /// It does not fit in 64 bits of nanoseconds.
    Range,
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

/// The nanoseconds of a duration (source of the grammar: Go's `time.ParseDuration`).
///
/// # Errors
/// When the text is no duration.
pub fn nanoseconds(text: &str) -> Result<i64, Wrong> {
    let (is_negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or_default()),
        Some(b'+') => (false, text.get(1..).unwrap_or_default()),
        _ => (false, text),
    };
    let total = if digits == "0" { 0 } else { unsigned(digits)? };
    let signed = i64::try_from(if is_negative { -i128::from(total) } else { i128::from(total) });
    signed.map_err(|_| Wrong::Range)
}

fn unsigned(mut rest: &str) -> Result<u64, Wrong> {
    if rest.is_empty() {
        return Err(Wrong::Syntax);
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
            return Err(Wrong::Syntax);
        }
        let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        let (unit, after) = rest.split_at(end);
        rest = after;
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(Wrong::Syntax)?;
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| Wrong::Range)? };
        let part = whole.checked_mul(*scale).ok_or(Wrong::Range)?;
        let part = part.checked_add(part_of(fraction.unwrap_or_default(), *scale)).ok_or(Wrong::Range)?;
        total = total.checked_add(part).ok_or(Wrong::Range)?;
    }
    Ok(total)
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
