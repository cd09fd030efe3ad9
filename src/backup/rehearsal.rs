//! What a backup would store, found by the code that stores it: the types, lists, filters and
//! decisions of a run, with counters at the end in place of an archive. It reads, with the rights
//! of whoever asks, and neither writes nor runs anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use berth_api::parse;
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::hook::{Hook, HookPhase};
use berth_core::policy::Policies;
use berth_core::violation::Violations;
use bytes::Bytes;
use jiff::Timestamp;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use super::archive::Batch;
use super::collect::Collector;
use super::discovery::Discovery;
use super::hold::{HeldPod, PodHolder};
use super::hooks::Tally;
use super::inputs::{namespaces, tell_unknown};
use super::ledger::ObjectLedger;
use super::list::{ListError, Lister, Namespace};
use super::log::BackupLog;
use super::policy::policies_of;
use super::prepare::{Prepared, StartInput, prepare};
use super::progress::Counters;
use super::volumes::outcomes::{Outcomes, VolumeDataResult};
use super::volumes::{
    RehearsedVolume, RehearsedVolumes, VolumeAccess, WaitLimits, of_spec, serves_snapshots,
};
use crate::client::list;
use crate::patch::merge_into;

/// Objects of a page, as the controller's default is.
const PAGE_SIZE: u32 = 500;
/// Requests at one time: fewer than a run has, because nobody waits for a backup here.
const REQUESTS: usize = 8;
/// How long a read that fails is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Batches and blocks that may wait to be counted.
const WAITING: usize = 16;
/// Hooks that are told; the others are counted only.
const MOST_HOOKS: usize = 10_000;
/// Places that are told; an object of any other one is counted with its type alone.
const MOST_PLACES: usize = 100_000;
/// How a run begins to say of all types which berth itself may not list.
const OF_BERTH: &str = "berth may not list";
/// What a controller without such flags gives to Backups that do not say it.
const TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// One hook in one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedHook {
    /// Namespace, slash, pod.
    pub pod: String,
    pub when: HookPhase,
    pub hook: Arc<Hook>,
    pub container: Option<String>,
}

/// What a backup would do.
#[derive(Debug, Default)]
pub struct Rehearsed {
    /// Objects, by type (as in `deployments.apps`) and namespace; none for those of the cluster.
    pub objects: BTreeMap<(String, Option<String>), u64>,
    /// Bytes of their JSON, before compression.
    pub bytes: u64,
    pub location: String,
    pub volumes: Vec<RehearsedVolume>,
    /// Volumes that there was no room to tell.
    pub more_volumes: u64,
    /// Claims without data, by key, and why.
    pub without_data: BTreeMap<String, String>,
    pub hooks: Vec<PlannedHook>,
    pub more_hooks: u64,
    /// Namespaces that the spec names and that do not exist.
    pub missing: Vec<String>,
    /// What the API server refused to let this user read.
    pub refused: BTreeSet<String>,
    /// What the run would log as errors and as warnings.
    pub errors: Vec<String>,
    pub warnings: Vec<String>,
    /// Why this is not all.
    pub cut_short: Option<String>,
}

/// Why nothing can be told.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    #[error("the API server did not answer {0}")]
    Cluster(&'static str, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "the namespaces of the cluster may not be listed, so it cannot be told what a backup of these would take: name them one by one with --include-namespaces, without a pattern"
    )]
    Namespaces,
    #[error("the backup would become FailedValidation:\n  {}", .0.lines().join("\n  "))]
    Invalid(Violations),
}

#[derive(Default)]
struct Counted {
    objects: BTreeMap<(String, Option<String>), u64>,
    bytes: u64,
    hooks: Vec<PlannedHook>,
    more_hooks: u64,
}

impl Counted {
    fn batch(&mut self, batch: &Batch) {
        let kind = batch.kind.qualified();
        for item in &batch.items {
            self.bytes = self.bytes.saturating_add(item.json.len() as u64);
            let mut place = (kind.clone(), item.namespace.clone());
            if self.objects.len() >= MOST_PLACES && !self.objects.contains_key(&place) {
                place.1 = None;
            }
            *self.objects.entry(place).or_default() += 1;
        }
    }

    fn hooks(&mut self, held: &HeldPod) {
        let all = [(HookPhase::Pre, &held.hooks.pre), (HookPhase::Post, &held.hooks.post)];
        for (when, hook) in
            all.into_iter().flat_map(|(when, hooks)| hooks.iter().map(move |hook| (when, hook)))
        {
            if self.hooks.len() >= MOST_HOOKS {
                self.more_hooks += 1;
                continue;
            }
            let container = hook.container.clone().or_else(|| held.container.clone());
            let hook = Arc::clone(hook);
            self.hooks.push(PlannedHook { pod: held.id.to_string(), when, hook, container });
        }
    }
}

/// Reads what the backup would take, for `lasts` at most: what takes longer is left out, and said
/// to be.
///
/// # Errors
/// When nothing can be told.
pub async fn rehearse(
    client: &Client,
    namespace: &str,
    backup: &Backup,
    lasts: Duration,
) -> Result<Rehearsed, RehearsalError> {
    let name = backup.name_any();
    let log = BackupLog::new(format!("{namespace}/{name}"));
    let lister = Lister::new(client.clone(), PAGE_SIZE, RETRY, Arc::new(Semaphore::new(REQUESTS)));
    let discovery = Discovery::new(client.clone());
    let cluster = |what| move |error: ListError| RehearsalError::Cluster(what, error.into());
    let (served, server) = tokio::join!(
        lister.patiently("the served types", || discovery.types(RETRY)),
        lister.patiently("the server's version", || discovery.version()),
    );
    let served = served.map_err(cluster("which types it serves"))?;
    let server = server.map_err(cluster("which version it has"))?;
    let locations = locations(client, namespace, backup, &lister).await?;
    let namespaces = known_namespaces(backup, &lister).await?;
    let policies = match policies_of(client, namespace, backup, &lister, &log).await {
        Err(error) if error.is_forbidden() => Ok(Policies::default()),
        policies => policies.map_err(cluster("what the resource policy is"))?,
    };
    let prepared = prepare(&StartInput {
        backup,
        locations: &locations,
        namespaces: &namespaces,
        types: &served.types,
        policies: &policies,
        server: &server,
        default_ttl: TTL,
        default_files: false,
        default_moves: false,
        now: Timestamp::now(),
    })
    .map_err(RehearsalError::Invalid)?;
    prepared.warn(&log);
    served.warn(&log);
    for unknown in &served.unknown {
        tell_unknown(&prepared.wanted, unknown, &log);
    }
    let effective = effective(backup, &prepared);
    let outcomes = Outcomes::default();
    let access = VolumeAccess {
        client: client.clone(),
        watches: client.clone(),
        lister: lister.clone(),
        namespace: namespace.to_owned(),
        backup: name.clone(),
        uid: String::new(),
        annotations: backup.annotations().clone(),
        location: prepared.location.name_any(),
        run: String::new(),
        serves_snapshots: serves_snapshots(&served.types),
        limits: WaitLimits::new(Instant::now(), (None, None), Duration::ZERO).0,
        parallel_files: None,
    };
    let (volumes, jobs) = of_spec(&effective.spec, &served.types, &prepared, &log, &outcomes, access);
    let (ledger, tally) = (ObjectLedger::new(&served.types), Tally::default());
    let counters = Counters { total: AtomicU64::new(0), done: Arc::default() };
    let (counted, noted) = (Mutex::new(Counted::default()), Mutex::new(RehearsedVolumes::default()));
    let (batches, waiting) = mpsc::channel(WAITING);
    let (holder, held) = PodHolder::new(&prepared.wanted.hooks, &log, &tally);
    let collector = Collector {
        lister: lister.clone(),
        wanted: &prepared.wanted,
        selection: &prepared.selection,
        filters: &prepared.filters,
        backup: &name,
        types: &served.types,
        namespaces: &namespaces,
        resolved: &prepared.resolved,
        log: &log,
        counters: &counters,
        volumes: &volumes,
        ledger: &ledger,
        batches: batches.clone(),
        holder,
    };
    let of_pods = batches.clone();
    let taking = async {
        tokio::select! {
            collected = Box::pin(collector.run()) => collected.map(drop),
            () = volumes.rehearse(jobs, batches, &noted) => Err(ListError::NobodyTakes),
        }
    };
    let all = async {
        let (taken, (), ()) =
            tokio::join!(taking, pods(held, of_pods, &counted, &noted), count(waiting, &counted));
        taken
    };
    let cut_short = match timeout(lasts, all).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("the lists ended early: {}", crate::text::chain(&error))),
        Err(_) => Some(format!("reading ended after {} s", lasts.as_secs())),
    };
    let (counted, noted) = (counted.into_inner(), noted.into_inner());
    let refused = lister.refused();
    let mut rehearsed = Rehearsed {
        objects: counted.objects,
        bytes: counted.bytes,
        location: prepared.location.name_any(),
        volumes: noted.volumes,
        more_volumes: noted.more,
        without_data: without_data(&outcomes),
        hooks: counted.hooks,
        more_hooks: counted.more_hooks,
        missing: prepared.missing.clone(),
        cut_short,
        ..Rehearsed::default()
    };
    if rehearsed.cut_short.is_none() {
        volumes.tell();
    }
    for told in log.told() {
        let (is_error, sentence) = told.sentence();
        // What this user may not read is told by `refused`, and says nothing of berth's own rights.
        if refused.contains(&told.resource) || sentence.starts_with(OF_BERTH) {
            continue;
        }
        let all = if is_error { &mut rehearsed.errors } else { &mut rehearsed.warnings };
        all.push(sentence);
    }
    rehearsed.refused = refused;
    Ok(rehearsed)
}

/// Counts what would be packed.
async fn count(mut waiting: mpsc::Receiver<Batch>, counted: &Mutex<Counted>) {
    while let Some(batch) = waiting.recv().await {
        counted.lock().batch(&batch);
        // A sender that packs in order waits for this; if it has gone, nobody does.
        let _ = batch.packed.map(|packed| packed.send(()));
    }
}

/// Counts pods with hooks, and what goes along with them.
async fn pods(
    mut held: mpsc::Receiver<Vec<HeldPod>>,
    batches: mpsc::Sender<Batch>,
    counted: &Mutex<Counted>,
    noted: &Mutex<RehearsedVolumes>,
) {
    while let Some(block) = held.recv().await {
        for mut pod in block {
            counted.lock().hooks(&pod);
            if let Some(files) = pod.used.files.take() {
                noted.lock().files(files);
            }
            let mut all = std::mem::take(&mut pod.used.with);
            all.extend(std::mem::take(&mut pod.used.cuts).into_iter().map(|cut| cut.rehearsed(noted)));
            let HeldPod { kind, page, item, .. } = pod;
            all.push(Batch { kind, page, items: vec![item], packed: None });
            for batch in all {
                // A closed channel means that the rehearsal ends early.
                let _ = batches.send(batch).await;
            }
        }
    }
}

/// The Backup with the spec that a run would give it.
fn effective(backup: &Backup, prepared: &Prepared) -> Backup {
    let mut value = serde_json::to_value(backup).unwrap_or_default();
    merge_into(&mut value, prepared.patch.clone());
    serde_json::from_value(value).unwrap_or_else(|_| backup.clone())
}

/// The claims of which no data would be taken.
fn without_data(outcomes: &Outcomes) -> BTreeMap<String, String> {
    let reason = |fate| match fate {
        VolumeDataResult::Skipped { reason } | VolumeDataResult::Missing { reason, .. } => Some(reason),
        VolumeDataResult::Files | VolumeDataResult::Snapshot(_) | VolumeDataResult::Moved => None,
    };
    let all = outcomes.all().claims.into_iter();
    all.filter_map(|(claim, outcome)| Some((claim, reason(outcome.fate)?))).collect()
}

/// The locations; if they may not be read, one that is as the Backup names it.
async fn locations(
    client: &Client,
    namespace: &str,
    backup: &Backup,
    lister: &Lister,
) -> Result<Vec<BackupStorageLocation>, RehearsalError> {
    let read = || list::<BackupStorageLocation>(client, namespace);
    match lister.patiently("backupstoragelocations.velero.io", read).await {
        Ok(found) => Ok(found.items),
        Err(error) if error.is_forbidden() => {
            let name = backup.spec.storage_location.clone().filter(|name| !name.is_empty());
            let name = name.unwrap_or_else(|| berth_core::location::DEFAULT_LOCATION.to_owned());
            Ok(vec![BackupStorageLocation::new(&name, Default::default())])
        }
        Err(error) => Err(RehearsalError::Cluster("which locations there are", error.into())),
    }
}

/// The namespaces that the backup may take. Those that it names and that may not be read are
/// believed to exist.
async fn known_namespaces(backup: &Backup, lister: &Lister) -> Result<Vec<Namespace>, RehearsalError> {
    let error = match namespaces(backup, lister).await {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    if !error.is_forbidden() {
        return Err(RehearsalError::Cluster("which namespaces there are", error.into()));
    }
    let named = parse::backup_namespaces(&backup.spec).ok().filter(|set| set.is_literal());
    let named = named.ok_or(RehearsalError::Namespaces)?;
    let believed = |name: &str| Namespace {
        name: name.to_owned(),
        labels: BTreeMap::new(),
        json: Bytes::from(json!({"kind": "Namespace", "metadata": {"name": name}}).to_string()),
        lacks_type: false,
        deleting: false,
        excluded: false,
    };
    Ok(named.literals().map(believed).collect())
}
