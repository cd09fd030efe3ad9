//! How an operation ends, and what is recorded of it, for both kinds.

use berth_garden_api::{Removed, StoreConfig};
use berth_garden_core::fault::StoreFault;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::storage::bucket::StoreError;

/// How an operation ended that did not fail.
pub enum OperationOutcome {
    Done {
        description: String,
    },
    /// It takes only time, or a permit: tried again then.
    Waits {
        description: String,
        again: Timestamp,
    },
}

/// Why it failed.
#[derive(Debug)]
pub enum OperationError {
    /// Reported in the object's status.
    Store(StoreError),
    /// A call to the API server failed, so the status cannot be written either.
    Api(kube::Error),
}

impl OperationError {
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::Store(StoreError::new(StoreFault::Configuration, message))
    }
}

impl From<StoreError> for OperationError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<kube::Error> for OperationError {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

/// berth's part of `status.providerStatus`, for both kinds. `objects` and `bytes` are those of
/// [`Removed`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderStatus {
    /// The bucket (of an entry, too) was once there. `false`: berth has tried to create it.
    pub made: Option<bool>,
    /// The bucket, or an entry's directory, belongs to another owner and is not touched.
    pub name_taken: Option<bool>,
    /// Directory of an entry, with its trailing slash.
    pub prefix: Option<String>,
    /// Counted when removing began.
    pub found: Option<Removed>,
    /// Removed so far.
    pub objects: Option<u64>,
    pub bytes: Option<u64>,
    /// The store keeps what is left, at least until then.
    pub retained_until: Option<Time>,
    /// Data was left in the store: the reason that a person gave.
    pub forgotten: Option<String>,
}

impl ProviderStatus {
    pub fn removed(&self) -> Removed {
        Removed { objects: self.objects.unwrap_or_default(), bytes: self.bytes.unwrap_or_default() }
    }

    pub fn set_removed(&mut self, removed: Removed) {
        (self.objects, self.bytes) = (Some(removed.objects), Some(removed.bytes));
    }
}

/// # Errors
/// [`StoreFault::Configuration`] when it is not a StoreConfig of berth.
pub fn store_config(config: Option<&Value>) -> Result<StoreConfig, StoreError> {
    let Some(config) = config else { return Ok(StoreConfig::default()) };
    serde_json::from_value(config.clone()).map_err(|error| {
        StoreError::new(
            StoreFault::Configuration,
            format!("spec.providerConfig: not a StoreConfig of garden.berth.dev/v1alpha1: {error}"),
        )
    })
}
