//! The log of a backup that runs, as far as the checkpoint of its run has it, for people who follow
//! it.

use anyhow::ensure;
use bytes::Bytes;

use super::checkpoint::{Checkpoint, CheckpointHead, HEAD, NOTES};

/// How many bytes of a checkpoint tell where its log is.
pub const START: usize = HEAD;

/// Where the log is in a checkpoint.
#[derive(Debug)]
pub struct LogExtent {
    /// All of the log is in so many bytes from the beginning of the checkpoint.
    pub bytes: usize,
    /// Every checkpoint has another one.
    pub digest: String,
}

/// `start`: the first [`START`] bytes of the checkpoint, or all if it has fewer.
///
/// # Errors
/// When this version of berth cannot read it, or no run has such a log.
pub fn extent(start: &Bytes) -> anyhow::Result<LogExtent> {
    let (head, rest) = CheckpointHead::read(start.clone())?;
    let bytes = start.len().saturating_sub(rest.len()).saturating_add(head.notes());
    ensure!(bytes <= NOTES, "it says that its log ends at byte {bytes}, and berth reads {NOTES} at most");
    Ok(LogExtent { bytes, digest: head.digest().to_owned() })
}

/// The lines of the log, gzip. `start`: as many bytes as [`extent`] says.
///
/// # Errors
/// When this version of berth cannot read them.
pub fn lines(start: Bytes) -> anyhow::Result<Bytes> {
    Checkpoint::read_notes(start).map(|(_, lines)| lines)
}
