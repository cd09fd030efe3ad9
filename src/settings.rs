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
