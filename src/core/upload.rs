//! Multipart uploads that outlive the run that began them: which run continues one, and which may
//! abort it.
//!
//! Two runs of one Backup may overlap, because a process that was suspended for long does not know,
//! when it resumes, that another process has its Backup. A run hands an upload to the next one by
//! the checkpoint that names it, and a checkpoint is written only in place of the version that was
//! read. From these rules it follows that no run aborts an upload that the run of the claim
//! continues:
//!
//! 1. A run continues the upload of another run only after it has replaced the checkpoint that it
//!    read with its own one, which names the same upload. As long as it continues, that checkpoint
//!    names the upload.
//! 2. Before a run aborts an upload that a checkpoint names, it replaces the version of that
//!    checkpoint which it read with an empty one ([`FoundCheckpoint::Void`]). Of this write and a
//!    write by rule 1 only one succeeds, because both replace the same version. An empty checkpoint
//!    is never overwritten: it is removed with the whole folder.
//! 3. Uploads that no checkpoint names are found by a list. Between the list and the aborts the run
//!    reads the claim again. If the claim still stands, no later run had it when the list was made.
//!    So the list has no upload that a later run begins, and by rule 2 a later run takes up none
//!    that the list has.

/// The checkpoint that lies in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundCheckpoint<'a> {
    Nothing,
    /// An empty one: no run continues from it.
    Void,
    /// Written by another version of berth, perhaps a newer one, or damaged.
    Unreadable,
    Of {
        run: &'a str,
        /// The upload that the run has begun; empty if there is none.
        upload: &'a str,
    },
}

/// The conditional write of a checkpoint failed, because another one lies there than the run had
/// read. May the run overwrite the one that lies there now?
///
/// `goes_on`: the run is about to continue from what it has read. `is_claimed`: the claim was still
/// the run's own when it was read after the checkpoint.
pub fn may_write_over(run: &str, goes_on: bool, is_claimed: bool, found: &FoundCheckpoint<'_>) -> bool {
    match found {
        FoundCheckpoint::Void => false,
        // This run's own write had succeeded, but the answer was lost.
        FoundCheckpoint::Of { run: by, .. } if *by == run => true,
        // With `goes_on`, the checkpoint to continue from is gone or is another run's by now.
        // Otherwise the one that lies there under this claim is useless to every run: besides those
        // of the claim's own run only that of the run which the claim names in `before` counts
        // (`CheckpointIdentity::is_believed`), and a run that continued from that one has replaced
        // it.
        FoundCheckpoint::Nothing | FoundCheckpoint::Unreadable | FoundCheckpoint::Of { .. } => {
            is_claimed && !goes_on
        }
    }
}

/// May a run that ends abort this upload, which it has begun or continued, whichever run has the
/// folder now? Only this run knows an upload that no checkpoint names. All other uploads it may
/// abort by rule 2 alone.
pub fn may_abort(upload: &str, found: &FoundCheckpoint<'_>) -> bool {
    match found {
        FoundCheckpoint::Nothing | FoundCheckpoint::Void => true,
        FoundCheckpoint::Unreadable => false,
        FoundCheckpoint::Of { upload: named, .. } => *named != upload,
    }
}

#[cfg(test)]
mod tests;
