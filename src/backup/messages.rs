//! Messages between the packers of the archive, its upload, and the keeper of the checkpoint.

use bytes::Bytes;
use tokio::sync::oneshot;

use super::ledger::Contents;
use crate::storage::Receipt;

/// What the packers send to the upload.
pub enum ArchivePart {
    /// A gzip member, and which objects it holds.
    Member(Bytes, Vec<Contents>),
    /// The last member: the archive is complete. Without it the upload is given up.
    End(Bytes),
    /// No more members for now: a later run adds some and completes the archive.
    Rest,
}

/// What the upload sends to the keeper.
pub enum UploadProgress {
    /// A part is stored, and so are all parts before it.
    Part {
        upload: String,
        receipt: Receipt,
        /// The objects of the gzip members that begin in this part.
        contents: Vec<Contents>,
        /// The rest of the member that ends behind this part.
        tail: Bytes,
    },
    /// The last part of the archive is stored, too. `kept` is answered when a checkpoint says so;
    /// then the upload is completed.
    Whole { receipts: Vec<Receipt>, contents: Vec<Contents>, kept: oneshot::Sender<()> },
    /// All members that there are for now have been sent. Those behind the stored parts are in the
    /// checkpoint alone. `kept` is answered when a checkpoint was tried.
    Resting {
        upload: String,
        /// Bytes behind the stored parts.
        tail: Bytes,
        contents: Vec<Contents>,
        kept: oneshot::Sender<()>,
    },
}

impl UploadProgress {
    /// The objects that are stored now.
    pub fn contents(&self) -> &[Contents] {
        let (Self::Part { contents, .. } | Self::Whole { contents, .. } | Self::Resting { contents, .. }) =
            self;
        contents
    }
}
