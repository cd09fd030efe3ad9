//! One operation on one object of either kind: what is written to the object, and in which order.

use std::fmt::Debug;

use berth_api::keys;
use berth_garden_api::extensions::{Extension, ExtensionStatus};
use berth_garden_api::operation::{OperationState, OperationType};
use berth_garden_api::{LastError, LastOperation, member_objects};
use berth_garden_core::fault::StoreFault;
use berth_garden_core::operation::{OperationAnnotation, done_at};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::event::{event_reason, is_same};
use super::outcome::{OperationError, OperationOutcome, ProviderStatus, store_config};
use super::{Context, secret};
use crate::events::EventReason;
use crate::garden::deletion_permits::{may_remove, while_permitted};
use crate::storage::bucket::{Bucket, StoreError};
use crate::write::{Write, patch, patch_status};

/// How long to wait before checking the permit again.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(2);

/// What the executor does with a kind of Gardener's extensions API.
pub trait Actuator:
    Extension
    + Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// How often an object is reconciled that is as it should be.
    const RESYNC: Option<SignedDuration>;
    /// Creating it takes so long that the status says when that begins.
    const IS_SLOW: bool;

    /// Creates what the object describes. Idempotent.
    fn set_up(
        task: &mut OperationTask<'_, Self>,
    ) -> impl Future<Output = Result<OperationOutcome, OperationError>> + Send;
    /// Removes all of it from the store. Continues where an earlier attempt stopped.
    fn tear_down(
        task: &mut OperationTask<'_, Self>,
    ) -> impl Future<Output = Result<OperationOutcome, OperationError>> + Send;

    /// What the executor has recorded in the object's status.
    fn record(&self) -> ProviderStatus {
        let told = self.common().and_then(|status| status.provider_status.clone()).unwrap_or_default();
        serde_json::from_value(told).unwrap_or_default()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations().get(key).map(String::as_str)
    }
}

pub struct OperationTask<'a, K: Actuator> {
    context: &'a Context<K>,
    api: Api<K>,
    /// As last read or written.
    pub object: K,
    pub record: ProviderStatus,
    operation: OperationType,
}

impl<'a, K: Actuator> OperationTask<'a, K> {
    pub(super) fn new(context: &'a Context<K>, object: K, operation: OperationType) -> Self {
        let api = Api::all(context.client.clone());
        let record = object.record();
        Self { context, api, object, record, operation }
    }

    pub fn client(&self) -> Client {
        self.context.client.clone()
    }

    /// Opens the store's bucket `name`. `config`: where the object has no settings of its own.
    pub async fn open(&self, name: &str, config: Option<&Value>) -> Result<Bucket, OperationError> {
        let object = &self.object;
        let secret = secret::get(&self.context.client, object.secret_ref()).await?;
        let config = store_config(object.provider_config().or(config))?;
        Ok(Bucket::open(object.provider(), name, object.region(), &config, &secret, &self.context.roots)?)
    }

    /// Why a person wants the data to stay in the store.
    pub fn forget_reason(&self) -> Option<String> {
        self.object.annotation(keys::FORGET_DATA).filter(|why| *why != "false").map(str::to_owned)
    }

    /// It comes from another cluster, with its data.
    pub fn is_restored(&self) -> bool {
        self.operation == OperationType::Restore
    }

    /// Read from the status, because some earlier versions recorded nothing else. An object that is
    /// being reconciled was set up before.
    pub fn was_set_up(&self) -> bool {
        let last = self.object.common().and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| match last.kind {
            OperationType::Create | OperationType::Restore => last.state == OperationState::Succeeded,
            OperationType::Reconcile => true,
            OperationType::Delete | OperationType::Migrate | OperationType::LiveMigrate => false,
        })
    }

    /// Data stays until its removal is confirmed.
    pub(super) async fn wait_for_confirmation(mut self) -> Result<Action, kube::Error> {
        let description = format!(
            "its data stays until its removal is confirmed: annotate {}=true",
            keys::CONFIRM_DELETION
        );
        self.wait(description).await?;
        Ok(Action::await_change())
    }

    /// Writes a description that says why it waits, once.
    async fn wait(&mut self, description: String) -> Result<(), kube::Error> {
        let last = self.object.common().and_then(|status| status.last_operation.as_ref());
        if last.is_none_or(|last| last.description != description) {
            self.tell(OperationState::Pending, 0, description, None).await?;
        }
        Ok(())
    }

    /// Why there is no permit to remove the data.
    fn hub_is_silent(&self) -> String {
        let seed = self.object.labels().get(keys::CARRIED_FOR).map(String::as_str).unwrap_or_default();
        match self.context.permits {
            Some(_) => {
                format!(
                    "waiting for the hub to confirm that Seed {seed} should delete this data (asked every few seconds)"
                )
            }
            None => format!(
                "its data stays: it was made for a hub, as Seed {seed}, and no agent here asks that hub. Start berth garden \
                 agent with --hub-kubeconfig and --seed; or, if that hub no longer exists, remove the label {}",
                keys::CARRIED_FOR
            ),
        }
    }

    /// Gives the object up to another cluster: removes only the executor's finalizers and
    /// annotations.
    pub(super) async fn let_go(mut self) -> Result<Option<Timestamp>, kube::Error> {
        self.tell(OperationState::Succeeded, 100, "let go; its data was not touched".to_owned(), None)
            .await?;
        self.release(&[keys::OPERATION]).await?;
        Ok(None)
    }

    pub(super) async fn set_up(mut self) -> Result<Option<Timestamp>, kube::Error> {
        // The annotation that asks for a restore stays until the restore is done.
        let requested =
            self.object.annotation(keys::OPERATION).and_then(OperationAnnotation::parse).is_some();
        let is_taken_up = requested && self.operation != OperationType::Restore;
        self.take_up(if is_taken_up { &[keys::OPERATION] } else { &[] }).await?;
        if K::IS_SLOW {
            self.tell(OperationState::Processing, 0, "under way".to_owned(), None).await?;
        }
        let outcome = match self.keep_secret().await {
            Ok(()) => K::set_up(&mut self).await,
            Err(problem) => Err(problem),
        };
        let again = self.end(outcome).await?;
        let is_done = self.is_done();
        if is_done && requested && self.operation == OperationType::Restore {
            self.annotate_away(&[keys::OPERATION]).await?;
        }
        Ok(again)
    }

    pub(super) async fn delete(mut self) -> Result<Option<Timestamp>, kube::Error> {
        if self.is_done() {
            // Its data is gone already, and perhaps its keys, too.
            self.release(&[]).await?;
            return Ok(None);
        }
        let (permits, metadata) = (self.context.permits.as_deref(), self.object.meta().clone());
        let is_permitted = || may_remove(permits, &metadata);
        let again = || Timestamp::now().saturating_add(ASK_AGAIN).unwrap_or(Timestamp::MAX);
        let silent = self.hub_is_silent();
        if !is_permitted() {
            self.wait(silent).await?;
            return Ok(Some(again()));
        }
        if self.was_set_up() {
            self.record.made = Some(true);
        }
        let last = self.object.common().and_then(|status| status.last_operation.as_ref());
        let progress = last.filter(|last| last.kind == OperationType::Delete);
        let progress = progress.map_or(0, |last| last.progress);
        self.tell(OperationState::Processing, progress, "being removed".to_owned(), None).await?;
        let outcome = while_permitted(is_permitted, K::tear_down(&mut self)).await;
        let outcome =
            outcome.unwrap_or_else(|| Ok(OperationOutcome::Waits { description: silent, again: again() }));
        let again = self.end(outcome).await?;
        if self.is_done() {
            self.release(&[]).await?;
        }
        Ok(again)
    }

    fn is_done(&self) -> bool {
        let last = self.object.common().and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| last.kind == self.operation && last.state == OperationState::Succeeded)
    }

    /// Reports how it ended. Returns when it is tried again.
    async fn end(
        &mut self,
        outcome: Result<OperationOutcome, OperationError>,
    ) -> Result<Option<Timestamp>, kube::Error> {
        let (uid, now) = (self.object.uid().unwrap_or_default(), Timestamp::now());
        let (kind, name) = (K::kind(&()), self.object.name_any());
        match outcome {
            Ok(OperationOutcome::Done { description }) => {
                info!(%kind, %name, operation = self.operation.as_str(), description, "done");
                self.context.retries.forget(&uid);
                self.tell(OperationState::Succeeded, 100, description.clone(), None).await?;
                if let Some(what) = event_reason(self.operation, &self.record) {
                    self.context.events.tell_about(what, self.object.object_ref(&()), description);
                }
                Ok(None)
            }
            Ok(OperationOutcome::Waits { description, again }) => {
                info!(%kind, %name, operation = self.operation.as_str(), description, "waits");
                self.context.retries.waits(&uid, again);
                self.tell(OperationState::Pending, 50, description, None).await?;
                Ok(Some(again))
            }
            Err(OperationError::Store(error)) => {
                warn!(%kind, %name, operation = self.operation.as_str(), %error, "failed");
                let is_final = error.fault.is_final();
                if error.fault == StoreFault::NameTaken {
                    self.record.name_taken = Some(true);
                }
                let again = (!is_final).then(|| self.context.retries.failed(&uid, now));
                let state = if is_final { OperationState::Failed } else { OperationState::Error };
                let before = self.object.common().and_then(|status| status.last_error.as_ref());
                let is_known = before.is_some_and(|before| is_same(before, &error));
                self.tell(state, 50, error.message.clone(), Some(&error)).await?;
                if !is_known {
                    let note = format!("{}: {}", error.fault.code(), error.message);
                    self.context.events.tell_about(EventReason::Failed, self.object.object_ref(&()), note);
                }
                Ok(again)
            }
            Err(OperationError::Api(error)) => Err(error),
        }
    }

    /// Reports progress.
    pub async fn report(&mut self, progress: i32, description: String) -> Result<(), kube::Error> {
        self.tell(OperationState::Processing, progress, description, None).await
    }

    async fn tell(
        &mut self,
        state: OperationState,
        progress: i32,
        description: String,
        error: Option<&StoreError>,
    ) -> Result<(), kube::Error> {
        let now = Timestamp::now();
        let at = match state {
            OperationState::Succeeded => done_at(requested_at(&self.object), now),
            _ => now,
        };
        let last_operation =
            LastOperation { description, last_update_time: Time(at), progress, state, kind: self.operation };
        let last_error = error.map(|error| LastError {
            description: error.message.clone(),
            codes: vec![error.fault.code().to_owned()],
            last_update_time: Some(Time(now)),
            ..LastError::default()
        });
        // While it is tried again, the error still stands.
        let last_error = match (state, last_error) {
            (OperationState::Processing, None) => {
                self.object.common().and_then(|status| status.last_error.clone())
            }
            (_, error) => error,
        };
        let generation = self.object.meta().generation;
        let status =
            ExtensionStatus::reported(generation, &last_operation, last_error.as_ref(), &self.record);
        let as_seen = Write::on(&self.object).uid(None);
        self.object = patch_status(&self.api, as_seen, json!({"status": status})).await.written()?;
        Ok(())
    }

    /// Adds the executor's finalizer and removes annotations, in one write, if one is needed.
    async fn take_up(&mut self, annotations: &[&str]) -> Result<(), kube::Error> {
        let mut finalizers = self.object.finalizers().to_vec();
        let is_ours = finalizers.iter().any(|finalizer| finalizer == K::FINALIZER);
        if is_ours && annotations.is_empty() {
            return Ok(());
        }
        if !is_ours {
            finalizers.push(K::FINALIZER.to_owned());
        }
        self.patch_metadata(annotations, finalizers).await
    }

    async fn annotate_away(&mut self, annotations: &[&str]) -> Result<(), kube::Error> {
        let finalizers = self.object.finalizers().to_vec();
        self.patch_metadata(annotations, finalizers).await
    }

    async fn patch_metadata(&mut self, without: &[&str], finalizers: Vec<String>) -> Result<(), kube::Error> {
        let annotations: serde_json::Map<String, Value> =
            without.iter().map(|key| ((*key).to_owned(), Value::Null)).collect();
        let change = json!({"metadata": {"finalizers": finalizers, "annotations": annotations}});
        let as_seen = Write::on(&self.object).uid(None);
        self.object = patch(&self.api, as_seen, change).await.written()?;
        Ok(())
    }

    /// A missing bucket counts as gone if this cluster has seen it before. A seed that was chosen
    /// later may be asking another store than the one that has the bucket.
    pub fn believe_it_gone(&self, bucket: &str, was_seen: bool) -> Result<(), StoreError> {
        if was_seen || self.record.made == Some(true) || !member_objects::is_ours(self.object.meta()) {
            return Ok(());
        }
        let seed = self.object.labels().get(keys::CARRIED_FOR).map(String::as_str).unwrap_or_default();
        Err(StoreError::new(
            StoreFault::NoSuchBucket,
            format!(
                "the store that Seed {seed} reaches has no bucket {bucket}, and this cluster has never seen it: set spec.reaches of \
                 that Seed to the stores that it really reaches; or, if the bucket is gone, annotate the hub's object with \
                 {}=<why>",
                keys::FORGET_DATA
            ),
        ))
    }

    /// Puts the executor's finalizer on the Secret, because its keys are needed as long as the
    /// object is there.
    async fn keep_secret(&self) -> Result<(), OperationError> {
        let reference = self.object.secret_ref();
        self.context.holders.lock().await.hold(&self.object.uid().unwrap_or_default());
        let secret = secret::get(&self.context.client, reference).await?;
        secret::hold(&self.context.client, &secret, K::FINALIZER).await
    }

    /// Removes the executor's finalizer, from its Secret, too, if no other object of its kind needs
    /// that.
    async fn release(&mut self, annotations: &[&str]) -> Result<(), kube::Error> {
        let context = self.context;
        let reference = self.object.secret_ref().clone();
        let uid = self.object.uid().unwrap_or_default();
        let mut holders = context.holders.lock().await;
        let known = context.known.state();
        let known: Vec<&K> = known.iter().filter_map(|other| other.0.as_ref().ok()).collect();
        holders.release(&uid, &known.iter().filter_map(|other| other.uid()).collect());
        let is_needed = known.iter().any(|other| {
            let is_shown = other.finalizers().iter().any(|finalizer| finalizer == K::FINALIZER);
            *other.secret_ref() == reference && other.uid().is_some_and(|uid| holders.needs(&uid, is_shown))
        });
        if !is_needed {
            secret::let_go(&context.client, &reference, K::FINALIZER).await?;
        }
        drop(holders);
        let finalizers = self.object.finalizers().iter().filter(|finalizer| *finalizer != K::FINALIZER);
        let finalizers = finalizers.cloned().collect();
        self.patch_metadata(annotations, finalizers).await?;
        self.context.retries.forget(&uid);
        Ok(())
    }
}

pub fn requested_at<K: Actuator>(object: &K) -> Option<Timestamp> {
    object.annotation(keys::OPERATION_TIMESTAMP)?.parse().ok()
}
