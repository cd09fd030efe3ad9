//! An entry goes to another cluster: the hub gives it to that one once the holder has answered that
//! its cluster writes no more.

use std::collections::BTreeSet;
use std::time::Duration;

use super::view::{EntryView, MemberLocation, StatusProblem};
use super::{MemberStep, Stop};
use crate::entry_life::EntryPhase;

/// A client that saw a location writable begins its backup there within this time, or not at all.
pub const SETTLED: Duration = Duration::from_secs(10);
/// A run of `berth garden migrate` writes without a Backup that would show it. While it is alive
/// its mark changes every few seconds.
pub const ABANDONED: Duration = Duration::from_secs(30);

/// What the hub should be told of the move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handoff {
    /// All locations are read-only, and this many backups still run. `is_made`: the hub may take
    /// the directory for made, wherever the entry goes.
    Leaving { running: usize, is_made: bool },
    /// This cluster cannot be kept from writing.
    Stays(StatusProblem),
}

/// The hub has the answer to what it wants now. Of what was never made it has no generation.
fn is_answered(view: &EntryView<'_>) -> bool {
    view.hub.as_ref().is_some_and(|hub| hub.is_answered && (hub.is_current || !hub.was_made))
}

/// Nothing that is known writes there, and the answer is still due.
pub(super) fn is_quiet(view: &EntryView<'_>) -> bool {
    let is_closed = view.of_entry().all(|one| one.location.is_read_only);
    view.phase() == Some(EntryPhase::Leaving) && !is_answered(view) && is_closed && stray(view).is_none()
}

/// A foreign location by which something can write into the entry's directory.
fn stray<'v>(view: &'v EntryView<'_>) -> Option<&'v MemberLocation> {
    let bucket = view.hub.as_ref()?.bucket.as_deref()?;
    let leads_there = |one: &MemberLocation| {
        one.location.bucket == bucket && one.location.directory() == view.name && !one.location.is_read_only
    };
    let is_known = |one: &MemberLocation| view.of_entry().any(|own| own.location.name == one.location.name);
    view.locations.iter().find(|one| leads_there(one) && !is_known(one))
}

/// `None`: nothing, or nothing yet.
pub(super) fn plan(view: &EntryView<'_>) -> Result<Option<Handoff>, Stop> {
    let Some(hub) = &view.hub else { return Ok(None) };
    if view.phase() != Some(EntryPhase::Leaving) || is_answered(view) {
        return Ok(None);
    }
    if view.of_entry().any(|one| !one.location.is_read_only) {
        // Somebody may have opened it since it was closed: the next pass closes it again.
        let failed = view.facts.location_failed.as_deref();
        return Ok(failed.map(|why| Handoff::Stays(StatusProblem::of_call(why))));
    }
    if let Some(stray) = stray(view) {
        return Ok(Some(Handoff::Stays(StatusProblem::of_configuration(format!(
            "BackupStorageLocation {} also leads into its directory, and was not made for a hub: delete it, or make it ReadOnly",
            stray.location.name
        )))));
    }
    let migrations: Vec<String> = view.locations.iter().filter_map(|one| one.migrated_by.clone()).collect();
    let enough = if migrations.is_empty() { SETTLED } else { ABANDONED };
    match &view.quiet {
        Some(quiet) if quiet.migrations == migrations => {
            if quiet.lasted < enough {
                return Ok(None);
            }
        }
        _ => {
            view.facts.first(MemberStep::BeginQuiet)?;
            return Ok(None);
        }
    }
    let Some(running) = view.facts.running else {
        let mut theirs: BTreeSet<String> = view.of_entry().map(|one| one.location.name.clone()).collect();
        // A location that was deleted by hand may still have running backups. They count, unless a
        // foreign location now has its name.
        if view.named(view.name).is_none() {
            theirs.insert(view.name.to_owned());
        }
        return Err(Stop::Do(MemberStep::CountBackups(theirs)));
    };
    Ok(Some(Handoff::Leaving { running, is_made: hub.was_made }))
}
