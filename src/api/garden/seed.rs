//! Seed: a member cluster, with controllers that reach the store.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Condition, SecretReference};

/// A cluster that backs up, and executes what the hub decides.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "garden.berth.dev",
    version = "v1alpha1",
    kind = "Seed",
    plural = "seeds",
    status = "SeedStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[kube(printcolumn = r#"{"name":"Profile","type":"string","jsonPath":".spec.cloudProfileName"}"#)]
#[kube(printcolumn = r#"{"name":"Region","type":"string","jsonPath":".spec.region"}"#)]
#[kube(
    printcolumn = r#"{"name":"Seen","type":"date","description":"When its controllers last reported, by their own clock","jsonPath":".status.lastHeartbeatTime"}"#
)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase")]
pub struct SeedSpec {
    pub cloud_profile_name: String,
    /// Where the cluster is; one of the profile's regions.
    pub region: String,
    /// Stores that it can reach, as `provider`, or `provider/region`. Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reaches: Option<Vec<String>>,
    /// Secret with a `kubeconfig` for people and tools: berth's controllers run in the cluster and
    /// come to the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SeedStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Its controllers' last report, by their own clock. What counts is when the hub saw it change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// The cluster that it is: UID of the namespace kube-system there. Whoever comes with another
    /// one is turned away, unless the annotation `garden.berth.dev/cluster` has that UID.
    #[serde(rename = "clusterUID", skip_serializing_if = "Option::is_none")]
    pub cluster_uid: Option<String>,
    /// `BackupBucketsReady`: backups have a bucket to go to. `ClusterConflict`: another cluster
    /// comes with this name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The status as merge patches of it.
impl SeedStatus {
    /// The agent of the cluster with this UID runs. `conditions`: all of them, if they change.
    pub fn beaten(uid: &str, at: Timestamp, conditions: Option<&[Condition]>) -> Value {
        let mut status = json!({"lastHeartbeatTime": Time(at), "clusterUID": uid});
        if let Some(conditions) = conditions {
            status["conditions"] = json!(conditions);
        }
        status
    }

    /// The conditions alone, all of them.
    pub fn judged(conditions: &[Condition]) -> Value {
        json!({"conditions": conditions})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_patch_writes_fields_that_a_status_has() {
        let condition = Condition {
            kind: "ClusterConflict".to_owned(),
            status: "True".to_owned(),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            last_update_time: Time(Timestamp::UNIX_EPOCH),
            reason: "R".to_owned(),
            message: "m".to_owned(),
            codes: Vec::new(),
        };
        let conditions = vec![condition];
        let read = |patch: Value| serde_json::from_value::<SeedStatus>(patch).unwrap();
        let judged = SeedStatus { conditions: conditions.clone(), ..SeedStatus::default() };
        assert_eq!(read(SeedStatus::judged(&conditions)), judged);
        let beaten = SeedStatus {
            last_heartbeat_time: Some(Time(Timestamp::UNIX_EPOCH)),
            cluster_uid: Some("u".to_owned()),
            ..SeedStatus::default()
        };
        assert_eq!(read(SeedStatus::beaten("u", Timestamp::UNIX_EPOCH, None)), beaten);
        let told = SeedStatus::beaten("u", Timestamp::UNIX_EPOCH, Some(&conditions));
        assert_eq!(read(told), SeedStatus { conditions, ..beaten });
    }
}
