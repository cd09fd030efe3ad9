//! What the checkpoint in a folder says of the upload of its archive.

use berth_core::upload::FoundCheckpoint;
use bytes::Bytes;

use super::checkpoint::CheckpointHead;

/// What the checkpoint in a folder says of an upload.
pub(super) enum CheckpointUpload {
    Nothing,
    Void,
    Unreadable,
    Of { run: String, upload: String },
}

impl CheckpointUpload {
    /// Reads the checkpoint's first bytes.
    pub fn of(start: Option<Bytes>) -> Self {
        match start {
            None => Self::Nothing,
            Some(start) if start.is_empty() => Self::Void,
            Some(start) => match CheckpointHead::read(start) {
                Ok((head, _)) => {
                    Self::Of { run: head.says().run.to_owned(), upload: head.upload().to_owned() }
                }
                Err(_) => Self::Unreadable,
            },
        }
    }

    pub fn standing(&self) -> FoundCheckpoint<'_> {
        match self {
            Self::Nothing => FoundCheckpoint::Nothing,
            Self::Void => FoundCheckpoint::Void,
            Self::Unreadable => FoundCheckpoint::Unreadable,
            Self::Of { run, upload } => FoundCheckpoint::Of { run, upload },
        }
    }
}
