//! The lists in filters: names and patterns of namespaces and of resource types.

use std::collections::HashSet;

use berth_core::glob::Glob;
use berth_core::limits;
use berth_core::selection::Filter;
use berth_core::violation::{Field, Violations};

/// Longest entry of a filter. The name of a CustomResourceDefinition has no more characters, and
/// each entry is compared with every type.
const LONGEST_RESOURCE: usize = 253;

/// Absent and empty are the same.
pub(crate) fn list(entries: &Option<Vec<String>>) -> &[String] {
    entries.as_deref().unwrap_or_default()
}

/// Parses names and patterns of namespaces. `star`: whether `*` is a valid entry.
pub(crate) fn globs(names: &[String], at: &Field, star: bool, found: &mut Violations) -> Vec<Glob> {
    found.limit(names.len(), limits::NAMES, at, "use patterns, or several Backups");
    let mut read = Vec::with_capacity(names.len().min(limits::NAMES));
    for (i, name) in names.iter().enumerate().take(limits::NAMES) {
        match Glob::parse(name) {
            Ok(_) if name == "*" && !star => {
                found.push(at.index(i), "\"*\" would leave nothing to back up: remove it");
            }
            Ok(glob) => read.push(glob),
            Err(error) => found.push(at.index(i), error.to_string()),
        }
    }
    let patterns = read.iter().filter(|glob| glob.literal().is_none()).count();
    if patterns > limits::PATTERNS {
        let most = limits::PATTERNS;
        let message =
            format!("has {patterns} patterns, and at most {most} are taken: use names, or several Backups");
        found.push(at.clone(), message);
        read.clear();
    }
    read
}

/// Checks an include list and an exclude list of types, of a spec or of a policy.
pub(crate) fn check_lists(filter: &Filter, includes_at: &Field, excludes_at: &Field, found: &mut Violations) {
    for (entries, at) in [(&filter.includes, includes_at), (&filter.excludes, excludes_at)] {
        if entries.len() > 1 && entries.iter().any(|e| e == "*") {
            found.push(at.clone(), "\"*\" stands alone or not at all: remove it, or the other names");
        }
        found.limit(entries.len(), limits::NAMES, at, "use patterns, or several Backups");
        let patterns = entries.iter().filter(|entry| entry.contains(['*', '?', '['])).count();
        found.limit(patterns, limits::PATTERNS, at, "use names, or several Backups");
        for (i, entry) in entries.iter().enumerate().take(limits::NAMES) {
            let legal = (1..=LONGEST_RESOURCE).contains(&entry.len())
                && entry.chars().all(|c| c.is_ascii_alphanumeric() || "-._*?[]".contains(c));
            if !legal {
                let message =
                    format!("{entry:?} is not a resource: write configmaps, deployments.apps or *.apps");
                found.push(at.index(i), message);
            }
        }
    }
    both_ways(&filter.includes, &filter.excludes, excludes_at, found);
}

/// Reports entries that are both included and excluded.
pub(crate) fn both_ways(includes: &[String], excludes: &[String], at: &Field, found: &mut Violations) {
    if includes.is_empty() || excludes.is_empty() {
        return;
    }
    let included: HashSet<&String> = includes.iter().take(limits::NAMES).collect();
    for (i, entry) in excludes.iter().enumerate().take(limits::NAMES) {
        if included.contains(entry) {
            found.push(at.index(i), format!("{entry:?} is included and excluded: remove one"));
        }
    }
}
