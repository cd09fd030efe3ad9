//! Decides which part of berth cleans up after a Backup that was deleted while it ran or waited.
//! The engine starts at once, and creates a DeleteBackupRequest for what it cannot finish, because
//! a request outlives this process. The controller that carries out such requests runs in the same
//! process, and leaves alone what the engine is still removing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::delete_backup_request::{DeleteBackupRequestSpec, DeleteBackupRequestStatus};
use berth_api::velero::{DeleteBackupRequest, DeleteBackupRequestPhase as Phase};
use berth_core::sync::is_name;
use kube::ResourceExt as _;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::patch::digest;

/// How long after it was expected the engine begins at the latest. After that time whoever carries
/// requests out may begin.
const SOON: Duration = Duration::from_secs(60);
/// Bytes of the namespaces that a request records: half of what all annotations of an object may
/// have.
const LARGEST: usize = 128 << 10;
/// Most namespaces that are read of a request.
const MOST: usize = 10_000;

/// Lists of the repositories of a location that are in memory at one time. Whoever runs the store
/// chooses how long a list is, up to the limit of all lists. More than one, so that a store that
/// hangs does not hold up the removals in all others.
const LISTS: usize = 2;

/// Clones share one state.
#[derive(Clone, Default)]
pub struct Removals(Arc<SharedRemovals>);

struct SharedRemovals {
    state: Mutex<RemovalState>,
    lists: Semaphore,
}

impl Default for SharedRemovals {
    fn default() -> Self {
        Self { state: Mutex::default(), lists: Semaphore::new(LISTS) }
    }
}

#[derive(Default)]
struct RemovalState {
    /// This process carries out DeleteBackupRequests.
    are_carried_out: bool,
    /// UIDs of deleted Backups after which the engine is cleaning up.
    begun: HashSet<String>,
    /// UIDs of Backups of which it will do so soon, and since when.
    expected: HashMap<String, Instant>,
}

/// Ends the state that it stands for when it is dropped.
#[must_use]
pub struct RemovalGuard {
    removals: Removals,
    /// The Backup after which the engine is cleaning up. `None`: the guard of carrying out
    /// requests.
    uid: Option<String>,
    /// The engine begins soon after this guard is dropped.
    is_expected: bool,
}

impl Removals {
    /// From now on this process carries out requests.
    pub fn carry_out(&self) -> RemovalGuard {
        self.0.state.lock().are_carried_out = true;
        RemovalGuard { removals: self.clone(), uid: None, is_expected: false }
    }

    pub fn are_carried_out(&self) -> bool {
        self.0.state.lock().are_carried_out
    }

    /// The run of this Backup is about to end, and soon after that the engine removes what is left.
    pub fn hold(&self, uid: &str) -> RemovalGuard {
        self.guard(uid, true)
    }

    /// From now on the engine removes what is left of this Backup.
    pub fn begin(&self, uid: &str) -> RemovalGuard {
        self.guard(uid, false)
    }

    /// Waits until one more list of repositories may be in memory. `None`: never, because nobody
    /// closes the semaphore.
    pub async fn room_for_list(&self) -> Option<SemaphorePermit<'_>> {
        self.0.lists.acquire().await.ok()
    }

    fn guard(&self, uid: &str, is_expected: bool) -> RemovalGuard {
        let state = &mut *self.0.state.lock();
        state.expected.remove(uid);
        state.begun.insert(uid.to_owned());
        RemovalGuard { removals: self.clone(), uid: Some(uid.to_owned()), is_expected }
    }

    pub fn has_begun(&self, uid: &str) -> bool {
        let state = self.0.state.lock();
        let is_expected = || state.expected.get(uid).is_some_and(|since| since.elapsed() < SOON);
        state.begun.contains(uid) || is_expected()
    }
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        let state = &mut *self.removals.0.state.lock();
        match &self.uid {
            Some(uid) => {
                state.begun.remove(uid);
                if self.is_expected {
                    state.expected.retain(|_, since| since.elapsed() < SOON);
                    state.expected.insert(uid.clone(), Instant::now());
                }
            }
            None => state.are_carried_out = false,
        }
    }
}

/// The request by which what a deleted Backup has left is removed, by whoever leads. It has begun:
/// the Backup is gone. `data_in`: namespaces in whose repositories it may have data, which no file
/// of the folder may tell any more.
pub fn request(name: &str, uid: &str, location: &str, data_in: &BTreeSet<String>) -> DeleteBackupRequest {
    let of = DeleteBackupRequestSpec { backup_name: name.to_owned() };
    let mut request = DeleteBackupRequest::new(&format!("removal-{uid}"), of);
    let labels = [(keys::BACKUP_NAME, keys::label_value(name, digest)), (keys::BACKUP_UID, uid.to_owned())];
    request.labels_mut().extend(labels.map(|(key, value)| (key.to_owned(), value)));
    let annotations = request.annotations_mut();
    annotations.insert(keys::DELETES_IN.to_owned(), location.to_owned());
    if !data_in.is_empty() {
        annotations.insert(keys::DATA_IN.to_owned(), as_text(data_in));
    }
    request.status = Some(DeleteBackupRequestStatus { phase: Some(Phase::InProgress), errors: None });
    request
}

/// As the annotation has them.
pub fn as_text(namespaces: &BTreeSet<String>) -> String {
    let mut text = String::new();
    for namespace in namespaces {
        if text.len() + namespace.len() >= LARGEST {
            break;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(namespace);
    }
    text
}

/// The namespaces that a request records, 10,000 at most. What cannot be the name of one is passed
/// over.
pub fn data_in(request: &DeleteBackupRequest) -> BTreeSet<String> {
    let text = request.annotations().get(keys::DATA_IN).map(String::as_str).unwrap_or_default();
    text.split(',').filter(|name| is_name(name)).take(MOST).map(str::to_owned).collect()
}

/// Is a request that is there for what `wanted` is for, however far it is? Nobody but berth can
/// record the location.
pub fn is_for_the_same(found: &DeleteBackupRequest, wanted: &DeleteBackupRequest) -> bool {
    found.spec.backup_name == wanted.spec.backup_name
        && found.labels().get(keys::BACKUP_UID) == wanted.labels().get(keys::BACKUP_UID)
        && found.annotations().get(keys::DELETES_IN) == wanted.annotations().get(keys::DELETES_IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_records_where_there_may_be_data_as_far_as_an_annotation_has_room() {
        let some: BTreeSet<String> = ["app", "shop"].map(str::to_owned).into();
        let made = request("b", "u", "l", &some);
        assert_eq!(made.annotations()[keys::DATA_IN], "app,shop");
        assert_eq!(data_in(&made), some);
        assert_eq!(data_in(&request("b", "u", "l", &BTreeSet::new())), BTreeSet::new());
        let many: BTreeSet<String> = (0..10_000).map(|i| format!("{i:063}")).collect();
        let made = request("b", "u", "l", &many);
        assert!(made.annotations()[keys::DATA_IN].len() <= LARGEST);
        let kept = data_in(&made);
        assert!(kept.len() > 2000 && kept.is_subset(&many), "{}", kept.len());
        let mut forged = made;
        forged.annotations_mut().insert(keys::DATA_IN.to_owned(), "../app,,A,shop".to_owned());
        assert_eq!(data_in(&forged), ["shop".to_owned()].into());
        let short: Vec<String> = (0..=MOST).map(|i| i.to_string()).collect();
        forged.annotations_mut().insert(keys::DATA_IN.to_owned(), short.join(","));
        assert_eq!(data_in(&forged).len(), MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_engine_is_about_to_remove_is_left_to_it_for_a_while() {
        let removals = Removals::default();
        let held = removals.hold("u");
        tokio::time::advance(SOON * 5).await;
        assert!(removals.has_begun("u") && !removals.has_begun("v"), "its run has not ended");
        drop(held);
        assert!(removals.has_begun("u"), "it begins soon");
        tokio::time::advance(SOON).await;
        assert!(!removals.has_begun("u"), "whoever carries requests out may begin");
        drop(removals.hold("v"));
        let begun = removals.begin("v");
        assert!(removals.has_begun("v"));
        drop(begun);
        assert!(!removals.has_begun("v"), "it has ended");
    }

    #[test]
    fn what_the_engine_removes_is_its_own_until_it_has_ended_in_whatever_way() {
        let removals = Removals::default();
        assert!(!removals.are_carried_out());
        let carries_out = removals.clone().carry_out();
        let begun = removals.begin("u");
        assert!(removals.are_carried_out() && removals.has_begun("u") && !removals.has_begun("v"));
        drop(begun);
        assert!(removals.are_carried_out() && !removals.has_begun("u"));
        drop(carries_out);
        assert!(!removals.are_carried_out());
    }
}
