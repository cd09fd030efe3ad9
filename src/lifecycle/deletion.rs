//! Carries out DeleteBackupRequests. [`berth_core::deletion`] decides what is done next; this
//! module reads and acts. A deletion needs nothing that is only in memory, so the next leader
//! continues where this one stopped.

pub(super) mod calls;
mod carry;
mod carrying;
mod folder;
mod records;
mod repositories;
mod restores;
mod secrets;
mod seen;
mod snapshots;
mod volumes;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::delete_backup_request::{DeleteBackupRequestSpec, DeleteBackupRequestStatus};
use berth_api::velero::{DeleteBackupRequest, DeleteBackupRequestPhase as Phase};
use berth_core::deletion::{PendingDeletionRequest, RequestTask, plan};
use berth_core::location_turns::{Candidate, choose};
use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::Api;
use kube::runtime::watcher;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::Lifecycle;
use crate::cache::{Cache, SharedCache};
use crate::lean;
use crate::pace::paced;
use crate::text::chain;
use crate::watch::{of_namespace, reflect};
use crate::write::{Write, WriteResult, delete};

use carry::DeletionEnd;
use carrying::Carrying;

/// How many deletions run at the same time, each of another Backup; all but one of them may be in
/// one location.
const AT_ONCE: usize = 5;
/// How many old requests are removed at the same time.
const REMOVALS: usize = 8;
/// How often old requests are looked for.
const PERIOD: Duration = Duration::from_secs(60);
/// Changes within this time are handled in one pass.
const SETTLE: Duration = Duration::from_millis(50);
/// Pause of a request that waits for its store or could not be ended, and the shortest pause of one
/// that fails.
const REST: Duration = Duration::from_secs(60);

/// The requests of the namespace, from a watch.
type DeletionRequests = SharedCache<Cache<String, Arc<DeleteBackupRequest>>>;

/// What a finished task was about.
enum FinishedDeletion {
    Carried { backup: String, uid: String, ended: DeletionEnd },
    Removed { name: String },
}

/// Never returns.
pub async fn run(lifecycle: &Lifecycle) {
    let requests = DeletionRequests::default();
    let _carries_out = lifecycle.removals.carry_out();
    let watching = reflect(
        of_namespace(&lifecycle.clients.watch, &lifecycle.namespace),
        watcher::Config::default(),
        |request: DeleteBackupRequest| (request.name_any(), Arc::new(kept(request))),
        |event| requests.write(|cache| cache.observe(event)),
    );
    tokio::join!(watching, work(lifecycle, &requests));
}

/// What is kept of a request, because its creator chooses its size. berth never writes a request as
/// a whole.
fn kept(request: DeleteBackupRequest) -> DeleteBackupRequest {
    let phase = request.status.and_then(|status| status.phase);
    DeleteBackupRequest {
        metadata: lean::metadata(request.metadata, &[keys::BACKUP_UID], &[keys::DELETES_IN]),
        // A name that is too long is cut. No object has such a name, so the request fails with that
        // reason.
        spec: DeleteBackupRequestSpec { backup_name: lean::name(request.spec.backup_name) },
        status: phase.map(|phase| DeleteBackupRequestStatus { phase: Some(phase), errors: None }),
    }
}

async fn work(lifecycle: &Lifecycle, requests: &DeletionRequests) {
    let mut changed = requests.changed();
    let mut under_way: FuturesUnordered<BoxFuture<'_, FinishedDeletion>> = FuturesUnordered::new();
    // Backups that are being deleted, each with its location.
    let mut backups: HashMap<String, String> = HashMap::new();
    let mut removing = HashSet::new();
    // Requests that are not carried out at the moment: those that wait, and those that have ended
    // until the watch shows that.
    let mut resting: HashMap<String, Instant> = HashMap::new();
    // When the requests that have not ended were first carried out.
    let mut begun: HashMap<String, Instant> = HashMap::new();
    // When each of them last gave up its place.
    let mut tried: HashMap<String, Instant> = HashMap::new();
    loop {
        // A request that is being deleted and only waits for a user's finalizer counts as gone.
        let is_going = |request: &DeleteBackupRequest| request.metadata.deletion_timestamp.is_some();
        let all: Vec<Arc<DeleteBackupRequest>> =
            requests.read().values().filter(|request| !is_going(request)).cloned().collect();
        resting.retain(|_, until| *until > Instant::now());
        let present: HashSet<&str> =
            all.iter().filter_map(|request| request.metadata.uid.as_deref()).collect();
        for known in [&mut begun, &mut tried] {
            known.retain(|uid, _| present.contains(uid.as_str()));
        }
        let waiting: Vec<PendingDeletionRequest<'_>> =
            all.iter().map(|request| waiting(lifecycle, request)).collect();
        let named: HashMap<&str, &Arc<DeleteBackupRequest>> =
            all.iter().filter_map(|request| Some((request.metadata.name.as_deref()?, request))).collect();
        let mut to_carry = Vec::new();
        for task in plan(&waiting, Timestamp::now()) {
            let of = |name: &str| named.get(name).copied();
            match task {
                RequestTask::Remove(name) if removing.len() < REMOVALS && !removing.contains(name) => {
                    if let Some(request) = of(name) {
                        removing.insert(name.to_owned());
                        under_way.push(remove(lifecycle, Arc::clone(request)).boxed());
                    }
                }
                RequestTask::CarryOut(name) => {
                    let Some(request) = of(name) else { continue };
                    let uid = request.uid().unwrap_or_default();
                    let of = request.labels().get(keys::BACKUP_UID);
                    if of.is_some_and(|of| lifecycle.removals.has_begun(of)) {
                        continue;
                    }
                    if !resting.contains_key(&uid) && !backups.contains_key(&request.spec.backup_name) {
                        to_carry.push((Arc::clone(request), uid, location_of(lifecycle, request)));
                    }
                }
                RequestTask::Remove(_) => {}
            }
        }
        let candidates: Vec<Candidate<'_>> = to_carry
            .iter()
            .map(|(_, uid, location)| Candidate { location, unseen: tried.get(uid).map(Instant::elapsed) })
            .collect();
        let taken: Vec<&str> = backups.values().map(String::as_str).collect();
        for index in choose(&candidates, &taken, AT_ONCE) {
            let Some((request, uid, location)) = to_carry.get(index).cloned() else { continue };
            let backup = request.spec.backup_name.clone();
            // Two that are for Backups of one name follow each other.
            if backups.contains_key(&backup) {
                continue;
            }
            backups.insert(backup.clone(), location);
            let since = *begun.entry(uid.clone()).or_insert_with(Instant::now);
            let carried = async move {
                let ended = Carrying::new(lifecycle, requests, request).run(since).await;
                FinishedDeletion::Carried { backup, uid, ended }
            };
            under_way.push(carried.boxed());
        }
        // Runs beside the deletions, which must not stop whenever a request changes, because each
        // changes its own request several times. If a deletion ends meanwhile, all requests are
        // checked.
        let settled = async {
            let _ = changed.changed().await;
            sleep(SETTLE).await;
        };
        tokio::select! {
            () = settled => {}
            Some(done) = under_way.next(), if !under_way.is_empty() => match done {
                FinishedDeletion::Carried { backup, uid, ended } => {
                    backups.remove(&backup);
                    let rest = match ended {
                        DeletionEnd::Yes => {
                            begun.remove(&uid);
                            REST * 10
                        }
                        DeletionEnd::Not => REST,
                        // The pauses grow, but stay short enough that a new Backup of the same name
                        // does not give up waiting for this deletion.
                        DeletionEnd::Failed => {
                            begun.get(&uid).map_or(REST, |begun| begun.elapsed().clamp(REST, REST * 2))
                        }
                    };
                    tried.insert(uid.clone(), Instant::now());
                    resting.insert(uid, Instant::now() + rest);
                }
                FinishedDeletion::Removed { name } => drop(removing.remove(&name)),
            },
            () = sleep(paced(PERIOD)) => {}
        }
    }
}

/// The location of the files, as far as it is known without a request to the API server.
fn location_of(lifecycle: &Lifecycle, request: &DeleteBackupRequest) -> String {
    let recorded = request.annotations().get(keys::DELETES_IN).cloned();
    let known = || lifecycle.known.get(&request.spec.backup_name).map(|backup| backup.location);
    recorded.or_else(known).unwrap_or_default()
}

fn waiting<'r>(lifecycle: &Lifecycle, request: &'r DeleteBackupRequest) -> PendingDeletionRequest<'r> {
    let has_begun = request.phase() == Phase::InProgress;
    let of = request.labels().get(keys::BACKUP_UID).filter(|_| has_begun);
    let is_earlier =
        |of: &String| lifecycle.known.get(&request.spec.backup_name).is_some_and(|known| known.uid != *of);
    let created = request.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    PendingDeletionRequest {
        name: request.metadata.name.as_deref().unwrap_or_default(),
        backup: &request.spec.backup_name,
        created,
        has_begun,
        is_processed: request.phase() == Phase::Processed,
        is_earlier: of.is_some_and(is_earlier),
    }
}

/// Other requests for the same Backup object. A request with the UID of another Backup of that name
/// is not one of them, unless it has ended.
fn others(
    requests: &DeletionRequests,
    of: &DeleteBackupRequest,
    uid: Option<&str>,
) -> Vec<Arc<DeleteBackupRequest>> {
    let state = requests.read();
    let is_other = |other: &&Arc<DeleteBackupRequest>| {
        let asked = other.labels().get(keys::BACKUP_UID).map(String::as_str);
        let is_same = asked.is_none() || uid.is_none() || asked == uid;
        other.spec.backup_name == of.spec.backup_name
            && other.metadata.uid != of.metadata.uid
            && (is_same || other.phase() == Phase::Processed)
    };
    state.values().filter(is_other).cloned().collect()
}

async fn remove(lifecycle: &Lifecycle, request: Arc<DeleteBackupRequest>) -> FinishedDeletion {
    let api: Api<DeleteBackupRequest> = Api::namespaced(lifecycle.clients.call.clone(), &lifecycle.namespace);
    let name = request.name_any();
    match delete(&api, Write::to(&name).uid(request.metadata.uid.as_deref())).await {
        WriteResult::Written(()) | WriteResult::Gone(_) => {}
        WriteResult::Conflict(error) | WriteResult::Refused(error) => {
            warn!(%name, error = chain(&error), "could not remove a DeleteBackupRequest that is done");
            sleep(REST).await;
        }
        WriteResult::TimedOut => sleep(REST).await,
    }
    FinishedDeletion::Removed { name }
}

#[cfg(test)]
mod tests;
