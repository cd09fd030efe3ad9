//! What the agent of a member cluster does next about one bucket or one entry of the hub: a
//! function of what it sees at one moment. It gives one [`MemberStep`]; after each step the agent
//! looks again, so any step may be the last before a crash. When nothing is left to do, it gives
//! what the hub should be told.
//!
//! - [`view`]: what the agent sees, and what it has learned since it began to look.
//! - [`location`]: the entry's BackupStorageLocation. Each directory has one writer.
//! - [`object`]: the member's BackupBucket or BackupEntry. Data is removed for one reason only: the
//!   hub says that it is to go, and that this seed is to remove it.
//! - [`handoff`]: the answer to a hub that gives the entry to another cluster.

pub mod handoff;
pub mod location;
pub mod object;
pub mod view;

use std::collections::BTreeSet;

use super::entry_life::{EntryPhase, HubState, Intent, intent};
use super::location::LocationAccess;
use handoff::Handoff;
use location::LocationReport;
use object::ObjectReport;
pub use view::{
    BucketOfEntry, BucketView, CopyState, CredentialsState, EntryView, Facts, HubEntry, HubKind, HubObject,
    LocationCredentials, MemberLocation, ObjectDrift, ObjectView, OwnLocation, Quiesced, StatusProblem,
};

/// One thing to do. Within one pass each is done once at most.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberStep {
    /// Ask the hub itself whether this data is still to be removed: a watch that is cut off shows
    /// what was, and a deletion is not all that may have happened since.
    AskHub,
    /// Take back the permit to remove the data of the member's object.
    Revoke,
    /// Remember since when the entry's locations are read-only.
    BeginQuiet,
    /// Forget that: the time counts only without a break.
    ForgetQuiet,
    /// Count the backups that are running in these locations.
    CountBackups(BTreeSet<String>),
    Location(LocationStep),
    Object(ObjectStep),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LocationStep {
    /// Of the location of this name.
    SetAccess(String, LocationAccess),
    KeepCredentials,
    /// Make the entry's own location what it should be.
    Apply(LocationAccess),
    Delete(String),
    /// Delete the Backups and BackupRepositories that are of these locations.
    RemoveBackups(BTreeSet<String>),
    DeleteCredentials,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectStep {
    /// Copy the hub's Secret, to which the object refers.
    CopyCredentials,
    Apply,
    /// Confirm that it may be deleted with its data.
    Confirm,
    Delete,
    /// Ask the executor to give it up without touching data.
    LetGo,
    DeleteCopy,
    /// Take the courier's finalizer off.
    Release,
    /// Write labels and annotations to an object that is being deleted.
    PassOn,
}

/// What follows from a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberDecision<R> {
    Do(MemberStep),
    /// Nothing can be decided before the hub has answered what its Secret contains.
    Await,
    Report(R),
}

/// What the hub should be told of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryReport {
    pub object: ObjectReport,
    /// Goes before `object`.
    pub handoff: Option<Handoff>,
    pub location: LocationReport,
}

/// Why planning ends before its last line.
enum Stop {
    Do(MemberStep),
    Await,
}

impl<R> From<Result<R, Stop>> for MemberDecision<R> {
    fn from(planned: Result<R, Stop>) -> Self {
        match planned {
            Ok(report) => Self::Report(report),
            Err(Stop::Do(step)) => Self::Do(step),
            Err(Stop::Await) => Self::Await,
        }
    }
}

impl Facts {
    /// `step`, unless it was done in this pass.
    fn first(&self, step: MemberStep) -> Result<(), Stop> {
        if self.done.contains(&step) { Ok(()) } else { Err(Stop::Do(step)) }
    }
}

pub fn bucket(view: &BucketView<'_>) -> MemberDecision<ObjectReport> {
    plan_bucket(view).into()
}

fn plan_bucket(view: &BucketView<'_>) -> Result<ObjectReport, Stop> {
    let hub = view.hub.as_ref();
    let intent = confirmed(hub.map(|hub| &hub.state), false, &view.object, view.facts)?;
    object::plan(&object::ObjectContext {
        hub,
        object: &view.object,
        facts: view.facts,
        intent,
        is_blocked: false,
        bucket: None,
    })
}

pub fn entry(view: &EntryView<'_>) -> MemberDecision<EntryReport> {
    plan_entry(view).into()
}

fn plan_entry(view: &EntryView<'_>) -> Result<EntryReport, Stop> {
    // First, because whatever comes next may fail, and may open a location: quiet that began before
    // would count for a later move.
    if view.quiet.is_some() && !handoff::is_quiet(view) {
        view.facts.first(MemberStep::ForgetQuiet)?;
    }
    // What was made for an entry that has ended is given up first, whatever has its name by now.
    let has_ended = view.object.is_found() && view.has_ended(view.object.hub_uid.as_deref());
    let hub = view.hub.as_ref().filter(|_| !has_ended);
    let intent = confirmed(hub.map(|hub| &hub.object.state), has_ended, &view.object, view.facts)?;
    let intent = match intent {
        // While its backups run, nothing else is done to the object.
        Intent::Keep if hub.is_some() && view.phase() == Some(EntryPhase::Leaving) => Intent::Unassigned,
        intent => intent,
    };
    let location = location::plan(view)?;
    let object = object::plan(&object::ObjectContext {
        hub: view.hub.as_ref().map(|hub| &hub.object),
        object: &view.object,
        facts: view.facts,
        intent,
        is_blocked: !location.is_away,
        bucket: view
            .hub
            .as_ref()
            .map(|hub| object::BucketOf { name: hub.bucket.as_deref(), is_known: view.bucket.is_some() }),
    })?;
    let handoff = handoff::plan(view)?;
    Ok(EntryReport { object, handoff, location: location.report })
}

/// What the hub wants. That data is to be removed counts only while the hub has said so a moment
/// ago.
fn confirmed(
    hub: Option<&HubState>,
    has_ended: bool,
    object: &ObjectView,
    facts: &Facts,
) -> Result<Intent, Stop> {
    let said = intent(hub, has_ended);
    if said != Intent::Remove {
        if object.is_permitted {
            facts.first(MemberStep::Revoke)?;
        }
        return Ok(said);
    }
    match facts.confirmed {
        Some(true) => Ok(Intent::Remove),
        // The watch will show what the hub says now.
        Some(false) => Ok(Intent::Unassigned),
        None if object.is_permit_fresh => Ok(Intent::Remove),
        None => Err(Stop::Do(MemberStep::AskHub)),
    }
}

#[cfg(test)]
mod tests;
