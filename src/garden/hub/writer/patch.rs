//! Patches that the writer sends.

use berth_api::keys::{self, GARDEN_FINALIZER};
use berth_garden_api::{BackupBucket, CloudProfile};
use berth_garden_core::hub::BucketPlan;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::Round;

pub(super) fn with(found: &impl ResourceExt, finalizer: &str) -> Vec<String> {
    let mut finalizers = without(found, finalizer);
    finalizers.push(finalizer.to_owned());
    finalizers
}

pub(super) fn without(found: &impl ResourceExt, finalizer: &str) -> Vec<String> {
    found.finalizers().iter().filter(|one| *one != finalizer).cloned().collect()
}

/// No deletion of a profile waits for its buckets, because the deletion of a bucket in use is
/// refused anyway.
pub(super) fn owned_by(profile: &CloudProfile) -> OwnerReference {
    OwnerReference {
        api_version: CloudProfile::api_version(&()).into_owned(),
        kind: CloudProfile::kind(&()).into_owned(),
        name: profile.name_any(),
        uid: profile.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }
}

/// Gives a bucket its profile as owner, and the profile's credentials and settings.
pub(super) fn adoption(round: &Round<'_>, found: &BackupBucket, one: &BucketPlan) -> Option<Value> {
    let owner = found.annotations().get(keys::CLOUD_PROFILE);
    let owner = owner.and_then(|name| round.frozen.profiles.iter().find(|one| one.name_any() == *name));
    let mut patch = json!({"metadata": {}});
    if one.claim {
        patch["metadata"]["finalizers"] = json!(with(found, GARDEN_FINALIZER));
        if let Some(owner) = owner {
            let mut owners = found.owner_references().to_vec();
            let kind = CloudProfile::kind(&());
            owners.retain(|one| one.kind != kind);
            owners.push(owned_by(owner));
            patch["metadata"]["ownerReferences"] = json!(owners);
        }
    }
    if one.store.is_some() {
        let profile = &owner?.spec;
        let backup = profile.backup.as_ref()?;
        let old = json!(found.spec.provider_config);
        patch["spec"] = json!({
            "secretRef": backup.secret_ref,
            "providerConfig": replacing(&old, json!(profile.store_config())),
        });
    }
    Some(patch)
}

/// A merge patch that removes what only `old` has.
fn replacing(old: &Value, mut new: Value) -> Value {
    if let (Some(old), Some(new)) = (old.as_object(), new.as_object_mut()) {
        for key in old.keys() {
            new.entry(key.clone()).or_insert(Value::Null);
        }
    }
    new
}
