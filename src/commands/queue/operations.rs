//! What has become of the operations of Backups whose objects are stored, and how many bytes their
//! data movers have moved.

use std::collections::HashMap;
use std::fmt;

use berth_core::bytes::size;
use berth_core::operation::{OperationCounts, OperationProgress};
use futures::StreamExt as _;
use jiff::Timestamp;
use serde::Serialize;

use super::super::namespaced::NamespacedClient;
use crate::backup::operations::uploads::{DataUploadObject, each_of_backup};
use crate::cli::print::note;
use crate::queue::seen::BackupAfterQueue;
use crate::text::chain;

/// Of how many Backups the operations are read: each takes one call.
const MOST: usize = 100;
const AT_ONCE: usize = 8;

/// Operations of one Backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Operations {
    pub attempted: u64,
    pub completed: u64,
    pub failed: u64,
    /// As far as data movers say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_done: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_total: Option<u64>,
}

impl From<OperationCounts> for Operations {
    fn from(OperationCounts { attempted, completed, failed }: OperationCounts) -> Self {
        Self { attempted, completed, failed, ..Self::default() }
    }
}

impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.completed.saturating_add(self.failed), self.attempted)?;
        if self.failed > 0 {
            write!(f, " ({} failed)", self.failed)?;
        }
        match (self.bytes_done, self.bytes_total) {
            (Some(done), Some(total)) => write!(f, ", {} of {}", size(done), size(total)),
            _ => Ok(()),
        }
    }
}

impl Operations {
    fn of(after: &BackupAfterQueue, seen: &UploadTotals) -> Self {
        let counts = OperationCounts::of(seen.standings.iter().copied(), after.operations.attempted);
        let is_known = |bytes: u64| (seen.total > 0).then_some(bytes);
        Self { bytes_done: is_known(seen.done), bytes_total: is_known(seen.total), ..Self::from(counts) }
    }
}

/// What is kept of the DataUploads of one Backup while they are read.
#[derive(Default)]
struct UploadTotals {
    standings: Vec<OperationProgress>,
    done: u64,
    total: u64,
}

impl UploadTotals {
    fn note(&mut self, upload: &DataUploadObject, after: &BackupAfterQueue, now: Timestamp) {
        let (done, total) = upload.progress();
        self.standings.push(upload.standing(after.limit, now));
        (self.done, self.total) = (self.done.saturating_add(done), self.total.saturating_add(total));
    }
}

/// By UID of the Backup. Those that cannot be read are left out, and their status says what it
/// says.
pub async fn read(
    here: &NamespacedClient,
    after: &[BackupAfterQueue],
    now: Timestamp,
) -> HashMap<String, Operations> {
    let one = |after: BackupAfterQueue| async move {
        let mut seen = UploadTotals::default();
        let note = |upload: DataUploadObject| seen.note(&upload, &after, now);
        let read = each_of_backup(&here.client, &here.namespace, &after.uid, note).await;
        (after.uid.clone(), read.map(|()| Operations::of(&after, &seen)))
    };
    let first: Vec<BackupAfterQueue> = after.iter().take(MOST).cloned().collect();
    let mut reading = futures::stream::iter(first).map(one).buffer_unordered(AT_ONCE);
    let mut found = HashMap::new();
    let mut failed = None;
    while let Some((uid, read)) = reading.next().await {
        match read {
            Ok(operations) => drop(found.insert(uid, operations)),
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        note!("operations are shown as the Backups say: {}", chain(error.as_ref()));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::velero::BackupPhase;
    use kube::api::DynamicObject;
    use serde_json::{Value, json};

    use super::*;

    fn upload(name: &str, status: &Value) -> DataUploadObject {
        let object = json!({
            "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
            "metadata": {"name": name, "creationTimestamp": "2026-09-21T14:00:00Z"}, "status": status,
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        DataUploadObject::read(object)
    }

    #[test]
    fn operations_are_counted_and_their_bytes_added() {
        let after = BackupAfterQueue {
            name: "b".to_owned(),
            uid: "u".to_owned(),
            resource_version: "1".to_owned(),
            phase: BackupPhase::WaitingForPluginOperations,
            is_ours: true,
            is_canceled: false,
            since: Timestamp::UNIX_EPOCH,
            location: String::new(),
            operations: OperationCounts { attempted: 4, completed: 0, failed: 0 },
            limit: Duration::from_secs(4 * 3600),
            runs: berth_core::run::Runs::default(),
        };
        let now: Timestamp = "2026-09-21T14:05:00Z".parse().unwrap();
        let moved = json!({"phase": "Completed", "progress": {"bytesDone": 1 << 30, "totalBytes": 1 << 30}});
        let moving =
            json!({"phase": "InProgress", "progress": {"bytesDone": 1 << 29, "totalBytes": 2_u64 << 30}});
        let odd = json!({"phase": "New", "progress": {"bytesDone": -1, "totalBytes": "many"}});
        for (uploads, told) in [
            (vec![("a", &moved), ("b", &moving), ("c", &odd)], "2 of 4 (1 failed), 1.5 GiB of 3.0 GiB"),
            (vec![("a", &moved), ("b", &moved), ("c", &moved), ("d", &odd)], "3 of 4, 3.0 GiB of 3.0 GiB"),
            (vec![("a", &odd), ("b", &odd), ("c", &odd), ("d", &odd)], "0 of 4"),
        ] {
            let uploads: Vec<DataUploadObject> =
                uploads.into_iter().map(|(name, status)| upload(name, status)).collect();
            let mut seen = UploadTotals::default();
            uploads.iter().for_each(|upload| seen.note(upload, &after, now));
            assert_eq!(Operations::of(&after, &seen).to_string(), told);
        }
        assert_eq!(Operations::from(after.operations).to_string(), "0 of 4");
        let shown = serde_json::to_value(Operations {
            bytes_done: Some(1),
            bytes_total: Some(2),
            ..Operations::default()
        });
        let expected = json!({"attempted": 0, "completed": 0, "failed": 0, "bytesDone": 1, "bytesTotal": 2});
        assert_eq!(shown.unwrap(), expected);
    }
}
