//! What flags choose and other parts go by. It stands below both, so that no part needs to know how flags are read.

use clap::ValueEnum;

/// Who runs the backups that are started.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum Executor {
    /// berth itself.
    Berth,
    /// A Velero server of 1.18 or later that runs with --disable-controllers=backup-queue.
    Velero,
}

impl Executor {
    /// As the flag has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Berth => "berth",
            Self::Velero => "velero",
        }
    }
}

/// Who keeps the webhooks' certificates.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum Certificates {
    /// berth: a CA of its own.
    SelfManaged,
    /// cert-manager, which must be installed.
    CertManager,
}

/// What the engine may read.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum EngineRights {
    /// Everything, whatever will be served one day. In a role that is every subresource, too.
    All,
    /// The types that the cluster serves now. When it serves others, `berth install` again brings the list up to date.
    Listed,
}

/// How log lines are written.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}
