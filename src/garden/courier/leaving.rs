//! An entry goes to another cluster: the hub gives it to that one when this one writes there no more, and has said so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use berth_api::garden::BackupEntry;
use berth_api::garden::report::{self, Problem, Report};
use berth_api::velero::Backup;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_core::garden::location::Life;
use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use tracing::info;

use super::Courier;
use super::write::Failure;
use crate::garden::running::{SETTLED, running};

/// By name: entries that are to go, and since when nobody begins to write there. Nothing of it outlives the process: then it is
/// seen anew.
#[derive(Default)]
pub struct Quiet(Mutex<BTreeMap<String, Instant>>);

impl Quiet {
    /// Nothing is waited for.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Those of others are forgotten.
    pub fn keep(&self, entries: &BTreeSet<String>) {
        self.0.lock().retain(|name, _| entries.contains(name));
    }

    fn forget(&self, entry: &str) {
        self.0.lock().remove(entry);
    }

    fn has_lasted(&self, entry: &str) -> bool {
        self.0.lock().entry(entry.to_owned()).or_insert_with(Instant::now).elapsed() >= SETTLED
    }
}

impl Courier {
    /// What the hub is to be told of an entry that goes, once its locations were looked after; `None`: nothing, or nothing yet.
    /// `failed`: why they could not be.
    pub(super) async fn leaving(
        &self,
        entry: &BackupEntry,
        failed: Option<&str>,
    ) -> Result<Option<Report>, Failure> {
        let name = entry.name_any();
        if self.life(entry) != Life::Leaving {
            self.quiet.forget(&name);
            return Ok(None);
        }
        let now = Timestamp::now();
        let locations = self.all_locations(&name);
        let is_open =
            |mode: Option<AccessMode>| mode.unwrap_or(AccessMode::ReadWrite) != AccessMode::ReadOnly;
        if locations.iter().any(|location| is_open(location.spec.access_mode)) {
            // Somebody else may have opened it since: it is looked after again.
            self.quiet.forget(&name);
            let problem = failed.map(|why| Problem { description: why.to_owned(), codes: Vec::new() });
            return Ok(problem.map(|problem| report::stays(&problem, now)));
        }
        if !self.quiet.has_lasted(&name) {
            return Ok(None);
        }
        let mut theirs: BTreeSet<String> = locations.iter().map(|location| location.name_any()).collect();
        // One that somebody took away may have backups that run; unless somebody else's has its name.
        theirs.extend(self.member.locations.get(&name).is_none().then(|| name.clone()));
        let found = running(&self.clients.call, &self.settings.namespace, &theirs).await;
        let found = found.map_err(|error| Failure::of::<Backup>("list", "of an entry that goes", error))?;
        let report = report::leaving(found, entry.metadata.generation, now);
        if report.observed_generation.is_some() {
            info!(name, to = entry.spec.seed_name, "an entry is let go: nothing writes there any more");
            self.quiet.forget(&name);
        }
        Ok(Some(report))
    }
}
