//! DeleteBackupRequest (source: Velero's `pkg/apis/velero/v1/delete_backup_request_types.go`,
//! 1.18).

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Asks for the deletion of a Backup, with all that is stored of it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "DeleteBackupRequest",
    plural = "deletebackuprequests",
    namespaced
)]
#[kube(status = "DeleteBackupRequestStatus", derive = "Default", derive = "PartialEq")]
#[kube(
    printcolumn = r#"{"name":"BackupName","type":"string","description":"The Backup that is to be deleted","jsonPath":".spec.backupName"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Status","type":"string","description":"New, InProgress or Processed","jsonPath":".status.phase"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DeleteBackupRequestSpec {
    /// Name of the Backup.
    pub backup_name: String,
}

/// How far a deletion is. Absent or `New`: not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeleteBackupRequestPhase {
    New,
    InProgress,
    Processed,
}

impl DeleteBackupRequestPhase {
    /// The value in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::InProgress => "InProgress",
            Self::Processed => "Processed",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DeleteBackupRequestStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<DeleteBackupRequestPhase>,
    /// Why the Backup was not deleted. With phase Processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<Vec<String>>,
}

/// The status as merge patches of it.
impl DeleteBackupRequestStatus {
    /// The deletion has begun.
    pub fn in_progress() -> Value {
        json!({"phase": DeleteBackupRequestPhase::InProgress})
    }

    /// The deletion ended with these errors, and the Backup stays.
    pub fn processed(errors: &[String]) -> Value {
        json!({"phase": DeleteBackupRequestPhase::Processed, "errors": errors})
    }
}

impl DeleteBackupRequest {
    /// The phase; an absent one is `New`.
    pub fn phase(&self) -> DeleteBackupRequestPhase {
        self.status.as_ref().and_then(|status| status.phase).unwrap_or(DeleteBackupRequestPhase::New)
    }
}
