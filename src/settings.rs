//! Settings that flags choose and several parts use. They are a module of their own, so that no
//! part depends on how flags are read.

use clap::ValueEnum;

/// Program that runs started Backups.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum Executor {
    /// berth itself.
    Berth,
    /// A Velero server of 1.18 or later that runs with --disable-controllers=backup-queue.
    Velero,
}

impl Executor {
    /// The value of `--executor`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Berth => "berth",
            Self::Velero => "velero",
        }
    }
}

/// Program that issues the webhooks' certificates.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum Certificates {
    /// berth, with a certificate authority of its own.
    SelfManaged,
    /// cert-manager, which must be installed.
    CertManager,
}

/// Which types the engine may read for backups.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum EngineRights {
    /// All types, including those that the cluster serves later. As a Role's wildcard it includes
    /// every subresource.
    All,
    /// The types that the cluster serves now. Run `berth install` again to update the list when the
    /// cluster serves others.
    Listed,
}

/// Format of log lines.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Controllers of the life of a backup, with the names that `velero server --disable-controllers`
/// has for them.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// Creates a Backup whenever a Schedule is due.
    Schedule,
    /// Asks for the deletion of expired Backups.
    Gc,
    /// Carries out DeleteBackupRequests.
    BackupDeletion,
    /// Creates Backups that a store has and the cluster lacks, and removes those that no store has.
    BackupSync,
    /// Answers DownloadRequests.
    DownloadRequest,
    /// Answers ServerStatusRequests.
    ServerStatusRequest,
}

impl Controller {
    pub const ALL: [Self; 6] = [
        Self::Schedule,
        Self::Gc,
        Self::BackupDeletion,
        Self::BackupSync,
        Self::DownloadRequest,
        Self::ServerStatusRequest,
    ];

    /// The name in `--disable-controllers`, Velero's own.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Gc => "gc",
            Self::BackupDeletion => "backup-deletion",
            Self::BackupSync => "backup-sync",
            Self::DownloadRequest => "download-request",
            Self::ServerStatusRequest => "server-status-request",
        }
    }
}
