//! What the makers of an archive, its upload and the keeper of its checkpoint tell each other.

use bytes::Bytes;
use tokio::sync::oneshot;

use super::ledger::Contents;
use crate::storage::Receipt;

/// What the archive's makers send.
pub enum Part {
    /// A gzip member, and what is in it.
    Member(Bytes, Vec<Contents>),
    /// The last one: the archive is whole. Without it the upload is given up.
    End(Bytes),
}

/// What the upload says as it goes on.
pub enum Progress {
    /// A part is stored, and so are all before it.
    Part {
        upload: String,
        receipt: Receipt,
        /// What is in the gzip members that end in it, and in the one that ends behind it.
        contents: Vec<Contents>,
        /// The rest of that one.
        tail: Bytes,
    },
    /// So is the last part of the archive. Answered when that is written down: it is put together then.
    Whole { receipts: Vec<Receipt>, contents: Vec<Contents>, kept: oneshot::Sender<()> },
}
