//! An entry goes to another cluster: the hub gives it to that one when this one writes there no more, and has said so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::garden::BackupEntry;
use berth_api::garden::carried::was_made;
use berth_api::garden::operation::{OperationState, OperationType};
use berth_api::garden::report::{self, Problem, Report};
use berth_api::keys;
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::garden::check::location::Location;
use berth_core::garden::location::Life;
use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use tracing::info;

use super::Courier;
use super::write::Failure;
use crate::garden::running::running;
use crate::pace::passed;

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
        passed(since.0.elapsed()) >= enough
    }
}

/// The hub has our word, for what it wants now. Of what was never made it has no generation.
fn was_let_go(entry: &BackupEntry) -> bool {
    let status = entry.status.as_ref();
    let last = status.and_then(|status| status.last_operation.as_ref());
    let is_said = last
        .is_some_and(|last| (last.kind, last.state) == (OperationType::Migrate, OperationState::Succeeded));
    let is_current = status.and_then(|status| status.observed_generation) == entry.metadata.generation;
    is_said && (is_current || !was_made(entry))
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
        if was_let_go(entry) {
            return Ok(None);
        }
        let now = Timestamp::now();
        let locations = self.all_locations(&name);
        if locations.iter().any(|location| !Location::from(&**location).is_read_only) {
            // Somebody else may have opened it since: it is looked after again.
            self.quiet.forget(&name);
            let problem = failed.map(|why| Problem { description: why.to_owned(), codes: Vec::new() });
            return Ok(problem.map(|problem| report::stays(&problem, now)));
        }
        if let Some(Location { name: stray, .. }) = self.stray(entry, &locations) {
            self.quiet.forget(&name);
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
        // A generation says that its directory was made, and what lies there is its own, wherever it goes.
        let generation = entry.metadata.generation.filter(|_| was_made(entry));
        let report = report::leaving(found, generation, now);
        if report.last_operation.state == OperationState::Succeeded {
            info!(name, to = entry.spec.seed_name, "an entry is let go: nothing writes there any more");
            self.quiet.forget(&name);
        }
        Ok(Some(report))
    }

    /// A location by which somebody else writes into the entry's directory.
    fn stray(&self, entry: &BackupEntry, own: &[Arc<BackupStorageLocation>]) -> Option<Location> {
        let all = self.member.locations.all();
        let mut others = all
            .iter()
            .map(|location| Location::from(&**location))
            .filter(|other| !own.iter().any(|one| one.name_any() == other.name));
        others.find(|other| {
            let leads_there = entry.spec.bucket_name.as_deref() == Some(&other.bucket)
                && other.directory() == entry.name_any();
            leads_there && !other.is_read_only
        })
    }
}
