//! Which of the DeleteBackupRequests are carried out, and which are removed.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// How long after its creation a request that is done goes. Until then people can read it.
pub const AGE: SignedDuration = SignedDuration::from_hours(24);

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingDeletionRequest<'a> {
    pub name: &'a str,
    /// The Backup that it asks to delete.
    pub backup: &'a str,
    pub created: Timestamp,
    pub has_begun: bool,
    pub is_processed: bool,
    /// It has begun for an earlier Backup of the name than the one that is there.
    pub is_earlier: bool,
}

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTask<'a> {
    /// It has been done for long enough.
    Remove(&'a str),
    CarryOut(&'a str),
}

/// One request at a time is carried out for each Backup: one that has begun, or else the newest.
/// One for an earlier Backup of the name keeps nobody from deleting the present one.
pub fn plan<'a>(requests: &[PendingDeletionRequest<'a>], now: Timestamp) -> Vec<RequestTask<'a>> {
    let mut tasks = Vec::new();
    let mut chosen: BTreeMap<(&str, bool), &PendingDeletionRequest<'a>> = BTreeMap::new();
    for request in requests {
        if request.is_processed {
            if now.duration_since(request.created) >= AGE {
                tasks.push(RequestTask::Remove(request.name));
            }
            continue;
        }
        let rank = |one: &PendingDeletionRequest<'_>| (one.has_begun, one.created);
        let best = chosen.entry((request.backup, request.is_earlier)).or_insert(request);
        if (rank(request), request.name) > (rank(best), best.name) {
            *best = request;
        }
    }
    tasks.extend(chosen.into_values().map(|request| RequestTask::CarryOut(request.name)));
    tasks
}
