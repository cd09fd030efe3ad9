//! What somebody may have meant who mistyped a name.

/// Names are compared up to this length.
const LONGEST: usize = 253;
/// Names that are compared at most.
const MOST: usize = 20_000;

/// The name that is most like the typed one, if one is.
pub fn closest<'n>(typed: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let far = (typed.chars().count() / 3).clamp(1, 4);
    let judged = names.into_iter().take(MOST).filter_map(|name| {
        let begins = typed.len() >= 3 && name.starts_with(typed);
        let distance = distance(typed, name);
        (distance <= far || begins).then_some((if begins { distance.min(far) } else { distance }, name))
    });
    judged.min().map(|(_, name)| name)
}

/// Letters to insert, remove, replace, or swap with the next one.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(LONGEST).collect();
    let b: Vec<char> = b.chars().take(LONGEST).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
            let replaced = at(&row, j) + usize::from(from != to);
            let mut least = replaced.min(at(&row, j + 1) + 1).min(at(&next, j) + 1);
            let is_swap = i > 0 && j > 0 && a.get(i - 1) == Some(to) && b.get(j - 1) == Some(from);
            if is_swap {
                least = least.min(at(&before, j - 1) + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_mistyped_name_finds_the_one_that_was_meant() {
        let names = ["nightly", "weekly", "nightly-20260101000000", "web"];
        for (typed, meant) in [
            ("nigthly", Some("nightly")),
            ("nightl", Some("nightly")),
            ("weakly", Some("weekly")),
            ("wbe", Some("web")),
            ("nightly-2026", Some("nightly-20260101000000")),
            ("something-else", None),
            ("", None),
        ] {
            assert_eq!(closest(typed, names), meant, "{typed}");
        }
    }

    proptest! {
        #[test]
        fn distances_are_symmetric_and_zero_for_equals_only(a in "[abc]{0,6}", b in "[abc]{0,6}") {
            prop_assert_eq!(distance(&a, &b), distance(&b, &a));
            prop_assert_eq!(distance(&a, &b) == 0, a == b);
        }
    }
}
