//! CloudProfiles.

use std::collections::BTreeSet;

use super::{AdmissionFindings, SecretLookup, check_provider, check_secret, count, deletion, some};
use crate::entry::GardenEntry;
use crate::profile::Profile;
use crate::store::{LocationKeyMode, ProviderRegion, SERVED, check_config, check_lock};
use crate::view::GardenView;
use berth_core::violation::Field;

/// `old` is `None` on create.
pub fn check(
    old: Option<&Profile>,
    new: &Profile,
    credentials: Option<&SecretLookup>,
    view: &GardenView,
) -> AdmissionFindings {
    let mut found = AdmissionFindings { faults: new.faults(), ..AdmissionFindings::default() };
    let spec = Field::root("spec");
    let field = spec.child("constraints").child("regions");
    let mut seen = BTreeSet::new();
    for (index, region) in new.regions.iter().enumerate() {
        found.faults.require(!region.is_empty(), &field.index(index), "must be the name of a region");
        let is_new = region.is_empty() || seen.insert(region);
        found.faults.require(is_new, &field.index(index), format!("\"{region}\" stands here twice"));
    }
    check_backup(old, new, credentials, view, &mut found);
    if let Some(old) = old.filter(|_| new.faults().is_empty()) {
        check_dependents(old, new, view, &mut found);
        check_addresses(old, new, view, &mut found);
    }
    found
}

fn check_backup(
    old: Option<&Profile>,
    new: &Profile,
    credentials: Option<&SecretLookup>,
    view: &GardenView,
    found: &mut AdmissionFindings,
) {
    let (Some(backup), Some(provider)) = (&new.backup, new.backup_provider()) else { return };
    let field = Field::root("spec").child("backup");
    check_secret(&field, provider, backup.secret.as_ref(), credentials, view, found);
    let config = field.child("providerConfig");
    found.faults.append(check_config(&config, provider, &backup.config));
    if let Some(old) = old.and_then(|old| old.backup.as_ref()) {
        found.faults.append(check_lock(&config, old.config.object_lock, backup.config.object_lock));
    }
    check_location_keys(old, &config, provider, backup.config.location_keys, found);
    check_provider(provider, found);
    if new.is_cross_provider_without_region() {
        if new.allows_cross_provider {
            found.warn(format!(
                "let in as its annotation asks, and yields no bucket: no region of \"{provider}\" is named"
            ));
        }
    } else {
        match new.backup_region() {
            None if new.regions.is_empty() => {
                found.warn("spec.constraints.regions is empty: no bucket will exist until it has a region");
            }
            Some(region) if provider == new.provider && !new.regions.iter().any(|one| one == region) => {
                found.warn(format!(
                    "spec.backup.region: \"{region}\" is none of the profile's regions: used as it is"
                ));
            }
            _ => {}
        }
    }
}

/// Where keys cannot be limited to a directory, a person has to say that clusters trust each other.
/// At provider `aws` an absent setting is `scoped` (see `CloudProfileSpec::store_config`); for a
/// provider that berth does not serve there is a warning. Profiles from before this check stay
/// valid, and a restore may bring them back, so only admission depends on it.
fn check_location_keys(
    old: Option<&Profile>,
    config: &Field,
    provider: &str,
    keys: Option<LocationKeyMode>,
    found: &mut AdmissionFindings,
) {
    if keys.is_some() {
        return;
    }
    let field = config.child("locationKeys");
    let means = "\"scoped\" gives each cluster keys to its own directory alone, where provider \"aws\" makes such; \"shared\" says \
                 that every cluster of this profile gets the store's own keys, and can read and remove what the others keep there";
    let was_unsaid =
        old.and_then(|old| old.backup.as_ref()).is_some_and(|backup| backup.config.location_keys.is_none());
    if was_unsaid || !SERVED.contains(&provider) {
        found.warn(format!("{field}: is not said, which counts as \"shared\": {means}"));
    } else {
        found.blame(field, format!("required: {means}"));
    }
}

/// Entries whose data would be left behind. Compares where backups go, not how that is written.
fn check_dependents(old: &Profile, new: &Profile, view: &GardenView, found: &mut AdmissionFindings) {
    let moved: Vec<(&GardenEntry, ProviderRegion, Option<ProviderRegion>)> = view
        .entries
        .values()
        .filter(|entry| entry.bucket.is_some())
        .filter_map(|entry| {
            let seed = view.seeds.get(&entry.seed).filter(|seed| seed.profile == old.name)?;
            let (before, after) = (old.place(&seed.region)?, new.place(&seed.region));
            (after.as_ref() != Some(&before)).then_some((entry, before, after))
        })
        .collect();
    let Some((_, before, after)) = moved.first() else { return };
    let spec = Field::root("spec");
    let backup = spec.child("backup");
    let field = match (&new.backup, after) {
        (None, _) => backup,
        (Some(_), None) => spec.child("constraints").child("regions"),
        (Some(to), Some(after)) if after.provider != before.provider => {
            if to.provider.as_ref().is_some_and(|provider| !provider.is_empty()) {
                backup.child("provider")
            } else {
                spec.child("provider")
            }
        }
        _ => backup.child("region"),
    };
    found.blame(
        field,
        format!(
            "cannot change, for it is needed by {}: migrate or delete them first",
            dependents(moved.iter().map(|(entry, ..)| *entry))
        ),
    );
}

/// Buckets that would be looked for in another store, and not found there.
fn check_addresses(old: &Profile, new: &Profile, view: &GardenView, found: &mut AdmissionFindings) {
    let (Some(before), Some(after)) = (&old.backup, &new.backup) else { return };
    let buckets: Vec<&str> = view
        .buckets
        .values()
        .filter(|bucket| bucket.is_made && bucket.profile.as_ref() == Some(&new.name))
        .filter(|bucket| new.backup_provider() == Some(bucket.store.place.provider.as_str()))
        .map(|bucket| bucket.name.as_str())
        .collect();
    if buckets.is_empty() {
        return;
    }
    let config = Field::root("spec").child("backup").child("providerConfig");
    for ((name, was), (_, is)) in before.config.addresses().into_iter().zip(after.config.addresses()) {
        if was == is {
            continue;
        }
        let field = config.child(name);
        let those = some(buckets.iter().copied(), "bucket", "buckets");
        if new.is_same_store(is) {
            found.warn(format!(
                "{field}: {those} are looked for at \"{is}\" from now on, as its annotation says"
            ));
        } else {
            found.blame(
                field,
                format!(
                    "cannot change while {those} are there, which would be looked for in another store: make another \
                     CloudProfile for that; if it is the same store by another address, annotate garden.berth.dev/same-store={is}"
                ),
            );
        }
    }
}

/// `2 entries (a, b) in 1 bucket`.
fn dependents<'e>(entries: impl Iterator<Item = &'e GardenEntry> + Clone) -> String {
    let buckets: BTreeSet<&str> = entries.clone().filter_map(|entry| entry.bucket.as_deref()).collect();
    let names = super::entries(entries.map(|entry| entry.name.as_str()));
    format!("{names} in {}", count(buckets.len(), "bucket", "buckets"))
}

/// May it be deleted?
pub fn check_delete(profile: &str, view: &GardenView) -> AdmissionFindings {
    let mut found = AdmissionFindings::default();
    let is_of = |entry: &&GardenEntry| {
        let bucket = entry.bucket.as_ref().and_then(|bucket| view.buckets.get(bucket));
        let owned = bucket.is_some_and(|bucket| bucket.profile.as_deref() == Some(profile));
        entry.bucket.is_some()
            && (owned || view.seeds.get(&entry.seed).is_some_and(|seed| seed.profile == profile))
    };
    let entries = view.entries.values().filter(is_of);
    if entries.clone().next().is_some() {
        found.blame(deletion(), format!("needed by {}: migrate or delete them first", dependents(entries)));
    }
    let seeds: Vec<&str> =
        view.seeds.values().filter(|seed| seed.profile == profile).map(|seed| seed.name.as_str()).collect();
    if !seeds.is_empty() {
        found.warn(format!(
            "leaves {} without a profile, and so without backups",
            some(seeds, "seed", "seeds")
        ));
    }
    found
}
