//! Filters by kind: `clusterScopedFilterPolicy` and `namespacedFilterPolicies` of Velero 1.18.
//!
//! If a policy matches a namespace, only the kinds that it lists are taken from there, by its own
//! selectors instead of the spec's. Of the cluster-scoped kinds, a policy restricts those that it
//! lists, and the others are taken as usual. An object that another one needs is taken whether or
//! not its kind is listed, unless a rule for its kind excludes its name (source: Velero's
//! `fine-grained-backup-filters-design.md`).

use std::collections::{BTreeMap, BTreeSet};

use crate::glob::{Glob, Pattern};
use crate::label::Selector;
use crate::limits;
use crate::selection::{ResourceType, by_name};
use crate::violation::{Field, Violations, tellable};

use super::Policies;

/// The field for kinds without namespaces.
pub const CLUSTER: &str = "clusterScopedFilterPolicy";
/// Longest name that an object can have.
const LONGEST: usize = 253;

/// Labels of an object.
pub type ObjectLabels = BTreeMap<String, String>;

/// Names of objects, some of them patterns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NameFilter {
    plain: BTreeSet<String>,
    patterns: Vec<Pattern>,
}

impl NameFilter {
    /// Every fault is reported with a path below `at`.
    pub fn parse(entries: &[String], at: &Field, found: &mut Violations) -> Self {
        found.limit(entries.len(), limits::NAMES, at, "use patterns, or several Backups");
        let mut names = Self::default();
        for (i, entry) in entries.iter().enumerate().take(limits::NAMES) {
            let is_legal = (1..=LONGEST).contains(&entry.len())
                && !entry.contains("**")
                && !entry.contains(|c: char| c.is_control() || "(){}!|,/%".contains(c));
            let pattern = if is_legal { Pattern::parse(entry).ok() } else { None };
            match pattern {
                None => {
                    let message = format!(
                        "{:?} is not a name or a pattern: * ? [abc] [a-z] stand for characters, and nothing else does",
                        tellable(entry)
                    );
                    found.push(at.index(i), message);
                }
                Some(pattern) if entry.contains(['*', '?', '[']) => names.patterns.push(pattern),
                Some(_) => {
                    names.plain.insert(entry.clone());
                }
            }
        }
        // Bounded, because each pattern is compared with each object of its kind.
        if names.patterns.len() > limits::PATTERNS {
            let (patterns, most) = (names.patterns.len(), limits::PATTERNS);
            found.push(
                at.clone(),
                format!("has {patterns} patterns, and at most {most} are taken: use names"),
            );
            names.patterns.clear();
        }
        names
    }

    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.patterns.is_empty()
    }

    pub fn contain(&self, name: &str) -> bool {
        self.plain.contains(name) || self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

/// An entry of `resourceFilters`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceFilterRule {
    /// As written: `Pod`, `deployments.apps`. Empty: every kind that no other rule has.
    pub kinds: Vec<String>,
    /// An object must match one of these. Empty: all objects match.
    pub selectors: Vec<Selector>,
    /// Empty: any name.
    pub names: NameFilter,
    /// Names that are excluded even if `names` matches them.
    pub excluded: NameFilter,
}

impl ResourceFilterRule {
    fn takes_name(&self, name: &str) -> bool {
        (self.names.is_empty() || self.names.contain(name)) && !self.excluded.contain(name)
    }

    fn takes_labels(&self, labels: &ObjectLabels) -> bool {
        matches_one(&self.selectors, labels)
    }
}

/// Without any selector everything matches.
pub fn matches_one(selectors: &[Selector], labels: &ObjectLabels) -> bool {
    selectors.is_empty() || selectors.iter().any(|selector| selector.matches(labels))
}

/// An entry of `namespacedFilterPolicies`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespacePolicy {
    pub namespaces: Vec<Glob>,
    pub rules: Vec<ResourceFilterRule>,
}

/// Rules, resolved to the types of one cluster.
#[derive(Clone, Debug, Default, PartialEq)]
struct Kinds {
    rules: Vec<ResourceFilterRule>,
    /// Index of the rule for a type, by the type's qualified name.
    of: BTreeMap<String, usize>,
    /// Index of the rule for all other types.
    rest: Option<usize>,
}

impl Kinds {
    /// Kinds that match no type, or that an earlier rule has already, are added to `idle`.
    fn read(
        rules: &[ResourceFilterRule],
        types: &[ResourceType],
        fits: impl Fn(&ResourceType) -> bool,
        idle: &mut BTreeSet<String>,
    ) -> Self {
        let mut kinds = Self { rules: rules.to_vec(), ..Self::default() };
        for (i, rule) in rules.iter().enumerate() {
            if rule.kinds.is_empty() {
                kinds.rest.get_or_insert(i);
            }
            for entry in &rule.kinds {
                let known = by_name(entry, types).filter(|kind| fits(kind)).map(ResourceType::qualified);
                match known.filter(|name| kinds.of.get(name).is_none_or(|rule| *rule == i)) {
                    Some(name) => {
                        kinds.of.insert(name, i);
                    }
                    None => {
                        idle.insert(entry.clone());
                    }
                }
            }
        }
        kinds
    }

    fn rule(&self, qualified: &str) -> Option<&ResourceFilterRule> {
        self.rules.get(self.of.get(qualified).copied().or(self.rest)?)
    }
}

/// The filters of a policy, resolved for one cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filters {
    cluster: Kinds,
    policies: Vec<Kinds>,
    /// Index in `policies` for each namespace that a policy matches.
    namespaces: BTreeMap<String, usize>,
    /// Kinds without effect, by their field: they match no type of that scope, or a type that
    /// another rule has.
    pub idle: Vec<(&'static str, Vec<String>)>,
}

impl Filters {
    /// `types` in the order of discovery; `namespaces` are those that the backup takes.
    pub fn resolve<'n>(
        policies: &Policies,
        types: &[ResourceType],
        namespaces: impl IntoIterator<Item = &'n str>,
    ) -> Self {
        let (mut of_cluster, mut of_namespaces) = (BTreeSet::new(), BTreeSet::new());
        let cluster = Kinds::read(&policies.cluster, types, |kind| !kind.namespaced, &mut of_cluster);
        let read = |policy: &NamespacePolicy| {
            Kinds::read(&policy.rules, types, |kind| kind.namespaced, &mut of_namespaces)
        };
        let kinds = policies.namespaced.iter().map(read).collect();
        // A plain name takes precedence over all patterns. Among patterns, and among policies with
        // the same name, the first applies.
        let (mut names, mut patterns): (BTreeMap<&str, usize>, Vec<(&Glob, usize)>) = Default::default();
        for (i, policy) in policies.namespaced.iter().enumerate() {
            for glob in &policy.namespaces {
                match glob.literal() {
                    Some(name) => {
                        names.entry(name).or_insert(i);
                    }
                    None => patterns.push((glob, i)),
                }
            }
        }
        let policy_of = |name: &'n str| {
            let by_pattern = || patterns.iter().find(|(glob, _)| glob.matches(name)).map(|(_, i)| *i);
            Some((name.to_owned(), names.get(name).copied().or_else(by_pattern)?))
        };
        let namespaces = if policies.namespaced.is_empty() {
            BTreeMap::new()
        } else {
            namespaces.into_iter().filter_map(policy_of).collect()
        };
        let idle = [(CLUSTER, of_cluster), ("namespacedFilterPolicies", of_namespaces)];
        let idle = idle.into_iter().filter(|(_, kinds)| !kinds.is_empty());
        let idle = idle.map(|(section, kinds)| (section, kinds.into_iter().collect())).collect();
        Self { cluster, policies: kinds, namespaces, idle }
    }

    /// The filters for the objects of one type; `None` if there are none.
    pub fn of(&self, kind: &ResourceType) -> Option<TypeFilters<'_>> {
        let name = kind.qualified();
        if kind.namespaced {
            if self.namespaces.is_empty() {
                return None;
            }
            let rules = self.policies.iter().map(|kinds| kinds.rule(&name)).collect();
            return Some(TypeFilters { namespaces: Some(&self.namespaces), rules });
        }
        let rule = self.cluster.rule(&name)?;
        Some(TypeFilters { namespaces: None, rules: vec![Some(rule)] })
    }

    /// Does a policy for a namespace of the backup list this type?
    pub fn names(&self, kind: &ResourceType) -> bool {
        let name = kind.qualified();
        let used: BTreeSet<usize> = self.namespaces.values().copied().collect();
        used.into_iter().filter_map(|i| self.policies.get(i)).any(|kinds| kinds.of.contains_key(&name))
    }
}

/// The filters for the objects of one type.
pub struct TypeFilters<'f> {
    /// `None`: the type is cluster-scoped, and has one rule.
    namespaces: Option<&'f BTreeMap<String, usize>>,
    /// The rule of each policy.
    rules: Vec<Option<&'f ResourceFilterRule>>,
}

enum Says<'f> {
    /// No filter: the object is taken as usual.
    Nothing,
    Rule(&'f ResourceFilterRule),
    /// No object of this kind is taken from that namespace.
    Leave,
}

impl<'f> TypeFilters<'f> {
    fn says(&self, namespace: Option<&str>) -> Says<'f> {
        let policy = match (self.namespaces, namespace) {
            (None, _) => 0,
            (Some(namespaces), Some(name)) => match namespaces.get(name) {
                Some(policy) => *policy,
                None => return Says::Nothing,
            },
            (Some(_), None) => return Says::Nothing,
        };
        self.rules.get(policy).copied().flatten().map_or(Says::Leave, Says::Rule)
    }

    /// Are all objects of this type in this namespace left out?
    pub fn leaves(&self, namespace: &str) -> bool {
        matches!(self.says(Some(namespace)), Says::Leave)
    }

    /// Is a listed object taken? `selectors` are the spec's, and apply if there is no filter.
    pub fn takes_listed(
        &self,
        namespace: Option<&str>,
        name: &str,
        labels: &ObjectLabels,
        selectors: &[Selector],
    ) -> bool {
        match self.says(namespace) {
            Says::Nothing => matches_one(selectors, labels),
            Says::Rule(rule) => rule.takes_name(name) && rule.takes_labels(labels),
            Says::Leave => false,
        }
    }

    /// Is an object taken that another one needs? Labels do not matter for it, as without a policy.
    pub fn takes_needed(&self, namespace: Option<&str>, name: &str) -> bool {
        match self.says(namespace) {
            Says::Rule(rule) => rule.takes_name(name),
            Says::Nothing | Says::Leave => true,
        }
    }
}

#[cfg(test)]
mod tests;
