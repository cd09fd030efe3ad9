//! The resource types that a backup takes.
//!
//! Velero has two styles of filter that may not be mixed: the old one (`includedResources`,
//! `excludedResources`, `includeClusterResources`) and the scoped one (four lists). A spec without
//! any filter has the scoped style. An entry is the name of one type, as kubectl accepts it, or a
//! pattern over `resource.group`. [`ResourceFilter::resolve`] decides once, for the types of a
//! cluster, what each entry stands for. A resource policy may add lists of its own to the scoped
//! ones ([`crate::policy`]).

use std::collections::{BTreeMap, BTreeSet};

use crate::glob::Pattern;

/// Excluded from every backup, because other files describe snapshots. Velero's server writes this
/// exclude into the spec.
pub const SNAPSHOTS: &str = "volumesnapshots.snapshot.storage.k8s.io";
/// Like [`SNAPSHOTS`], but cluster-scoped.
pub const SNAPSHOT_CONTENTS: &str = "volumesnapshotcontents.snapshot.storage.k8s.io";
/// The events of this group are the same objects as those of the core group.
const SECOND_EVENTS: &str = "events.events.k8s.io";

/// One resource type as discovery describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceType {
    /// Empty for the core group.
    pub group: String,
    /// The preferred version.
    pub version: String,
    pub kind: String,
    /// Plural, lower case.
    pub resource: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub namespaced: bool,
}

impl ResourceType {
    /// A type whose plural is its name with an `s`, and that has no short names.
    pub fn regular(group: &str, version: &str, kind: &str, namespaced: bool) -> Self {
        let singular = kind.to_lowercase();
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            resource: format!("{singular}s"),
            singular,
            short_names: Vec::new(),
            namespaced,
        }
    }

    /// `pods`, `deployments.apps`: as used in filters and archive paths.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.resource.clone()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    pub fn is_namespaces(&self) -> bool {
        self.group.is_empty() && self.resource == "namespaces"
    }
}

/// A list of includes and a list of excludes. No includes: everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub includes: Vec<String>,
    pub excludes: Vec<String>,
}

/// The lists for both scopes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    pub cluster: Filter,
    pub namespaced: Filter,
}

/// The filter of one backup, of either style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResourceFilter {
    Old {
        resources: Filter,
        include_cluster_resources: Option<bool>,
    },
    /// `policy` has the lists of a resource policy, which apply to types that the spec's own lists
    /// do not mention.
    Scoped {
        cluster: Filter,
        namespaced: Filter,
        policy: Lists,
    },
}

/// Which objects of a type are taken, from fewest to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TypeSelection {
    /// None, even if another object needs them.
    Excluded,
    /// None, apart from the CustomResourceDefinition of a type of which objects were taken.
    Unnamed,
    /// Those that another object needs.
    Needed,
    /// All that match the namespaces and selectors of the backup.
    Listed,
}

/// A filter, resolved for the types of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    fates: BTreeMap<String, TypeSelection>,
    /// The namespace filter excludes nothing.
    pub all_namespaces: bool,
    /// Entries that match no type of the cluster, by the path of their field.
    pub idle: Vec<(&'static str, Vec<String>)>,
}

impl Selection {
    /// A selection that was resolved before, by the qualified names of the types.
    pub fn of(fates: impl IntoIterator<Item = (String, TypeSelection)>, all_namespaces: bool) -> Self {
        Self { fates: fates.into_iter().collect(), all_namespaces, idle: Vec::new() }
    }

    pub fn fate(&self, kind: &ResourceType) -> TypeSelection {
        self.fates.get(&kind.qualified()).copied().unwrap_or(TypeSelection::Excluded)
    }
}

impl ResourceFilter {
    /// Resolves the filter for `types`, which are in the order of discovery. `all_namespaces`: the
    /// namespace filter of the backup excludes nothing.
    ///
    /// Without any filter every cluster-scoped type is taken, as Velero documents. Velero's server
    /// does not do so, because the excludes that it adds by itself disable that rule. The backup
    /// here is a superset that restores the same.
    pub fn resolve(&self, types: &[ResourceType], all_namespaces: bool) -> Selection {
        let mut idle = Vec::new();
        let mut read = |field: &'static str, list: &[String], fits: fn(&ResourceType) -> bool| {
            let (entries, unknown) = ResolvedEntries::read(list, types, fits);
            if !unknown.is_empty() {
                idle.push((field, unknown));
            }
            entries
        };
        let any: fn(&ResourceType) -> bool = |_| true;
        let namespaced: fn(&ResourceType) -> bool = |kind| kind.namespaced;
        let cluster: fn(&ResourceType) -> bool = |kind| !kind.namespaced;
        let rule: Box<dyn Fn(&ResourceType) -> TypeSelection> = match self {
            Self::Old { resources, include_cluster_resources } => {
                let includes = read("spec.includedResources", &resources.includes, any);
                let excludes = read("spec.excludedResources", &resources.excludes, any);
                let wanted = *include_cluster_resources;
                Box::new(move |kind: &ResourceType| {
                    old_fate(kind, &includes, &excludes, wanted, all_namespaces)
                })
            }
            Self::Scoped { cluster: of_cluster, namespaced: in_namespaces, policy } => {
                let cluster = ScopedFilter {
                    includes: read("spec.includedClusterScopedResources", &of_cluster.includes, cluster),
                    excludes: read("spec.excludedClusterScopedResources", &of_cluster.excludes, cluster),
                    also: read(
                        "includeExcludePolicy.includedClusterScopedResources",
                        &policy.cluster.includes,
                        cluster,
                    ),
                    but: read(
                        "includeExcludePolicy.excludedClusterScopedResources",
                        &policy.cluster.excludes,
                        cluster,
                    ),
                };
                let namespaced = ScopedFilter {
                    includes: read(
                        "spec.includedNamespaceScopedResources",
                        &in_namespaces.includes,
                        namespaced,
                    ),
                    excludes: read(
                        "spec.excludedNamespaceScopedResources",
                        &in_namespaces.excludes,
                        namespaced,
                    ),
                    also: read(
                        "includeExcludePolicy.includedNamespaceScopedResources",
                        &policy.namespaced.includes,
                        namespaced,
                    ),
                    but: read(
                        "includeExcludePolicy.excludedNamespaceScopedResources",
                        &policy.namespaced.excludes,
                        namespaced,
                    ),
                };
                let is_full = all_namespaces
                    && cluster.names_none()
                    && cluster.leaves_nothing_out()
                    && (namespaced.names_none() || namespaced.includes.is_all)
                    && namespaced.leaves_nothing_out();
                Box::new(move |kind: &ResourceType| match kind.namespaced {
                    true if namespaced.leaves_out(kind) => TypeSelection::Excluded,
                    true if namespaced.names_none() || namespaced.names(kind) => TypeSelection::Listed,
                    true => TypeSelection::Unnamed,
                    false if cluster.leaves_out(kind) => TypeSelection::Excluded,
                    false if is_full || kind.is_namespaces() || cluster.names(kind) => TypeSelection::Listed,
                    false => TypeSelection::Needed,
                })
            }
        };
        let fate = |kind: &ResourceType| {
            let name = kind.qualified();
            let fate = if is_never_taken(&name) { TypeSelection::Excluded } else { rule(kind) };
            (name, fate)
        };
        let fates = types.iter().map(fate).collect();
        Selection { fates, all_namespaces, idle }
    }
}

fn old_fate(
    kind: &ResourceType,
    includes: &ResolvedEntries,
    excludes: &ResolvedEntries,
    cluster: Option<bool>,
    all_namespaces: bool,
) -> TypeSelection {
    if excludes.contain(kind) || (!kind.namespaced && cluster == Some(false)) {
        return TypeSelection::Excluded;
    }
    let everywhere = kind.namespaced || kind.is_namespaces() || all_namespaces;
    match (includes.is_empty || includes.contain(kind), cluster) {
        (true, None) if !everywhere => TypeSelection::Needed,
        (true, _) => TypeSelection::Listed,
        (false, Some(true)) if !kind.namespaced => TypeSelection::Needed,
        (false, _) => TypeSelection::Unnamed,
    }
}

/// The scoped lists of the spec, and those of a policy, which apply to types that the spec does not
/// mention.
struct ScopedFilter {
    includes: ResolvedEntries,
    excludes: ResolvedEntries,
    also: ResolvedEntries,
    but: ResolvedEntries,
}

impl ScopedFilter {
    fn leaves_out(&self, kind: &ResourceType) -> bool {
        self.excludes.contain(kind) || (self.but.contain(kind) && !self.includes.contain(kind))
    }

    fn names(&self, kind: &ResourceType) -> bool {
        self.includes.contain(kind) || self.also.contain(kind)
    }

    fn names_none(&self) -> bool {
        self.includes.is_empty && self.also.is_empty
    }

    /// Does the spec mention every type, so that the policy's lists have no effect?
    fn leaves_nothing_out(&self) -> bool {
        self.excludes.is_idle && (self.but.is_idle || self.includes.is_all)
    }
}

/// The entries of one list, resolved for a cluster.
struct ResolvedEntries {
    is_empty: bool,
    /// The list is `*`.
    is_all: bool,
    /// The list has only types that no backup takes.
    is_idle: bool,
    /// Qualified names.
    types: BTreeSet<String>,
}

impl ResolvedEntries {
    /// Also returns the entries that match no type which `fits` the list.
    fn read(list: &[String], types: &[ResourceType], fits: fn(&ResourceType) -> bool) -> (Self, Vec<String>) {
        let mut read =
            Self { is_empty: list.is_empty(), is_all: false, is_idle: true, types: BTreeSet::new() };
        let mut unknown = Vec::new();
        for entry in list {
            let named = named(entry, types);
            if entry == "*" {
                read.is_all = true;
            } else if !is_never_taken(entry) && !named.iter().any(|kind| fits(kind)) {
                unknown.push(entry.clone());
            }
            let names: Vec<String> = named.iter().map(|kind| kind.qualified()).collect();
            let is_idle = if names.is_empty() {
                is_never_taken(entry)
            } else {
                entry != "*" && names.iter().all(|name| is_never_taken(name))
            };
            read.is_idle &= is_idle;
            read.types.extend(names);
        }
        (read, unknown)
    }

    fn contain(&self, kind: &ResourceType) -> bool {
        self.types.contains(&kind.qualified())
    }
}

/// Does an entry of a filter stand for this type?
pub fn is_named(entry: &str, kind: &ResourceType) -> bool {
    !named(entry, std::slice::from_ref(kind)).is_empty()
}

fn named<'t>(entry: &str, types: &'t [ResourceType]) -> Vec<&'t ResourceType> {
    if entry.contains(['*', '?', '[']) {
        let Ok(pattern) = Pattern::parse(entry) else { return Vec::new() };
        return types.iter().filter(|kind| pattern.matches(&kind.qualified())).collect();
    }
    by_name(entry, types).into_iter().collect()
}

/// The type that a name stands for, as kubectl resolves it: plural, singular or kind before short
/// names; the exact group before one that begins with it; and among equals the first in the order
/// of discovery.
pub fn by_name<'t>(entry: &str, types: &'t [ResourceType]) -> Option<&'t ResourceType> {
    let entry = entry.to_ascii_lowercase();
    let (name, group) =
        entry.split_once('.').map_or((entry.as_str(), None), |(name, group)| (name, Some(group)));
    let rank = |kind: &ResourceType| {
        let is_full = name == kind.resource || name == kind.singular || kind.kind.eq_ignore_ascii_case(name);
        let is_named = is_full || kind.short_names.iter().any(|short| short == name);
        let is_in_group = group.is_none_or(|group| kind.group.starts_with(group));
        let is_like_group = group.is_some_and(|group| group != kind.group);
        (!name.is_empty() && is_named && is_in_group).then_some((!is_full, is_like_group))
    };
    let ranked = types.iter().filter_map(|kind| Some((rank(kind)?, kind)));
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, kind)| kind)
}

fn is_never_taken(name: &str) -> bool {
    [SNAPSHOTS, SNAPSHOT_CONTENTS, SECOND_EVENTS].contains(&name)
}

#[cfg(test)]
mod tests;
