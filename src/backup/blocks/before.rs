//! The hooks before the pods of a block: whether they may begin, and what they have left.

use std::time::Duration;

use berth_core::hook::{Hook, HookPhase, Hooks, OnError};
use berth_core::limits;
use futures::future::join_all;
use tokio::time::{Instant, timeout};

use super::{Blocks, Spent, spend};
use crate::backup::exec::HookError;
use crate::backup::hold::HeldPod;
use crate::backup::hooks::read_pod;
use crate::backup::log::ResultsHeading;

/// How long a run that ends early waits for a hook before a pod. If it did not wait, that hook
/// could freeze the pod after the hook that thaws it.
const LAST_HOOK: Duration = Duration::from_secs(30);
/// How long a pod may be read once more while another pod of its block is frozen.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// What the hooks before a pod have left.
#[derive(Default)]
pub(super) struct PreHookResult {
    pub is_stored: bool,
    /// A hook has begun, so there may be something to undo.
    pub has_begun: bool,
    /// A hook may still be running in the container.
    pub may_go_on: bool,
}

impl Blocks<'_> {
    /// Runs the hooks before one pod if they may begin. `still`: since when another pod of its
    /// block is frozen.
    pub(super) async fn begin(
        &self,
        held: &HeldPod,
        checked: Result<bool, HookError>,
        still: Option<Instant>,
        spent: &Spent,
    ) -> PreHookResult {
        if self.is_ending() {
            return PreHookResult::default();
        }
        let begun = Instant::now();
        let before = self.before(held, checked, still, spent).await;
        if held.hooks.is_annotated {
            spend(spent, &held.id.namespace, begun.elapsed());
        }
        before
    }

    /// Reads all pods of a block concurrently. Not earlier, because other pods may have their names
    /// by then.
    pub(super) async fn check_pods(
        &self,
        block: &[HeldPod],
        on_record: Vec<Result<(), HookError>>,
        spent: &Spent,
    ) -> Vec<Result<bool, HookError>> {
        let begun = Instant::now();
        let each = block.iter().zip(on_record);
        let checked = join_all(each.map(|(held, on_record)| self.check_pod(held, on_record, spent))).await;
        if let Some(held) = block.iter().find(|held| held.hooks.is_annotated) {
            spend(spent, &held.id.namespace, begun.elapsed());
        }
        checked
    }

    /// Whether the pod's hooks can run. `false`: the pod has ended since it was listed.
    async fn check_pod(
        &self,
        held: &HeldPod,
        on_record: Result<(), HookError>,
        spent: &Spent,
    ) -> Result<bool, HookError> {
        on_record?;
        if self.is_spent(held, spent) {
            // The caller reports it once for the namespace.
            return Ok(false);
        }
        tokio::select! {
            found = read_pod(&self.lister, &held.id) => found.map(|pod| !pod.has_ended()),
            () = self.ending.cancelled() => Err(HookError::Ended),
        }
    }

    async fn before(
        &self,
        held: &HeldPod,
        checked: Result<bool, HookError>,
        still: Option<Instant>,
        spent: &Spent,
    ) -> PreHookResult {
        // Pods before this one may have used up the namespace's time.
        if self.is_spent(held, spent) {
            return PreHookResult { is_stored: !held.hooks.may_leave_out(), ..PreHookResult::default() };
        }
        match self.check_pod_again(held, checked, still).await {
            Ok(true) => self.run_before(held, still).await,
            Ok(false) => PreHookResult { is_stored: true, ..PreHookResult::default() },
            Err(error) => {
                PreHookResult { is_stored: self.refuse(held, error).await, ..PreHookResult::default() }
            }
        }
    }

    /// While another pod of its block is frozen, this pod may have been recreated: the hook would
    /// run in the new pod of that name, which is not recorded. Read once only, because the frozen
    /// pod waits.
    async fn check_pod_again(
        &self,
        held: &HeldPod,
        checked: Result<bool, HookError>,
        still: Option<Instant>,
    ) -> Result<bool, HookError> {
        if still.is_none() || !matches!(checked, Ok(true)) {
            return checked;
        }
        tokio::select! {
            found = timeout(LOOK_AGAIN, read_pod(&self.lister, &held.id)) => {
                found.map_err(|_| HookError::TooLong(LOOK_AGAIN))?.map(|pod| !pod.has_ended())
            }
            () = self.ending.cancelled() => Err(HookError::Ended),
        }
    }

    /// Whether the namespace has used up the time that annotations may take. Logs it once.
    fn is_spent(&self, held: &HeldPod, spent: &Spent) -> bool {
        let most = limits::ANNOTATED_HOOKS;
        if !held.hooks.is_annotated {
            return false;
        }
        let mut spent = spent.lock();
        let Some(time) = spent.get_mut(&held.id.namespace).filter(|time| **time >= most) else {
            return false;
        };
        if *time < Duration::MAX {
            *time = Duration::MAX;
            let message = format!(
                "the hooks that annotations of pods ask for have taken {} minutes, and those of further pods are not run: spec.hooks of a Backup may take longer",
                most.as_secs() / 60
            );
            self.runner.log.lasting_error(&ResultsHeading::Namespace(&held.id.namespace), "pods", &message);
        }
        true
    }

    /// Reports once that none of the pod's hooks can run. Returns whether the pod is stored.
    async fn refuse(&self, held: &HeldPod, error: HookError) -> bool {
        let Hooks { pre, post, .. } = &held.hooks;
        let first = pre.first().map(|hook| (HookPhase::Pre, hook));
        if let Some((when, hook)) = first.or_else(|| post.first().map(|hook| (HookPhase::Post, hook))) {
            let _ = self.runner.tell(when, hook, &held.id, async { Err(error) }).await;
        }
        !held.hooks.may_leave_out()
    }

    /// Runs the hooks before the pod, up to the first failure that keeps the pod out of the backup.
    async fn run_before(&self, held: &HeldPod, still: Option<Instant>) -> PreHookResult {
        let mut before = PreHookResult { has_begun: held.hooks.pre.is_empty(), ..PreHookResult::default() };
        for hook in &held.hooks.pre {
            if self.is_ending() {
                return before;
            }
            let run = self.run_one_before(held, hook, still, &mut before.has_begun);
            let ran = self.runner.tell(HookPhase::Pre, hook, &held.id, run).await;
            if let Err(error) = ran {
                before.may_go_on |= error.may_go_on();
                if hook.on_error == OnError::Fail {
                    return before;
                }
            }
        }
        before.is_stored = !self.is_ending();
        before
    }

    async fn run_one_before(
        &self,
        held: &HeldPod,
        hook: &Hook,
        still: Option<Instant>,
        has_begun: &mut bool,
    ) -> Result<(), HookError> {
        let is_late = || still.is_some_and(|since| since.elapsed() >= limits::BLOCK_STILL);
        if !(held.hooks.post.is_empty() || is_late()) {
            // Another leader that considers this process dead may have thawed the recorded pods.
            tokio::select! {
                renewed = self.frozen.renew() => renewed?,
                () = self.ending.cancelled() => return Err(HookError::Ended),
            }
        }
        if is_late() {
            return Err(HookError::TooLate);
        }
        *has_begun = true;
        tokio::select! {
            done = self.runner.exec.exec(&held.id, held.container.as_deref(), hook) => done,
            () = self.ended(LAST_HOOK) => Err(HookError::Ended),
        }
    }
}
