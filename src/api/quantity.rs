//! Quantities as Kubernetes writes them: `500m`, `1.5Gi`, `2e3`.

const UNITS: [(&str, u32, i32); 16] = [
    ("", 0, 0),
    ("n", 0, -9),
    ("u", 0, -6),
    ("m", 0, -3),
    ("k", 0, 3),
    ("M", 0, 6),
    ("G", 0, 9),
    ("T", 0, 12),
    ("P", 0, 15),
    ("E", 0, 18),
    ("Ki", 10, 0),
    ("Mi", 20, 0),
    ("Gi", 30, 0),
    ("Ti", 40, 0),
    ("Pi", 50, 0),
    ("Ei", 60, 0),
];

/// A quantity, in billionths, rounded up as Kubernetes does; saturates at the largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

impl Quantity {
    pub const ZERO: Self = Self(0);

    pub fn billionths(self) -> i128 {
        self.0
    }

    /// `None`: not a Kubernetes quantity.
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, unit) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (twos, tens) = scale(unit)?;
        let mut amount: i128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            amount = amount.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
        }
        amount = amount.saturating_mul(1 << twos);
        let places = i32::try_from(fraction.len()).ok()?;
        let tens = tens.saturating_add(9).saturating_sub(places);
        let power = 10_i128.checked_pow(tens.unsigned_abs()).unwrap_or(i128::MAX);
        amount = if tens < 0 {
            // Rounded up.
            amount / power + i128::from(amount % power > 0)
        } else {
            amount.saturating_mul(power)
        };
        Some(Self(if negative { -amount } else { amount }))
    }
}

/// The powers of two and of ten of a unit.
fn scale(unit: &str) -> Option<(u32, i32)> {
    if let Some((_, twos, tens)) = UNITS.iter().find(|(name, ..)| *name == unit) {
        return Some((*twos, *tens));
    }
    unit.strip_prefix(['e', 'E'])?.parse().ok().map(|tens| (0, tens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_are_read_as_kubernetes_reads_them() {
        for (text, billionths) in [
            ("0", 0),
            ("1", 1_000_000_000),
            ("500m", 500_000_000),
            ("1.5", 1_500_000_000),
            (".5", 500_000_000),
            ("1.", 1_000_000_000),
            ("+1k", 1_000_000_000_000),
            ("-1", -1_000_000_000),
            ("1Ki", 1_024_000_000_000),
            ("0.5Gi", 536_870_912_000_000_000),
            ("2e3", 2_000_000_000_000),
            ("2E-3", 2_000_000),
            ("1E", 1_000_000_000_000_000_000_000_000_000),
            ("1.1n", 2),
            ("1e-30", 1),
        ] {
            assert_eq!(Quantity::parse(text), Some(Quantity(billionths)), "{text}");
        }
        assert!(Quantity::parse("1e500") > Quantity::parse("9Ei"));
    }

    #[test]
    fn what_is_no_amount_is_none() {
        for text in [
            "", "m", ".", "1K", "1ki", "1KB", "1 Gi", " 1", "1e", "1ee3", "1..2", "1.2.3", "one", "--1",
            "1G1",
        ] {
            assert_eq!(Quantity::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_never_panics(text in "\\PC{0,12}|[-+]?[0-9.]{0,60}[eEKi0-9-]{0,6}") {
            let _ = Quantity::parse(&text);
        }
    }
}
