//! Objects that an earlier run knew and a run that continues no longer finds: these are logged,
//! because nobody can read them any more.

use std::collections::HashSet;

use berth_core::selection::ResourceType;

use super::Collector;
use super::taken::CollectedType;
use crate::backup::log::ResultsHeading;
use crate::text::few;

impl Collector<'_> {
    /// Warns that `count` stored objects of a type were not found when the type was listed again.
    /// What objects name and ask for is known only of those that still exist.
    pub(super) fn tell_unmet(&self, kind: &ResourceType, count: usize) {
        if count == 0 {
            return;
        }
        let name = kind.qualified();
        let message = format!(
            "{count} of {name} that were stored before the backup was taken up again are not found any more: what only these need may be missing, and what they ask for is not told"
        );
        self.log.warning(&ResultsHeading::Cluster, &name, &message);
    }

    /// Warns of namespaces that the backup began with and that were deleted before they were
    /// stored. A run that was not interrupted has read them at its beginning.
    pub(super) fn tell_gone_namespaces(&self, held: &CollectedType, is_wanted: impl Fn(&str) -> bool) {
        let there: HashSet<&str> = self.namespaces.iter().map(|namespace| namespace.name.as_str()).collect();
        let resolved = self.resolved.iter().map(String::as_str);
        let is_gone = |name: &&str| !there.contains(*name) && !held.holds(name) && is_wanted(name);
        let mut gone: Vec<String> = resolved.filter(is_gone).map(str::to_owned).collect();
        if gone.is_empty() {
            return;
        }
        gone.sort_unstable();
        let message = format!(
            "{} namespaces were deleted before they were stored, and are missing, with what was still to come of them: {}",
            gone.len(),
            few(&gone)
        );
        self.log.warning(&ResultsHeading::Cluster, &held.kind.qualified(), &message);
    }
}
