//! Uploads in parts that outlive the run that began them: who goes on with one, and who may abort it.
//!
//! Two runs of one Backup may meet, because a process that was paused for long and wakes does not know that another one has its
//! Backup. An upload is handed from one run to the next by the checkpoint that names it, and a checkpoint is only written in place of
//! the one that was read. From these rules it follows that nobody aborts an upload that the run of the claim goes on with:
//!
//! 1. A run goes on with the upload of another one only once it has written a checkpoint of its own that names it, in place of the one
//!    that it read. As long as it goes on, that checkpoint names the upload.
//! 2. Whoever aborts an upload that a checkpoint names first puts an empty one in its place, as it was read ([`Standing::Void`]). Of
//!    that one and of a write by rule 1 only one succeeds, because both replace the same version. An empty one is never written over:
//!    it goes with everything else in the folder.
//! 3. Uploads that nobody names are found by a list. Between the list and the aborts whoever does this looks at the claim: if it still
//!    stands, no later run had its claim when the list was made, so what that run begins is not in there, and by rule 2 it takes up
//!    nothing that is.

/// The checkpoint in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing<'a> {
    Nothing,
    /// An empty one: nobody goes on from there.
    Void,
    /// Of another version, maybe of a newer one, or damaged.
    Unreadable,
    Of {
        run: &'a str,
        /// Empty: it has begun none.
        upload: &'a str,
    },
}

/// A run wanted to write its checkpoint, and another one stands there than it had read. May it write over that one, as it is now?
///
/// `goes_on`: it is about to take up what it has read. `is_claimed`: the folder was still its own after that one was read.
pub fn may_write_over(run: &str, goes_on: bool, is_claimed: bool, found: &Standing<'_>) -> bool {
    match found {
        Standing::Void => false,
        // The answer to its own write was lost.
        Standing::Of { run: by, .. } if *by == run => true,
        // One that it should take up is gone, or is somebody else's by now. What else stands there under its claim is of no use to
        // anybody: besides the checkpoints of the claim's own run only that of the run which the claim names as the one before counts
        // (`Checkpoint::is_believed`), and whoever went on from that one has written its own in its place.
        Standing::Nothing | Standing::Unreadable | Standing::Of { .. } => is_claimed && !goes_on,
    }
}

/// May a run that ends abort this upload, which it has begun or gone on with, whoever has the folder now? Nobody but this run knows one
/// that no checkpoint names. Others it may abort by rule 2 alone.
pub fn may_abort(upload: &str, found: &Standing<'_>) -> bool {
    match found {
        Standing::Nothing | Standing::Void => true,
        Standing::Unreadable => false,
        Standing::Of { upload: named, .. } => *named != upload,
    }
}

#[cfg(test)]
mod tests;
