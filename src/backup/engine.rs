//! What every run needs, how it may fail, and how it is ended from outside.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use berth_core::run::AfterInterruption;
use berth_core::violation::Violations;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::archive::ArchiveError;
use super::discovery::Discovery;
use super::exec::Exec;
use super::list::{ListError, Lister};
use super::metrics::BackupMetrics;
use super::removals::Removals;
use super::status::{BackupWriter, WriteError};
use super::turns::Turns;
use super::upload::UploadError;
use crate::node_agent::repositories::Repositories;
use crate::queue::cycle::CANCELED;
use crate::queue::refusals::is_lasting;
use crate::storage::{ClaimError, OpenError, Opener};

/// How long the last file and the last write to the Backup are tried, because everything else is
/// stored already.
pub(super) const CLOSING: Duration = Duration::from_secs(600);
pub(super) const OPENING: Duration = Duration::from_secs(30);
/// How long a run that must end waits for requests to the store that are under way.
pub(super) const LAST_PART: Duration = Duration::from_secs(20);
/// Concurrent requests that read pods before their hooks.
const LOOKS: usize = 16;

/// How the data of volumes is taken where a Backup does not say it.
#[derive(Clone)]
pub struct VolumeDefaults {
    /// For watches, which may be silent for long.
    pub watches: Client,
    /// `defaultVolumesToFsBackup`.
    pub files: bool,
    /// `snapshotMoveData`.
    pub moves: bool,
    /// How long a PodVolumeBackup may take.
    pub files_timeout: Duration,
}

/// What every run needs.
#[derive(Clone)]
pub struct Engine {
    pub client: Client,
    pub namespace: String,
    pub discovery: Arc<Discovery>,
    pub opener: Opener,
    /// Those of berth's own, with the data of volumes.
    pub repositories: Arc<Repositories>,
    /// Runs the commands of hooks.
    pub exec: Arc<dyn Exec>,
    /// Blocks of a run that are processed at one time.
    pub workers: usize,
    /// Threads of a run that write its archive.
    pub packers: usize,
    pub page_size: u32,
    pub list_retry: Duration,
    /// Permits for requests of this process that read what is backed up, shared by all runs.
    pub requests: Arc<Semaphore>,
    pub default_ttl: Duration,
    pub volumes: VolumeDefaults,
    pub after_interruption: AfterInterruption,
    /// Bytes of a part of an upload.
    pub part_size: usize,
    pub metrics: BackupMetrics,
    /// When this process became the leader.
    pub since: Instant,
    /// UIDs of Backups whose objects this process has stored and whose operations go on.
    pub own: Arc<Mutex<HashSet<String>>>,
    /// By UID of a Backup that was deleted while it ran: in which namespaces it may have data in
    /// repositories, until that is forgotten.
    pub data_of_deleted: Arc<Mutex<HashMap<String, BTreeSet<String>>>>,
    pub removals: Removals,
    /// UID of the cluster, once it has been read.
    pub cluster: Arc<OnceCell<String>>,
    /// Turns of recoveries that read what dead runs have stored.
    pub turns: Turns,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunFailure {
    #[error("failed to read what the backup needs to know of the cluster")]
    Cluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "what the backup asks for is not valid any more, so it cannot be run again: correct it in a new Backup"
    )]
    Invalid(#[source] Violations),
    #[error("the API server refused to let the backup begin")]
    Refused(#[source] kube::Error),
    #[error("failed to list what is to be backed up")]
    List(#[source] ListError),
    #[error("the storage location cannot be used")]
    Open(#[source] OpenError),
    #[error("the storage location failed")]
    Store(#[source] object_store::Error),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(
        "DeleteBackupRequest {0} still removes an earlier backup of this name: create the Backup again once that request is gone, or remove the request by kubectl if nothing carries it out"
    )]
    BeingDeleted(String),
    #[error(
        "the archive in the storage location is not the one that was written ({found} bytes in place of {written}): something else writes there, so give the location a bucket or prefix of its own"
    )]
    Changed { written: u64, found: u64 },
    #[error("failed to make the archive")]
    Archive(#[source] ArchiveError),
    #[error("failed to store the archive")]
    Upload(#[source] UploadError),
    #[error("this run cannot continue from what an earlier run has stored any more")]
    Stale,
    #[error(
        "the backup cannot wait for its operations, because what it has stored could not be written down in its location"
    )]
    Unkept,
    #[error("the DataUploads of the backup could not be read")]
    Operations(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("a task of the run ended abnormally, which is a fault of berth: the controller's log has more")]
    Task(#[source] tokio::task::JoinError),
    #[error("failed to make one of the files beside the archive")]
    File(#[source] std::io::Error),
    #[error("the controller was stopped while the backup ran")]
    Stopped,
    #[error("the Backup was deleted while it ran")]
    Deleted,
    #[error("{CANCELED}")]
    Canceled,
    #[error("the Backup could not be written while it ran")]
    Write(#[source] WriteError),
}

impl RunFailure {
    /// Whether the run was ended from outside. Other errors of a run that is ending follow from
    /// that.
    pub(super) fn is_from_outside(&self) -> bool {
        matches!(self, Self::Stopped | Self::Deleted | Self::Canceled | Self::Write(_))
    }

    /// Whether the Backup was deleted. A write may find that before the watch shows it.
    pub(super) fn is_deletion(&self) -> bool {
        matches!(self, Self::Deleted | Self::Write(WriteError::Gone))
    }

    /// Whether the whole API server is gone. Then another attempt may succeed when it is back.
    pub(super) fn is_of_the_api_server(&self) -> bool {
        match self {
            // It was read as patiently as everything else.
            Self::Open(OpenError::ReadSecret(_, error)) => !is_lasting(error),
            Self::Cluster(error) => error.downcast_ref().is_some_and(ListError::is_gone),
            Self::List(error) => error.is_gone(),
            Self::Operations(_) => true,
            _ => false,
        }
    }

    /// Whether the store failed.
    pub(super) fn is_of_the_store(&self) -> bool {
        matches!(
            self,
            Self::Store(_) | Self::Upload(UploadError::Store(_)) | Self::Claim(ClaimError::Store(_))
        )
    }
}

/// Ways to end a run from outside.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// The Backup is gone.
    pub deleted: CancellationToken,
    /// A user asked for the backup to be canceled.
    pub canceled: CancellationToken,
    /// The process must end.
    pub stop: CancellationToken,
}

impl Signals {
    pub(super) fn raised(&self) -> Option<RunFailure> {
        if self.deleted.is_cancelled() {
            Some(RunFailure::Deleted)
        } else if self.canceled.is_cancelled() {
            Some(RunFailure::Canceled)
        } else {
            self.stop.is_cancelled().then_some(RunFailure::Stopped)
        }
    }

    pub(super) async fn raise(&self) -> RunFailure {
        tokio::select! {
            () = self.deleted.cancelled() => RunFailure::Deleted,
            () = self.canceled.cancelled() => RunFailure::Canceled,
            () = self.stop.cancelled() => RunFailure::Stopped,
        }
    }

    /// Waits for `work`, which may take as long as a store is away, but only [`LAST_PART`] once the
    /// run must end.
    pub(super) async fn bound<T>(
        &self,
        work: impl Future<Output = Result<T, RunFailure>>,
    ) -> Result<T, RunFailure> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            done = &mut work => done,
            ended = self.raise() => match tokio::time::timeout(LAST_PART, work).await {
                Ok(Ok(done)) => Ok(done),
                _ => Err(ended),
            },
        }
    }
}

impl Engine {
    pub(super) fn lister(&self) -> Lister {
        Lister::new(self.client.clone(), self.page_size, self.list_retry, Arc::clone(&self.requests))
    }

    /// The lister that reads pods with hooks. It has requests of its own, because a list that waits
    /// for hooks may hold the others.
    pub(super) fn pod_lister(&self) -> Lister {
        let requests = Arc::new(Semaphore::new(LOOKS));
        Lister::new(self.client.clone(), self.page_size, self.list_retry, requests)
    }
}

pub(super) fn schedule(record: &BackupWriter) -> Option<&str> {
    record.object().labels().get(keys::SCHEDULE).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    /// A Backup that has just begun is left to the next run by it, and is not ended.
    #[test]
    fn a_secret_that_the_api_server_does_not_give_now_is_no_fault_of_the_location() {
        let unread = |code| {
            let status = Status::failure("the API server says so", "Reason").with_code(code);
            let error = kube::Error::Api(status.boxed());
            RunFailure::Open(OpenError::ReadSecret("cloud-credentials".to_owned(), Box::new(error)))
        };
        for (code, passes) in [(503, true), (500, true), (429, true), (504, true), (403, false)] {
            assert_eq!(unread(code).is_of_the_api_server(), passes, "{code}");
        }
        let lacking = OpenError::Missing("/backups".to_owned());
        assert!(!RunFailure::Open(lacking).is_of_the_api_server());
    }
}
