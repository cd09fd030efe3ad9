//! Acts on BackupBuckets and BackupEntries of Gardener's extensions API in its own cluster: makes buckets, and removes
//! buckets and directories with all that is in them. It needs no hub: a gardenlet's objects are as good. What was made for a
//! hub it removes only as long as that hub says so: its deletion may be an old one.
//!
//! State is in the objects. Whoever begins first writes a status with the resourceVersion that it decided on, so what is
//! out of date is found out before a store is called; what was left half done is done again, and nothing in it minds.

mod bucket;
mod emptying;
mod entry;
mod news;
mod outcome;
mod owner;
mod purge;
mod retries;
mod secret;
mod task;
mod view;

use std::sync::Arc;
use std::time::Duration;

use berth_api::extensions::{BackupBucket, BackupEntry};
use berth_core::garden::operation::{Next, Operation, next};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{Controller, watcher};
use kube::{Client, ResourceExt as _};
use tokio::sync::Mutex;
use tracing::{debug, warn};

use crate::client::{is_conflict, is_not_found};
use crate::events::Events;
use crate::garden::leave::Leave;
use crate::storage::Roots;
use crate::storage::bucket::Bucket;
use crate::text::chain;
use retries::Retries;
use secret::Holders;
use task::{Extension, Task};
use view::view;

pub use purge::Purge;

/// Objects of one kind that are worked on at the same time.
const AT_ONCE: u16 = 8;
/// When the API server did not do what was asked.
const SOON: Duration = Duration::from_secs(5);

/// For ever. Only one may run in a cluster; what it was doing when it is dropped, the next one ends.
pub struct Executor {
    pub call: Client,
    pub watch: Client,
    /// Namespace of the Secrets that are followed.
    pub namespace: String,
    /// What may be removed for a hub. `None`: nobody here asks one.
    pub leave: Option<Arc<Leave>>,
    /// About the objects that it acts on.
    pub events: Events,
    /// Where folders may be stores.
    pub roots: Roots,
}

impl Executor {
    pub async fn run(&self) {
        tokio::join!(self.run_kind::<BackupBucket>(), self.run_kind::<BackupEntry>());
    }

    async fn run_kind<K: Extension>(&self) {
        let watched: Api<DeserializeGuard<K>> = Api::all(self.watch.clone());
        let secrets: Api<Secret> = Api::namespaced(self.watch.clone(), &self.namespace);
        let controller = Controller::new(watched, watcher::Config::default());
        let retries = Arc::new(Retries::default());
        let context = Arc::new(Context::<K> {
            client: self.call.clone(),
            known: controller.store(),
            retries: Arc::clone(&retries),
            holders: Mutex::default(),
            leave: self.leave.clone(),
            events: self.events.clone(),
            roots: self.roots.clone(),
        });
        let known = controller.store();
        // Keys that were changed may be the right ones: who failed tries at once.
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
                    Ok((object, _)) => debug!(kind = %K::kind(&()), name = object.name, "looked at"),
                    // Logged where it happened, or gone meanwhile.
                    Err(controller::Error::ReconcilerFailed(..) | controller::Error::ObjectNotFound(_)) => {}
                    Err(error) => {
                        warn!(kind = %K::kind(&()), error = chain(&error), "the watch was interrupted")
                    }
                }
            })
            .await;
    }
}

struct Context<K: Extension> {
    client: Client,
    known: Store<DeserializeGuard<K>>,
    retries: Arc<Retries>,
    /// Whoever lets go of a Secret holds it: of two that go at once one must see that it is the last, and who comes meanwhile
    /// puts his finalizer on it after that.
    holders: Mutex<Holders>,
    leave: Option<Arc<Leave>>,
    events: Events,
    roots: Roots,
}

async fn reconcile<K: Extension>(
    object: Arc<DeserializeGuard<K>>,
    context: Arc<Context<K>>,
) -> Result<Action, kube::Error> {
    let object = match &object.0 {
        Ok(object) => object.clone(),
        Err(error) => {
            let name = error.metadata.name.clone().unwrap_or_default();
            warn!(kind = %K::kind(&()), %name, error = chain(error), "skipped: it cannot be read");
            return Ok(Action::await_change());
        }
    };
    if !Bucket::serves(object.provider()) {
        return Ok(Action::await_change());
    }
    let is_deleted = object.meta().deletion_timestamp.is_some();
    // There is nothing of ours to remove, or it is removed and somebody else is not done yet.
    if is_deleted && !object.finalizers().iter().any(|finalizer| finalizer == K::FINALIZER) {
        context.retries.forget(&object.uid().unwrap_or_default());
        return Ok(Action::await_change());
    }
    let now = Timestamp::now();
    let not_before = context.retries.not_before(&object.uid().unwrap_or_default());
    let operation = match next(&view(&object, not_before), now) {
        Next::Do(operation) => operation,
        Next::Unconfirmed => {
            return Task::new(&context, object, Operation::Delete).wait_for_confirmation().await;
        }
        Next::Rest(until) => return Ok(at(until, now)),
    };
    let task = Task::new(&context, object, operation);
    let again = match operation {
        Operation::Migrate => task.let_go().await?,
        Operation::Delete => task.delete().await?,
        Operation::Create | Operation::Reconcile | Operation::Restore => task.set_up().await?,
    };
    Ok(at(again, Timestamp::now()))
}

fn at(when: Option<Timestamp>, now: Timestamp) -> Action {
    when.map_or_else(Action::await_change, |when| {
        Action::requeue(Duration::try_from(when.duration_since(now)).unwrap_or(Duration::ZERO))
    })
}

fn after_error<K: Extension>(
    object: Arc<DeserializeGuard<K>>,
    error: &kube::Error,
    _: Arc<Context<K>>,
) -> Action {
    // The object is not as it was when it was decided on: what changed comes by the watch.
    if is_conflict(error) || is_not_found(error) {
        return Action::requeue(SOON);
    }
    warn!(kind = %K::kind(&()), name = object.name_any(), error = chain(error), "not done: the API server");
    Action::requeue(SOON)
}
