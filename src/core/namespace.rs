//! The set of namespaces that a backup takes, and whether two such sets overlap.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use asked::{LookupName, NamespaceLookup, letters_of_all, matched};

use crate::glob::{Effort, Glob, letters_of, mark, name_exists};

mod asked;

/// The namespaces of a backup: the included ones without the excluded ones. Patterns are kept as
/// patterns, so that the set covers namespaces that do not exist yet.
#[derive(Clone, Debug)]
pub struct NamespaceSet {
    /// `None`: all namespaces.
    includes: Option<Globs>,
    excludes: Globs,
    /// Hash of both, by which sets are looked up, because comparing them takes long.
    mark: u64,
}

/// Names and patterns, each sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Globs {
    names: Vec<Glob>,
    patterns: Vec<Glob>,
}

impl PartialEq for NamespaceSet {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark && self.includes == other.includes && self.excludes == other.excludes
    }
}

impl Eq for NamespaceSet {}

impl PartialOrd for NamespaceSet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares the hashes first, which differ from process to process: an order for lookups, not for
/// people.
impl Ord for NamespaceSet {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_mark = self.mark.cmp(&other.mark);
        by_mark
            .then_with(|| self.includes.cmp(&other.includes))
            .then_with(|| self.excludes.cmp(&other.excludes))
    }
}

impl Hash for NamespaceSet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mark);
    }
}

impl Default for NamespaceSet {
    /// The empty set.
    fn default() -> Self {
        Self::literal([])
    }
}

/// An overlap of two sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceOverlap {
    /// Names in both sets; where only patterns overlap, the two patterns joined by `&`. At most
    /// [`NamespaceOverlap::MAX_NAMES`], because this is for messages.
    pub namespaces: Vec<String>,
}

impl NamespaceOverlap {
    pub const MAX_NAMES: usize = 3;

    /// Sets that cannot be compared within the effort count as overlapping.
    fn perhaps() -> Self {
        Self { namespaces: vec!["what its patterns may match (too many to compare)".to_owned()] }
    }
}

impl Globs {
    fn new(globs: impl IntoIterator<Item = Glob>) -> Self {
        let (mut names, mut patterns): (Vec<Glob>, Vec<Glob>) =
            globs.into_iter().partition(|glob| glob.literal().is_some());
        for list in [&mut names, &mut patterns] {
            list.sort_unstable();
            list.dedup();
        }
        Self { names, patterns }
    }

    fn iter(&self) -> impl Iterator<Item = &Glob> {
        self.names.iter().chain(&self.patterns)
    }

    /// `patterns` are all patterns of this set that could match. `None`: the effort was spent
    /// before the answer was known.
    fn contain(&self, name: LookupName<'_>, patterns: &[Glob], effort: &Effort) -> Option<bool> {
        if !effort.spend(name.text.len()) {
            return None;
        }
        let is_there = self.names.binary_search_by(|known| known.as_str().cmp(name.text)).is_ok();
        Some(is_there || matched(patterns, name, effort)?)
    }

    /// The patterns of this set, or none if no pattern could match a name with no other letters
    /// than these.
    fn patterns_for(&self, letters: u64) -> &[Glob] {
        if self.patterns.iter().any(|pattern| pattern.may_match(letters)) { &self.patterns } else { &[] }
    }
}

impl NamespaceSet {
    /// Empty `includes`, or a single `*`, means all namespaces.
    pub fn new(includes: Vec<Glob>, excludes: Vec<Glob>) -> Self {
        let all = includes.is_empty() || includes.iter().any(|glob| glob.as_str() == "*");
        let (mut includes, excludes) = ((!all).then(|| Globs::new(includes)), Globs::new(excludes));
        let effort = Effort::of_decision();
        if let Some(includes) = &mut includes {
            let patterns = excludes.patterns_for(letters_of_all(&includes.names));
            // A name stays in the list if the effort does not suffice to find out whether it is
            // excluded.
            includes.names.retain(|name| excludes.contain(name.into(), patterns, &effort) != Some(true));
        }
        Self::made(includes, excludes)
    }

    /// Exactly these names. An empty list is the empty set.
    pub fn literal(names: impl IntoIterator<Item = Glob>) -> Self {
        Self::made(Some(Globs::new(names)), Globs::default())
    }

    fn made(includes: Option<Globs>, excludes: Globs) -> Self {
        let mark = mark((&includes, &excludes));
        Self { includes, excludes, mark }
    }

    pub fn takes_all(&self) -> bool {
        self.includes.is_none() && self.excludes.iter().next().is_none()
    }

    /// Does the set contain all namespaces, apart from those that are left out in any case?
    pub fn takes_all_but(&self, left_out: impl Fn(&str) -> bool) -> bool {
        self.includes.is_none() && self.excludes.iter().all(|glob| glob.literal().is_some_and(&left_out))
    }

    /// Does the set consist of plain names only?
    pub fn is_literal(&self) -> bool {
        self.includes.as_ref().is_some_and(|globs| globs.patterns.is_empty())
    }

    pub fn contains(&self, namespace: &str) -> bool {
        self.may_contain(namespace, &Effort::of_decision())
    }

    /// Like [`NamespaceSet::contains`]; a namespace counts as contained if the effort does not
    /// suffice to find out.
    pub fn may_contain(&self, namespace: &str, effort: &Effort) -> bool {
        let name = LookupName { text: namespace, letters: letters_of(namespace.as_bytes()) };
        self.may_take(name, effort)
    }

    /// Like [`NamespaceSet::may_contain`], for a plain name.
    pub(crate) fn may_contain_name(&self, name: &Glob, effort: &Effort) -> bool {
        self.may_take(name.into(), effort)
    }

    /// The cheap half of [`NamespaceSet::contains`]: is it one of the names, or does a pattern need
    /// no other letters?
    pub(crate) fn could_contain(&self, namespace: &str) -> bool {
        self.includes.as_ref().is_none_or(|globs| {
            !globs.patterns_for(letters_of(namespace.as_bytes())).is_empty()
                || globs.names.binary_search_by(|known| known.as_str().cmp(namespace)).is_ok()
        })
    }

    fn may_take(&self, name: LookupName<'_>, effort: &Effort) -> bool {
        let contain = |globs: &Globs| globs.contain(name, &globs.patterns, effort);
        self.includes.as_ref().is_none_or(|globs| contain(globs) != Some(false))
            && contain(&self.excludes) != Some(true)
    }

    /// Plain names that are included and not excluded, sorted.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.names().iter().map(Glob::as_str)
    }

    /// Like [`NamespaceSet::literals`].
    pub(crate) fn names(&self) -> &[Glob] {
        self.includes.as_ref().map(|globs| globs.names.as_slice()).unwrap_or_default()
    }

    /// What the set holds: a name counts as one, and a pattern as four, because it takes four times
    /// the memory.
    pub fn weight(&self) -> usize {
        let weight = |globs: &Globs| globs.names.len() + 4 * globs.patterns.len();
        self.includes.as_ref().map_or(0, weight) + weight(&self.excludes)
    }

    /// All namespaces.
    pub fn all() -> Self {
        Self::made(None, Globs::default())
    }

    /// Patterns among the includes, sorted.
    pub fn patterns(&self) -> impl Iterator<Item = &Glob> {
        self.includes.iter().flat_map(|globs| &globs.patterns)
    }

    /// Can a namespace, existing or not, be in both sets? `None` if not. Sets that cannot be
    /// compared within the remaining effort count as overlapping.
    pub fn meets(&self, other: &Self, effort: &Effort) -> Option<NamespaceOverlap> {
        let comparison = effort.of_comparison();
        let begun = comparison.left();
        let meeting = self.compare(other, NamespaceOverlap::MAX_NAMES, &comparison);
        effort.charge(begun, &comparison);
        meeting
    }

    /// Like [`NamespaceSet::meets`], without the names of the overlap.
    pub fn overlaps(&self, other: &Self, effort: &Effort) -> bool {
        let comparison = effort.of_comparison();
        let begun = comparison.left();
        let meet = self.compare(other, 1, &comparison).is_some();
        effort.charge(begun, &comparison);
        meet
    }

    fn compare(&self, other: &Self, most: usize, effort: &Effort) -> Option<NamespaceOverlap> {
        let (few, many) =
            if self.names().len() <= other.names().len() { (self, other) } else { (other, self) };
        let mut asked = NamespaceLookup::of(many, letters_of_all(few.names()));
        let names = few.names().iter().filter(|name| asked.may_contain(name, effort));
        // Names that both lists contain are found from one side already.
        let back: &[Glob] = if few.is_literal() { &[] } else { many.names() };
        let mut asked_back = NamespaceLookup::of(few, letters_of_all(back));
        let theirs = back.iter().filter(|name| asked_back.may_contain(name, effort));
        let mut namespaces: Vec<String> = Vec::new();
        for name in names.chain(theirs).map(Glob::as_str) {
            if effort.left() == 0 {
                return Some(NamespaceOverlap::perhaps());
            }
            if !namespaces.iter().any(|known| known == name) {
                namespaces.push(name.to_owned());
            }
            if namespaces.len() >= most {
                break;
            }
        }
        if !namespaces.is_empty() {
            return Some(NamespaceOverlap { namespaces });
        }
        self.patterns_meet(other, effort)
    }

    fn patterns_meet(&self, other: &Self, effort: &Effort) -> Option<NamespaceOverlap> {
        if self.is_literal() || other.is_literal() {
            return None;
        }
        let (ours, theirs) = (self.wide(), other.wide());
        let excludes: Vec<&Glob> = self.excludes.iter().chain(other.excludes.iter()).collect();
        if !effort.spend(excludes.len()) {
            return Some(NamespaceOverlap::perhaps());
        }
        for (a, b) in ours.iter().flat_map(|a| theirs.iter().map(move |b| (*a, *b))) {
            if !effort.spend(4) {
                return Some(NamespaceOverlap::perhaps());
            }
            let meet = match (a, b) {
                (Some(a), Some(b)) if a.is_apart_from(b) => false,
                // Every valid pattern matches some name.
                (Some(a), Some(b)) if a == b && excludes.is_empty() => true,
                (Some(a), Some(b)) => name_exists(&[a, b], &excludes, effort),
                _ if excludes.is_empty() => true,
                (Some(one), None) | (None, Some(one)) => name_exists(&[one], &excludes, effort),
                (None, None) => name_exists(&[], &excludes, effort),
            };
            if meet && effort.left() == 0 {
                return Some(NamespaceOverlap::perhaps());
            }
            if meet {
                let shown = match (a, b) {
                    (Some(a), Some(b)) if a.as_str() != b.as_str() => {
                        format!("{}&{}", a.as_str(), b.as_str())
                    }
                    (Some(one), _) | (None, Some(one)) => one.as_str().to_owned(),
                    (None, None) => "*".to_owned(),
                };
                return Some(NamespaceOverlap { namespaces: vec![shown] });
            }
        }
        None
    }

    /// The part beyond plain names: its patterns, or everything (`None`).
    fn wide(&self) -> Vec<Option<&Glob>> {
        match &self.includes {
            None => vec![None],
            Some(globs) => globs.patterns.iter().map(Some).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;
    use proptest::prelude::*;

    fn set(includes: &[&str], excludes: &[&str]) -> NamespaceSet {
        let globs = |texts: &[&str]| texts.iter().filter_map(|t| Glob::parse(t).ok()).collect();
        NamespaceSet::new(globs(includes), globs(excludes))
    }

    fn shared(a: &NamespaceSet, b: &NamespaceSet) -> Option<Vec<String>> {
        a.meets(b, &Effort::of_decision()).map(|meeting| meeting.namespaces)
    }

    #[test]
    fn sets_meet_where_they_share_a_name() {
        assert_eq!(shared(&set(&["ns1", "ns2"], &[]), &set(&["ns2", "ns3"], &[])), Some(vec!["ns2".into()]));
        assert_eq!(shared(&set(&["ns1"], &[]), &set(&["ns2"], &[])), None);
        assert_eq!(shared(&set(&[], &[]), &set(&["ns2"], &[])), Some(vec!["ns2".into()]));
        assert_eq!(shared(&set(&["*"], &[]), &set(&[], &["a"])), Some(vec!["*".into()]));
    }

    #[test]
    fn an_excluded_name_is_no_meeting() {
        assert_eq!(shared(&set(&[], &["ns2"]), &set(&["ns2"], &[])), None);
        assert_eq!(shared(&set(&["team-*"], &["team-a"]), &set(&["team-a"], &[])), None);
        assert_eq!(shared(&set(&[], &["team-*"]), &set(&["team-*"], &[])), None);
        assert_eq!(shared(&set(&["a"], &["a"]), &set(&["a"], &[])), None);
    }

    #[test]
    fn patterns_meet_in_a_namespace_that_does_not_exist_yet() {
        assert_eq!(
            shared(&set(&["team-*"], &[]), &set(&["*-prod"], &[])),
            Some(vec!["team-*&*-prod".into()])
        );
        assert_eq!(shared(&set(&["team-*"], &[]), &set(&["club-*"], &[])), None);
        assert_eq!(shared(&set(&["team-*"], &[]), &set(&[], &[])), Some(vec!["team-*".into()]));
        assert_eq!(shared(&set(&["team-*"], &[]), &set(&["team-*"], &[])), Some(vec!["team-*".into()]));
    }

    #[test]
    fn a_name_that_no_namespace_has_still_meets_itself() {
        assert_eq!(shared(&set(&["missing"], &[]), &set(&["missing"], &[])), Some(vec!["missing".into()]));
    }

    /// Disjoint patterns whose comparison takes long: these once stopped a queue for hours.
    fn hostile(seed: usize) -> NamespaceSet {
        let letter = |i: usize| char::from(b'a' + u8::try_from(i % 26).unwrap_or(0));
        let pattern = |p: usize| {
            (0..31).map(|i| format!("*{}", letter(seed + p * 7 + i * (p % 5 + 1)))).collect::<String>()
        };
        let includes: Vec<String> = (0..limits::PATTERNS).map(pattern).collect();
        let mut excludes = vec!["?*".to_owned(), "*a*b*c*d*".to_owned()];
        excludes.extend((2..limits::PATTERNS).map(|p| pattern(p * 3 + 1)));
        let globs =
            |texts: Vec<String>| -> Vec<Glob> { texts.iter().filter_map(|t| Glob::parse(t).ok()).collect() };
        NamespaceSet::new(globs(includes), globs(excludes))
    }

    #[test]
    fn comparing_costs_no_more_than_the_effort_whatever_the_sets_are() {
        let (a, b) = (hostile(0), hostile(3));
        let effort = Effort::of_decision();
        let before = effort.left();
        assert!(a.overlaps(&b, &effort), "what cannot be told apart counts as meeting");
        let one = before - effort.left();
        assert!(one <= before / 20, "one comparison takes {one} of {before}");
        for _ in 0..1000 {
            assert!(a.overlaps(&b, &effort));
        }
        assert_eq!(effort.left(), 0);
        assert!(
            set(&["a-*"], &[]).overlaps(&set(&["b-*"], &[]), &effort),
            "nothing is left to tell them apart"
        );
    }

    proptest! {
        #[test]
        fn meeting_agrees_with_trying_every_name_and_is_symmetric(
            a in prop::collection::vec("[ab*]{1,3}", 0..3), b in prop::collection::vec("[ab*]{1,3}", 0..3),
            not_a in prop::collection::vec("[ab*]{1,3}", 0..2), not_b in prop::collection::vec("[ab*]{1,3}", 0..2),
        ) {
            let strs = |v: &[String]| -> Vec<Glob> { v.iter().filter_map(|t| Glob::parse(t).ok()).collect() };
            let (a, b) = (NamespaceSet::new(strs(&a), strs(&not_a)), NamespaceSet::new(strs(&b), strs(&not_b)));
            let mut names: Vec<String> = vec![String::new()];
            let mut found = false;
            for _ in 0..7 {
                names = names.iter().flat_map(|n| ["a", "b", "c"].map(|c| format!("{n}{c}"))).collect();
                found |= names.iter().any(|n| a.contains(n) && b.contains(n));
            }
            let meet = |a: &NamespaceSet, b: &NamespaceSet| a.meets(b, &Effort::of_decision()).is_some();
            prop_assert_eq!(meet(&a, &b), found, "{:?} {:?}", a, b);
            prop_assert_eq!(meet(&b, &a), found);
            prop_assert_eq!(a.overlaps(&b, &Effort::of_decision()), found);
        }
    }
}
