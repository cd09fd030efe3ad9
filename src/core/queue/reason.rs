//! The reason why a Backup waits.

use std::fmt;

/// A value until it is printed: the same one labels metrics and becomes the text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueReason {
    /// A slot is free and no other backup blocks this one: it starts in the next cycle.
    Next,
    /// The API server refuses every write to the Backup.
    Unwritable,
    /// The Backup has the annotation `berth.dev/hold`.
    Held,
    /// The storage location of the Backup has the annotation `berth.dev/hold`. An empty name stands
    /// for the default location.
    LocationHeld { location: String },
    /// The store of its location cannot be used at the moment. An empty name stands for the default
    /// location.
    LocationUnavailable { location: String, why: String },
    /// No executor of Backups is running.
    NoExecutor { why: String },
    /// Running backups take all slots.
    NoSlot { slots: usize },
    /// The Backup shares a namespace with a running backup or with one ahead of it in the queue.
    Overlap { with: String, running: bool, namespaces: Vec<String> },
}

impl QueueReason {
    /// All values of [`QueueReason::word`].
    pub const WORDS: [&str; 8] = [
        "Next",
        "Unwritable",
        "Held",
        "LocationHeld",
        "LocationUnavailable",
        "NoExecutor",
        "NoSlot",
        "Overlap",
    ];

    /// One word out of a closed set, for metric labels, Event reasons and columns.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Next => "Next",
            Self::Unwritable => "Unwritable",
            Self::Held => "Held",
            Self::LocationHeld { .. } => "LocationHeld",
            Self::LocationUnavailable { .. } => "LocationUnavailable",
            Self::NoExecutor { .. } => "NoExecutor",
            Self::NoSlot { .. } => "NoSlot",
            Self::Overlap { .. } => "Overlap",
        }
    }
}

impl fmt::Display for QueueReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Next => f.write_str("nothing: it starts next"),
            Self::Unwritable => f.write_str(
                "its deletion: the API server refuses every write to it, perhaps because it is too large",
            ),
            Self::Held => f.write_str("its release: it is held"),
            Self::LocationHeld { location } if location.is_empty() => {
                f.write_str("the release of the default storage location: it is held")
            }
            Self::LocationHeld { location } => {
                write!(f, "the release of storage location {location}: it is held")
            }
            Self::LocationUnavailable { location, why } if location.is_empty() => {
                write!(f, "the default storage location: it is unavailable ({why})")
            }
            Self::LocationUnavailable { location, why } => {
                write!(f, "storage location {location}: it is unavailable ({why})")
            }
            Self::NoExecutor { why } => write!(f, "an executor of backups: {why}"),
            Self::NoSlot { slots: 1 } => f.write_str("the running backup to end (1 slot)"),
            Self::NoSlot { slots } => write!(f, "a free slot (all {slots} are taken)"),
            Self::Overlap { with, running, namespaces } => {
                let state = if *running { "running" } else { "ahead in the queue" };
                write!(f, "{with} ({state}), which also takes {}", namespaces.join(", "))
            }
        }
    }
}
