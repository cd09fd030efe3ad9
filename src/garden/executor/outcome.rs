//! What an operation ends with, and what is recorded of it, for both kinds.

use berth_api::garden::{Removed, StoreConfig};
use berth_core::garden::fault::Fault;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::storage::bucket::StoreError;

/// What became of an operation that could be done.
pub enum Outcome {
    Done {
        description: String,
    },
    /// Only time is needed, or leave: tried again then.
    Waits {
        description: String,
        again: Timestamp,
    },
}

/// Why it could not.
#[derive(Debug)]
pub enum Problem {
    /// Told in the object's status.
    Store(StoreError),
    /// The object cannot be told anything.
    Api(kube::Error),
}

impl Problem {
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::Store(StoreError::new(Fault::Configuration, message))
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<kube::Error> for Problem {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

/// `status.providerStatus` of either kind, as far as it is ours. `objects` and `bytes` are [`Removed`]'s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// The bucket was there, an entry's, too. `false`: it was tried to make it.
    pub made: Option<bool>,
    /// It was somebody else's, and is to be left alone: a bucket, or an entry's directory.
    pub name_taken: Option<bool>,
    /// Directory of an entry, with its slash.
    pub prefix: Option<String>,
    /// Found when removing began.
    pub found: Option<Removed>,
    /// Removed so far.
    pub objects: Option<u64>,
    pub bytes: Option<u64>,
    /// The store keeps what is left, at least until then.
    pub retained_until: Option<Time>,
    /// Data was left in the store, because somebody said so: why.
    pub forgotten: Option<String>,
}

impl Record {
    pub fn removed(&self) -> Removed {
        Removed { objects: self.objects.unwrap_or_default(), bytes: self.bytes.unwrap_or_default() }
    }

    pub fn set_removed(&mut self, removed: Removed) {
        (self.objects, self.bytes) = (Some(removed.objects), Some(removed.bytes));
    }
}

/// # Errors
/// [`Fault::Configuration`] when it is no StoreConfig of ours.
pub fn store_config(config: Option<&Value>) -> Result<StoreConfig, StoreError> {
    let Some(config) = config else { return Ok(StoreConfig::default()) };
    serde_json::from_value(config.clone()).map_err(|error| {
        StoreError::new(
            Fault::Configuration,
            format!("spec.providerConfig: it is no StoreConfig of garden.berth.dev/v1alpha1: {error}"),
        )
    })
}
