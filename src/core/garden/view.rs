//! The objects of hub and member, reduced to what admission checks.

use std::collections::{BTreeMap, BTreeSet};

use super::bucket::GardenBucket;
use super::entry::GardenEntry;
use super::profile::{Profile, Seed};
use super::store::{ProviderRegion, SecretRef};

/// A BackupBucket or BackupEntry of a member cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtensionObject {
    pub name: String,
    /// Its type, and region.
    pub place: ProviderRegion,
    /// Of an entry. `None`: it is a bucket itself.
    pub bucket: Option<String>,
    pub secret: Option<SecretRef>,
    pub is_terminating: bool,
    /// Its deletion was confirmed.
    pub is_confirmed: bool,
}

/// All objects at one moment.
#[derive(Clone, Debug, Default)]
pub struct GardenView {
    /// Where the hub's credentials are.
    pub garden_namespace: String,
    /// Each by name.
    pub profiles: BTreeMap<String, Profile>,
    pub seeds: BTreeMap<String, Seed>,
    pub buckets: BTreeMap<String, GardenBucket>,
    /// By namespace and name.
    pub entries: BTreeMap<(String, String), GardenEntry>,
    pub extension_buckets: BTreeMap<String, ExtensionObject>,
    pub extension_entries: BTreeMap<String, ExtensionObject>,
}

impl GardenView {
    /// Entries with a place in this bucket, terminating ones included.
    pub fn entries_of(&self, bucket: &str) -> impl Iterator<Item = &GardenEntry> {
        self.entries.values().filter(move |entry| entry.bucket.as_deref() == Some(bucket))
    }

    /// Where a seed's backups go. `None`: nowhere, or it is not known.
    pub fn place_of(&self, seed: &Seed) -> Option<ProviderRegion> {
        self.profiles.get(&seed.profile)?.place(&seed.region)
    }

    /// A bucket that clusters share, as the hub or this cluster itself has it: where it is, and its
    /// directories.
    pub fn shared(&self, bucket: &str) -> Option<(&ProviderRegion, BTreeSet<&str>)> {
        let of_hub = self.buckets.get(bucket).map(|bucket| &bucket.store.place);
        let here = || self.extension_buckets.get(bucket).map(|bucket| &bucket.place);
        let place = of_hub.or_else(here)?;
        let entries = self.entries_of(bucket).map(|entry| entry.name.as_str());
        let extensions = self.extension_entries.values().filter(|one| one.bucket.as_deref() == Some(bucket));
        Some((place, entries.chain(extensions.map(|one| directory(&one.name))).collect()))
    }
}

/// Directory of an entry in its bucket: its name, without the mark of an entry that is being moved
/// away from.
pub fn directory(entry: &str) -> &str {
    entry.strip_prefix(SOURCE).unwrap_or(entry)
}

/// How names of entries begin that are being moved away from; Gardener makes such.
pub const SOURCE: &str = "source-";
