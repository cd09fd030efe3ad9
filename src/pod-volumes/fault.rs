//! Why a job failed, or what it could not do.

use std::fmt;

use rustic_core::RusticError;

#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("the store cannot be used")]
    Store(#[from] object_store::Error),
    #[error("there is no repository at {0}")]
    Missing(String),
    #[error("the password is not the one of the repository at {0}")]
    Password(String),
    #[error(
        "the repository at {place} is locked exclusively by {who} since {since}: wait until it has ended, or run `restic unlock` if it is no more"
    )]
    Locked {
        place: String,
        who: String,
        since: String,
        /// Another process of berth holds the lock, and will release it soon.
        is_own: bool,
    },
    #[error("the repository at {place} is in use by {who} since {since}")]
    InUse { place: String, who: String, since: String },
    #[error("nothing may be written to the repository at {0}: its location is read-only")]
    ReadOnly(String),
    #[error("the lock {0} cannot be read with the key of the repository")]
    Lock(String),
    #[error("the lock of the repository could not be renewed for too long")]
    LockLost,
    #[error("canceled")]
    Canceled,
    #[error("the file system of the volume does not answer")]
    Hung,
    #[error("the file systems of too many volumes do not answer on this node")]
    AllHung,
    #[error("{0} cannot be read")]
    Folder(String, #[source] std::io::Error),
    #[error("what was restored may not be on the disk")]
    Unsynced(#[source] std::io::Error),
    #[error("there is no snapshot {0} in the repository")]
    NoSnapshot(String),
    /// The job is otherwise done: the rest is in the repository or in the volume.
    #[error("{0}")]
    Unfinished(Unfinished),
    #[error("{0}")]
    Repository(String),
    #[error("the work on the repository was given up after a fault of the program")]
    Panic,
}

impl From<Box<RusticError>> for Fault {
    fn from(error: Box<RusticError>) -> Self {
        Self::Repository(told(&error))
    }
}

/// The part of a rustic_core error that says what went wrong, as one line.
pub(crate) fn told(error: &RusticError) -> String {
    let text = error.display_log();
    let text = text.strip_prefix("Error: ").unwrap_or(&text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Files with which the job failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    pub count: u64,
    /// The first of them, each with the reason.
    pub first: Vec<String>,
    /// ID of the snapshot that has all other files.
    pub snapshot: Option<String>,
}

impl Unfinished {
    const TOLD: usize = 10;

    /// The first of them, in one line.
    pub(crate) fn list(&self) -> String {
        let more = self.count > u64::try_from(self.first.len()).unwrap_or(u64::MAX);
        format!("{}{}", self.first.join("; "), if more { "; …" } else { "" })
    }

    pub(crate) fn add(&mut self, path: &std::path::Path, why: &dyn fmt::Display) {
        self.count = self.count.saturating_add(1);
        if self.first.len() < Self::TOLD {
            self.first.push(format!("{}: {why}", path.display()));
        }
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} files are not whole", self.count)?;
        if let Some(snapshot) = &self.snapshot {
            write!(f, " in snapshot {snapshot}")?;
        }
        write!(f, ": {}", self.list())
    }
}
