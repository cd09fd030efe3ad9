//! How old the last good backup of each namespace is.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::namespace::NamespaceSet;

/// Comparisons of a name with a set in one computation. The sets are as many as different backups,
/// and users choose both.
const COMPARISONS: usize = 2_000_000;

/// The last good backup of one set of namespaces.
#[derive(Clone, Debug)]
pub struct LastGoodBackup {
    pub namespaces: Arc<NamespaceSet>,
    pub ended: Timestamp,
}

/// When the last good backup of each namespace ended; `None`: no backup took the namespace, or more
/// backups would have to be compared than is reasonable.
pub fn of_namespaces<'n>(
    namespaces: impl IntoIterator<Item = &'n str>,
    mut good: Vec<LastGoodBackup>,
) -> BTreeMap<&'n str, Option<Timestamp>> {
    // The latest first: the first that takes a namespace is the last one that took it.
    good.sort_by_key(|one| std::cmp::Reverse(one.ended));
    let mut left: Vec<&str> = namespaces.into_iter().collect();
    let mut ages: BTreeMap<&str, Option<Timestamp>> = left.iter().map(|name| (*name, None)).collect();
    let mut comparisons = 0_usize;
    for one in good {
        comparisons = comparisons.saturating_add(left.len());
        if left.is_empty() || comparisons > COMPARISONS {
            break;
        }
        left.retain(|name| {
            let is_taken = one.namespaces.contains(name);
            if is_taken {
                ages.insert(name, Some(one.ended));
            }
            !is_taken
        });
    }
    ages
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::glob::Glob;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    fn good(includes: &[&str], excludes: &[&str], minutes: i64) -> LastGoodBackup {
        let globs = |texts: &[&str]| texts.iter().map(|text| Glob::parse(text).unwrap()).collect();
        LastGoodBackup {
            namespaces: Arc::new(NamespaceSet::new(globs(includes), globs(excludes))),
            ended: at(minutes),
        }
    }

    #[test]
    fn the_latest_backup_that_takes_a_namespace_counts_and_none_is_told_too() {
        let backups =
            vec![good(&["*"], &["b", "secret-*"], 3), good(&["b", "c"], &[], 5), good(&["a"], &[], 1)];
        let ages = of_namespaces(["a", "b", "c", "secret-x"], backups);
        let expected = [("a", Some(at(3))), ("b", Some(at(5))), ("c", Some(at(5))), ("secret-x", None)];
        assert_eq!(ages, BTreeMap::from(expected));
    }

    #[test]
    fn the_effort_is_bounded() {
        let names: Vec<String> = (0..2000).map(|i| format!("n{i}")).collect();
        let backups = (0..5000).map(|i| good(&[&format!("other-{i}")], &[], i)).collect();
        let ages = of_namespaces(names.iter().map(String::as_str), backups);
        assert!(ages.values().all(Option::is_none));
    }
}
