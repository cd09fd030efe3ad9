//! Hooks that a test plays: what each does is in its command.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::{BoxFuture, Exec, Hook, HookError, PodId};

/// What happened, in this order. Whoever else does something in the test may note it here.
#[derive(Clone, Default)]
pub struct Played(Arc<Mutex<PlayedState>>);

#[derive(Default)]
struct PlayedState {
    happened: Vec<String>,
    running: usize,
    most_running: usize,
}

impl Played {
    pub fn note(&self, what: String) {
        self.0.lock().happened.push(what);
    }

    pub fn happened(&self) -> Vec<String> {
        self.0.lock().happened.clone()
    }

    /// How many ran at one time.
    pub fn most_running(&self) -> usize {
        self.0.lock().most_running
    }
}

/// Commands are `fail`, `wait MILLISECONDS`, or anything else, which succeeds at once. `fail TIMES`
/// fails the first times that it runs, and `busy TIMES` cannot be started the first times.
impl Exec for Played {
    fn exec<'a>(
        &'a self,
        pod: &'a PodId,
        container: Option<&'a str>,
        hook: &'a Hook,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        let container = hook.container.as_deref().or(container).unwrap_or("none");
        let command = hook.command.join(" ");
        let play = async move {
            let line = format!("{} in {}/{container}", hook.name, pod.name);
            let before = self.happened().iter().filter(|other| **other == line).count();
            let is_early = |text: &str| text.parse::<usize>().is_ok_and(|times| before < times);
            self.note(line);
            let _running = RunningHook::new(self);
            let wait = command.strip_prefix("wait ").and_then(|text| text.parse().ok()).unwrap_or(0);
            let done = timeout(hook.timeout, sleep(Duration::from_millis(wait))).await;
            match done {
                Ok(()) if command == "fail" || command.strip_prefix("fail ").is_some_and(is_early) => {
                    Err(HookError::Failed("exit code 1: no".to_owned()))
                }
                Ok(()) if command.strip_prefix("busy ").is_some_and(is_early) => {
                    let status = kube::core::Status::failure("busy", "ServiceUnavailable").with_code(503);
                    Err(HookError::Refused(kube::Error::Api(status.boxed())))
                }
                Ok(()) => Ok(()),
                Err(_) => Err(HookError::TooLong(hook.timeout)),
            }
        };
        play.boxed()
    }
}

/// Until it is dropped, as a command is whose end nobody waits for.
struct RunningHook<'p>(&'p Played);

impl<'p> RunningHook<'p> {
    fn new(played: &'p Played) -> Self {
        let mut state = played.0.lock();
        state.running += 1;
        state.most_running = state.most_running.max(state.running);
        drop(state);
        Self(played)
    }
}

impl Drop for RunningHook<'_> {
    fn drop(&mut self) {
        self.0.0.lock().running -= 1;
    }
}
