//! Answers DownloadRequests with links. A bucket's links are signed with its credentials. The files
//! of a folder are served by berth ([`serve`]).

mod links;
mod serve;

pub use links::Links;
pub use serve::serve;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use berth_api::keys;
use berth_api::velero::download_request::{
    DownloadRequest, DownloadRequestSpec, DownloadRequestStatus, DownloadTarget,
};
use berth_api::velero::{
    Backup, BackupStorageLocation, DownloadRequestPhase as Phase, DownloadTargetKind as Kind,
};
use berth_core::download::{CHECKPOINT, DownloadFile, DownloadRequestState, DownloadStep, INDEX, VALID};
use berth_core::location::DEFAULT_LOCATION;
use berth_core::location_turns::{Candidate, choose};
use berth_core::sync::is_name;
use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::Lifecycle;
use crate::cache::{Cache, SharedCache};
use crate::events::EventReason;
use crate::lean;
use crate::storage::{BackupLayout, Link};
use crate::text::chain;
use crate::watch::{of_namespace, reflect};
use crate::write::{Write, WriteResult, delete, patch};

/// How many requests are answered at the same time; all but one of them may be of one location.
const AT_ONCE: usize = 8;
const CALL: Duration = Duration::from_secs(20);
/// How often requests are checked, besides when one changes.
const PERIOD: Duration = Duration::from_secs(30);
/// Shortest and longest pause after an attempt. A successful one pauses until the watch shows it;
/// one that fails, for as long as it has failed so far.
const AGAIN: Duration = Duration::from_secs(5);
const SELDOM: Duration = Duration::from_secs(60);

type DownloadRequests = SharedCache<Cache<String, Arc<DownloadRequest>>>;

/// Never returns.
pub async fn run(lifecycle: &Lifecycle) {
    let requests = DownloadRequests::default();
    let watching = reflect(
        of_namespace(&lifecycle.clients.watch, &lifecycle.namespace),
        watcher::Config::default(),
        |request: DownloadRequest| (request.name_any(), Arc::new(kept(request))),
        |event| requests.write(|cache| cache.observe(event)),
    );
    tokio::join!(watching, work(lifecycle, &requests));
}

/// What is kept of a request, because its creator chooses its size. Its link is not kept, because
/// whoever has the link can read the file.
fn kept(request: DownloadRequest) -> DownloadRequest {
    let DownloadTarget { kind, name } = request.spec.target;
    let status = request.status.map(|status| DownloadRequestStatus { download_url: None, ..status });
    DownloadRequest {
        metadata: lean::metadata(request.metadata, &[], &[keys::DOWNLOAD]),
        spec: DownloadRequestSpec { target: DownloadTarget { kind, name: lean::name(name) } },
        status,
    }
}

async fn work(lifecycle: &Lifecycle, requests: &DownloadRequests) {
    let mut changed = requests.changed();
    let mut under_way: FuturesUnordered<BoxFuture<'_, String>> = FuturesUnordered::new();
    // Requests that are being answered, each with its location.
    let mut in_hand: HashMap<String, String> = HashMap::new();
    let mut resting: HashMap<String, Instant> = HashMap::new();
    // When each request was first tried, and when last.
    let mut begun: HashMap<String, Instant> = HashMap::new();
    let mut tried: HashMap<String, Instant> = HashMap::new();
    loop {
        // A request that is being deleted and only waits for a user's finalizer counts as gone.
        let is_going = |request: &DownloadRequest| request.metadata.deletion_timestamp.is_some();
        let all: Vec<Arc<DownloadRequest>> =
            requests.read().values().filter(|request| !is_going(request)).cloned().collect();
        let now = Timestamp::now();
        resting.retain(|_, until| *until > Instant::now());
        let present: HashSet<&str> =
            all.iter().filter_map(|request| request.metadata.uid.as_deref()).collect();
        for known in [&mut begun, &mut tried] {
            known.retain(|uid, _| present.contains(uid.as_str()));
        }
        let mut pause = PERIOD;
        let mut due = Vec::new();
        for request in &all {
            let uid = request.uid().unwrap_or_default();
            if in_hand.contains_key(&uid) {
                continue;
            }
            if let Some(until) = resting.get(&uid) {
                pause = pause.min(until.saturating_duration_since(Instant::now()));
                continue;
            }
            match seen(request).next(now) {
                DownloadStep::Leave { until } => pause = pause.min(until.duration_since(now).unsigned_abs()),
                step => due.push((Arc::clone(request), uid, step, location_of(lifecycle, request))),
            }
        }
        let candidates: Vec<Candidate<'_>> = due
            .iter()
            .map(|(_, uid, _, location)| Candidate { location, unseen: tried.get(uid).map(Instant::elapsed) })
            .collect();
        let taken: Vec<&str> = in_hand.values().map(String::as_str).collect();
        for index in choose(&candidates, &taken, AT_ONCE) {
            let Some((request, uid, step, location)) = due.get(index).cloned() else { continue };
            let is_first = !begun.contains_key(&uid);
            begun.entry(uid.clone()).or_insert_with(Instant::now);
            in_hand.insert(uid.clone(), location);
            let work = async move {
                match step {
                    DownloadStep::Answer => answer(lifecycle, &request, now, is_first).await,
                    DownloadStep::Remove => remove(lifecycle, &request).await,
                    DownloadStep::Leave { .. } => {}
                }
                uid
            };
            under_way.push(work.boxed());
        }
        tokio::select! {
            _ = changed.changed() => {}
            Some(uid) = under_way.next(), if !under_way.is_empty() => {
                in_hand.remove(&uid);
                let rest = begun.get(&uid).map_or(AGAIN, |begun| begun.elapsed().clamp(AGAIN, SELDOM));
                tried.insert(uid.clone(), Instant::now());
                resting.insert(uid, Instant::now() + rest);
            }
            () = sleep(pause.max(Duration::from_millis(50))) => {}
        }
    }
}

/// The location of the file, as far as it is known without a request to the API server.
fn location_of(lifecycle: &Lifecycle, request: &DownloadRequest) -> String {
    let target = &request.spec.target;
    let of_backup = !file(target.kind).is_of_restore();
    let known = of_backup.then(|| lifecycle.known.get(&target.name)).flatten();
    known.map(|backup| backup.location).unwrap_or_default()
}

fn seen(request: &DownloadRequest) -> DownloadRequestState {
    let status = request.status.as_ref();
    let created = request.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    DownloadRequestState {
        created,
        is_processed: status.and_then(|status| status.phase) == Some(Phase::Processed),
        expiration: status.and_then(|status| status.expiration.as_ref()).map(|time| time.0),
    }
}

fn api(lifecycle: &Lifecycle) -> Api<DownloadRequest> {
    Api::namespaced(lifecycle.clients.call.clone(), &lifecycle.namespace)
}

async fn remove(lifecycle: &Lifecycle, request: &DownloadRequest) {
    let name = request.name_any();
    let write = Write::to(&name).uid(request.metadata.uid.as_deref());
    match delete(&api(lifecycle), write).await {
        WriteResult::Written(()) | WriteResult::Gone(_) => {}
        WriteResult::Conflict(error) | WriteResult::Refused(error) => {
            warn!(%name, error = chain(&error), "could not remove an expired DownloadRequest");
        }
        WriteResult::TimedOut => warn!(%name, "removing an expired DownloadRequest took too long"),
    }
}

/// Creates a link, and writes it. A request that cannot be answered stays until it expires, because
/// what is missing may appear. `is_first`: nothing was reported of it yet.
async fn answer(lifecycle: &Lifecycle, request: &DownloadRequest, now: Timestamp, is_first: bool) {
    let name = request.name_any();
    let made = timeout(CALL, link(lifecycle, request, now)).await;
    let (change, problem) = match made.unwrap_or_else(|_| Err(anyhow!("it took too long"))) {
        Ok(url) => {
            let expiration = now.checked_add(VALID).unwrap_or(now);
            (Some(DownloadRequestStatus::processed(&url, expiration)), None)
        }
        Err(error) => {
            let has_expiration = seen(request).expiration.is_some();
            let expiration = now.checked_add(VALID).unwrap_or(now);
            let change = (!has_expiration).then(|| DownloadRequestStatus::unanswered(expiration));
            (change, Some(format!("{error:#}")))
        }
    };
    if let Some(problem) = problem.filter(|_| is_first) {
        warn!(%name, error = %problem, "could not answer a DownloadRequest: trying again until it expires");
        lifecycle.events.tell_about(EventReason::DownloadFailed, reference(request), problem);
    }
    let Some(status) = change else { return };
    match patch(&api(lifecycle), Write::on(request), json!({"status": status})).await {
        WriteResult::Written(_) => debug!(%name, "answered a DownloadRequest"),
        WriteResult::Gone(_) | WriteResult::Conflict(_) => {}
        WriteResult::Refused(error) => {
            warn!(%name, error = chain(&error), "could not write a DownloadRequest")
        }
        WriteResult::TimedOut => warn!(%name, "writing a DownloadRequest took too long"),
    }
}

fn reference(request: &DownloadRequest) -> ObjectReference {
    request.object_ref(&())
}

fn file(kind: Kind) -> DownloadFile {
    match kind {
        Kind::BackupLog => DownloadFile::BackupLog,
        Kind::BackupContents => DownloadFile::BackupContents,
        Kind::BackupVolumeSnapshots => DownloadFile::BackupVolumeSnapshots,
        Kind::BackupItemOperations => DownloadFile::BackupItemOperations,
        Kind::BackupResourceList => DownloadFile::BackupResourceList,
        Kind::BackupResults => DownloadFile::BackupResults,
        Kind::RestoreLog => DownloadFile::RestoreLog,
        Kind::RestoreResults => DownloadFile::RestoreResults,
        Kind::RestoreResourceList => DownloadFile::RestoreResourceList,
        Kind::RestoreItemOperations => DownloadFile::RestoreItemOperations,
        Kind::CsiBackupVolumeSnapshots => DownloadFile::CsiVolumeSnapshots,
        Kind::CsiBackupVolumeSnapshotContents => DownloadFile::CsiVolumeSnapshotContents,
        Kind::BackupVolumeInfos => DownloadFile::BackupVolumeInfos,
        Kind::RestoreVolumeInfo => DownloadFile::RestoreVolumeInfo,
    }
}

/// Creates a link to the file of the Backup or Restore of that name in this namespace, and to no
/// other file.
async fn link(lifecycle: &Lifecycle, request: &DownloadRequest, now: Timestamp) -> anyhow::Result<String> {
    let target = &request.spec.target;
    let file = match request.annotations().get(keys::DOWNLOAD).map(String::as_str) {
        Some(INDEX) if target.kind == Kind::BackupContents => DownloadFile::BackupIndex,
        Some(CHECKPOINT) if target.kind == Kind::BackupLog => DownloadFile::BackupCheckpoint,
        _ => file(target.kind),
    };
    let key = file.key(&target.name).context("spec.target.name: no object has such a name")?;
    let backup =
        if file.is_of_restore() { backup_of(lifecycle, &target.name).await? } else { target.name.clone() };
    let backup = get(lifecycle, &ApiResource::erase::<Backup>(&()), &backup).await?;
    // A link to a file that is going would break off, or lead to nothing.
    ensure!(
        file.is_of_restore() || !keys::is_set(backup.annotations(), keys::FILES_GO),
        "Backup {} is being deleted, and its files go",
        backup.name_any()
    );
    let wanted = backup.data.pointer("/spec/storageLocation").and_then(Value::as_str).unwrap_or_default();
    let wanted = if wanted.is_empty() { DEFAULT_LOCATION } else { wanted };
    ensure!(
        is_name(wanted),
        "spec.storageLocation of Backup {}: no object has such a name",
        backup.name_any()
    );
    let locations: Api<BackupStorageLocation> =
        Api::namespaced(lifecycle.clients.call.clone(), &lifecycle.namespace);
    let location = locations.get_opt(wanted).await.map_err(|error| anyhow!(chain(&error)))?;
    let location = location.with_context(|| format!("BackupStorageLocation {wanted} does not exist"))?;
    let path = BackupLayout::path(location.spec.object_storage.prefix.as_deref(), &key);
    let valid = VALID.unsigned_abs();
    let made = lifecycle.opener.link(&location, &path, valid).await;
    match made.map_err(|error| anyhow!(chain(&error)))? {
        Link::Signed(url) => Ok(url),
        Link::Folder => {
            let Some(links) = &lifecycle.links else {
                bail!(
                    "location {wanted} is a folder, which berth serves only with --download-address and --download-url"
                )
            };
            let until = now.checked_add(SignedDuration::try_from(valid)?)?;
            links.make(wanted, &key, until).await
        }
    }
}

async fn get(lifecycle: &Lifecycle, kind: &ApiResource, name: &str) -> anyhow::Result<DynamicObject> {
    // The name would become part of the request's address.
    ensure!(is_name(name), "the {} that is named: no object has such a name", kind.kind);
    let api: Api<DynamicObject> =
        Api::namespaced_with(lifecycle.clients.call.clone(), &lifecycle.namespace, kind);
    let found = api.get_opt(name).await.map_err(|error| anyhow!(chain(&error)))?;
    found.with_context(|| format!("{} {name} does not exist", kind.kind))
}

/// The Backup of a Restore.
async fn backup_of(lifecycle: &Lifecycle, restore: &str) -> anyhow::Result<String> {
    let kind =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("velero.io", "v1", "Restore"), "restores");
    let restore = get(lifecycle, &kind, restore).await?;
    let backup = restore.data.pointer("/spec/backupName").and_then(Value::as_str).unwrap_or_default();
    if backup.is_empty() {
        bail!("Restore {} names no Backup yet", restore.name_any());
    }
    Ok(backup.to_owned())
}

#[cfg(test)]
mod tests;
