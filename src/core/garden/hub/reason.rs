//! What an entry waits for.

use std::fmt;

use crate::ProviderRegion;
use berth_core::violation::Violations;

/// An entry keeps the bucket that it names.
const ANOTHER: &str = "make another entry without spec.bucketName, and one is chosen";

/// Why an entry has no place yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementWaitReason {
    /// Its bucket is being created, which takes a moment and is not reported.
    Making,
    NoSeed {
        seed: String,
    },
    NoProfile {
        seed: String,
        profile: String,
    },
    Faulty {
        profile: String,
        faults: Violations,
    },
    NoBackups {
        profile: String,
    },
    /// Its seed's region is none of the profile's.
    Stranded {
        seed: String,
        region: String,
        profile: String,
    },
    /// Without credentials its bucket is not created.
    NoCredentials {
        fault: String,
    },
    /// Its bucket could not be created so far.
    Stuck {
        bucket: String,
        error: String,
    },
    /// The store gives no more buckets.
    Exhausted {
        bucket: String,
    },
    /// The store refused one name after another.
    Refused {
        bucket: String,
    },
    NoBucket {
        bucket: String,
    },
    BucketGoing {
        bucket: String,
    },
    /// The bucket that it names is not where its seed's backups go.
    OtherPlace {
        bucket: String,
        at: ProviderRegion,
        seed: String,
        place: ProviderRegion,
    },
    /// The bucket that it names is for other clusters.
    OtherProfile {
        bucket: String,
        owner: String,
        seed: String,
        profile: String,
    },
    Full {
        bucket: String,
        used: usize,
        limit: u32,
    },
    /// Two entries of the same name would share one directory.
    NameTaken {
        namespace: String,
    },
    /// Data that another namespace left there would be read and removed with its own.
    NameLeft {
        namespace: String,
        record: String,
    },
}

impl PlacementWaitReason {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Making => "Making",
            Self::NoSeed { .. } => "NoSeed",
            Self::NoProfile { .. } => "NoProfile",
            Self::Faulty { .. } => "ProfileFaulty",
            Self::NoBackups { .. } => "NoBackups",
            Self::Stranded { .. } => "NowhereToBackUp",
            Self::NoCredentials { .. } => "NoCredentials",
            Self::Stuck { .. } => "BucketNotMade",
            Self::Exhausted { .. } => "NoMoreBuckets",
            Self::Refused { .. } => "NamesRefused",
            Self::NoBucket { .. } => "NoBucket",
            Self::BucketGoing { .. } => "BucketGoing",
            Self::OtherPlace { .. } | Self::OtherProfile { .. } => "BucketOfOthers",
            Self::Full { .. } => "BucketFull",
            Self::NameTaken { .. } => "NameTaken",
            Self::NameLeft { .. } => "NameLeft",
        }
    }
}

impl fmt::Display for PlacementWaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Making => write!(f, "its bucket is being made"),
            Self::NoSeed { seed } => {
                write!(f, "no Seed {seed} is registered: create it, or name another one")
            }
            Self::NoProfile { seed, profile } => {
                write!(f, "there is no CloudProfile {profile}, which Seed {seed} names: create it")
            }
            Self::Faulty { profile, faults } => write!(f, "CloudProfile {profile}: {faults}"),
            Self::NoBackups { profile } => {
                write!(f, "CloudProfile {profile} has no backups: set its spec.backup")
            }
            Self::Stranded { seed, region, profile } => write!(
                f,
                "Seed {seed} is in {region}, which is none of the regions of CloudProfile {profile}: add it there, or set \
                 spec.backup.region"
            ),
            Self::NoCredentials { fault } => write!(f, "its bucket is not made yet: {fault}"),
            Self::Stuck { bucket, error } => write!(f, "BackupBucket {bucket} cannot be made yet: {error}"),
            Self::Exhausted { bucket } => write!(
                f,
                "the store of BackupBucket {bucket} gives no more buckets: raise its quota, or let more entries share one \
                 (--bucket-quota)"
            ),
            Self::Refused { bucket } => {
                write!(
                    f,
                    "the store refuses one bucket after another, last {bucket}: see its lastError, then delete it"
                )
            }
            Self::NoBucket { bucket } => write!(f, "there is no BackupBucket {bucket}"),
            Self::BucketGoing { bucket } => {
                write!(f, "BackupBucket {bucket} is being deleted: name another one")
            }
            Self::OtherPlace { bucket, at, seed, place } => write!(
                f,
                "BackupBucket {bucket} is at {at}, and backups of Seed {seed} go to {place}: {ANOTHER}"
            ),
            Self::OtherProfile { bucket, owner, seed, profile } => write!(
                f,
                "BackupBucket {bucket} is for clusters of CloudProfile {owner}, and Seed {seed} is of {profile}: {ANOTHER}"
            ),
            Self::Full { bucket, used, limit } => write!(
                f,
                "BackupBucket {bucket} is full ({used}/{limit}): name another one, or none, and one with room is found"
            ),
            Self::NameTaken { namespace } => write!(
                f,
                "an entry of this name is in namespace {namespace}, and names are directories: give it another one"
            ),
            Self::NameLeft { namespace, record } => write!(
                f,
                "data of an entry of this name, of namespace {namespace}, was left in its directory: give it another name; or, once \
                 nothing is there any more, delete the record of it, ConfigMap {record}"
            ),
        }
    }
}
