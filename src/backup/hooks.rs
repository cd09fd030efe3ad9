//! Pods that have hooks: held back where they are listed, for [`super::blocks`]; and one hook, run and told.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_api::hook::{MARK, Pod, pods};
use berth_core::hook::{Entry, Hook, Hooks, OnError, PodId, When};
use berth_core::limits;
use berth_core::selection::ResourceType;
use berth_core::violation::tellable;
use bytes::Bytes;
use memchr::memmem;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::archive::Item;
use super::collect::ResourceList;
use super::exec::{Exec, HookError};
use super::ledger::PageId;
use super::list::{Found, ListError, Lister};
use super::log::{About, BackupLog};
use super::related::{Related, is_name, key};
use super::run::Engine;
use crate::telemetry::chain;

/// Pods that are held at one time, and their bytes. More of them hold up the list of pods, and nothing else.
const HELD: usize = 1024;
const ROOM: usize = 16 * 1024 * 1024;
/// Pods that are looked at before their hooks at one time.
const LOOKS: usize = 16;
/// How long a hook after a pod is tried again that could not be started, and the pauses between.
const INSISTS: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How the resource list names pods.
const PODS: &str = "v1/Pod";

/// A pod on its way to its hooks.
pub struct Held {
    pub kind: Arc<ResourceType>,
    /// None of a list: see [`PageId::beside`].
    pub page: PageId,
    pub item: Item,
    pub id: PodId,
    pub hooks: Hooks,
    /// In which a hook runs that names none.
    pub container: Option<String>,
    /// Given back when it is stored or left out.
    pub room: OwnedSemaphorePermit,
    /// Dropped when it is in the archive and its hooks have ended, for whoever goes on in order.
    pub over: Option<oneshot::Sender<Infallible>>,
}

/// Takes pods out of what is listed.
pub struct Holder<'a> {
    entries: &'a [Entry],
    log: &'a BackupLog,
    tally: &'a Tally,
    held: mpsc::Sender<Held>,
    room: Arc<Semaphore>,
}

impl<'a> Holder<'a> {
    /// Besides, where those come out that have hooks. They end when the holder is dropped.
    pub fn new(entries: &'a [Entry], log: &'a BackupLog, tally: &'a Tally) -> (Self, mpsc::Receiver<Held>) {
        let (held, pods) = mpsc::channel(HELD);
        (Self { entries, log, tally, held, room: Arc::new(Semaphore::new(ROOM)) }, pods)
    }

    /// Has its hooks' verdict kept it out of the backup already, be it in an earlier run?
    pub fn has_left_out(&self, kind: &ResourceType, key: &str) -> bool {
        Related::Pod.is(kind) && self.tally.left_out.lock().contains(key)
    }

    /// Gives back what has no hooks. `page`: on which it came. `in_order`: one that has some is waited for until it is over.
    ///
    /// # Errors
    /// When nobody takes those any more that have.
    pub async fn hold(
        &self,
        kind: &Arc<ResourceType>,
        page: PageId,
        found: Found,
        in_order: bool,
    ) -> Result<Option<Found>, ListError> {
        let may_have_some = !self.entries.is_empty() || memmem::find(&found.json, MARK.as_bytes()).is_some();
        if !(Related::Pod.is(kind) && may_have_some) {
            return Ok(Some(found));
        }
        let read = serde_json::from_slice::<Pod>(&found.json).map_err(|error| error.to_string());
        let read = read.and_then(|pod| match pod.hooks(self.entries) {
            Ok(hooks) => Ok((pod, hooks)),
            Err(faults) => Err(faults.to_string()),
        });
        let (pod, hooks) = match read {
            Ok((_, hooks)) if hooks.is_empty() => return Ok(Some(found)),
            Ok(read) => read,
            Err(why) => {
                let about = found.namespace.as_deref().map_or(About::Cluster, About::Namespace);
                let message = format!(
                    "none of the hooks of pod {} is run, and it is stored as it is, because they cannot be read: {why}",
                    found.name
                );
                self.log.lasting_error(&about, "pods", &message);
                return Ok(Some(found));
            }
        };
        let size = u32::try_from(found.json.len().clamp(1, ROOM)).unwrap_or(u32::MAX);
        // Nobody closes it.
        let room = Arc::clone(&self.room).acquire_many_owned(size).await;
        let room = room.map_err(|_| ListError::NobodyTakes)?;
        let Found { json, namespace, name, lacks_type, .. } = found;
        // Of its own: what came with it in one page is to go.
        let json = Bytes::copy_from_slice(&json);
        let (over, is_over) = in_order.then(oneshot::channel).unzip();
        let held = Held {
            kind: Arc::clone(kind),
            page: page.beside(),
            item: Item { namespace, name, json, lacks_type },
            id: pod.id(),
            hooks,
            container: pod.first_container(),
            room,
            over,
        };
        self.held.send(held).await.map_err(|_| ListError::NobodyTakes)?;
        if let Some(is_over) = is_over {
            // Nobody sends anything.
            let _ = is_over.await;
        }
        Ok(None)
    }
}

/// What became of the hooks of one backup.
#[derive(Default)]
pub struct Tally {
    attempted: AtomicU64,
    failed: AtomicU64,
    /// Pods that are not stored because of one.
    left_out: Mutex<BTreeSet<String>>,
}

/// The same for a run that goes on: the hooks of pods that are stored, or left out, are not tried again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tried {
    attempted: u64,
    failed: u64,
    left_out: BTreeSet<String>,
}

impl Tried {
    /// Could a run have tried so many? They go into a status, and the API server refuses one with numbers that no field of it holds.
    pub fn is_possible(&self) -> bool {
        self.failed <= self.attempted && u32::try_from(self.attempted).is_ok()
    }
}

impl Tally {
    pub fn leave_out(&self, pod: &PodId) {
        self.left_out.lock().insert(key(Some(&pod.namespace), &pod.name));
    }

    /// As a checkpoint has it.
    pub fn tried(&self) -> Tried {
        Tried {
            attempted: self.attempted.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            left_out: self.left_out.lock().clone(),
        }
    }

    /// Counts what an earlier run has tried.
    pub fn add(&self, earlier: Tried) {
        self.attempted.fetch_add(earlier.attempted, Ordering::Relaxed);
        self.failed.fetch_add(earlier.failed, Ordering::Relaxed);
        self.left_out.lock().extend(earlier.left_out);
    }

    /// Takes those that are not stored out of the list of what is.
    pub fn correct(&self, list: &mut ResourceList) {
        let left_out = self.left_out.lock();
        if let Some(pods) = list.get_mut(PODS).filter(|_| !left_out.is_empty()) {
            pods.remove(&left_out);
            if pods.is_empty() {
                list.remove(PODS);
            }
        }
    }

    /// As it stands in the status, and nothing where no hook was tried. What is 0 is absent, as Velero leaves it out.
    pub fn status(&self) -> Option<Value> {
        let (attempted, failed) =
            (self.attempted.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed));
        match (attempted, failed) {
            (0, _) => None,
            (_, 0) => Some(json!({"hooksAttempted": attempted})),
            _ => Some(json!({"hooksAttempted": attempted, "hooksFailed": failed})),
        }
    }
}

/// Runs hooks, counts them, and tells of each.
pub struct Runner<'a> {
    pub exec: &'a dyn Exec,
    pub log: &'a BackupLog,
    pub tally: &'a Tally,
}

impl Runner<'_> {
    /// Runs all those after a pod, whatever becomes of each. `again`: so much later those that failed are run once more, because what
    /// they undo may have come after them. `false`: some could not be started, which may pass.
    pub async fn run_after(
        &self,
        hooks: &[Arc<Hook>],
        pod: &PodId,
        container: Option<&str>,
        again: Option<Duration>,
    ) -> bool {
        let mut failed = self.run_each(hooks.iter().map(AsRef::as_ref).collect(), pod, container).await;
        if let Some(pause) = again.filter(|_| !failed.is_empty()) {
            sleep(pause).await;
            let hooks = failed.into_iter().map(|(hook, _)| hook).collect();
            failed = self.run_each(hooks, pod, container).await;
        }
        !failed.iter().any(|(_, error)| error.passes())
    }

    /// Gives those that failed.
    async fn run_each<'h>(
        &self,
        hooks: Vec<&'h Hook>,
        pod: &PodId,
        container: Option<&str>,
    ) -> Vec<(&'h Hook, HookError)> {
        let mut failed = Vec::new();
        for hook in hooks {
            let run = self.insist(hook, pod, container);
            if let Err(error) = self.tell(When::Post, hook, pod, run).await {
                failed.push((hook, error));
            }
        }
        failed
    }

    /// What one after a pod does not undo stays as it is. So it is tried again where the API server or the kubelet has no time for it.
    async fn insist(&self, hook: &Hook, pod: &PodId, container: Option<&str>) -> Result<(), HookError> {
        let (begun, mut pause) = (Instant::now(), PAUSE);
        loop {
            match self.exec.exec(pod, container, hook).await {
                Err(error) if error.passes() && begun.elapsed() + pause <= INSISTS => {
                    let hook = tellable(&hook.name);
                    warn!(%pod, %hook, error = chain(&error), "a hook after a pod could not be run: trying again");
                }
                done => return done,
            }
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// Those after a pod go on for longer than anybody waits for.
    pub fn tell_unended(&self, pod: &PodId) {
        let message = format!(
            "the hooks after pod {} had not ended after {} minutes, and nobody waits for them any more: what they were to undo may be as it was",
            pod.name,
            limits::LAST_HOOKS.as_secs() / 60
        );
        self.log.lasting_error(&About::Namespace(&pod.namespace), "pods", &message);
    }

    /// Runs one in the way that `run` says.
    ///
    /// # Errors
    /// When it failed, which is told.
    pub async fn tell(
        &self,
        when: When,
        hook: &Hook,
        pod: &PodId,
        run: impl Future<Output = Result<(), HookError>>,
    ) -> Result<(), HookError> {
        self.tally.attempted.fetch_add(1, Ordering::Relaxed);
        let name = tellable(&hook.name);
        let Err(error) = run.await else {
            self.log.info(&format!("{when} hook {name} of pod {pod} went well"));
            return Ok(());
        };
        self.tally.failed.fetch_add(1, Ordering::Relaxed);
        let then = match (when, hook.on_error) {
            (When::Pre, OnError::Fail) => "; the pod is not stored",
            (When::Pre, OnError::Continue) => "; the pod is stored all the same",
            (When::Post, _) => "; what it was to undo may be as it was",
        };
        // What a command says may be anything, and the command itself may hold a password: that is not told.
        let why = hook.unquoted(&chain(&error));
        let message = format!("{when} hook {name} of pod {} failed: {why}{then}", pod.name);
        self.log.lasting_error(&About::Namespace(&pod.namespace), "pods", &message);
        warn!(%pod, %when, hook = %name, error = why, "a hook failed");
        Err(error)
    }
}

/// The pod as it is now, if it is that one still: exec knows names alone, and a pod may have been made anew.
///
/// # Errors
/// When it is not, or cannot be read.
pub async fn look(lister: &Lister, pod: &PodId) -> Result<Pod, HookError> {
    // Whatever stands on record becomes a part of an address.
    if !(is_name(&pod.namespace) && is_name(&pod.name)) {
        return Err(HookError::Gone);
    }
    let found = lister.get(&pods(), Some(&pod.namespace), &pod.name).await;
    let found = found.map_err(HookError::Unreadable)?.ok_or(HookError::Gone)?;
    let read = serde_json::from_slice::<Pod>(&found.json);
    let read = read.map_err(|error| HookError::Failed(error.to_string()))?;
    if read.id().uid == pod.uid { Ok(read) } else { Err(HookError::Gone) }
}

impl Engine {
    /// By which pods with hooks are looked at. Its requests are its own, because a list that waits for hooks may hold others.
    pub(super) fn looker(&self) -> Lister {
        let requests = Arc::new(Semaphore::new(LOOKS));
        Lister::new(self.client.clone(), self.page_size, self.list_retry, requests)
    }
}

#[cfg(test)]
mod tests {
    use berth_core::label::Selector;
    use berth_core::namespace::NamespaceSet;

    use super::*;

    fn kind(resource: &str) -> Arc<ResourceType> {
        Arc::new(ResourceType {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            resource: resource.to_owned(),
            singular: "pod".to_owned(),
            short_names: Vec::new(),
            namespaced: true,
        })
    }

    fn pod(name: &str, annotations: Value, phase: &str) -> Found {
        let pod = json!({
            "metadata": {"name": name, "namespace": "shop", "uid": "u", "annotations": annotations},
            "spec": {"containers": [{"name": "main"}]}, "status": {"phase": phase},
        });
        Found::parse(pod.to_string().into()).unwrap()
    }

    #[tokio::test]
    async fn pods_with_hooks_are_held_back_and_nothing_else_is() {
        let log = BackupLog::new(String::new());
        let tally = Tally::default();
        let (holder, mut held) = Holder::new(&[], &log, &tally);
        let command = json!({"pre.hook.backup.velero.io/command": "true"});
        let odd =
            json!({"pre.hook.backup.velero.io/command": "true", "pre.hook.backup.velero.io/timeout": "soon"});
        for (resource, found, is_held) in [
            ("pods", pod("db", command.clone(), "Running"), true),
            ("pods", pod("over", command.clone(), "Failed"), false),
            ("pods", pod("plain", json!({}), "Running"), false),
            ("pods", pod("odd", odd, "Running"), false),
            ("podtemplates", pod("no-pod", command, "Running"), false),
        ] {
            let name = found.name.clone();
            let given_back = holder.hold(&kind(resource), PageId::default(), found, false).await.unwrap();
            assert_eq!(given_back.is_none(), is_held, "{name}");
        }
        let db = held.try_recv().unwrap();
        assert_eq!((db.id.to_string().as_str(), db.container.as_deref()), ("shop/db", Some("main")));
        assert!(held.try_recv().is_err());
        assert_eq!(log.counts().errors, 1, "the odd one is told");
        drop(held);
        let hooked = pod("db", json!({"hook.backup.velero.io/command": "x"}), "");
        let nobody = holder.hold(&kind("pods"), PageId::default(), hooked, false).await;
        assert!(matches!(nobody, Err(ListError::NobodyTakes)));
    }

    #[tokio::test]
    async fn where_the_spec_has_hooks_every_pod_is_looked_at() {
        let log = BackupLog::new(String::new());
        let hook = Hook {
            name: "h".to_owned(),
            container: None,
            command: vec!["true".to_owned()],
            on_error: OnError::Continue,
            timeout: berth_core::hook::TIMEOUT,
        };
        let entries = [Entry {
            namespaces: NamespaceSet::new(Vec::new(), Vec::new()),
            takes_pods: true,
            selector: Selector::default(),
            pre: vec![Arc::new(hook)],
            post: Vec::new(),
        }];
        let tally = Tally::default();
        let (holder, mut held) = Holder::new(&entries, &log, &tally);
        let found = pod("db", Value::Null, "Running");
        assert!(holder.hold(&kind("pods"), PageId::default(), found, false).await.unwrap().is_none());
        assert_eq!(held.try_recv().unwrap().hooks.pre.len(), 1);
    }
}
