//! Conditions of the hub's objects.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// Of a profile or a seed: its backups have a bucket.
    BackupBucketsReady,
    /// Of a bucket: a seed can act on it.
    ExecutorAvailable,
    /// Of a bucket: its Secret is there.
    CredentialsAvailable,
    /// Of a bucket: more entries are in it than its limit.
    OverLimit,
    /// Of a bucket: it is neither wanted nor used.
    Idle,
}

impl ConditionType {
    pub const ALL: [Self; 5] = [
        Self::BackupBucketsReady,
        Self::ExecutorAvailable,
        Self::CredentialsAvailable,
        Self::OverLimit,
        Self::Idle,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::BackupBucketsReady => "BackupBucketsReady",
            Self::ExecutorAvailable => "ExecutorAvailable",
            Self::CredentialsAvailable => "CredentialsAvailable",
            Self::OverLimit => "OverLimit",
            Self::Idle => "Idle",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|about| about.as_str() == text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionState {
    pub holds: bool,
    /// In whole seconds.
    pub since: Timestamp,
    pub reason: String,
    pub message: String,
}

pub type ConditionMap = BTreeMap<ConditionType, ConditionState>;
