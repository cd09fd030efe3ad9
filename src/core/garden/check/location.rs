//! BackupStorageLocations that lead into a bucket which clusters share: one cluster's backups must
//! not meet another's.

use super::AdmissionFindings;
use crate::store::SERVED;
use crate::view::{GardenView, SOURCE, directory};
use berth_core::violation::Field;

/// A BackupStorageLocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReviewedLocation {
    pub name: String,
    pub provider: String,
    pub bucket: String,
    /// As it is written.
    pub prefix: String,
    pub region: Option<String>,
    pub is_read_only: bool,
    /// The entry that it was made for.
    pub entry: Option<String>,
}

impl ReviewedLocation {
    /// The directory of the bucket that it leads into. Empty: all of the bucket.
    pub fn directory(&self) -> &str {
        self.prefix.trim_matches('/').split('/').next().unwrap_or_default()
    }
}

pub fn check(new: &ReviewedLocation, view: &GardenView) -> AdmissionFindings {
    let mut found = AdmissionFindings::default();
    let Some((place, directories)) = view.shared(&new.bucket) else { return found };
    let spec = Field::root("spec");
    let storage = spec.child("objectStorage");
    // Velero takes both spellings of a provider of its own.
    let provider = new.provider.strip_prefix("velero.io/").unwrap_or(&new.provider);
    if provider != place.provider && SERVED.contains(&place.provider.as_str()) {
        let message = format!("bucket \"{}\" is at provider \"{}\": name that", new.bucket, place.provider);
        found.blame(spec.child("provider"), message);
    }
    if let Some(region) = new.region.as_ref().filter(|region| **region != place.region) {
        let message = format!(
            "bucket \"{}\" is in region \"{}\", not in \"{region}\": name that, or leave it out",
            new.bucket, place.region
        );
        found.blame(spec.child("config").key("region"), message);
    }
    let prefix = new.prefix.trim_matches('/');
    let first = new.directory();
    let field = storage.child("prefix");
    if prefix.is_empty() {
        let message = format!(
            "required: clusters share bucket \"{}\", and without a prefix all of it would be one cluster's: take ENTRY/velero",
            new.bucket
        );
        found.blame(field, message);
    } else if prefix.split('/').any(|part| matches!(part, "" | "." | "..")) {
        found.blame(field, "must be a path without empty parts, \".\" and \"..\"");
    } else if directories.contains(first) {
        let mine = new.entry.as_deref().unwrap_or(&new.name);
        let is_own = mine == first || directory(mine) == first;
        if !is_own && !new.is_read_only {
            let message = format!(
                "\"{first}\" is the directory of BackupEntry \"{first}\": only its own location may write there: set spec.accessMode to ReadOnly, or name another prefix"
            );
            found.blame(field, message);
        }
    } else {
        let own = new.name.strip_prefix(SOURCE).unwrap_or(&new.name);
        found.warn(format!("no BackupEntry has directory \"{first}\" of shared bucket \"{}\": {own} may write over what comes there", new.bucket));
    }
    found
}
