//! Parts of statuses: last operation, last error, conditions (source: Gardener's
//! `pkg/apis/core/v1beta1`). Gardener's kinds and the hub's have the same.

pub use berth_garden_core::operation::{OperationState, OperationType};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastOperation {
    /// For people.
    pub description: String,
    pub last_update_time: Time,
    /// Per cent.
    pub progress: i32,
    #[serde(serialize_with = "write", deserialize_with = "read")]
    #[schemars(schema_with = "states")]
    pub state: OperationState,
    #[serde(rename = "type", serialize_with = "write", deserialize_with = "read")]
    #[schemars(schema_with = "types")]
    pub kind: OperationType,
}

/// An enum of core, by its name on the wire.
trait WireName: Copy + Sized + 'static {
    const ALL: &'static [Self];

    fn name(self) -> &'static str;
}

impl WireName for OperationState {
    const ALL: &'static [Self] = &Self::ALL;

    fn name(self) -> &'static str {
        self.as_str()
    }
}

impl WireName for OperationType {
    const ALL: &'static [Self] = &Self::ALL;

    fn name(self) -> &'static str {
        self.as_str()
    }
}

fn write<T: WireName, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.name())
}

fn read<'de, T: WireName, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let found = T::ALL.iter().find(|one| one.name() == text);
    let all = || T::ALL.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
    found
        .copied()
        .ok_or_else(|| D::Error::custom(format!("unknown value {text:?}, expected one of {}", all())))
}

fn names<T: WireName>() -> Vec<&'static str> {
    T::ALL.iter().map(|one| one.name()).collect()
}

fn states(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "`Error` is tried again, `Failed` is not; `Pending` cannot run yet.",
        "type": "string",
        "enum": names::<OperationState>(),
    })
}

fn types(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": names::<OperationType>()})
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
