//! ServerStatusRequest (source: Velero's `pkg/apis/velero/v1/server_status_request_types.go`,
//! 1.18).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Asks the server which version and which plugins it has. `velero version` creates one.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "velero.io", version = "v1", kind = "ServerStatusRequest", plural = "serverstatusrequests")]
#[kube(namespaced, shortname = "ssr", status = "ServerStatusRequestStatus", derive = "Default")]
#[kube(derive = "PartialEq")]
pub struct ServerStatusRequestSpec {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServerStatusRequestPhase {
    New,
    Processed,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerStatusRequestStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<ServerStatusRequestPhase>,
    /// When it was answered. It is removed soon after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processed_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugins: Option<Vec<PluginInfo>>,
}

/// One item of the server's plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginInfo {
    pub name: String,
    pub kind: String,
}

/// The status as a merge patch of it.
impl ServerStatusRequestStatus {
    /// The server has answered.
    pub fn processed(at: Timestamp, version: &str, plugins: &[PluginInfo]) -> Value {
        json!({
            "phase": ServerStatusRequestPhase::Processed,
            "processedTimestamp": Time(at),
            "serverVersion": version,
            "plugins": plugins,
        })
    }
}
