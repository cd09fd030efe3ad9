//! BackupEntries of the hub.

use super::{AdmissionFindings, FORCE_DELETION, FORGET_DATA, check_reason, name};
use crate::bucket::GardenBucket;
use crate::entry::GardenEntry;
use crate::profile::Seed;
use crate::store::ProviderRegion;
use crate::view::{GardenView, SOURCE};
use berth_core::violation::{Field, Violations};

const NAME_LENGTH: usize = 63;

/// Faults that do not depend on other objects. `old` is `None` on create; `by_hub`: the hub's own
/// controllers write.
pub fn faults(old: Option<&GardenEntry>, new: &GardenEntry, by_hub: bool) -> Violations {
    let mut found = Violations::default();
    let spec = Field::root("spec");
    if old.is_none() {
        found.require(
            new.name.len() <= NAME_LENGTH && !new.name.starts_with(SOURCE),
            &name(),
            "must be 63 characters or less and not begin with \"source-\": the directory in the bucket has this name",
        );
    }
    found.require(
        !new.seed.is_empty(),
        &spec.child("seedName"),
        "required: the Seed whose backups these are",
    );
    let keeps = |old: Option<&String>, new: Option<&String>| old.is_none_or(|old| new == Some(old));
    found.require(
        by_hub || keeps(old.and_then(|old| old.bucket.as_ref()), new.bucket.as_ref()),
        &spec.child("bucketName"),
        "cannot change: the data would stay in the old bucket: make another entry and migrate to it",
    );
    found.require(
        keeps(old.and_then(|old| old.shoot_uid.as_ref()), new.shoot_uid.as_ref()),
        &spec.child("shootUID"),
        "cannot change: another cluster has another entry",
    );
    let (forced, forgotten) =
        (old.and_then(|old| old.force_deletion.as_ref()), old.and_then(|old| old.forget_data.as_ref()));
    check_reason(FORCE_DELETION, forced, new.force_deletion.as_ref(), &mut found);
    check_reason(FORGET_DATA, forgotten, new.forget_data.as_ref(), &mut found);
    found
}

/// `old` is `None` on create; `by_hub`: the hub's own controllers write.
pub fn check(
    old: Option<&GardenEntry>,
    new: &GardenEntry,
    by_hub: bool,
    view: &GardenView,
) -> AdmissionFindings {
    let mut found = AdmissionFindings { faults: faults(old, new, by_hub), ..AdmissionFindings::default() };
    let spec = Field::root("spec");
    if old.is_none() {
        let other =
            view.entries.values().find(|other| other.name == new.name && other.namespace != new.namespace);
        if let Some(other) = other {
            let message = format!(
                "namespace \"{}\" has an entry of this name, and both would have the same directory: choose another name",
                other.namespace
            );
            // Always a fault, because a copy into another namespace would take the directory over.
            found.faults.push(name(), message);
        }
    }
    warn_of_locked_data(old, new, view, &mut found);
    warn_of_two_writers(old, new, &mut found);
    let is_new = old.is_none_or(|old| (&old.seed, &old.bucket) != (&new.seed, &new.bucket));
    if !is_new || new.seed.is_empty() || new.is_deleted() {
        return found;
    }
    let Some(seed) = view.seeds.get(&new.seed) else {
        let message = format!("Seed \"{}\" does not exist: create it first", new.seed);
        found.blame(spec.child("seedName"), message);
        return found;
    };
    let place = view.place_of(seed);
    match (&place, &new.bucket) {
        (Some(place), Some(bucket)) => check_bucket(old, new, bucket, (seed, place), view, &mut found),
        (Some(_), None) => {}
        (None, None) if old.is_none() => {
            found.warn(format!("not placed until Seed \"{}\" has somewhere to back up", seed.name))
        }
        (None, _) => found.blame(
            spec.child("seedName"),
            format!(
                "Seed \"{}\" has nowhere to back up: see spec.backup and the regions of CloudProfile \"{}\"",
                seed.name, seed.profile
            ),
        ),
    }
    found
}

/// May it be deleted? An entry that the hub has not taken up is gone at once, and its data stays in
/// the directory.
pub fn check_delete(old: &GardenEntry) -> Violations {
    let mut found = Violations::default();
    found.require(
        old.bucket.is_none() || old.is_claimed || old.is_deleted() || old.forget_data.is_some(),
        &Field::root("metadata").child("finalizers"),
        "its data would be left in the bucket without a record: wait until the hub has taken it up, and garden.berth.dev/backup is \
         one of them; or, if the data is to stay there, give the reason in the annotation garden.berth.dev/forget-data",
    );
    found
}

/// Why its name seems to be another cluster's: it ends in digits of a UID, and not of its own, nor
/// of that one's SHA-1. Both are in use (source: Gardener's proposal on backup infrastructure, and
/// its names since). `sha1`: in hexadecimal digits.
pub fn has_another_uid(new: &GardenEntry, sha1: impl FnOnce(&str) -> String) -> Option<String> {
    const DIGITS: usize = 5;
    let uid = new.shoot_uid.as_deref()?;
    let (_, end) = new.name.rsplit_once("--")?;
    let is_of_a_uid = end.len() == DIGITS && end.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let is_its_own = uid.starts_with(end) || sha1(uid).starts_with(end);
    (is_of_a_uid && !is_its_own).then(|| {
        format!(
            "metadata.name ends in {end}, with which neither spec.shootUID nor its SHA-1 begins: is it another cluster's?"
        )
    })
}

/// Is this bucket one for this entry?
fn check_bucket(
    old: Option<&GardenEntry>,
    new: &GardenEntry,
    wanted: &str,
    (seed, place): (&Seed, &ProviderRegion),
    view: &GardenView,
    found: &mut AdmissionFindings,
) {
    let spec = Field::root("spec");
    // An entry that has a bucket and moves to another seed has to fit the bucket that has its data.
    let comes = old.is_some_and(|old| old.bucket.as_deref() == Some(wanted));
    let field = spec.child(if comes { "seedName" } else { "bucketName" });
    let Some(bucket) = view.buckets.get(wanted) else {
        found.blame(
            field,
            format!("BackupBucket \"{wanted}\" does not exist: leave spec.bucketName out, and one is chosen"),
        );
        return;
    };
    if bucket.store.place != *place {
        found.blame(
            field.clone(),
            format!("BackupBucket \"{wanted}\" is at {}, and backups of Seed \"{}\" go to {place}: migrate to another entry", bucket.store.place, seed.name),
        );
    } else if let Some(owner) = bucket.profile.as_ref().filter(|owner| **owner != seed.profile) {
        found.blame(
            field.clone(),
            format!("BackupBucket \"{wanted}\" is for clusters of CloudProfile \"{owner}\", and Seed \"{}\" is of \"{}\"", seed.name, seed.profile),
        );
    }
    if !comes {
        check_vacancy(new, bucket, &field, found);
    }
}

fn check_vacancy(new: &GardenEntry, bucket: &GardenBucket, field: &Field, found: &mut AdmissionFindings) {
    let why = if bucket.is_deleted {
        "is being deleted"
    } else if bucket.has_failed() {
        "has failed"
    } else if !bucket.has_room_for(new) {
        "is full"
    } else {
        return;
    };
    found.blame(
        field.clone(),
        format!("BackupBucket \"{}\" {why}: leave it out, and another one is chosen", bucket.name),
    );
}

fn warn_of_two_writers(old: Option<&GardenEntry>, new: &GardenEntry, found: &mut AdmissionFindings) {
    let Some(reason) = &new.take_over else { return };
    if old.is_some_and(|old| old.take_over == new.take_over) {
        return;
    }
    let key = "garden.berth.dev/take-over";
    found.warn(match reason.trim() {
        "" | "true" | "false" => format!("{key} counts for nothing: it must be the reason, in words"),
        _ => format!(
            "{key}: the entry's move, or its next one, does not wait until the cluster that may be writing there has stopped: if that \
             one writes on, two write into one directory, and its backups can be lost"
        ),
    });
}

fn warn_of_locked_data(
    old: Option<&GardenEntry>,
    new: &GardenEntry,
    view: &GardenView,
    found: &mut AdmissionFindings,
) {
    let is_new = old.is_none_or(|old| old.force_deletion.is_none());
    if new.force_deletion.is_none() || !is_new {
        return;
    }
    let bucket = new.bucket.as_ref().and_then(|bucket| view.buckets.get(bucket));
    if let Some(lock) = bucket.and_then(|bucket| bucket.store.config.object_lock) {
        found.warn(format!(
            "objects of this bucket are locked for {} days: no force shortens that",
            lock.retention_days
        ));
    }
}
