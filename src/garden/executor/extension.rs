//! What both kinds have in common.

use std::fmt::Debug;

use berth_api::extensions::{BackupBucket, BackupEntry, ExtensionStatus};
use berth_api::garden::operation::{OperationState, OperationType};
use berth_api::garden::{Removed, SecretReference, StoreConfig};
use berth_api::keys;
use berth_core::garden::fault::Fault;
use berth_core::garden::operation::{Last, Operation, Request, State, View};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::task::Task;
use crate::storage::bucket::StoreError;

/// How often a bucket is looked at that is as it should be (as Gardener does).
const RESYNC: SignedDuration = SignedDuration::from_hours(12);

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

/// A kind of Gardener's extensions API.
pub trait Extension:
    Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// On the object and on its Secret.
    const FINALIZER: &'static str;
    /// How often to look at what is well.
    const RESYNC: Option<SignedDuration>;
    /// Whether setting it up takes so long that its beginning is told.
    const IS_SLOW: bool;

    fn provider(&self) -> &str;
    fn secret_ref(&self) -> &SecretReference;
    fn status(&self) -> Option<&ExtensionStatus>;
    /// So that there is what it describes. Done any number of times.
    fn set_up(task: &mut Task<'_, Self>) -> impl Future<Output = Result<Outcome, Problem>> + Send;
    /// So that nothing of it is left in the store. Goes on where it was left.
    fn tear_down(task: &mut Task<'_, Self>) -> impl Future<Output = Result<Outcome, Problem>> + Send;

    /// What was recorded of it.
    fn record(&self) -> Record {
        let told = self.status().and_then(|status| status.provider_status.clone()).unwrap_or_default();
        serde_json::from_value(told).unwrap_or_default()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations().get(key).map(String::as_str)
    }
}

impl Extension for BackupBucket {
    const FINALIZER: &'static str = keys::EXTENSION_BUCKET_FINALIZER;
    const RESYNC: Option<SignedDuration> = Some(RESYNC);
    const IS_SLOW: bool = true;

    fn provider(&self) -> &str {
        &self.spec.kind
    }

    fn secret_ref(&self) -> &SecretReference {
        &self.spec.secret_ref
    }

    fn status(&self) -> Option<&ExtensionStatus> {
        self.status.as_ref().map(|status| &status.common)
    }

    async fn set_up(task: &mut Task<'_, Self>) -> Result<Outcome, Problem> {
        super::bucket::set_up(task).await
    }

    async fn tear_down(task: &mut Task<'_, Self>) -> Result<Outcome, Problem> {
        super::bucket::tear_down(task).await
    }
}

impl Extension for BackupEntry {
    const FINALIZER: &'static str = keys::EXTENSION_ENTRY_FINALIZER;
    const RESYNC: Option<SignedDuration> = None;
    const IS_SLOW: bool = false;

    fn provider(&self) -> &str {
        &self.spec.kind
    }

    fn secret_ref(&self) -> &SecretReference {
        &self.spec.secret_ref
    }

    fn status(&self) -> Option<&ExtensionStatus> {
        self.status.as_ref().map(|status| &status.common)
    }

    async fn set_up(task: &mut Task<'_, Self>) -> Result<Outcome, Problem> {
        super::entry::set_up(task).await
    }

    async fn tear_down(task: &mut Task<'_, Self>) -> Result<Outcome, Problem> {
        super::entry::tear_down(task).await
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

/// `not_before`: when it may be tried again, if it failed here.
pub fn view<K: Extension>(object: &K, not_before: Option<Timestamp>) -> View {
    let status = object.status();
    let last = status.and_then(|status| status.last_operation.as_ref());
    View {
        generation: object.meta().generation.unwrap_or_default(),
        observed_generation: status.and_then(|status| status.observed_generation),
        is_deleted: object.meta().deletion_timestamp.is_some(),
        is_confirmed: object.annotation(keys::CONFIRM_DELETION) == Some("true"),
        request: object.annotation(keys::OPERATION).and_then(Request::parse),
        requested_at: requested_at(object),
        last: last.map(|last| Last {
            operation: operation(last.kind),
            state: state(last.state),
            at: last.last_update_time.0,
        }),
        not_before,
        resync: K::RESYNC,
    }
}

pub fn requested_at<K: Extension>(object: &K) -> Option<Timestamp> {
    object.annotation(keys::OPERATION_TIMESTAMP)?.parse().ok()
}

pub fn operation_type(operation: Operation) -> OperationType {
    match operation {
        Operation::Create => OperationType::Create,
        Operation::Reconcile => OperationType::Reconcile,
        Operation::Restore => OperationType::Restore,
        Operation::Migrate => OperationType::Migrate,
        Operation::Delete => OperationType::Delete,
    }
}

fn operation(kind: OperationType) -> Operation {
    match kind {
        OperationType::Create => Operation::Create,
        OperationType::Reconcile => Operation::Reconcile,
        OperationType::Restore => Operation::Restore,
        OperationType::Migrate | OperationType::LiveMigrate => Operation::Migrate,
        OperationType::Delete => Operation::Delete,
    }
}

fn state(state: OperationState) -> State {
    match state {
        OperationState::Succeeded => State::Succeeded,
        OperationState::Processing | OperationState::Aborted => State::Unfinished,
        OperationState::Error => State::Error,
        OperationState::Failed => State::Failed,
        OperationState::Pending => State::Pending,
    }
}
