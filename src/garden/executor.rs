//! Acts on BackupBuckets and BackupEntries of Gardener's extensions API in its own cluster: creates
//! buckets, and removes buckets and directories with their content. It needs no hub, and serves a
//! gardenlet's objects as well. Data of an object that was made for a hub is removed only with a
//! permit of that hub, because the deletion in this cluster may be an old one.
//!
//! State is in the objects. Before it calls a store, the executor writes a status with the
//! resourceVersion that it decided on, so an outdated decision fails there. Every operation is
//! idempotent: one that was interrupted is done again.

mod bucket;
mod emptying;
mod entry;
mod event;
mod outcome;
mod owner;
mod purge;
mod retries;
mod secret;
mod task;
mod view;

use std::sync::Arc;
use std::time::Duration;

use berth_garden_api::extensions::{BackupBucket, BackupEntry};
use berth_garden_core::operation::{NextOperation, OperationType, next};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{Controller, watcher};
use kube::{Client, ResourceExt as _};
use tokio::sync::Mutex;
use tracing::{debug, warn};

use crate::client::{is_conflict, is_not_found};
use crate::events::Events;
use crate::garden::deletion_permits::DeletionPermits;
use crate::guarded::Guarded;
use crate::storage::Roots;
use crate::storage::bucket::Bucket;
use crate::text::chain;
use retries::OperationRetries;
use secret::Holders;
use task::{Actuator, OperationTask};
use view::view;

pub use purge::Purge;

/// Objects of one kind that are reconciled at the same time.
const AT_ONCE: u16 = 8;
/// Pause after a call to the API server failed.
const SOON: Duration = Duration::from_secs(5);

/// Only one may run in a cluster. The next one continues what this one was doing when it was
/// dropped.
pub struct ExtensionExecutor {
    pub call: Client,
    pub watch: Client,
    /// Namespace of the Secrets that are watched.
    pub namespace: String,
    /// Permits to remove data for a hub. `None`: no courier asks a hub.
    pub permits: Option<Arc<DeletionPermits>>,
    /// Events of the objects that it acts on.
    pub events: Events,
    /// Where folders may be stores.
    pub roots: Roots,
}

impl ExtensionExecutor {
    pub async fn run(&self) {
        tokio::join!(self.run_kind::<BackupBucket>(), self.run_kind::<BackupEntry>());
    }

    async fn run_kind<K: Actuator>(&self) {
        let watched: Api<Guarded<K>> = Api::all(self.watch.clone());
        let secrets: Api<Secret> = Api::namespaced(self.watch.clone(), &self.namespace);
        let controller = Controller::new(watched, watcher::Config::default());
        let retries = Arc::new(OperationRetries::default());
        let context = Arc::new(Context::<K> {
            client: self.call.clone(),
            known: controller.store(),
            retries: Arc::clone(&retries),
            holders: Mutex::default(),
            permits: self.permits.clone(),
            events: self.events.clone(),
            roots: self.roots.clone(),
        });
        let known = controller.store();
        // Changed keys may be the right ones, so objects that failed are tried again at once.
        let users = move |secret: Secret| {
            let (name, namespace) = (secret.name_any(), secret.namespace().unwrap_or_default());
            let is_user = |object: &K| {
                let named = object.secret_ref();
                named.name == name && named.namespace == namespace
            };
            let users = known.state().into_iter().filter_map(|object| {
                let object = object.0.as_ref().ok().filter(|object| is_user(object))?;
                retries.forget(&object.uid().unwrap_or_default());
                Some(ObjectRef::new(&object.name_any()))
            });
            users.collect::<Vec<_>>()
        };
        controller
            .watches(secrets, watcher::Config::default(), users)
            .with_config(controller::Config::default().concurrency(AT_ONCE))
            .run(reconcile, after_error, context)
            .for_each(|done| async {
                match done {
                    Ok((object, _)) => debug!(kind = %K::kind(&()), name = object.name, "reconciled"),
                    // Logged where it happened, or the object is gone.
                    Err(controller::Error::ReconcilerFailed(..) | controller::Error::ObjectNotFound(_)) => {}
                    Err(error) => {
                        warn!(kind = %K::kind(&()), error = chain(&error), "the watch was interrupted")
                    }
                }
            })
            .await;
    }
}

struct Context<K: Actuator> {
    client: Client,
    known: Store<Guarded<K>>,
    retries: Arc<OperationRetries>,
    /// Locked while a Secret is released: of two objects that release it at the same time one must
    /// see that it is the last, and an object that needs it again must put its finalizer on it
    /// after that.
    holders: Mutex<Holders>,
    permits: Option<Arc<DeletionPermits>>,
    events: Events,
    roots: Roots,
}

async fn reconcile<K: Actuator>(
    object: Arc<Guarded<K>>,
    context: Arc<Context<K>>,
) -> Result<Action, kube::Error> {
    let object = match &object.0 {
        Ok(object) => object.clone(),
        Err(error) => {
            let name = error.metadata.name.clone().unwrap_or_default();
            warn!(kind = %K::kind(&()), %name, error = chain(error), "skipped an object that cannot be read");
            return Ok(Action::await_change());
        }
    };
    if !Bucket::serves(object.provider()) {
        return Ok(Action::await_change());
    }
    let is_deleted = object.meta().deletion_timestamp.is_some();
    // berth has nothing to remove here, or has removed it, and another finalizer is left.
    if is_deleted && !object.finalizers().iter().any(|finalizer| finalizer == K::FINALIZER) {
        context.retries.forget(&object.uid().unwrap_or_default());
        return Ok(Action::await_change());
    }
    let now = Timestamp::now();
    let not_before = context.retries.not_before(&object.uid().unwrap_or_default());
    let operation = match next(&view(&object, not_before), now) {
        NextOperation::Do(operation) => operation,
        NextOperation::Unconfirmed => {
            return OperationTask::new(&context, object, OperationType::Delete).wait_for_confirmation().await;
        }
        NextOperation::Rest(until) => return Ok(at(until, now)),
    };
    let task = OperationTask::new(&context, object, operation);
    let again = match operation {
        OperationType::Migrate | OperationType::LiveMigrate => task.let_go().await?,
        OperationType::Delete => task.delete().await?,
        OperationType::Create | OperationType::Reconcile | OperationType::Restore => task.set_up().await?,
    };
    Ok(at(again, Timestamp::now()))
}

fn at(when: Option<Timestamp>, now: Timestamp) -> Action {
    when.map_or_else(Action::await_change, |when| {
        Action::requeue(Duration::try_from(when.duration_since(now)).unwrap_or(Duration::ZERO))
    })
}

fn after_error<K: Actuator>(object: Arc<Guarded<K>>, error: &kube::Error, _: Arc<Context<K>>) -> Action {
    // The object has changed since it was decided on; the watch brings the change.
    if is_conflict(error) || is_not_found(error) {
        return Action::requeue(SOON);
    }
    warn!(kind = %K::kind(&()), name = object.name_any(), error = chain(error), "reconcile failed: API server error");
    Action::requeue(SOON)
}
