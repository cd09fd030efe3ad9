//! Which namespaces a backup takes, and whether two backups can meet in one.

use crate::glob::{Glob, name_exists};

/// The namespaces of a backup: those included, less those excluded. Patterns stay patterns, so that a
/// namespace that does not exist yet is covered too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceSet {
    /// `None`: all.
    includes: Option<Vec<Glob>>,
    excludes: Vec<Glob>,
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
}

impl NamespaceSet {
    /// Empty `includes`, or one that is a lone `*`, takes all.
    pub fn new(includes: Vec<Glob>, excludes: Vec<Glob>) -> Self {
        let all = includes.is_empty() || includes.iter().any(|glob| glob.as_str() == "*");
        Self { includes: (!all).then_some(includes), excludes }
    }

    /// Just these; none of them takes nothing at all.
    pub fn literal(names: impl IntoIterator<Item = Glob>) -> Self {
        Self { includes: Some(names.into_iter().collect()), excludes: Vec::new() }
    }

    pub fn takes_all(&self) -> bool {
        self.includes.is_none() && self.excludes.is_empty()
    }

    /// Is every namespace named outright, with no pattern among the includes?
    pub fn is_literal(&self) -> bool {
        self.includes.as_ref().is_some_and(|globs| globs.iter().all(|glob| glob.literal().is_some()))
    }

    pub fn contains(&self, namespace: &str) -> bool {
        self.includes.as_ref().is_none_or(|globs| globs.iter().any(|glob| glob.matches(namespace)))
            && !self.excludes.iter().any(|glob| glob.matches(namespace))
    }

    /// Names that are included outright and not excluded.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.includes
            .iter()
            .flatten()
            .filter_map(Glob::literal)
            .filter(|name| !self.excludes.iter().any(|glob| glob.matches(name)))
    }

    /// Includes that are patterns.
    fn patterns(&self) -> impl Iterator<Item = &Glob> {
        self.includes.iter().flatten().filter(|glob| glob.literal().is_none())
    }

    /// Can a namespace, existing or not, be in both sets? `None` when it cannot.
    pub fn meets(&self, other: &Self) -> Option<Meeting> {
        let mut told: Vec<String> = Vec::new();
        let names = self
            .literals()
            .filter(|name| other.contains(name))
            .chain(other.literals().filter(|name| self.contains(name)));
        for name in names {
            if told.len() < Meeting::TOLD && !told.iter().any(|known| known == name) {
                told.push(name.to_owned());
            }
        }
        if told.is_empty()
            && let Some(patterns) = self.patterns_meet(other)
        {
            told.push(patterns);
        }
        (!told.is_empty()).then_some(Meeting { namespaces: told })
    }

    /// [`NamespaceSet::meets`] without telling where.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.literals().any(|name| other.contains(name))
            || !self.is_literal() && other.literals().any(|name| self.contains(name))
            || !self.is_literal() && !other.is_literal() && self.patterns_meet(other).is_some()
    }

    fn patterns_meet(&self, other: &Self) -> Option<String> {
        let excludes: Vec<&Glob> = self.excludes.iter().chain(&other.excludes).collect();
        let ours: Vec<Option<&Glob>> = wide(self);
        let theirs: Vec<Option<&Glob>> = wide(other);
        ours.iter().flat_map(|a| theirs.iter().map(move |b| (*a, *b))).find_map(|(a, b)| {
            let both: Vec<&Glob> = [a, b].into_iter().flatten().collect();
            let meet = match both.as_slice() {
                [a, b] if a.is_apart_from(b) => false,
                // What was accepted as a pattern matches some name.
                [a, b] if a == b && excludes.is_empty() => true,
                [_] | [] if excludes.is_empty() => true,
                both => name_exists(both, &excludes),
            };
            meet.then(|| match (a, b) {
                (Some(a), Some(b)) if a.as_str() != b.as_str() => format!("{}&{}", a.as_str(), b.as_str()),
                (Some(one), _) | (None, Some(one)) => one.as_str().to_owned(),
                (None, None) => "*".to_owned(),
            })
        })
    }
}

/// What a set takes beyond plain names: its patterns, or everything (`None`).
fn wide(set: &NamespaceSet) -> Vec<Option<&Glob>> {
    if set.includes.is_none() { vec![None] } else { set.patterns().map(Some).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(includes: &[&str], excludes: &[&str]) -> NamespaceSet {
        let globs = |texts: &[&str]| texts.iter().filter_map(|t| Glob::parse(t).ok()).collect();
        NamespaceSet::new(globs(includes), globs(excludes))
    }

    fn told(a: &NamespaceSet, b: &NamespaceSet) -> Option<Vec<String>> {
        a.meets(b).map(|meeting| meeting.namespaces)
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
            prop_assert_eq!(a.meets(&b).is_some(), found, "{:?} {:?}", a, b);
            prop_assert_eq!(a.meets(&b).is_some(), b.meets(&a).is_some());
            prop_assert_eq!(a.meets(&b).is_some(), a.overlaps(&b));
        }
    }
}
