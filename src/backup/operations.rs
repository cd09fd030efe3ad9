//! A stand-in until asynchronous operations are part of the engine: nothing moves the data of
//! snapshots yet.

/// A claim whose snapshot is ready and whose data is to be moved into the storage location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub namespace: String,
    pub claim: String,
    pub claim_uid: String,
    pub volume: String,
    pub snapshot: String,
    pub content: String,
    pub storage_class: String,
    pub snapshot_class: String,
    pub driver: String,
}

/// Moves the data of snapshots.
pub trait MoveData: Send + Sync {
    fn move_data(&self, moved: Moved) -> impl Future<Output = Result<(), String>> + Send;

    /// The value of the annotation `velero.io/data-upload-name` of a claim in the archive. `None`:
    /// its data is not moved.
    fn upload_of(&self, claim_uid: &str) -> Option<String>;
}

/// STUB: replaced when operations are merged.
pub struct NotYet;

impl MoveData for NotYet {
    async fn move_data(&self, _moved: Moved) -> Result<(), String> {
        Err("moved data is not stored yet".to_owned())
    }

    fn upload_of(&self, _claim_uid: &str) -> Option<String> {
        None
    }
}
