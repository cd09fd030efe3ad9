//! Seeds.

use super::{AdmissionFindings, entries};
use crate::profile::Seed;
use crate::view::GardenView;
use berth_core::violation::{Field, Violations};

/// Faults that do not depend on other objects.
pub fn faults(new: &Seed) -> Violations {
    let mut found = Violations::default();
    let spec = Field::root("spec");
    found.require(
        !new.profile.is_empty(),
        &spec.child("cloudProfileName"),
        "required: the CloudProfile of its infrastructure",
    );
    found.require(!new.region.is_empty(), &spec.child("region"), "required: where the cluster is");
    found
}

/// `old` is `None` on create.
pub fn check(old: Option<&Seed>, new: &Seed, view: &GardenView) -> AdmissionFindings {
    let mut found = AdmissionFindings { faults: faults(new), ..AdmissionFindings::default() };
    let spec = Field::root("spec");
    for (index, store) in new.reaches.iter().flatten().enumerate() {
        let is_one = !store.is_empty() && !store.contains(char::is_whitespace);
        found.faults.require(
            is_one,
            &spec.child("reaches").index(index),
            "must be PROVIDER or PROVIDER/REGION",
        );
    }
    if !found.faults.is_empty() {
        return found;
    }
    let Some(profile) = view.profiles.get(&new.profile) else {
        let message = format!("CloudProfile \"{}\" does not exist: create it first", new.profile);
        found.blame(spec.child("cloudProfileName"), message);
        return found;
    };
    let place = profile.place(&new.region);
    match &place {
        None if profile.backup.is_some() => found.warn(format!(
            "nowhere to back up: \"{}\" is none of the regions of CloudProfile \"{}\"",
            new.region, new.profile
        )),
        Some(place) if !new.reaches(place) => {
            found.warn(format!("its own backups go to {place}, which spec.reaches does not have"));
        }
        _ => {}
    }
    let before = old.and_then(|old| view.place_of(old));
    let Some(before) = before.filter(|before| place.as_ref() != Some(before)) else { return found };
    let left = of(&new.name, view);
    if !left.is_empty() {
        let changed =
            if old.is_some_and(|old| old.profile != new.profile) { "cloudProfileName" } else { "region" };
        let message = format!(
            "cannot change: the backups of {} are at {before}: migrate or delete them first",
            entries(left)
        );
        found.blame(spec.child(changed), message);
    }
    found
}

/// Entries of a seed that have a bucket.
fn of<'v>(seed: &str, view: &'v GardenView) -> Vec<&'v str> {
    let of = view.entries.values().filter(|entry| entry.seed == seed && entry.bucket.is_some());
    of.map(|entry| entry.name.as_str()).collect()
}

/// A bucket outlives its seeds, so nothing is refused.
pub fn check_delete(seed: &str, view: &GardenView) -> AdmissionFindings {
    let mut found = AdmissionFindings::default();
    let left = of(seed, view);
    if !left.is_empty() {
        found.warn(format!("leaves {}: another seed that reaches their store acts on them", entries(left)));
    }
    found
}
