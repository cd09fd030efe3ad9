//! What the queue keeps of a Backup that it has seen.

use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use berth_api::place::QueueFields;
use berth_api::velero::{Backup, BackupPhase};
use berth_core::glob::Glob;
use berth_core::namespace::NamespaceSet;
use berth_core::operation::OperationCounts;
use berth_core::queue::{CLOCKS_DIFFER, CompletedRun, Lived, QueueEntry, QueueOrder, QueuePhase, is_likely};
use berth_core::run::Runs;
use berth_core::schedule::BackupOrigin;
use berth_core::stage::Stage;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::cache::{Observed, Versioned};

/// One Backup that waits or runs.
#[derive(Clone, Debug)]
pub struct QueueItem {
    pub entry: Arc<QueueEntry>,
    pub resource_version: String,
    /// UID of the Schedule that made it (`berth.dev/schedule-uid`).
    pub schedule_uid: Option<String>,
}

impl Versioned for QueueItem {
    fn uid(&self) -> &str {
        &self.entry.uid
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }
}

/// One Backup that has left the queue, and whose run has not ended it: it waits for operations, or
/// has to be completed.
#[derive(Clone, Debug)]
pub struct BackupAfterQueue {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub phase: BackupPhase,
    /// A run of this engine has begun it.
    pub is_ours: bool,
    pub is_canceled: bool,
    /// When it was created, or got its place.
    pub since: Timestamp,
    pub location: String,
    pub operations: OperationCounts,
    /// How long each of its operations may take.
    pub limit: Duration,
    pub runs: Runs,
}

impl Versioned for BackupAfterQueue {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }
}

impl BackupAfterQueue {
    fn of(backup: &Backup) -> Option<Self> {
        Stage::of(backup.phase().as_str())?;
        Some(Self {
            name: backup.name_any(),
            uid: backup.uid().unwrap_or_default(),
            resource_version: backup.resource_version().unwrap_or_default(),
            phase: backup.phase(),
            is_ours: backup.annotations().contains_key(keys::RUN),
            is_canceled: is_canceled(backup),
            since: since(backup),
            location: backup.spec.storage_location.clone().unwrap_or_default(),
            operations: backup.operations(),
            limit: backup.operation_timeout(),
            runs: backup.annotations().get(keys::RUNS).and_then(|runs| runs.parse().ok()).unwrap_or_default(),
        })
    }
}

/// A Backup that was deleted while it ran, or after it had left the queue.
#[derive(Clone, Debug)]
pub struct GoneBackup {
    pub name: String,
    pub uid: String,
    pub location: String,
    /// A run of this engine may have begun it.
    pub is_ours: bool,
}

impl GoneBackup {
    /// `None`: no run has begun it.
    pub(super) fn of_run(item: &QueueItem) -> Option<Self> {
        let QueueEntry { name, uid, location, phase, .. } = &*item.entry;
        (*phase == QueuePhase::InProgress).then(|| Self {
            name: name.clone(),
            uid: uid.clone(),
            location: location.clone(),
            is_ours: true,
        })
    }

    pub(super) fn of_operations(after: &BackupAfterQueue) -> Self {
        let BackupAfterQueue { name, uid, location, is_ours, .. } = after.clone();
        Self { name, uid, location, is_ours }
    }
}

/// What is kept of a Backup.
pub(super) struct CachedBackup {
    pub(super) name: String,
    /// Kept while it waits or runs.
    pub(super) observed: Observed<QueueItem>,
    /// Kept while it waits for operations, or has to be completed.
    pub(super) after: Observed<BackupAfterQueue>,
    pub(super) mark: Option<Timestamp>,
    /// It ended well.
    pub(super) run: Option<CompletedRun>,
}

impl CachedBackup {
    pub(super) fn of(backup: &Backup, order: &QueueOrder) -> Self {
        let resource_version = backup.resource_version().unwrap_or_default();
        let schedule_uid = backup.annotations().get(keys::SCHEDULE_UID).cloned();
        let observed = match entry(backup, order) {
            Some(entry) => {
                Observed::Kept(QueueItem { entry: Arc::new(entry), resource_version, schedule_uid })
            }
            None => Observed::Passed { uid: backup.uid().unwrap_or_default(), resource_version },
        };
        let after = match BackupAfterQueue::of(backup) {
            Some(after) => Observed::Kept(after),
            None => Observed::Passed {
                uid: backup.uid().unwrap_or_default(),
                resource_version: backup.resource_version().unwrap_or_default(),
            },
        };
        Self { name: backup.name_any(), observed, after, mark: mark(backup), run: run(backup, order) }
    }
}

/// Has somebody canceled or deleted it? A deleted one that a finalizer keeps would otherwise go on,
/// though nobody wants it any more.
fn is_canceled(backup: &Backup) -> bool {
    keys::is_set(backup.annotations(), keys::CANCEL) || backup.metadata.deletion_timestamp.is_some()
}

/// A time mark that was forged does not count.
fn since(backup: &Backup) -> Timestamp {
    let created_at = backup.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    mark(backup).filter(|mark| is_likely(*mark, created_at)).unwrap_or(created_at)
}

fn mark(backup: &Backup) -> Option<Timestamp> {
    backup.annotations().get(keys::ENQUEUED_AT).and_then(|text| text.parse().ok())
}

/// What the queue sees of a Backup. `None` if it neither waits nor runs.
pub fn entry(backup: &Backup, order: &QueueOrder) -> Option<QueueEntry> {
    let phase = match backup.phase() {
        BackupPhase::New => QueuePhase::New,
        BackupPhase::Queued => QueuePhase::Queued,
        BackupPhase::ReadyToStart => QueuePhase::ReadyToStart,
        BackupPhase::InProgress => QueuePhase::InProgress,
        _ => return None,
    };
    let status = backup.status.as_ref();
    let resolved =
        backup.annotations().get(keys::RESOLVED_NAMESPACES).filter(|_| phase == QueuePhase::InProgress);
    let resolved = resolved
        .map(|names| NamespaceSet::literal(names.split(',').filter_map(|name| Glob::parse(name).ok())));
    let read = source(backup).entry(order);
    let created_at = backup.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let soon = Timestamp::now().saturating_add(CLOCKS_DIFFER).unwrap_or(Timestamp::MAX);
    Some(QueueEntry {
        // Ignore time marks far from the creationTimestamp, or in the future: they were forged.
        enqueued_at: read.enqueued_at.filter(|mark| is_likely(*mark, created_at)),
        // Written with its place.
        waits_since: read.waits_since.filter(|_| phase != QueuePhase::New),
        first: read.first.filter(|first| *first <= soon),
        canceled: is_canceled(backup),
        name: backup.name_any(),
        uid: backup.uid().unwrap_or_default(),
        phase,
        position: u32::try_from(status.and_then(|s| s.queue_position).unwrap_or(0)).unwrap_or(0),
        started_at: status.and_then(|s| s.start_timestamp.as_ref()).map(|time| time.0),
        created_at,
        namespaces: resolved.unwrap_or_else(|| read.namespaces.clone()),
        ..read
    })
}

fn source(backup: &Backup) -> QueueFields<'_> {
    QueueFields { labels: backup.labels(), annotations: backup.annotations(), spec: &backup.spec }
}

/// How a run that ended well went. One that came from a store counts for nothing: whoever writes to
/// the store says for whom it ran, and how long.
pub fn run(backup: &Backup, order: &QueueOrder) -> Option<CompletedRun> {
    if !matches!(backup.phase(), BackupPhase::Completed | BackupPhase::PartiallyFailed) {
        return None;
    }
    let status = backup.status.as_ref()?;
    let (start, end) = (status.start_timestamp.as_ref()?.0, status.completion_timestamp.as_ref()?.0);
    let lived = Lived {
        created: backup.creation_timestamp().map(|time| time.0),
        start,
        end,
        came_finished: BackupOrigin {
            phase: backup.phase().as_str(),
            generation: backup.metadata.generation,
            ..BackupOrigin::default()
        }
        .came_finished(),
    };
    Some(CompletedRun {
        schedule: backup.labels().get(keys::SCHEDULE).cloned(),
        tenant: source(backup).tenant(order),
        includes: source(backup).includes(),
        took: lived.took()?,
        ended: end,
    })
}
