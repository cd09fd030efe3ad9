//! One hook, run and told; and what became of all of a backup.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_api::hook::{Pod, pods};
use berth_core::hook::{Hook, OnError, PodId, When};
use berth_core::limits;
use berth_core::violation::tellable;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::exec::{Exec, HookError};
use super::list::Lister;
use super::log::{About, BackupLog};
use super::names::ResourceList;
use super::related::{is_name, key};
use crate::text::chain;

/// How long a hook after a pod is tried again that could not be started, and the pauses between.
const INSISTS: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How the resource list names pods.
const PODS: &str = "v1/Pod";

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
    /// Has its hooks' verdict kept the pod of this key out of the backup already, be it in an earlier run?
    pub fn has_left_out(&self, pod: &str) -> bool {
        self.left_out.lock().contains(pod)
    }

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
pub struct HookRunner<'a> {
    pub exec: &'a dyn Exec,
    pub log: &'a BackupLog,
    pub tally: &'a Tally,
}

impl HookRunner<'_> {
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
pub async fn read_pod(lister: &Lister, pod: &PodId) -> Result<Pod, HookError> {
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
