//! Where backups of a profile's clusters go, and which buckets that takes.
//!
//! A bucket is wanted once a seed is there that backs up into it, even if the profile names one
//! region for all: names of buckets are global, and none is taken without need.

use std::collections::BTreeSet;

use super::store::{ProviderRegion, SecretRef, Store, StoreSettings};
use berth_core::violation::{Field, Violations};

/// An infrastructure, and where its clusters' backups go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub name: String,
    /// Of the clusters.
    pub provider: String,
    /// In which clusters may be.
    pub regions: Vec<String>,
    /// `None`: no backups.
    pub backup: Option<ProfileBackupSettings>,
    /// Another provider without a region is let in, and yields no bucket.
    pub allows_cross_provider: bool,
    /// A person says that this endpoint or path is another address of the store that has its
    /// buckets.
    pub same_store: Option<String>,
}

/// As people wrote it: see the methods of [`Profile`] for what it means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileBackupSettings {
    pub provider: Option<String>,
    pub region: Option<String>,
    pub secret: Option<SecretRef>,
    pub config: StoreSettings,
}

/// A member cluster and its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seed {
    pub name: String,
    pub profile: String,
    pub region: String,
    /// Stores that it can reach, as `provider` or `provider/region`. `None`: any.
    pub reaches: Option<Vec<String>>,
}

impl Seed {
    pub fn reaches(&self, place: &ProviderRegion) -> bool {
        let Some(reaches) = &self.reaches else { return true };
        let ProviderRegion { provider, region } = place;
        reaches.iter().any(|one| {
            one == provider
                || one.strip_prefix(provider).and_then(|rest| rest.strip_prefix('/')) == Some(region)
        })
    }
}

/// The buckets that a profile and its seeds need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequiredBuckets {
    /// In each of these there has to be a bucket with room.
    pub stores: BTreeSet<Store>,
    /// Names of seeds whose region is none of the profile's, and whose backups have no bucket.
    pub stranded: Vec<String>,
}

impl Profile {
    /// Of the store: the backup's own, else the profile's. `None`: no backups.
    pub fn backup_provider(&self) -> Option<&str> {
        let backup = self.backup.as_ref()?;
        Some(said(backup.provider.as_ref()).unwrap_or(&self.provider))
    }

    /// Is this where the buckets have been all along?
    pub fn is_same_store(&self, address: &str) -> bool {
        self.same_store.as_deref().is_some_and(|said| said.trim_end_matches('/') == address)
    }

    /// The one region of the store, where one is named.
    pub fn backup_region(&self) -> Option<&str> {
        said(self.backup.as_ref()?.region.as_ref())
    }

    /// Another provider, and no region there: the profile's own regions say nothing.
    pub fn is_cross_provider_without_region(&self) -> bool {
        self.backup_provider().is_some_and(|provider| provider != self.provider)
            && self.backup_region().is_none()
    }

    /// Where a cluster in this region backs up to. `None`: nowhere.
    pub fn place(&self, region: &str) -> Option<ProviderRegion> {
        let place = |region: &str| {
            Some(ProviderRegion { provider: self.backup_provider()?.to_owned(), region: region.to_owned() })
        };
        match self.backup_region() {
            Some(fixed) => place(fixed),
            None if self.is_cross_provider_without_region() => None,
            None if self.regions.iter().any(|one| one == region) => place(region),
            None => None,
        }
    }

    /// What is wrong whatever else there is. `manifests/garden/policies.yaml` says the same, in the
    /// same words.
    pub fn faults(&self) -> Violations {
        let mut found = Violations::default();
        let spec = Field::root("spec");
        found.require(
            !self.provider.is_empty(),
            &spec.child("provider"),
            "required: the infrastructure of the clusters",
        );
        let Some(backup) = &self.backup else { return found };
        let field = spec.child("backup");
        if self.is_cross_provider_without_region() && !self.allows_cross_provider {
            let theirs = self.backup_provider().unwrap_or_default();
            found.push(
                field.child("region"),
                format!(
                    "required: backups go to provider \"{theirs}\", where regions of \"{}\" mean nothing: name a region of \"{theirs}\", or leave spec.backup.provider out",
                    self.provider
                ),
            );
        }
        found.append(secret_faults(&field, backup.secret.as_ref()));
        found
    }
}

/// A reference to credentials that lacks something.
pub fn secret_faults(parent: &Field, secret: Option<&SecretRef>) -> Violations {
    let mut found = Violations::default();
    let field = parent.child("secretRef");
    match secret {
        None => found.push(field, "required: the Secret with the store's credentials"),
        Some(secret) => {
            found.require(
                !secret.name.is_empty(),
                &field.child("name"),
                "required: the Secret with the store's credentials",
            );
            found.require(
                !secret.namespace.is_empty(),
                &field.child("namespace"),
                "required: the namespace of that Secret",
            );
        }
    }
    found
}

/// Empty is as good as absent.
fn said(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

/// Which buckets a profile takes, with these seeds registered. Those of other profiles are passed
/// over.
///
/// # Errors
/// What is wrong with the profile.
pub fn wanted<'s>(
    profile: &Profile,
    seeds: impl IntoIterator<Item = &'s Seed>,
) -> Result<RequiredBuckets, Violations> {
    profile.faults().into_result(())?;
    let mut wanted = RequiredBuckets::default();
    let Some(backup) = &profile.backup else { return Ok(wanted) };
    for seed in seeds.into_iter().filter(|seed| seed.profile == profile.name) {
        match profile.place(&seed.region) {
            Some(place) => drop(wanted.stores.insert(Store {
                place,
                secret: backup.secret.clone().unwrap_or_default(),
                config: backup.config.clone(),
            })),
            None => wanted.stranded.push(seed.name.clone()),
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests;
