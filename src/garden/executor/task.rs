//! One operation on one object, of whichever kind: what is written of it, and in which order.

use std::fmt::Debug;

use berth_api::extensions::ExtensionStatus;
use berth_api::garden::operation::{OperationState, OperationType};
use berth_api::garden::{LastError, LastOperation, SecretReference, member_objects};
use berth_api::keys;
use berth_core::garden::fault::Fault;
use berth_core::garden::operation::{Operation, Request, done_at};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::news::{is_same, news};
use super::outcome::{Outcome, Problem, Record};
use super::{Context, secret};
use crate::events::What;
use crate::garden::leave::{during, may_go};
use crate::storage::Roots;
use crate::storage::bucket::StoreError;
use crate::write::{Write, patch, patch_status};

/// When it is looked again whether a hub has said its word.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(2);

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

pub struct Task<'a, K: Extension> {
    context: &'a Context<K>,
    api: Api<K>,
    /// As it was last read or written.
    pub object: K,
    pub record: Record,
    operation: Operation,
}

impl<'a, K: Extension> Task<'a, K> {
    pub(super) fn new(context: &'a Context<K>, object: K, operation: Operation) -> Self {
        let api = Api::all(context.client.clone());
        let record = object.record();
        Self { context, api, object, record, operation }
    }

    pub fn client(&self) -> Client {
        self.context.client.clone()
    }

    /// Where folders may be stores.
    pub fn roots(&self) -> &Roots {
        &self.context.roots
    }

    /// It comes from another cluster, with its data.
    pub fn is_restored(&self) -> bool {
        self.operation == Operation::Restore
    }

    /// By its status: some earlier versions recorded nothing else. What is only reconciled by now succeeded before.
    pub fn was_set_up(&self) -> bool {
        let last = self.object.status().and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| match last.kind {
            OperationType::Create | OperationType::Restore => last.state == OperationState::Succeeded,
            OperationType::Reconcile => true,
            OperationType::Delete | OperationType::Migrate | OperationType::LiveMigrate => false,
        })
    }

    /// Data stays where it is until somebody says that it may go.
    pub(super) async fn wait_for_confirmation(mut self) -> Result<Action, kube::Error> {
        let description = format!(
            "its data stays until its removal is confirmed: annotate {}=true",
            keys::CONFIRM_DELETION
        );
        self.wait(description).await?;
        Ok(Action::await_change())
    }

    /// Said once.
    async fn wait(&mut self, description: String) -> Result<(), kube::Error> {
        let last = self.object.status().and_then(|status| status.last_operation.as_ref());
        if last.is_none_or(|last| last.description != description) {
            self.tell(OperationState::Pending, 0, description, None).await?;
        }
        Ok(())
    }

    /// The hub that it was made for has not said lately that its data is to go.
    fn hub_is_silent(&self) -> String {
        let seed = self.object.labels().get(keys::CARRIED_FOR).map(String::as_str).unwrap_or_default();
        match self.context.leave {
            Some(_) => {
                format!(
                    "its data stays until the hub says again that Seed {seed} is to remove it; it is asked all the time"
                )
            }
            None => format!(
                "its data stays: it was made for a hub, as Seed {seed}, and nobody here asks that hub. Start berth garden agent \
                 with --hub-kubeconfig and --seed; or, if there is no such hub any more, take the label {} off",
                keys::CARRIED_FOR
            ),
        }
    }

    /// Another cluster takes over: nothing is touched but what we put on objects.
    pub(super) async fn let_go(mut self) -> Result<Option<Timestamp>, kube::Error> {
        self.tell(OperationState::Succeeded, 100, "let go; its data was not touched".to_owned(), None)
            .await?;
        self.release(&[keys::OPERATION]).await?;
        Ok(None)
    }

    pub(super) async fn set_up(mut self) -> Result<Option<Timestamp>, kube::Error> {
        // What is to be restored counts as asked for until it is done.
        let requested = self.object.annotation(keys::OPERATION).and_then(Request::parse).is_some();
        let is_taken_up = requested && self.operation != Operation::Restore;
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
        if is_done && requested && self.operation == Operation::Restore {
            self.annotate_away(&[keys::OPERATION]).await?;
        }
        Ok(again)
    }

    pub(super) async fn delete(mut self) -> Result<Option<Timestamp>, kube::Error> {
        if self.is_done() {
            // Its data is gone already, and perhaps its keys too.
            self.release(&[]).await?;
            return Ok(None);
        }
        let (leave, metadata) = (self.context.leave.as_deref(), self.object.meta().clone());
        let may_go = || may_go(leave, &metadata);
        let again = || Timestamp::now().saturating_add(ASK_AGAIN).unwrap_or(Timestamp::MAX);
        let silent = self.hub_is_silent();
        if !may_go() {
            self.wait(silent).await?;
            return Ok(Some(again()));
        }
        if self.was_set_up() {
            self.record.made = Some(true);
        }
        let last = self.object.status().and_then(|status| status.last_operation.as_ref());
        let progress = last.filter(|last| last.kind == operation_type(Operation::Delete));
        let progress = progress.map_or(0, |last| last.progress);
        self.tell(OperationState::Processing, progress, "being removed".to_owned(), None).await?;
        let outcome = during(may_go, K::tear_down(&mut self)).await;
        let outcome = outcome.unwrap_or_else(|| Ok(Outcome::Waits { description: silent, again: again() }));
        let again = self.end(outcome).await?;
        if self.is_done() {
            self.release(&[]).await?;
        }
        Ok(again)
    }

    fn is_done(&self) -> bool {
        let last = self.object.status().and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| {
            last.kind == operation_type(self.operation) && last.state == OperationState::Succeeded
        })
    }

    /// Tells what became of it. Gives when it is to be tried again.
    async fn end(&mut self, outcome: Result<Outcome, Problem>) -> Result<Option<Timestamp>, kube::Error> {
        let (uid, now) = (self.object.uid().unwrap_or_default(), Timestamp::now());
        let (kind, name) = (K::kind(&()), self.object.name_any());
        match outcome {
            Ok(Outcome::Done { description }) => {
                info!(%kind, %name, operation = ?self.operation, description, "done");
                self.context.retries.forget(&uid);
                self.tell(OperationState::Succeeded, 100, description.clone(), None).await?;
                if let Some(what) = news(self.operation, &self.record) {
                    self.context.events.tell_about(what, self.object.object_ref(&()), description);
                }
                Ok(None)
            }
            Ok(Outcome::Waits { description, again }) => {
                info!(%kind, %name, operation = ?self.operation, description, "waits");
                self.context.retries.waits(&uid, again);
                self.tell(OperationState::Pending, 50, description, None).await?;
                Ok(Some(again))
            }
            Err(Problem::Store(error)) => {
                warn!(%kind, %name, operation = ?self.operation, %error, "failed");
                let is_final = error.fault.is_final();
                if error.fault == Fault::NameTaken {
                    self.record.name_taken = Some(true);
                }
                let again = (!is_final).then(|| self.context.retries.failed(&uid, now));
                let state = if is_final { OperationState::Failed } else { OperationState::Error };
                let before = self.object.status().and_then(|status| status.last_error.as_ref());
                let is_known = before.is_some_and(|before| is_same(before, &error));
                self.tell(state, 50, error.message.clone(), Some(&error)).await?;
                if !is_known {
                    let note = format!("{}: {}", error.fault.code(), error.message);
                    self.context.events.tell_about(What::Failed, self.object.object_ref(&()), note);
                }
                Ok(again)
            }
            Err(Problem::Api(error)) => Err(error),
        }
    }

    /// What is being done, in the midst of it.
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
        let last_operation = LastOperation {
            description,
            last_update_time: Time(at),
            progress,
            state,
            kind: operation_type(self.operation),
        };
        let last_error = error.map(|error| LastError {
            description: error.message.clone(),
            codes: vec![error.fault.code().to_owned()],
            last_update_time: Some(Time(now)),
            ..LastError::default()
        });
        // What is being tried again has not got rid of its error yet.
        let last_error = match (state, last_error) {
            (OperationState::Processing, None) => {
                self.object.status().and_then(|status| status.last_error.clone())
            }
            (_, error) => error,
        };
        let change = json!({"status": {
            "observedGeneration": self.object.meta().generation,
            "lastOperation": last_operation,
            "lastError": last_error,
            // With its nulls: they take away what no longer holds.
            "providerStatus": self.record,
        }});
        let as_seen = Write::on(&self.object).uid(None);
        self.object = patch_status(&self.api, as_seen, change).await.written()?;
        Ok(())
    }

    /// Puts our finalizer on it, and takes annotations away, in one write where one is needed.
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

    /// That there is no such bucket says that it is gone where it was once seen. A seed that was chosen for it without having
    /// seen it may ask another store than the one it is in.
    pub fn believe_it_gone(&self, bucket: &str, was_seen: bool) -> Result<(), StoreError> {
        if was_seen || self.record.made == Some(true) || !member_objects::is_ours(self.object.meta()) {
            return Ok(());
        }
        let seed = self.object.labels().get(keys::CARRIED_FOR).map(String::as_str).unwrap_or_default();
        Err(StoreError::new(
            Fault::NoSuchBucket,
            format!(
                "the store that Seed {seed} reaches knows no bucket {bucket}, and it was never seen from here: set spec.reaches of \
                 that Seed to the stores that it really reaches; or, if the bucket is gone, annotate the hub's object with \
                 {}=<why>",
                keys::FORGET_DATA
            ),
        ))
    }

    /// Its keys are needed as long as it is there.
    async fn keep_secret(&self) -> Result<(), Problem> {
        let reference = self.object.secret_ref();
        self.context.holders.lock().await.hold(&self.object.uid().unwrap_or_default());
        let secret = secret::get(&self.context.client, reference).await?;
        secret::hold(&self.context.client, &secret, K::FINALIZER).await
    }

    /// Takes our finalizers away, from its Secret too, if nobody else of its kind needs that.
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
