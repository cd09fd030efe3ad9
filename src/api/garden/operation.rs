//! Statuses: what was last done, what went wrong, and what holds (source: Gardener's `pkg/apis/core/v1beta1`; both its
//! kinds and the hub's have these).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastOperation {
    /// For people.
    pub description: String,
    pub last_update_time: Time,
    /// Per cent.
    pub progress: i32,
    pub state: OperationState,
    #[serde(rename = "type")]
    pub kind: OperationType,
}

/// `Error` is tried again, `Failed` is not; `Pending` cannot run yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OperationState {
    Processing,
    Succeeded,
    Error,
    Failed,
    Pending,
    Aborted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OperationType {
    Create,
    Reconcile,
    Delete,
    Migrate,
    Restore,
    LiveMigrate,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastError {
    /// For people.
    pub description: String,
    #[serde(rename = "taskID", default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Well-known codes, `ERR_INFRA_UNAUTHORIZED` and the like.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`, `Progressing`.
    pub status: String,
    pub last_transition_time: Time,
    pub last_update_time: Time,
    pub reason: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<String>,
}
