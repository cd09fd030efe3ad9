//! Which resource types a backup takes.
//!
//! Velero has two styles of filter that may not be mixed: the old one (`includedResources`,
//! `excludedResources`, `includeClusterResources`) and the scoped one (four lists). No filter at all is the
//! scoped style. Entries are `resource` or `resource.group` with `*` and `?`, or the other names that
//! discovery knows for a type (singular, short, kind).

use crate::glob::Glob;

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
    /// `pods`, `deployments.apps`: as it stands in filters and archive paths.
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

    fn is_named(&self, entry: &str) -> bool {
        if entry == "*" {
            return true;
        }
        if entry.contains(['*', '?', '[']) {
            return wildcard(entry, &self.qualified());
        }
        let entry = entry.to_ascii_lowercase();
        let (name, group) = entry.split_once('.').map_or((entry.as_str(), None), |(n, g)| (n, Some(g)));
        let named = name == self.resource
            || name == self.singular
            || name.eq_ignore_ascii_case(&self.kind)
            || self.short_names.iter().any(|short| short == name);
        named && group.is_none_or(|group| group == self.group)
    }
}

/// `resource.group` holds dots, which namespace patterns do not, so the pattern is matched part by part.
fn wildcard(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), name.split('.').collect());
    match pattern.as_slice() {
        [start @ .., last] if *last == "*" && name.len() > start.len() => {
            start.iter().zip(&name).all(|(p, n)| Glob::parse(p).is_ok_and(|g| g.matches(n)))
        }
        _ => {
            pattern.len() == name.len()
                && pattern.iter().zip(&name).all(|(p, n)| Glob::parse(p).is_ok_and(|g| g.matches(n)))
        }
    }
}

/// A list of includes and a list of excludes. No includes: everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub includes: Vec<String>,
    pub excludes: Vec<String>,
}

impl Filter {
    fn names(list: &[String], kind: &ResourceType) -> bool {
        list.iter().any(|entry| kind.is_named(entry))
    }

    fn excludes(&self, kind: &ResourceType) -> bool {
        Self::names(&self.excludes, kind)
    }

    fn takes(&self, kind: &ResourceType) -> bool {
        (self.includes.is_empty() || Self::names(&self.includes, kind)) && !self.excludes(kind)
    }
}

/// The filter of one backup, of either style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResourceFilter {
    Old { resources: Filter, include_cluster_resources: Option<bool> },
    Scoped { cluster: Filter, namespaced: Filter },
}

impl ResourceFilter {
    /// Does a backup with this filter take objects of this type? `all_namespaces`: the backup's namespace
    /// filter neither names nor excludes any.
    ///
    /// Without any filter every cluster-scoped type is taken, as Velero documents. Its server does not do so:
    /// the excludes that it adds by itself keep the rule from applying (contract: a superset that restores
    /// the same).
    pub fn takes(&self, kind: &ResourceType, all_namespaces: bool) -> bool {
        if is_never_taken(kind) {
            return false;
        }
        match self {
            Self::Old { resources, include_cluster_resources } => {
                let cluster = match include_cluster_resources {
                    _ if kind.namespaced || kind.is_namespaces() => true,
                    Some(wanted) => *wanted,
                    None => all_namespaces,
                };
                cluster && resources.takes(kind)
            }
            Self::Scoped { namespaced, .. } if kind.namespaced => namespaced.takes(kind),
            Self::Scoped { cluster, namespaced } => {
                let unfiltered = *cluster == Filter::default() && *namespaced == Filter::default();
                !cluster.excludes(kind)
                    && (Filter::names(&cluster.includes, kind)
                        || kind.is_namespaces()
                        || (unfiltered && all_namespaces))
            }
        }
    }

    /// Is the type named in an exclude list? Then not even what other objects need (the definition of a
    /// custom resource) brings it in.
    pub fn excludes(&self, kind: &ResourceType) -> bool {
        match self {
            Self::Old { resources, include_cluster_resources } => {
                resources.excludes(kind) || (!kind.namespaced && *include_cluster_resources == Some(false))
            }
            Self::Scoped { cluster, namespaced } => {
                if kind.namespaced {
                    namespaced.excludes(kind)
                } else {
                    cluster.excludes(kind)
                }
            }
        }
    }
}

/// Types that Velero leaves out of every backup: snapshots are described by other files, and the second
/// spelling of events holds the same objects once more.
fn is_never_taken(kind: &ResourceType) -> bool {
    matches!(
        (kind.group.as_str(), kind.resource.as_str()),
        ("snapshot.storage.k8s.io", "volumesnapshots" | "volumesnapshotcontents")
            | ("events.k8s.io", "events")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(qualified: &str, kind: &str, namespaced: bool) -> ResourceType {
        let (resource, group) = qualified.split_once('.').unwrap_or((qualified, ""));
        ResourceType {
            group: group.into(),
            version: "v1".into(),
            kind: kind.into(),
            resource: resource.into(),
            singular: kind.to_ascii_lowercase(),
            short_names: if kind == "ConfigMap" { vec!["cm".into()] } else { Vec::new() },
            namespaced,
        }
    }

    fn list(entries: &[&str]) -> Vec<String> {
        entries.iter().map(|e| (*e).to_owned()).collect()
    }

    fn scoped(cluster: (&[&str], &[&str]), namespaced: (&[&str], &[&str])) -> ResourceFilter {
        let filter = |(i, e): (&[&str], &[&str])| Filter { includes: list(i), excludes: list(e) };
        ResourceFilter::Scoped { cluster: filter(cluster), namespaced: filter(namespaced) }
    }

    fn old(includes: &[&str], excludes: &[&str], cluster: Option<bool>) -> ResourceFilter {
        let resources = Filter { includes: list(includes), excludes: list(excludes) };
        ResourceFilter::Old { resources, include_cluster_resources: cluster }
    }

    #[test]
    fn types_are_taken_as_documented() {
        let cm = kind("configmaps", "ConfigMap", true);
        let deploy = kind("deployments.apps", "Deployment", true);
        let sc = kind("storageclasses.storage.k8s.io", "StorageClass", false);
        let ns = kind("namespaces", "Namespace", false);
        let none = scoped((&[], &[]), (&[], &[]));
        for (filter, kind, all, expected) in [
            (&none, &sc, true, true),
            (&none, &sc, false, false),
            (&none, &ns, false, true),
            (&none, &cm, false, true),
            (&scoped((&[], &[]), (&["cm"], &[])), &cm, false, true),
            (&scoped((&[], &[]), (&["ConfigMap"], &[])), &cm, false, true),
            (&scoped((&[], &[]), (&["cm"], &[])), &deploy, false, false),
            (&scoped((&[], &[]), (&["cm"], &[])), &sc, true, false),
            (&scoped((&["*"], &[]), (&[], &["*"])), &sc, false, true),
            (&scoped((&["*"], &[]), (&[], &["*"])), &cm, false, false),
            (&scoped((&["storageclasses"], &[]), (&[], &[])), &sc, false, true),
            (&scoped((&[], &["*"]), (&[], &[])), &ns, true, false),
            (&old(&["deployments.apps"], &[], None), &deploy, false, true),
            (&old(&["*.apps"], &[], None), &deploy, false, true),
            (&old(&["deploy*"], &[], None), &cm, false, false),
            (&old(&[], &["configmaps"], None), &cm, true, false),
            (&old(&["*"], &[], None), &sc, true, true),
            (&old(&["*"], &[], None), &sc, false, false),
            (&old(&["*"], &[], Some(true)), &sc, false, true),
            (&old(&["*"], &[], Some(false)), &sc, true, false),
            (&old(&["*"], &[], Some(false)), &ns, true, true),
        ] {
            assert_eq!(filter.takes(kind, all), expected, "{filter:?} {} {all}", kind.qualified());
        }
    }
}
