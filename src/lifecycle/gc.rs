//! Creates the requests by which expired Backups are deleted. [`berth_core::retention`] decides
//! what has expired.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use berth_api::keys::{self, is_set};
use berth_api::velero::delete_backup_request::{DeleteBackupRequest, DeleteBackupRequestSpec};
use berth_api::velero::schedule::history_of;
use berth_api::velero::{Backup, BackupPhase, BackupStorageLocation, DeleteBackupRequestPhase, Schedule};
use berth_core::location::{DEFAULT_LOCATION, Location, choose};
use berth_core::retention::{
    ExpiryCandidate, HistoryLimits, RetentionDecision, RetentionLocation, behind, is_due_again, judge,
    look_again, relabel,
};
use berth_core::schedule::BackupOrigin;
use berth_core::violation::Violations;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::Lifecycle;
use crate::client::{is_not_found, list, list_as};
use crate::events::EventReason;
use crate::lean;
use crate::pace::paced;
use crate::patch::digest;
use crate::text::chain;
use crate::write::{Write, WriteResult, create, patch_metadata};

/// Time from the start of a leader to its first check.
const FIRST: Duration = Duration::from_secs(5);
/// Shortest time between two checks.
const SHORTEST: Duration = Duration::from_secs(5);
/// Time until the next check after one that failed, or that found more than it may delete at once.
const AGAIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(300);
/// The name in a request that is never stored.
const CLOCK: &str = "berth-clock";
const ANSWER: Duration = Duration::from_secs(10);
/// How many writes run at the same time.
const AT_ONCE: usize = 8;
/// How many deletions of expired Backups may wait or run at the same time. Others expire later.
const UNDER_WAY: usize = 100;

/// What is kept of a Backup, because its creator chooses its size.
struct ExpiringBackup {
    name: String,
    uid: Option<String>,
    phase: &'static str,
    expiration: Option<Timestamp>,
    ended: Option<Timestamp>,
    location: String,
    /// The label with the name of a Schedule.
    schedule: Option<String>,
    /// UID of the Schedule for which berth created it. What a Velero has synced from a store is no
    /// proof, because others may have written it.
    proven: Option<String>,
    is_kept: bool,
    keep_last: usize,
    is_going: bool,
    /// The label `velero.io/gc-failure`.
    failure: Option<String>,
}

/// Never returns.
pub async fn run(lifecycle: &Lifecycle) {
    sleep(paced(FIRST)).await;
    loop {
        let now = Timestamp::now();
        let looked = timeout(LOOK, look(lifecycle, now)).await;
        let pause = match looked.unwrap_or_else(|_| Err(anyhow!("it took too long"))) {
            Ok(Some(again)) => again.duration_since(now).unsigned_abs().max(SHORTEST),
            Ok(None) => AGAIN,
            Err(error) => {
                warn!(error = format!("{error:#}"), "could not look for expired Backups: trying again");
                AGAIN
            }
        };
        sleep(paced(pause)).await;
    }
}

/// Checks all Backups once. Returns the time of the next check; `None`: soon, because there is more
/// to do.
async fn look(lifecycle: &Lifecycle, now: Timestamp) -> anyhow::Result<Option<Timestamp>> {
    let (client, namespace) = (&lifecycle.clients.call, lifecycle.namespace.as_str());
    let locations = list::<BackupStorageLocation>(client, namespace).await;
    let locations: Vec<Location> = locations
        .map_err(|error| anyhow!(chain(&error)))
        .context("failed to list the storage locations")?
        .items
        .iter()
        .map(BackupStorageLocation::decided)
        .collect();
    let requests = match list_as(client, namespace, |request| Some(asked(request))).await {
        Ok(requests) => requests.items,
        // The cluster does not have this kind, so no deletion can be requested.
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(error) => return Err(anyhow!(chain(&error))).context("failed to list the DeleteBackupRequests"),
    };
    let under_way = requests.iter().filter(|request| request.is_under_way).count();
    let mut asked_for = AskedFor::default();
    for request in &requests {
        if request.is_under_way || request.locked_until.is_some_and(|until| now < until) {
            asked_for.pending.insert(&request.backup);
        } else if let Some(created) = request.created {
            let failed = asked_for.failed.entry(&request.backup).or_insert(created);
            *failed = created.max(*failed);
        }
    }
    let kept = list_as(client, namespace, |backup| Some(keep(&backup))).await;
    let kept = kept.map_err(|error| anyhow!(chain(&error))).context("failed to list the Backups")?.items;
    let schedules = schedules(lifecycle, &kept).await?;
    let known = KnownSchedules::of(&schedules);
    let candidates: Vec<ExpiryCandidate<'_>> =
        kept.iter().map(|backup| candidate(backup, &locations, &asked_for, &known, now)).collect();
    let mut verdicts = judge(&candidates, now);
    if verdicts.contains(&RetentionDecision::Delete) {
        // The clock of this node may be ahead, and a deletion cannot be undone.
        let told = api_server_time(lifecycle).await?;
        if told < now {
            verdicts = judge(&candidates, told);
        }
    }
    let room = UNDER_WAY.saturating_sub(under_way);
    let wanted: Vec<usize> = (0..kept.len()).filter(|i| verdicts[*i] == RetentionDecision::Delete).collect();
    let labels = (0..kept.len()).filter_map(|i| Some((i, relabel(&candidates[i], verdicts[i])?)));
    let labelling = stream::iter(labels)
        .for_each_concurrent(AT_ONCE, |(i, value)| label(lifecycle, &kept[i], value, verdicts[i]));
    labelling.await;
    let asking = stream::iter(wanted.iter().take(room)).map(|i| ask(lifecycle, &kept[*i]));
    let refused = asking.buffer_unordered(AT_ONCE).filter(|done| std::future::ready(!done)).count().await;
    let is_all = wanted.len() <= room && refused == 0;
    Ok(is_all.then(|| look_again(&candidates, now)))
}

/// An existing Schedule.
struct KeepingSchedule {
    name: String,
    uid: Option<String>,
    history: HistoryLimits,
    keep_last: usize,
}

/// The existing Schedules, by UID and by name.
struct KnownSchedules<'s> {
    by_uid: HashMap<&'s str, &'s KeepingSchedule>,
    by_name: HashMap<&'s str, &'s KeepingSchedule>,
}

impl<'s> KnownSchedules<'s> {
    fn of(all: &'s [KeepingSchedule]) -> Self {
        let by_uid = all.iter().filter_map(|one| Some((one.uid.as_deref()?, one))).collect();
        Self { by_uid, by_name: all.iter().map(|one| (one.name.as_str(), one)).collect() }
    }
}

/// Lists the existing Schedules, if any Backup belongs to one or has the label of one.
async fn schedules(lifecycle: &Lifecycle, kept: &[ExpiringBackup]) -> anyhow::Result<Vec<KeepingSchedule>> {
    if !kept.iter().any(|backup| backup.proven.is_some() || backup.schedule.is_some()) {
        return Ok(Vec::new());
    }
    let keeping = |schedule: Schedule| {
        let annotations = schedule.annotations();
        Some(KeepingSchedule {
            name: schedule.name_any(),
            uid: schedule.uid(),
            history: history_of(annotations, &mut Violations::default()),
            keep_last: keep_last(annotations),
        })
    };
    match list_as(&lifecycle.clients.call, &lifecycle.namespace, keeping).await {
        Ok(schedules) => Ok(schedules.items),
        Err(error) if is_not_found(&error) => Ok(Vec::new()),
        Err(error) => Err(anyhow!(chain(&error))).context("failed to list the Schedules"),
    }
}

/// The number in `berth.dev/keep-last`.
fn keep_last(annotations: &BTreeMap<String, String>) -> usize {
    annotations.get(keys::KEEP_LAST).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// What is kept of a DeleteBackupRequest.
struct CachedDeletionRequest {
    backup: String,
    is_under_way: bool,
    created: Option<Timestamp>,
    /// Until when the store keeps the files.
    locked_until: Option<Timestamp>,
}

/// Backups for which a DeleteBackupRequest exists.
#[derive(Default)]
struct AskedFor<'r> {
    /// Backups whose deletion is in progress, or whose files the store still keeps locked.
    pending: HashSet<&'r str>,
    /// Backups whose deletion has failed, with the time of the last request.
    failed: HashMap<&'r str, Timestamp>,
}

fn asked(request: DeleteBackupRequest) -> CachedDeletionRequest {
    let locked_until = request.annotations().get(keys::LOCKED_UNTIL);
    CachedDeletionRequest {
        is_under_way: request.phase() != DeleteBackupRequestPhase::Processed
            && request.metadata.deletion_timestamp.is_none(),
        created: request.metadata.creation_timestamp.as_ref().map(|time| time.0),
        locked_until: locked_until.and_then(|until| until.parse().ok()),
        backup: lean::name(request.spec.backup_name),
    }
}

fn keep(backup: &Backup) -> ExpiringBackup {
    let phase = backup.phase().as_str();
    let status = backup.status.clone().unwrap_or_default();
    let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
    let (started, completed) = (time(&status.start_timestamp), time(&status.completion_timestamp));
    let created = time(&backup.metadata.creation_timestamp);
    let mark = backup.annotations().get(keys::SCHEDULE_UID);
    let generation = backup.metadata.generation;
    let found = BackupOrigin { mark: mark.map(String::as_str), phase, generation };
    // A Backup from a store was created after the backup had ended.
    let born = created.filter(|_| !found.came_finished() && phase != BackupPhase::Deleting.as_str());
    let expiration = time(&status.expiration)
        .map(|at| at.saturating_add(behind(born, started.or(completed))).unwrap_or(Timestamp::MAX));
    let label = |key: &str| backup.labels().get(key).cloned();
    ExpiringBackup {
        name: backup.name_any(),
        uid: backup.uid(),
        phase,
        expiration,
        ended: completed.or(started).max(born).or(created),
        location: lean::name(backup.spec.storage_location.clone().unwrap_or_default()),
        schedule: label(keys::SCHEDULE),
        proven: mark.filter(|_| !found.came_finished()).map(|mark| lean::name(mark.clone())),
        is_kept: is_set(backup.annotations(), keys::KEEP),
        keep_last: keep_last(backup.annotations()),
        is_going: backup.metadata.deletion_timestamp.is_some(),
        failure: label(keys::GC_FAILURE),
    }
}

fn candidate<'a>(
    backup: &'a ExpiringBackup,
    locations: &[Location],
    asked_for: &AskedFor<'_>,
    schedules: &KnownSchedules<'a>,
    now: Timestamp,
) -> ExpiryCandidate<'a> {
    let name = backup.name.as_str();
    let failed = asked_for.failed.get(name);
    let is_asked_for = asked_for.pending.contains(name)
        || failed.is_some_and(|failed| !is_due_again(*failed, backup.expiration, now));
    let found = match backup.location.as_str() {
        "" => choose(locations, "").or_else(|| locations.iter().find(|one| one.name == DEFAULT_LOCATION)),
        wanted => locations.iter().find(|location| location.name == wanted),
    };
    let location = match found {
        None => RetentionLocation::Missing,
        Some(location) if location.read_only => RetentionLocation::ReadOnly,
        Some(location) if location.unavailable.is_some() => RetentionLocation::Unavailable,
        Some(_) => RetentionLocation::Usable,
    };
    let own = backup.proven.as_deref().and_then(|uid| schedules.by_uid.get(uid)).copied();
    let named = backup.schedule.as_deref().and_then(|name| schedules.by_name.get(name)).copied();
    ExpiryCandidate {
        name,
        phase: backup.phase,
        expiration: backup.expiration,
        ended: backup.ended,
        location,
        is_kept: backup.is_kept,
        is_asked_for: is_asked_for || backup.is_going,
        schedule: backup.schedule.as_deref(),
        proven: backup.proven.as_deref(),
        proven_name: own.map(|schedule| schedule.name.as_str()),
        at: &backup.location,
        keep_last: own.map_or(0, |schedule| schedule.keep_last).max(backup.keep_last),
        named_keeps: named.map(|schedule| schedule.keep_last),
        history: own.map(|schedule| schedule.history).unwrap_or_default(),
        failure: backup.failure.as_deref(),
    }
}

/// Writes the label `velero.io/gc-failure`, or removes it.
async fn label(
    lifecycle: &Lifecycle,
    backup: &ExpiringBackup,
    value: Option<&'static str>,
    verdict: RetentionDecision,
) {
    let api: Api<Backup> = Api::namespaced(lifecycle.clients.call.clone(), &lifecycle.namespace);
    let (name, uid) = (backup.name.as_str(), backup.uid.as_deref());
    let change = json!({"metadata": {"labels": {keys::GC_FAILURE: value}}});
    match patch_metadata(&api, Write::to(name).uid(uid), change).await {
        WriteResult::Written(_) => {
            if let (RetentionDecision::Blocked(_), Some(value)) = (verdict, value) {
                warn!(%name, failure = value, "an expired Backup cannot be deleted");
                let note = format!(
                    "expired, and not deleted: {value}: its location {} is gone, read-only or unavailable",
                    backup.location
                );
                lifecycle.events.tell(EventReason::ExpiryBlocked, name, uid.unwrap_or_default(), note);
            }
        }
        WriteResult::Gone(_) | WriteResult::Conflict(_) => {}
        WriteResult::Refused(error) => {
            warn!(%name, error = chain(&error), "could not write why an expired Backup is not deleted");
        }
        WriteResult::TimedOut => warn!(%name, "writing why an expired Backup is not deleted took too long"),
    }
}

/// The time by the API server's clock, read from the answer to a dry run.
async fn api_server_time(lifecycle: &Lifecycle) -> anyhow::Result<Timestamp> {
    let api: Api<DeleteBackupRequest> = Api::namespaced(lifecycle.clients.call.clone(), &lifecycle.namespace);
    let mut request = DeleteBackupRequest::new("", DeleteBackupRequestSpec { backup_name: CLOCK.to_owned() });
    request.metadata.generate_name = Some(format!("{CLOCK}-"));
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let told = timeout(ANSWER, api.create(&params, &request)).await.map_err(|_| anyhow!("it took too long"));
    let told = told.and_then(|told| told.map_err(|error| anyhow!(chain(&error))));
    let told = told.context("failed to ask the API server what time it is")?;
    told.metadata.creation_timestamp.map(|time| time.0).context("the API server told no time")
}

/// Creates a DeleteBackupRequest. `false`: the API server did not take it.
async fn ask(lifecycle: &Lifecycle, backup: &ExpiringBackup) -> bool {
    let api: Api<DeleteBackupRequest> = Api::namespaced(lifecycle.clients.call.clone(), &lifecycle.namespace);
    let (name, uid) = (backup.name.clone(), backup.uid.clone().unwrap_or_default());
    let mut request = DeleteBackupRequest::new("", DeleteBackupRequestSpec { backup_name: name.clone() });
    let labels = [
        (keys::BACKUP_NAME.to_owned(), keys::label_value(&name, digest)),
        (keys::BACKUP_UID.to_owned(), uid.clone()),
    ];
    request.metadata = ObjectMeta {
        generate_name: Some(format!("{name}-")),
        labels: Some(labels.into()),
        ..ObjectMeta::default()
    };
    match create(&api, &request).await {
        WriteResult::Written(request) => {
            info!(backup = %name, %uid, request = request.name_any(), "asked for the deletion of a backup that has expired, or is more than its schedule keeps");
            true
        }
        WriteResult::Conflict(error) | WriteResult::Gone(error) | WriteResult::Refused(error) => {
            warn!(backup = %name, error = chain(&error), "could not ask for the deletion of an expired backup");
            false
        }
        WriteResult::TimedOut => false,
    }
}

#[cfg(test)]
mod tests;
