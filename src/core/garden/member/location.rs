//! The BackupStorageLocation of an entry: made, kept, and taken away in the right order.

use std::collections::BTreeSet;

use super::view::{CopyState, CredentialsState, EntryView, HubEntry, LocationCredentials, MemberLocation};
use super::{LocationStep, MemberStep, Stop, object};
use crate::entry_life::EntryPhase;
use crate::location::{DesiredLocation, LocationAccess, wanted};

/// What the hub should be told of the location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocationReport {
    Nothing,
    /// What the location itself says. `tells_validating`: also that the store has not been asked
    /// yet.
    AsFound {
        tells_validating: bool,
    },
    Without(NoLocationReason, String),
}

/// Why there is no location that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLocationReason {
    Unavailable,
    BucketNotReady,
    /// The cluster that the entry comes from has to stop writing first.
    Moving,
    /// A foreign location has the entry's name.
    NameTaken,
    Credentials,
    Removed,
}

/// Where the location is, when there is nothing left to do about it.
pub(super) struct Settled {
    /// Nothing is written or read there any more, as far as this cluster is concerned.
    pub(super) is_away: bool,
    pub(super) report: LocationReport,
}

impl Settled {
    fn away(report: LocationReport) -> Result<Self, Stop> {
        Ok(Self { is_away: true, report })
    }

    fn here(report: LocationReport) -> Result<Self, Stop> {
        Ok(Self { is_away: false, report })
    }
}

const AS_FOUND: LocationReport = LocationReport::AsFound { tells_validating: true };

pub(super) fn plan(view: &EntryView<'_>) -> Result<Settled, Stop> {
    if let Some(why) = &view.facts.location_failed {
        return Settled::here(LocationReport::Without(NoLocationReason::Unavailable, why.clone()));
    }
    let over: Vec<_> = view.of_entry().filter(|one| view.has_ended(one.hub_uid.as_deref())).collect();
    let is_secret_over = view.location_secret.as_ref().is_some_and(|uid| view.has_ended(uid.as_deref()));
    if !over.is_empty() || is_secret_over {
        let is_away = take_away(view, &over)?;
        // What has the name by now comes next, in a later pass.
        return Ok(Settled { is_away: is_away && view.hub.is_none(), report: LocationReport::Nothing });
    }
    // A hub that does not know the entry has not asked for its removal.
    let (Some(hub), Some(phase)) = (&view.hub, view.phase()) else {
        return Ok(Settled { is_away: view.own_location().is_none(), report: LocationReport::Nothing });
    };
    if phase == EntryPhase::Removing {
        let all: Vec<_> = view.of_entry().collect();
        let is_known = !all.is_empty() || view.location_secret.is_some() || hub.object.state.is_ours;
        let is_away = !is_known || take_away(view, &all)?;
        return Ok(Settled {
            is_away,
            report: LocationReport::Without(NoLocationReason::Removed, String::new()),
        });
    }
    // Before anything that may fail, because who may write there depends on nothing else.
    if let DesiredLocation::Kept(access) = wanted(phase, view.is_ready(), true) {
        set_access(view, hub, access)?;
    }
    let own = view.own_location();
    if matches!(phase, EntryPhase::Elsewhere | EntryPhase::Leaving) && own.is_none() {
        return Settled::away(LocationReport::Nothing);
    }
    if own.is_none() && view.named(view.name).is_some() {
        let message = format!(
            "BackupStorageLocation {} in namespace {} was not made for a hub: rename or delete it",
            view.name, view.namespace
        );
        return Settled::away(LocationReport::Without(NoLocationReason::NameTaken, message));
    }
    let access = match wanted(phase, view.is_ready(), own.is_some()) {
        DesiredLocation::Kept(access) => access,
        DesiredLocation::AsItIs => return Settled::here(own.map_or(LocationReport::Nothing, |_| AS_FOUND)),
        DesiredLocation::None => return Settled::away(not_yet(hub, phase)),
    };
    keep(view, hub, phase, access)
}

fn not_yet(hub: &HubEntry, phase: EntryPhase) -> LocationReport {
    match phase {
        // What never had a location is not said to have none.
        _ if !hub.has_condition => LocationReport::Nothing,
        EntryPhase::Arriving => {
            let message = format!("waiting for Seed {} to stop writing there", hub.holder);
            LocationReport::Without(NoLocationReason::Moving, message)
        }
        _ => LocationReport::Without(NoLocationReason::BucketNotReady, String::new()),
    }
}

/// Makes and keeps the own location.
fn keep(
    view: &EntryView<'_>,
    hub: &HubEntry,
    phase: EntryPhase,
    access: LocationAccess,
) -> Result<Settled, Stop> {
    let own = view.own_location();
    // While the hub lacks something, what is there stays as it is.
    if view.bucket.is_none() {
        return Settled::here(own.map_or(LocationReport::Nothing, |_| AS_FOUND));
    }
    let other = own.and_then(|own| object::other_bucket(&own.location.bucket, hub.bucket.as_deref()));
    if let Some(problem) = other {
        return Settled::here(LocationReport::Without(NoLocationReason::BucketNotReady, problem.description));
    }
    // A seed that gave the entry away may no longer read its keys.
    if phase != EntryPhase::Elsewhere {
        match (&view.object.credentials, &view.location_credentials) {
            (CredentialsState::Unanswered, _) => return Err(Stop::Await),
            (CredentialsState::Known, LocationCredentials::Faulty(message)) => {
                return Settled::here(LocationReport::Without(
                    NoLocationReason::Credentials,
                    message.clone(),
                ));
            }
            (CredentialsState::Known, LocationCredentials::Copy(CopyState::Absent | CopyState::Stale)) => {
                view.facts.first(MemberStep::Location(LocationStep::KeepCredentials))?;
            }
            (
                CredentialsState::Known,
                LocationCredentials::Copy(CopyState::Current) | LocationCredentials::NotNeeded,
            )
            | (CredentialsState::Missing(_) | CredentialsState::NoBucket, _) => {}
        }
    }
    if own.is_none() || view.own.differs {
        view.facts.first(MemberStep::Location(LocationStep::Apply(access)))?;
    }
    // What the store was not asked yet is told once there is an answer.
    Settled::here(
        own.map_or(LocationReport::Nothing, |_| LocationReport::AsFound {
            tells_validating: hub.has_condition,
        }),
    )
}

fn set_access(view: &EntryView<'_>, hub: &HubEntry, access: LocationAccess) -> Result<(), Stop> {
    for one in view.of_entry() {
        // The mark by which its end is told apart from that of another entry of the same name.
        let is_marked = one.is_ours || one.hub_uid.as_ref() == Some(&hub.object.uid);
        let is_so = one.location.is_read_only == (access == LocationAccess::ReadOnly);
        if !is_so || !is_marked {
            let name = one.location.name.clone();
            view.facts.first(MemberStep::Location(LocationStep::SetAccess(name, access)))?;
        }
    }
    Ok(())
}

/// Locations first, so that nothing new is written there and no sync brings back what is removed
/// next; then their Backups; the credentials last. `true`: all of it is gone.
fn take_away(view: &EntryView<'_>, locations: &[&MemberLocation]) -> Result<bool, Stop> {
    for one in locations {
        view.facts.first(MemberStep::Location(LocationStep::Delete(one.location.name.clone())))?;
    }
    // The watch may have shown by now that they are gone.
    let deleted: BTreeSet<&String> = view.facts.done.iter().filter_map(deleted).collect();
    let Some(left) = view.facts.removed else {
        let mut theirs: BTreeSet<String> = deleted.into_iter().cloned().collect();
        // What a location left that is gone already; unless a foreign one now has its name.
        if view.named(view.name).is_none() {
            theirs.insert(view.name.to_owned());
        }
        return Err(Stop::Do(MemberStep::Location(LocationStep::RemoveBackups(theirs))));
    };
    // What was there a moment ago is looked for again.
    if !deleted.is_empty() || left > 0 {
        return Ok(false);
    }
    if view.location_secret.is_some() {
        view.facts.first(MemberStep::Location(LocationStep::DeleteCredentials))?;
    }
    Ok(true)
}

fn deleted(step: &MemberStep) -> Option<&String> {
    match step {
        MemberStep::Location(LocationStep::Delete(name)) => Some(name),
        _ => None,
    }
}
