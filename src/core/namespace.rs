//! Which namespaces a backup takes, and whether two backups can meet in one.

use crate::glob::{Effort, Glob, name_exists};

/// The namespaces of a backup: those included, less those excluded. Patterns stay patterns, so that a
/// namespace that does not exist yet is covered too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceSet {
    /// `None`: all.
    includes: Option<Globs>,
    excludes: Globs,
}

/// Names and patterns, each sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Globs {
    names: Vec<Glob>,
    patterns: Vec<Glob>,
}

impl Default for NamespaceSet {
    /// Takes nothing.
    fn default() -> Self {
        Self::literal([])
    }
}

/// Where two sets meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Names both take, or, where only patterns meet, the two patterns joined by `&`. At most
    /// [`Meeting::TOLD`] of them: this is for people.
    pub namespaces: Vec<String>,
}

impl Meeting {
    pub const TOLD: usize = 3;

    /// What cannot be told apart in time counts as meeting.
    fn perhaps() -> Self {
        Self { namespaces: vec!["what its patterns may match (too many to compare)".to_owned()] }
    }
}

impl Globs {
    fn new(globs: impl IntoIterator<Item = Glob>) -> Self {
        let (mut names, mut patterns): (Vec<Glob>, Vec<Glob>) =
            globs.into_iter().partition(|glob| glob.literal().is_some());
        for list in [&mut names, &mut patterns] {
            list.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
            list.dedup();
        }
        Self { names, patterns }
    }

    fn iter(&self) -> impl Iterator<Item = &Glob> {
        self.names.iter().chain(&self.patterns)
    }

    /// `None`: there was no effort left to find out.
    fn contain(&self, name: &str, effort: &Effort) -> Option<bool> {
        if !effort.spend(name.len()) {
            return None;
        }
        if self.names.binary_search_by(|known| known.as_str().cmp(name)).is_ok() {
            return Some(true);
        }
        for pattern in &self.patterns {
            if !effort.spend(name.len()) {
                return None;
            }
            if pattern.matches(name) {
                return Some(true);
            }
        }
        Some(false)
    }
}

impl NamespaceSet {
    /// Empty `includes`, or one that is a lone `*`, takes all.
    pub fn new(includes: Vec<Glob>, excludes: Vec<Glob>) -> Self {
        let all = includes.is_empty() || includes.iter().any(|glob| glob.as_str() == "*");
        let (mut includes, excludes) = ((!all).then(|| Globs::new(includes)), Globs::new(excludes));
        let effort = Effort::of_decision();
        if let Some(includes) = &mut includes {
            // A name of which that is not known stays.
            includes.names.retain(|name| excludes.contain(name.as_str(), &effort) != Some(true));
        }
        Self { includes, excludes }
    }

    /// Just these; none of them takes nothing at all.
    pub fn literal(names: impl IntoIterator<Item = Glob>) -> Self {
        Self { includes: Some(Globs::new(names)), excludes: Globs::default() }
    }

    pub fn takes_all(&self) -> bool {
        self.includes.is_none() && self.excludes == Globs::default()
    }

    /// Does it take all, but for namespaces that are left out whatever it says?
    pub fn takes_all_but(&self, left_out: impl Fn(&str) -> bool) -> bool {
        self.includes.is_none() && self.excludes.iter().all(|glob| glob.literal().is_some_and(&left_out))
    }

    /// Is every namespace named outright, with no pattern among the includes?
    pub fn is_literal(&self) -> bool {
        self.includes.as_ref().is_some_and(|globs| globs.patterns.is_empty())
    }

    pub fn contains(&self, namespace: &str) -> bool {
        self.may_contain(namespace, &Effort::of_decision())
    }

    /// As [`NamespaceSet::contains`]; what there is no effort left to find out counts as contained.
    pub fn may_contain(&self, namespace: &str, effort: &Effort) -> bool {
        let included = |globs: &Globs| globs.contain(namespace, effort) != Some(false);
        self.includes.as_ref().is_none_or(included) && self.excludes.contain(namespace, effort) != Some(true)
    }

    /// Names that are included outright and not excluded, sorted.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.includes.iter().flat_map(|globs| &globs.names).map(Glob::as_str)
    }

    /// Patterns among the includes, sorted.
    pub fn patterns(&self) -> impl Iterator<Item = &Glob> {
        self.includes.iter().flat_map(|globs| &globs.patterns)
    }

    fn names(&self) -> usize {
        self.includes.as_ref().map_or(0, |globs| globs.names.len())
    }

    /// Can a namespace, existing or not, be in both sets? `None` when it cannot. Sets that cannot be told apart with
    /// the effort that is left count as meeting.
    pub fn meets(&self, other: &Self, effort: &Effort) -> Option<Meeting> {
        let comparison = effort.of_comparison();
        let begun = comparison.left();
        let meeting = self.compare(other, Meeting::TOLD, &comparison);
        effort.charge(begun, &comparison);
        meeting
    }

    /// [`NamespaceSet::meets`] without telling where.
    pub fn overlaps(&self, other: &Self, effort: &Effort) -> bool {
        let comparison = effort.of_comparison();
        let begun = comparison.left();
        let meet = self.compare(other, 1, &comparison).is_some();
        effort.charge(begun, &comparison);
        meet
    }

    fn compare(&self, other: &Self, told: usize, effort: &Effort) -> Option<Meeting> {
        let (few, many) = if self.names() <= other.names() { (self, other) } else { (other, self) };
        let names = few.literals().filter(|name| many.may_contain(name, effort));
        // What a list of names has in common with another one is found by its own names.
        let back = !few.is_literal();
        let theirs = many.literals().filter(|name| back && few.may_contain(name, effort));
        let mut namespaces: Vec<String> = Vec::new();
        for name in names.chain(theirs) {
            if effort.left() == 0 {
                return Some(Meeting::perhaps());
            }
            if !namespaces.iter().any(|known| known == name) {
                namespaces.push(name.to_owned());
            }
            if namespaces.len() >= told {
                break;
            }
        }
        if !namespaces.is_empty() {
            return Some(Meeting { namespaces });
        }
        self.patterns_meet(other, effort)
    }

    fn patterns_meet(&self, other: &Self, effort: &Effort) -> Option<Meeting> {
        let excludes: Vec<&Glob> = self.excludes.iter().chain(other.excludes.iter()).collect();
        let (ours, theirs) = (self.wide(), other.wide());
        for (a, b) in ours.iter().flat_map(|a| theirs.iter().map(move |b| (*a, *b))) {
            if !effort.spend(20) {
                return Some(Meeting::perhaps());
            }
            let both: Vec<&Glob> = [a, b].into_iter().flatten().collect();
            let meet = match both.as_slice() {
                [a, b] if a.is_apart_from(b) => false,
                // What was accepted as a pattern matches some name.
                [a, b] if a == b && excludes.is_empty() => true,
                [_] | [] if excludes.is_empty() => true,
                both => name_exists(both, &excludes, effort),
            };
            if meet && effort.left() == 0 {
                return Some(Meeting::perhaps());
            }
            if meet {
                let told = match (a, b) {
                    (Some(a), Some(b)) if a.as_str() != b.as_str() => {
                        format!("{}&{}", a.as_str(), b.as_str())
                    }
                    (Some(one), _) | (None, Some(one)) => one.as_str().to_owned(),
                    (None, None) => "*".to_owned(),
                };
                return Some(Meeting { namespaces: vec![told] });
            }
        }
        None
    }

    /// What it takes beyond plain names: its patterns, or everything (`None`).
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

    fn told(a: &NamespaceSet, b: &NamespaceSet) -> Option<Vec<String>> {
        a.meets(b, &Effort::of_decision()).map(|meeting| meeting.namespaces)
    }

    #[test]
    fn sets_meet_where_they_share_a_name() {
        assert_eq!(told(&set(&["ns1", "ns2"], &[]), &set(&["ns2", "ns3"], &[])), Some(vec!["ns2".into()]));
        assert_eq!(told(&set(&["ns1"], &[]), &set(&["ns2"], &[])), None);
        assert_eq!(told(&set(&[], &[]), &set(&["ns2"], &[])), Some(vec!["ns2".into()]));
        assert_eq!(told(&set(&["*"], &[]), &set(&[], &["a"])), Some(vec!["*".into()]));
    }

    #[test]
    fn an_excluded_name_is_no_meeting() {
        assert_eq!(told(&set(&[], &["ns2"]), &set(&["ns2"], &[])), None);
        assert_eq!(told(&set(&["team-*"], &["team-a"]), &set(&["team-a"], &[])), None);
        assert_eq!(told(&set(&[], &["team-*"]), &set(&["team-*"], &[])), None);
        assert_eq!(told(&set(&["a"], &["a"]), &set(&["a"], &[])), None);
    }

    #[test]
    fn patterns_meet_in_a_namespace_that_does_not_exist_yet() {
        assert_eq!(told(&set(&["team-*"], &[]), &set(&["*-prod"], &[])), Some(vec!["team-*&*-prod".into()]));
        assert_eq!(told(&set(&["team-*"], &[]), &set(&["club-*"], &[])), None);
        assert_eq!(told(&set(&["team-*"], &[]), &set(&[], &[])), Some(vec!["team-*".into()]));
        assert_eq!(told(&set(&["team-*"], &[]), &set(&["team-*"], &[])), Some(vec!["team-*".into()]));
    }

    #[test]
    fn a_name_that_no_namespace_has_still_meets_itself() {
        assert_eq!(told(&set(&["missing"], &[]), &set(&["missing"], &[])), Some(vec!["missing".into()]));
    }

    /// Patterns that no name matches in common and that are long in saying so: what stopped a queue for hours.
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
