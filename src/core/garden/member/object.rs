//! The member's object of a bucket or an entry (of Gardener's extensions API) that was made for one
//! of the hub. Its data is removed for one reason only: the hub says that it is to go, and that
//! this seed is to remove it. A hub that does not know an object, or lost it, has not said that.

use super::view::{CopyState, CredentialsState, Facts, HubObject, ObjectDrift, ObjectView, StatusProblem};
use super::{MemberStep, ObjectStep, Stop};
use crate::entry_life::{Intent, MemberState};

/// What the hub should be told of the member's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectReport {
    Nothing,
    Failed {
        problem: StatusProblem,
        is_removal: bool,
    },
    /// What is there was not made for this hub, and a person has said that data may stay.
    LeftAlone,
    /// How far the executor is with what it keeps.
    Kept,
    /// How far the executor is with the removal.
    Going,
    Gone,
}

/// What a table of intent and state says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectAction {
    Nothing,
    /// Make it what the hub wants, where it is not.
    Apply,
    /// Ask for its deletion.
    Delete,
    /// Ask the executor to give it up without touching data.
    LetGo,
    /// Report that it is gone; the object is needed until the hub has written that down.
    Report,
    /// Take the courier's finalizer off.
    Release,
}

pub fn next(intent: Intent, state: MemberState) -> ObjectAction {
    use Intent::{Elsewhere, Keep, Remove, Removed, Unassigned, Unknown};
    use MemberState::{Absent, Done, GivenUp, Going, Live};
    match (intent, state) {
        (Unknown | Unassigned, Absent | Live { .. } | Going { .. } | GivenUp) => ObjectAction::Nothing,
        (Unassigned, Done { .. }) => ObjectAction::Nothing,
        // All was done and reported; what is left is a shell.
        (Unknown, Done { .. }) => ObjectAction::Release,
        (Elsewhere, Absent) => ObjectAction::Nothing,
        (Elsewhere, Live { let_go: false } | Going { let_go: false }) => ObjectAction::LetGo,
        (Elsewhere, Live { let_go: true } | Going { let_go: true }) => ObjectAction::Nothing,
        (Elsewhere, GivenUp) => ObjectAction::Delete,
        (Elsewhere, Done { .. }) => ObjectAction::Release,
        (Keep, Absent | Live { let_go: false }) => ObjectAction::Apply,
        // The hub was restored from before the removal, or somebody deleted the object here: what
        // is left is saved.
        (Keep, Going { let_go: false }) => ObjectAction::LetGo,
        (Keep, Live { let_go: true } | Going { let_go: true }) => ObjectAction::Nothing,
        (Keep, GivenUp) => ObjectAction::Delete,
        (Keep, Done { .. }) => ObjectAction::Release,
        // Only the executor removes data: where another seed made it, the object is made here
        // first.
        (Remove, Absent) => ObjectAction::Apply,
        (Remove, Live { let_go: false }) => ObjectAction::Delete,
        (Remove, Live { let_go: true } | Going { .. }) => ObjectAction::Nothing,
        (Remove, GivenUp) => ObjectAction::Delete,
        (Remove, Done { gone: true }) => ObjectAction::Report,
        // It was given up with its data, so removal starts again.
        (Remove, Done { gone: false }) => ObjectAction::Release,
        (Removed, Done { .. }) => ObjectAction::Release,
        (Removed, Absent | Live { .. } | Going { .. } | GivenUp) => ObjectAction::Nothing,
    }
}

/// The bucket that an entry of the hub names.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketOf<'v> {
    pub(super) name: Option<&'v str>,
    /// The hub has it.
    pub(super) is_known: bool,
}

pub(super) struct ObjectContext<'v> {
    pub(super) hub: Option<&'v HubObject>,
    pub(super) object: &'v ObjectView,
    pub(super) facts: &'v Facts,
    pub(super) intent: Intent,
    /// Data may not go yet, because the location is still in use.
    pub(super) is_blocked: bool,
    /// Of an entry that the hub has.
    pub(super) bucket: Option<BucketOf<'v>>,
}

/// What is in bucket `found` cannot follow an entry that was placed in another one: its data would
/// stay behind.
pub(super) fn other_bucket(found: &str, wanted: Option<&str>) -> Option<StatusProblem> {
    let wanted = wanted.filter(|wanted| *wanted != found)?;
    Some(StatusProblem::of_configuration(format!(
        "spec.bucketName: its data is in bucket {found}, and the hub has placed it in {wanted}: delete it in the hub with the \
         annotation garden.berth.dev/forget-data, and create it again with spec.bucketName: {found}"
    )))
}

pub(super) fn plan(at: &ObjectContext<'_>) -> Result<ObjectReport, Stop> {
    let is_removal = at.intent == Intent::Remove;
    if at.acts() && at.object.credentials == CredentialsState::Unanswered {
        return Err(Stop::Await);
    }
    if let Some(problem) = at.mismatch().filter(|_| at.acts()) {
        let is_left = is_removal && at.forgets_data();
        return Ok(if is_left { ObjectReport::LeftAlone } else { at.failed(problem) });
    }
    if let Some(problem) = &at.facts.object_failed {
        return Ok(at.failed(problem.clone()));
    }
    if let Some(problem) = at.step()? {
        return Ok(at.failed(problem));
    }
    Ok(match (at.intent, at.state()) {
        // While the entry is deleted and waits, the status is the hub's to write.
        (Intent::Keep, MemberState::Live { let_go: false }) if !at.is_deleted() => ObjectReport::Kept,
        (Intent::Remove, MemberState::Going { .. }) => ObjectReport::Going,
        (Intent::Remove, MemberState::Done { gone: true }) => ObjectReport::Gone,
        _ => ObjectReport::Nothing,
    })
}

impl ObjectContext<'_> {
    /// The hub wants something of this seed.
    fn acts(&self) -> bool {
        matches!(self.intent, Intent::Keep | Intent::Remove)
    }

    fn forgets_data(&self) -> bool {
        self.hub.is_some_and(|hub| hub.forgets_data)
    }

    fn is_deleted(&self) -> bool {
        self.hub.is_some_and(|hub| hub.state.is_deleted)
    }

    fn failed(&self, problem: StatusProblem) -> ObjectReport {
        let is_removal = self.intent == Intent::Remove;
        // Otherwise the hub would write its own status again, and again.
        let is_heard = !self.is_deleted() || is_removal;
        if is_heard { ObjectReport::Failed { problem, is_removal } } else { ObjectReport::Nothing }
    }

    fn state(&self) -> MemberState {
        let found = self.object;
        let uid = self.hub.map(|hub| hub.uid.as_str());
        let is_its = || found.hub_uid.is_none() || found.hub_uid.as_deref() == uid;
        match found.state {
            // The data that is gone was that of another object of this name.
            MemberState::Done { gone: true } => MemberState::Done { gone: is_its() },
            state => state,
        }
    }

    /// Why the member's object and the hub's have nothing to do with each other.
    fn mismatch(&self) -> Option<StatusProblem> {
        let found = self.object;
        if !found.is_found() {
            return None;
        }
        if !found.is_ours {
            return Some(foreign(found.kind.as_str(), &found.name));
        }
        // An object that is finished or was given up is released as it is.
        let is_kept = self.state() == MemberState::Live { let_go: false }
            || self.intent == Intent::Remove && matches!(self.state(), MemberState::Going { .. });
        let wanted = self.bucket.and_then(|bucket| bucket.name);
        other_bucket(found.bucket.as_deref()?, wanted).filter(|_| is_kept)
    }

    fn missing_credentials(&self) -> Option<StatusProblem> {
        match (&self.object.credentials, self.bucket) {
            (CredentialsState::Missing(problem), _) => Some(problem.clone()),
            (_, Some(BucketOf { name: Some(name), is_known: false })) => {
                Some(StatusProblem::of_configuration(format!(
                    "spec.bucketName: there is no BackupBucket {name} in the hub: create it again"
                )))
            }
            _ => None,
        }
    }

    /// `Some`: why it cannot be done, for a person to put right.
    fn step(&self) -> Result<Option<StatusProblem>, Stop> {
        use ObjectStep::{Apply, Confirm, CopyCredentials, Delete, DeleteCopy, LetGo, PassOn, Release};
        let found = self.object;
        let first = |step| self.facts.first(MemberStep::Object(step));
        let is_over = [Delete, LetGo, Release].map(MemberStep::Object);
        // The watch shows later what comes of these.
        if found.is_found() && !found.is_ours || is_over.iter().any(|step| self.facts.done.contains(step)) {
            return Ok(None);
        }
        let state = self.state();
        let action = next(self.intent, state);
        let is_done = matches!(state, MemberState::Done { .. });
        // An object that is being removed needs new keys most.
        if found.credentials == CredentialsState::Known
            && self.acts()
            && !is_done
            && found.copy != CopyState::Current
        {
            first(CopyCredentials)?;
        }
        // Where the hub has none, a copy that is there serves as well.
        let is_new = state == MemberState::Absent && action == ObjectAction::Apply;
        let lacks_copy = is_new && !self.forgets_data() && found.copy == CopyState::Absent;
        if let Some(problem) = self.missing_credentials().filter(|_| lacks_copy) {
            return Ok(Some(problem));
        }
        let differs = matches!(found.wanted, ObjectDrift::Different { .. });
        match action {
            ObjectAction::Apply if differs => first(Apply)?,
            ObjectAction::Delete => {
                let has_data = state == MemberState::Live { let_go: false };
                if has_data && self.is_blocked {
                    return Ok(None);
                }
                if has_data && differs {
                    first(Apply)?;
                }
                first(Confirm)?;
                first(Delete)?;
            }
            ObjectAction::LetGo => first(LetGo)?,
            ObjectAction::Release => {
                // Its Secret first, because the object that refers to it is the one reason to keep
                // it.
                if found.copy != CopyState::Absent {
                    first(DeleteCopy)?;
                }
                first(Release)?;
            }
            // Its spec is frozen, but annotations that people set meanwhile, and new keys, must
            // reach it.
            ObjectAction::Nothing
                if self.intent == Intent::Remove && matches!(state, MemberState::Going { .. }) =>
            {
                if found.wanted == (ObjectDrift::Different { in_marks: true }) {
                    first(PassOn)?;
                }
            }
            ObjectAction::Apply | ObjectAction::Nothing | ObjectAction::Report => {}
        }
        Ok(None)
    }
}

/// An object of that name was not made for a hub.
pub fn foreign(kind: &str, name: &str) -> StatusProblem {
    StatusProblem::of_configuration(format!(
        "{kind} {name} in the member cluster was not made for a hub: rename one of the two, or delete that one"
    ))
}
