//! Which of many names a set contains.

use super::NamespaceSet;
use crate::glob::{Effort, Glob};

/// A name that is looked up.
#[derive(Clone, Copy)]
pub(super) struct LookupName<'a> {
    pub(super) text: &'a str,
    /// The set of its letters, without characters that no name may have.
    pub(super) letters: u64,
}

impl<'a> From<&'a Glob> for LookupName<'a> {
    fn from(name: &'a Glob) -> Self {
        Self { text: name.as_str(), letters: name.letters() }
    }
}

/// Does one of the patterns match? `None`: the effort was spent before the answer was known.
pub(super) fn matched(patterns: &[Glob], name: LookupName<'_>, effort: &Effort) -> Option<bool> {
    // Comparing the letters of four patterns takes one step.
    if !effort.spend(patterns.len().div_ceil(4)) {
        return None;
    }
    for pattern in patterns.iter().filter(|pattern| pattern.may_match(name.letters)) {
        if !effort.spend(name.text.len()) {
            return None;
        }
        if pattern.matches(name.text) {
            return Some(true);
        }
    }
    Some(false)
}

/// All letters that occur in these names.
pub(super) fn letters_of_all(names: &[Glob]) -> u64 {
    names.iter().fold(0, |letters, name| letters | name.letters())
}

/// A set in which many names are looked up, in their sorted order.
pub(super) struct NamespaceLookup<'a> {
    set: &'a NamespaceSet,
    /// Included names that do not sort before the last one looked up.
    names: &'a [Glob],
    included: &'a [Glob],
    excluded: &'a [Glob],
}

impl<'a> NamespaceLookup<'a> {
    /// For names that have no other letters than these.
    pub(super) fn of(set: &'a NamespaceSet, letters: u64) -> Self {
        Self {
            set,
            names: set.names(),
            included: set.includes.as_ref().map(|globs| globs.patterns_for(letters)).unwrap_or_default(),
            excluded: set.excludes.patterns_for(letters),
        }
    }

    /// Like [`NamespaceSet::may_contain`].
    pub(super) fn may_contain(&mut self, name: &Glob, effort: &Effort) -> bool {
        let is_included = self.set.includes.is_none()
            || self.has(name, effort)
            || matched(self.included, name.into(), effort) != Some(false);
        is_included && self.set.excludes.contain(name.into(), self.excluded, effort) != Some(true)
    }

    /// Is it one of the names? The answer is yes if the effort is spent.
    fn has(&mut self, name: &Glob, effort: &Effort) -> bool {
        // The next name is probably near.
        let mut reach = 1;
        while self.names.get(reach).is_some_and(|known| known < name) {
            reach *= 2;
        }
        let (near, looks) =
            (self.names.get(..=reach).unwrap_or(self.names), 2 * (reach.ilog2() as usize + 1));
        let before = near.partition_point(|known| known < name);
        self.names = self.names.get(before..).unwrap_or_default();
        // Two names may share a long prefix.
        !effort.spend(4 * looks) || self.names.first() == Some(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::glob::Pattern;
    use crate::limits;
    use crate::namespace::NamespaceOverlap;

    fn globs(texts: &[String]) -> Vec<Glob> {
        texts.iter().filter_map(|text| Glob::parse(text).ok()).collect()
    }

    /// The documented rule, implemented with the other way of matching patterns.
    fn takes(includes: &[Glob], excludes: &[Glob], name: &str) -> bool {
        let matches = |glob: &Glob| Pattern::parse(glob.as_str()).is_ok_and(|pattern| pattern.matches(name));
        (includes.is_empty() || includes.iter().any(matches)) && !excludes.iter().any(matches)
    }

    fn texts(most: usize) -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("[a-d][a-d-]{0,3}|[a-d*?-]{1,5}|[a-d]?\\[[a-d]{1,3}\\][a-d*]{0,2}", 0..most)
    }

    proptest! {
        #[test]
        fn a_set_contains_what_its_includes_match_and_its_excludes_do_not(
            includes in texts(8), excludes in texts(5), names in prop::collection::vec("[a-d][a-d-]{0,4}", 1..30),
        ) {
            let (includes, excludes) = (globs(&includes), globs(&excludes));
            let set = NamespaceSet::new(includes.clone(), excludes.clone());
            for name in names {
                prop_assert_eq!(set.contains(&name), takes(&includes, &excludes, &name), "{}", name);
                prop_assert!(!set.contains(&name) || set.could_contain(&name), "{}", name);
            }
        }

        /// Looked up one by one, in no order and without comparing letters first.
        #[test]
        fn names_that_meet_are_told_as_if_each_was_looked_for_among_all(
            a in texts(12), not_a in texts(4), b in texts(12), not_b in texts(4),
        ) {
            let a = NamespaceSet::new(globs(&a), globs(&not_a));
            let b = NamespaceSet::new(globs(&b), globs(&not_b));
            let (few, many) = if a.literals().count() <= b.literals().count() { (&a, &b) } else { (&b, &a) };
            let mut expected: Vec<&str> = few.literals().filter(|name| many.contains(name)).collect();
            let theirs = many.literals().filter(|name| !few.is_literal() && few.contains(name));
            let more: Vec<&str> = theirs.filter(|name| !expected.contains(name)).collect();
            expected.extend(more);
            expected.truncate(NamespaceOverlap::MAX_NAMES);
            let found = a.meets(&b, &Effort::of_decision()).map(|meeting| meeting.namespaces);
            if expected.is_empty() {
                let is_of_patterns = |found: &Vec<String>| found.iter().all(|one| one.contains(['*', '?', '[']));
                prop_assert!(found.as_ref().is_none_or(is_of_patterns), "{:?}", found);
            } else {
                prop_assert_eq!(found.unwrap_or_default(), expected);
            }
        }
    }

    #[test]
    fn sets_at_the_limits_are_told_apart_in_a_few_steps_for_each_name() {
        let names = |first: usize, count: usize| {
            (first..first + count).map(|i| format!("{}-{i:012}", "n".repeat(50)))
        };
        let patterns = (0..limits::PATTERNS).map(|i| format!("*x{i:03}*z"));
        let among = limits::NAMES - limits::PATTERNS;
        let plain: Vec<String> = names(0, limits::NAMES).collect();
        let mixed: Vec<String> = names(limits::NAMES, among).chain(patterns.clone()).collect();
        // Every second name, so that neither list is skipped at once.
        let (even, odd): (Vec<_>, Vec<_>) =
            (0..limits::NAMES).map(|i| (format!("n-{i:04}-a"), format!("n-{i:04}-b"))).unzip();
        let excluded: Vec<String> = names(9 * limits::NAMES, among).chain(patterns).collect();
        let set =
            |includes: &[String], excludes: &[String]| NamespaceSet::new(globs(includes), globs(excludes));
        for (a, b) in [
            (set(&plain, &[]), set(&mixed, &[])),
            (set(&even, &[]), set(&odd, &[])),
            (set(&even, &excluded), set(&mixed, &[])),
        ] {
            let effort = Effort::of_decision();
            let before = effort.left();
            assert!(!a.overlaps(&b, &effort));
            let (took, most) = (before - effort.left(), 20 * 2 * limits::NAMES);
            assert!(took as usize <= most, "{took}");
        }
    }
}
