//! An entry goes to another cluster: the hub gives it to that one when this one writes there no more, and has said so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::garden::BackupEntry;
use berth_api::garden::report::{self, Problem, Report};
use berth_api::keys;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::garden::location::Life;
use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use tracing::info;

use super::Courier;
use super::write::Failure;
use crate::garden::running::running;

/// Whoever saw a location writable begins a backup there within this, or not at all.
const SETTLED: Duration = Duration::from_secs(10);
/// A run of `berth garden migrate` writes where no backup shows it. Of one that is alive the mark changes every few seconds.
const ABANDONED: Duration = Duration::from_secs(30);

/// By name: entries that are to go, and since when nobody begins to write there, with the marks of those that migrate. Nothing of
/// it outlives the process: then it is seen anew.
#[derive(Default)]
pub struct Quiet(Mutex<BTreeMap<String, (Instant, Vec<String>)>>);

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

    fn has_lasted(&self, entry: &str, marks: Vec<String>) -> bool {
        let enough = if marks.is_empty() { SETTLED } else { ABANDONED };
        let mut all = self.0.lock();
        let since = all.entry(entry.to_owned()).or_insert_with(|| (Instant::now(), marks.clone()));
        if since.1 != marks {
            *since = (Instant::now(), marks);
        }
        since.0.elapsed() >= enough
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
        if let Some(stray) = self.stray(entry, &locations).filter(|stray| is_open(stray.spec.access_mode)) {
            self.quiet.forget(&name);
            let stray = stray.name_any();
            let problem = Problem::of_configuration(format!(
                "BackupStorageLocation {stray} leads into its directory, too, and is somebody else's: delete it, or make it ReadOnly"
            ));
            return Ok(Some(report::stays(&problem, now)));
        }
        let marks = self.member.locations.all();
        let marks =
            marks.iter().filter_map(|location| location.annotations().get(keys::MIGRATED_BY).cloned());
        if !self.quiet.has_lasted(&name, marks.collect()) {
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

    /// A location into the entry's directory that is none of its own.
    fn stray(
        &self,
        entry: &BackupEntry,
        own: &[Arc<BackupStorageLocation>],
    ) -> Option<Arc<BackupStorageLocation>> {
        let name = entry.name_any();
        let leads_there = |location: &BackupStorageLocation| {
            let to = &location.spec.object_storage;
            let directory = to.prefix.as_deref().unwrap_or_default().trim_matches('/').split('/').next();
            Some(to.bucket.trim_matches('/')) == entry.spec.bucket_name.as_deref() && directory == Some(&name)
        };
        let is_own =
            |location: &BackupStorageLocation| own.iter().any(|one| one.name_any() == location.name_any());
        self.member.locations.all().into_iter().find(|location| leads_there(location) && !is_own(location))
    }
}
