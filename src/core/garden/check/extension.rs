//! BackupBuckets and BackupEntries of a member cluster, of providers that berth serves.

use super::deletion;
use crate::profile::secret_faults;
use crate::store::{SERVED, SecretRef};
use crate::view::ExtensionObject;
use berth_core::violation::{Field, Violations};

pub fn is_served(one: &ExtensionObject) -> bool {
    SERVED.contains(&one.place.provider.as_str())
}

/// Faults that do not depend on other objects. `old` is `None` on create.
pub fn faults(old: Option<&ExtensionObject>, new: &ExtensionObject, spec_changed: bool) -> Violations {
    let mut found = Violations::default();
    let spec = Field::root("spec");
    if let Some(old) = old {
        if old.is_terminating && spec_changed {
            found.push(spec, "cannot change: it is being deleted");
            return found;
        }
        found.require(
            old.place.provider == new.place.provider,
            &spec.child("type"),
            "cannot change: what is in the store stays there: make another one",
        );
        found.require(
            old.place.region == new.place.region || new.bucket.is_some(),
            &spec.child("region"),
            "cannot change: a bucket does not move: make another one",
        );
    }
    found.require(!new.place.region.is_empty(), &spec.child("region"), "required: where the bucket is");
    let is_named = new.bucket.as_ref().is_none_or(|bucket| !bucket.is_empty());
    found.require(is_named, &spec.child("bucketName"), "required: the bucket that holds the directory");
    // Gardener takes an empty namespace; berth could not find the Secret.
    let empty = SecretRef::default();
    found.append(secret_faults(&spec, Some(new.secret.as_ref().unwrap_or(&empty))));
    found
}

/// May it be deleted?
pub fn check_delete(old: &ExtensionObject) -> Violations {
    let mut found = Violations::default();
    found.require(
        old.is_confirmed,
        &deletion(),
        "deletes data: confirm it by the annotation confirmation.gardener.cloud/deletion=true first",
    );
    found
}
