//! Why a migration stops.

use berth_garden_core::migration::MigrationObstacle;

use super::claim::MigrationClaimError;
use super::record::RecordError;
use crate::storage::OpenError;

#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    #[error("failed to {0}")]
    Api(&'static str, #[source] Box<kube::Error>),
    #[error("there is no BackupStorageLocation {0} in namespace {1}{2}")]
    NoLocation(String, String, &'static str),
    #[error(
        "location {0} is kept for the hub (label {1}), which would lead it back: name one of this cluster's own; an entry moves \
         with its Seed"
    )]
    Carried(String, &'static str),
    #[error(
        "location {0} is read-only: its entry is being deleted, or has gone to another cluster, and nothing is moved into its \
         directory from here"
    )]
    Closed(String),
    #[error("location {0} is where the entry's is already")]
    Same(String),
    #[error("the entry's directory is being filled from location {0}: end that first")]
    Other(String),
    #[error(
        "the entry's directory was somewhere else when its migration began (bucket {0}): end that with the settings of then, or \
         remove the record in _berth/{1}/migration of the bucket, and it begins anew"
    )]
    Moved(String, String),
    #[error(
        "location {0} leads neither to where it was (bucket {1}) nor to the entry's directory: lead it back there, or remove the \
         record in _berth/{2}/migration of the shared bucket, and it begins anew from where it leads now"
    )]
    Astray(String, String, String),
    #[error(
        "location {0} is in the entry's bucket already, and one of the two directories in the other, perhaps by another address: \
         nothing is moved there"
    )]
    OneBucket(String),
    #[error("not all of the old place of location {0} can be emptied; what stays there:\n{1}")]
    NotRetired(String, String),
    #[error("BackupStorageLocation {0}")]
    Open(String, #[source] OpenError),
    #[error("the {0} cannot be listed")]
    List(&'static str, #[source] object_store::Error),
    #[error("{0} at the {1} cannot be removed")]
    Remove(String, &'static str, #[source] object_store::Error),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Claim(#[from] MigrationClaimError),
    #[error(
        "{count} objects could not be copied; nothing was overwritten and nothing is lost. Run it again. {first}"
    )]
    NotCopied { count: usize, first: String },
    #[error("{0}")]
    Emptied(MigrationObstacle),
    #[error("backups cannot go to the shared bucket yet:\n{0}")]
    Gate(String),
    #[error("{0} backups still run after {1} s: run it again when they have ended")]
    Running(usize, u64),
    #[error("location {0} is not Available at its new place after {1} s: {2}")]
    NotAvailable(String, u64, String),
}

pub fn api_error(what: &'static str) -> impl Fn(kube::Error) -> MigrationError {
    move |error| MigrationError::Api(what, Box::new(error))
}
