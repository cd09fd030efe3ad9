//! The status of a data mover as merge patches of it, in which `null` removes a field: what berth
//! writes in place of a node-agent of Velero's. All four kinds have these fields by the same names.

use berth_core::mover::grant::MoverPhase;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::DataMoverStatus;

impl DataMoverStatus {
    /// As before it was accepted, so that a node-agent accepts it once more.
    pub fn reset() -> Value {
        json!({
            "phase": MoverPhase::New.as_str(), "acceptedByNode": null, "acceptedTimestamp": null, "node": null,
            "message": null,
        })
    }

    /// It waits for the leader, which creates the pod that carries it. `node`: where, for kinds
    /// whose status says it.
    pub fn handed_over(node: Option<&str>) -> Value {
        let mut status = json!({"phase": MoverPhase::New.as_str()});
        if let Some(node) = node {
            status["node"] = json!(node);
        }
        status
    }

    /// The leader prepares it.
    pub fn accepted(at: Timestamp) -> Value {
        json!({"phase": MoverPhase::Accepted.as_str(), "acceptedTimestamp": at})
    }

    /// Its pod may begin.
    pub fn prepared() -> Value {
        json!({"phase": MoverPhase::Prepared.as_str()})
    }

    /// Its pod moves the data, on a node with this operating system.
    pub fn begun(at: Timestamp, os: Option<&str>) -> Value {
        json!({"phase": MoverPhase::InProgress.as_str(), "startTimestamp": at, "nodeOS": os})
    }

    /// A job moves the data. `at`: when it began, unless an earlier job had begun. `node`: where,
    /// for kinds whose status says it.
    pub fn carried(at: Option<Timestamp>, node: Option<&str>) -> Value {
        // The message of an earlier job that waited no longer applies.
        let mut status = json!({"phase": MoverPhase::InProgress.as_str(), "message": null});
        if let Some(at) = at {
            status["startTimestamp"] = json!(at);
        }
        if let Some(node) = node {
            status["node"] = json!(node);
        }
        status
    }

    /// What people should know of it now.
    pub fn explained(message: &str) -> Value {
        json!({"message": message})
    }

    /// So many bytes are moved, of so many.
    pub fn progressed(done: i64, total: i64) -> Value {
        json!({"progress": {"bytesDone": done, "totalBytes": total}})
    }

    /// Where the volume was read.
    pub fn read_at(path: &str) -> Value {
        json!({"path": path})
    }

    /// The repository has the data, of which it lacked `added` bytes, in this snapshot.
    pub fn stored(snapshot: &str, path: &str, bytes: i64, added: i64) -> Value {
        json!({
            "snapshotID": snapshot, "path": path, "incrementalBytes": added,
            "progress": {"bytesDone": bytes, "totalBytes": bytes},
        })
    }

    /// The volume has the data, and is not bound to its claim yet.
    pub fn restored(bytes: i64) -> Value {
        json!({
            "phase": MoverPhase::InProgress.as_str(), "completionTimestamp": null,
            "progress": {"bytesDone": bytes, "totalBytes": bytes},
        })
    }

    /// It has succeeded, and nothing needs to be said of it.
    pub fn completed(at: Timestamp) -> Value {
        json!({"phase": MoverPhase::Completed.as_str(), "completionTimestamp": at})
    }

    /// It has ended in this phase. `message`: why.
    pub fn ended(phase: MoverPhase, message: &str, at: Timestamp) -> Value {
        json!({"phase": phase.as_str(), "message": message, "completionTimestamp": at})
    }
}
