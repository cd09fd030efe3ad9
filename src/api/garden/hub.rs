//! Reads the hub's objects into the values on which the hub and admission decide, and writes the
//! hub's decisions as parts of statuses.

use std::collections::BTreeMap;

use berth_api::keys;
use berth_garden_core::assignment::SeedHealth;
use berth_garden_core::bucket::{BucketStatus, GardenBucket};
use berth_garden_core::condition::{self, ConditionMap, ConditionType};
use berth_garden_core::entry::{EntryStatus, GardenEntry};
use berth_garden_core::hub::{self, ProfileState, ProfileStatus};
use berth_garden_core::operation::OperationReport;
use berth_garden_core::retention::Purpose;
use berth_garden_core::{self as garden, ProviderRegion, Store};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::{BackupBucket, BackupEntry, CloudProfile, Condition, LastOperation, Seed};

/// Code of an error: the account has no more of these (source: Gardener's `pkg/apis/core/v1beta1`).
const QUOTA_EXCEEDED: &str = "ERR_INFRA_QUOTA_EXCEEDED";

impl From<&CloudProfile> for ProfileState {
    fn from(wire: &CloudProfile) -> Self {
        let status = wire.status.clone().unwrap_or_default();
        Self {
            profile: garden::Profile::from(wire),
            uid: wire.uid().unwrap_or_default(),
            status: ProfileStatus {
                last_ordinals: status.last_ordinals,
                conditions: conditions(&status.conditions),
            },
        }
    }
}

/// A Seed. `provider`: of its profile, if known.
pub fn cluster(wire: &Seed, provider: Option<&str>) -> hub::SeedState {
    let status = wire.status.as_ref();
    hub::SeedState {
        member: SeedHealth {
            seed: garden::Seed::from(wire),
            provider: provider.unwrap_or_default().to_owned(),
            // Set by the leader that watches heartbeats, by its own clock.
            seen: None,
            unknown_until: None,
        },
        beat: status.and_then(|status| time(status.last_heartbeat_time.as_ref())),
        conditions: status.map(|status| conditions(&status.conditions)).unwrap_or_default(),
    }
}

impl From<&BackupBucket> for GardenBucket {
    fn from(wire: &BackupBucket) -> Self {
        let status = wire.status.clone().unwrap_or_default();
        let error = status.last_error.as_ref();
        Self {
            // Not `generateName`, which is no name yet.
            name: wire.metadata.name.clone().unwrap_or_default(),
            created_at: created_at(wire),
            is_deleted: wire.metadata.deletion_timestamp.is_some(),
            is_claimed: is_claimed(wire),
            profile: wire.annotations().get(keys::CLOUD_PROFILE).cloned(),
            store: Store {
                place: ProviderRegion {
                    provider: wire.spec.provider.clone(),
                    region: wire.spec.region.clone(),
                },
                secret: wire.spec.secret_ref.as_ref().map(Into::into).unwrap_or_default(),
                config: wire.spec.provider_config.as_ref().map(Into::into).unwrap_or_default(),
            },
            names_secret: wire.spec.secret_ref.is_some(),
            is_made: status.observed_generation.is_some(),
            forget_data: reason(wire.annotations(), keys::FORGET_DATA),
            error: error.map(|error| error.description.clone()),
            is_exhausted: error.is_some_and(|error| error.codes.iter().any(|code| code == QUOTA_EXCEEDED)),
            status: BucketStatus {
                seed: status.seed,
                allocated: status.allocated,
                entries: status.entries,
                limit: status.limit,
                ordinal: status.ordinal,
                released_at: time(status.released_at.as_ref()),
                operation: status.last_operation.as_ref().map(Into::into),
                conditions: conditions(&status.conditions),
            },
        }
    }
}

impl From<&BackupEntry> for GardenEntry {
    fn from(wire: &BackupEntry) -> Self {
        let status = wire.status.clone().unwrap_or_default();
        let annotations = wire.annotations();
        let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Self {
            namespace: wire.namespace().unwrap_or_default(),
            // Not `generateName`, which is no name yet.
            name: wire.metadata.name.clone().unwrap_or_default(),
            uid: wire.uid().unwrap_or_default(),
            created_at: created_at(wire),
            deleted_at: time(wire.metadata.deletion_timestamp.as_ref()),
            is_claimed: is_claimed(wire),
            seed: wire.spec.seed_name.clone(),
            shoot_uid: said(&wire.spec.shoot_uid),
            bucket: said(&wire.spec.bucket_name),
            placed_in: annotations.get(keys::PLACED_IN).cloned(),
            writer: annotations.get(keys::WRITER).cloned(),
            take_over: annotations.get(keys::TAKE_OVER).cloned(),
            purpose: annotations.get(keys::PURPOSE).and_then(|purpose| Purpose::parse(purpose)),
            force_deletion: reason(annotations, keys::FORCE_DELETION),
            forget_data: reason(annotations, keys::FORGET_DATA),
            generation: wire.metadata.generation,
            observed_generation: status.observed_generation,
            status: EntryStatus {
                seed: status.seed,
                earliest_deletion: time(status.earliest_deletion_time.as_ref()),
                released_at: time(status.released_at.as_ref()),
                operation: status.last_operation.as_ref().map(Into::into),
            },
        }
    }
}

/// The value of an annotation, unless it is `false`.
fn reason(annotations: &BTreeMap<String, String>, key: &str) -> Option<String> {
    annotations.get(key).filter(|_| keys::is_set(annotations, key)).cloned()
}

impl From<&LastOperation> for OperationReport {
    fn from(wire: &LastOperation) -> Self {
        Self { kind: wire.kind, state: wire.state, description: wire.description.clone() }
    }
}

/// What differs between two statuses, as a merge patch of `status`.
pub fn bucket_change(wire: &BackupBucket, wanted: &BucketStatus, now: Timestamp) -> Value {
    let found = GardenBucket::from(wire).status;
    let theirs = wire.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let mut change = StatusPatch::default();
    change.set("seed", &found.seed, &wanted.seed, json!(wanted.seed));
    change.set("allocated", &found.allocated, &wanted.allocated, json!(wanted.allocated));
    change.set("entries", &found.entries, &wanted.entries, json!(wanted.entries));
    change.set("limit", &found.limit, &wanted.limit, json!(wanted.limit));
    change.set("ordinal", &found.ordinal, &wanted.ordinal, json!(wanted.ordinal));
    change.set("releasedAt", &found.released_at, &wanted.released_at, json!(wanted.released_at.map(Time)));
    change.conditions(&found.conditions, &wanted.conditions, theirs, now);
    change.operation(found.operation.as_ref(), wanted.operation.as_ref(), now);
    change.done(wire.metadata.generation)
}

/// As [`bucket_change`].
pub fn entry_change(wire: &BackupEntry, wanted: &EntryStatus, now: Timestamp) -> Value {
    let found = GardenEntry::from(wire).status;
    let mut change = StatusPatch::default();
    let (was, is) = (&found.earliest_deletion, &wanted.earliest_deletion);
    change.set("seed", &found.seed, &wanted.seed, json!(wanted.seed));
    change.set("earliestDeletionTime", was, is, json!(is.map(Time)));
    change.set("releasedAt", &found.released_at, &wanted.released_at, json!(wanted.released_at.map(Time)));
    change.operation(found.operation.as_ref(), wanted.operation.as_ref(), now);
    Value::Object(change.0)
}

/// As [`bucket_change`].
pub fn profile_change(wire: &CloudProfile, wanted: &ProfileStatus, now: Timestamp) -> Value {
    let found = ProfileState::from(wire).status;
    let theirs = wire.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let mut change = StatusPatch::default();
    let (was, is) = (&found.last_ordinals, &wanted.last_ordinals);
    change.set("lastOrdinals", was, is, json!(is));
    change.conditions(&found.conditions, &wanted.conditions, theirs, now);
    change.done(wire.metadata.generation)
}

/// As [`bucket_change`].
pub fn seed_change(wire: &Seed, wanted: &ConditionMap, now: Timestamp) -> Value {
    let theirs = wire.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let mut change = StatusPatch::default();
    change.conditions(&conditions(theirs), wanted, theirs, now);
    change.done(wire.metadata.generation)
}

#[derive(Default)]
struct StatusPatch(Map<String, Value>);

impl StatusPatch {
    fn set<T: PartialEq>(&mut self, field: &str, found: &T, wanted: &T, value: Value) {
        if found != wanted {
            self.0.insert(field.to_owned(), value);
        }
    }

    fn operation(
        &mut self,
        found: Option<&OperationReport>,
        wanted: Option<&OperationReport>,
        now: Timestamp,
    ) {
        let value = wanted.map(|wanted| {
            json!({
                "type": wanted.kind.as_str(),
                "state": wanted.state.as_str(),
                "description": wanted.description,
                "progress": 0,
                "lastUpdateTime": Time(now),
            })
        });
        self.set("lastOperation", &found, &wanted, json!(value));
        if found != wanted {
            self.0.insert("lastError".to_owned(), Value::Null);
        }
    }

    /// Replaces the hub's conditions, and leaves those of others.
    fn conditions(
        &mut self,
        found: &ConditionMap,
        wanted: &ConditionMap,
        wire: &[Condition],
        now: Timestamp,
    ) {
        let mut all: Vec<Condition> = wire
            .iter()
            .filter(|one| {
                ConditionType::parse(&one.kind).is_none_or(|about| found.get(&about) == wanted.get(&about))
            })
            .cloned()
            .collect();
        for (about, condition) in wanted.iter().filter(|(about, one)| found.get(about) != Some(one)) {
            all.push(Condition {
                kind: about.as_str().to_owned(),
                status: if condition.holds { "True" } else { "False" }.to_owned(),
                last_transition_time: Time(condition.since),
                last_update_time: Time(now),
                reason: condition.reason.clone(),
                message: condition.message.clone(),
                codes: Vec::new(),
            });
        }
        self.set("conditions", found, wanted, json!(all));
    }

    fn done(mut self, generation: Option<i64>) -> Value {
        self.0.insert("observedGeneration".to_owned(), json!(generation));
        Value::Object(self.0)
    }
}

fn conditions(wire: &[Condition]) -> ConditionMap {
    let ours = wire.iter().filter_map(|one| {
        let condition = condition::ConditionState {
            holds: one.status == "True",
            since: one.last_transition_time.0,
            reason: one.reason.clone(),
            message: one.message.clone(),
        };
        Some((ConditionType::parse(&one.kind)?, condition))
    });
    ours.collect()
}

fn is_claimed(object: &impl ResourceExt) -> bool {
    object.finalizers().iter().any(|one| one == keys::GARDEN_FINALIZER)
}

fn created_at(object: &impl ResourceExt) -> Timestamp {
    time(object.creation_timestamp().as_ref()).unwrap_or_default()
}

fn time(wire: Option<&Time>) -> Option<Timestamp> {
    wire.map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use berth_garden_core::condition::ConditionState;

    use super::*;
    use crate::BackupBucketStatus;
    use crate::operation::{OperationState, OperationType};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn only_what_differs_is_written_and_the_conditions_of_others_stay() {
        let theirs: Condition = serde_json::from_value(json!({
            "type": "LocationAvailable", "status": "True", "reason": "R", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap();
        let status = BackupBucketStatus {
            seed: Some("one".to_owned()),
            conditions: vec![theirs],
            ..BackupBucketStatus::default()
        };
        let wire = BackupBucket { status: Some(status), ..BackupBucket::default() };
        let idle = ConditionState {
            holds: true,
            since: at(7),
            reason: "NotWanted".to_owned(),
            message: "m".to_owned(),
        };
        let wanted = BucketStatus {
            conditions: ConditionMap::from([(ConditionType::Idle, idle)]),
            operation: Some(OperationReport {
                kind: OperationType::Delete,
                state: OperationState::Pending,
                description: "later".to_owned(),
            }),
            allocated: vec!["uid".to_owned()],
            ..GardenBucket::from(&wire).status
        };
        let change = bucket_change(&wire, &wanted, at(9));
        let keys: Vec<&String> = change.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["allocated", "conditions", "lastError", "lastOperation", "observedGeneration"]);
        assert_eq!(change["conditions"][0]["type"], "LocationAvailable");
        assert_eq!(change["conditions"][1]["lastTransitionTime"], "1970-01-01T00:00:07Z");
        let read: LastOperation = serde_json::from_value(change["lastOperation"].clone()).unwrap();
        assert_eq!(Some(OperationReport::from(&read)), wanted.operation);
    }
}
