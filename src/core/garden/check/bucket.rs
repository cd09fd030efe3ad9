//! BackupBuckets of the hub.

use super::{
    AdmissionFindings, FORGET_DATA, SecretLookup, check_provider, check_reason, check_secret, deletion,
    entries, name,
};
use crate::bucket::GardenBucket;
use crate::name::name_fault;
use crate::profile::secret_faults;
use crate::store::{check_config, check_lock};
use crate::view::GardenView;
use berth_core::violation::{Field, Violations};

/// Faults that do not depend on other objects. `old` is `None` on create.
pub fn faults(old: Option<&GardenBucket>, new: &GardenBucket) -> Violations {
    let mut found = Violations::default();
    let spec = Field::root("spec");
    // Without a name yet, the API server generates one after the mutating webhooks, and before the
    // validating ones and the policies.
    if old.is_none() && !new.name.is_empty() {
        found.require(
            is_bucket_name(&new.name),
            &name(),
            "must be 3 to 63 of a-z, 0-9 and -, neither beginning nor ending with -: the bucket in the store has this name",
        );
        if let Some(fault) = name_fault(&new.store.place.provider, &new.name) {
            found.push(name(), fault);
        }
    }
    for (field, old, new, what) in [
        (
            "provider",
            old.map(|old| &old.store.place.provider),
            &new.store.place.provider,
            "who holds the bucket",
        ),
        ("region", old.map(|old| &old.store.place.region), &new.store.place.region, "where the bucket is"),
    ] {
        found.require(!new.is_empty(), &spec.child(field), format!("required: {what}"));
        let is_same = new.is_empty() || old.is_none_or(|old| old == new);
        found.require(is_same, &spec.child(field), "cannot change: a bucket does not move: make another one");
    }
    found.append(secret_faults(&spec, new.secret()));
    let is_same =
        old.and_then(|old| old.profile.as_ref()).is_none_or(|owner| new.profile.as_ref() == Some(owner));
    found.require(
        is_same,
        &owner_field(),
        "cannot change: the bucket was made for clusters of that CloudProfile",
    );
    let forgotten = old.and_then(|old| old.forget_data.as_ref());
    check_reason(FORGET_DATA, forgotten, new.forget_data.as_ref(), &mut found);
    found
}

fn is_bucket_name(name: &str) -> bool {
    (3..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// `old` is `None` on create.
pub fn check(
    old: Option<&GardenBucket>,
    new: &GardenBucket,
    credentials: Option<&SecretLookup>,
    view: &GardenView,
) -> AdmissionFindings {
    let mut found = AdmissionFindings { faults: faults(old, new), ..AdmissionFindings::default() };
    let spec = Field::root("spec");
    let provider = &new.store.place.provider;
    check_secret(&spec, provider, new.secret(), credentials, view, &mut found);
    let config = spec.child("providerConfig");
    found.faults.append(check_config(&config, provider, &new.store.config));
    if let Some(old) = old {
        found.faults.append(check_lock(&config, old.store.config.object_lock, new.store.config.object_lock));
        let store =
            |bucket: &GardenBucket| (bucket.store.config.endpoint.clone(), bucket.store.config.path.clone());
        let inside: Vec<&str> = view.entries_of(&new.name).map(|entry| entry.name.as_str()).collect();
        if store(old) != store(new) && !inside.is_empty() {
            let who = entries(inside);
            found.warn(format!(
                "the data of {who} has to be found there, too: this changes where it is looked for"
            ));
        }
    }
    check_provider(provider, &mut found);
    check_owner(old, new, view, &mut found);
    found
}

/// Is there such a profile, and do its backups go to where this bucket is?
fn check_owner(
    old: Option<&GardenBucket>,
    new: &GardenBucket,
    view: &GardenView,
    found: &mut AdmissionFindings,
) {
    // Naming another one is refused elsewhere: it cannot change.
    let Some(owner) = new.profile.as_ref().filter(|_| old.is_none_or(|old| old.profile.is_none())) else {
        return;
    };
    let provider = &new.store.place.provider;
    let why = match view.profiles.get(owner).map(|profile| profile.backup_provider()) {
        None => format!("CloudProfile \"{owner}\" does not exist: create it first"),
        Some(None) => format!("CloudProfile \"{owner}\" has no spec.backup: name another one"),
        Some(Some(theirs)) if theirs != provider && !provider.is_empty() => format!(
            "backups of CloudProfile \"{owner}\" go to provider \"{theirs}\", and this bucket is at \"{provider}\": name another one"
        ),
        Some(Some(_)) => return,
    };
    found.blame(owner_field(), why + ", or leave the annotation out");
}

fn owner_field() -> Field {
    Field::root("metadata").child("annotations").key("garden.berth.dev/cloud-profile")
}

/// May it be deleted? Terminating entries count: their data is still there.
pub fn check_delete(bucket: &str, view: &GardenView) -> AdmissionFindings {
    let mut found = AdmissionFindings::default();
    let inside: Vec<&str> = view.entries_of(bucket).map(|entry| entry.name.as_str()).collect();
    if !inside.is_empty() {
        found.blame(deletion(), format!("holds {}: migrate or delete them first", entries(inside)));
    }
    found
}
