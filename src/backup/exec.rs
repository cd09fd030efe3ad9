//! Runs one command in a container, by the API server's exec over a websocket.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_core::hook::{Hook, PodId};
use berth_core::limits;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Client;
use kube::api::{Api, AttachParams};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use super::list::ListError;
use crate::client::is_forbidden;

/// Bytes that are kept of each output of a command: its end, which says what went wrong.
const KEPT: usize = 1024;
/// How long to wait for the rest of the output after a command has ended.
const REST: Duration = Duration::from_secs(1);
/// Most bytes that are read of each output. A command that writes more would keep this process busy
/// for as long as it may run.
const MOST: usize = 16 * 1024 * 1024;
/// How the kubelet begins its message about a command that it could not run, for example because
/// the container does not have it.
const OF_THE_COMMAND: &str = "error executing command in container";

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("the pod is gone, or another one has its name")]
    Gone,
    #[error("the pod cannot be read")]
    Unreadable(#[source] ListError),
    #[error(
        "it could not be put on record in time that something may be frozen in the pod, so it was not run"
    )]
    NotOnRecord,
    #[error("the backup ended early")]
    Ended,
    /// The hook would keep other pods of the block frozen for longer.
    #[error(
        "it was not run, because a pod that is in one block with this one, by the claims that both use, had been kept still for {} minutes by then: let hooks before such pods take less time, or give them to fewer pods",
        limits::BLOCK_STILL.as_secs() / 60
    )]
    TooLate,
    #[error(
        "the API server refuses it: `berth check` tells whether the ClusterRole berth-hooks is missing (`berth install` brings it, but not on an API server without ValidatingAdmissionPolicies, where only Velero can run hooks); else a policy of this cluster is in the way"
    )]
    Forbidden(#[source] kube::Error),
    #[error("it could not be run")]
    Refused(#[source] kube::Error),
    /// Nobody has answered, so it may have begun nonetheless.
    #[error("it could not be started within {}s", .0.as_secs_f64())]
    Unstarted(Duration),
    #[error("it had not ended after {}s, and may go on in its container", .0.as_secs_f64())]
    TooLong(Duration),
    #[error("the connection was lost before it ended, and it may go on in its container: {0}")]
    Lost(String),
    #[error("it could not be started, or nobody knows how it ended: {0}")]
    Unknown(String),
    #[error("{0}")]
    Failed(String),
}

impl HookError {
    /// Whether the same hook may succeed in a moment, because it was not the command that failed.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreadable(_) | Self::Unstarted(_) | Self::Lost(_) | Self::Unknown(_) => true,
            Self::Refused(kube::Error::Api(status)) => status.code == 429 || status.code >= 500,
            Self::Refused(error) => {
                use kube::Error::{HyperError, Service, UpgradeConnection};
                matches!(error, UpgradeConnection(_) | HyperError(_) | Service(_))
            }
            _ => false,
        }
    }

    /// Whether the command may still be running.
    pub fn may_go_on(&self) -> bool {
        matches!(self, Self::Unstarted(_) | Self::TooLong(_) | Self::Lost(_) | Self::Unknown(_) | Self::Ended)
    }
}

/// Runs commands in pods.
pub trait Exec: Send + Sync {
    /// Runs the hook within its timeout; in `container` if the hook names none.
    fn exec<'a>(
        &'a self,
        pod: &'a PodId,
        container: Option<&'a str>,
        hook: &'a Hook,
    ) -> BoxFuture<'a, Result<(), HookError>>;
}

/// Runs commands through the API server and the kubelets. A command may write nothing for as long
/// as it runs, so this needs a client without a read timeout; kube pings the other side every
/// minute.
pub struct Kubelets {
    pub client: Client,
}

impl Exec for Kubelets {
    fn exec<'a>(
        &'a self,
        pod: &'a PodId,
        container: Option<&'a str>,
        hook: &'a Hook,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        let container = hook.container.as_deref().or(container);
        let run = async move {
            let has_started = AtomicBool::new(false);
            let run = self.run(pod, container, hook, &has_started);
            match timeout(hook.timeout, run).await {
                Ok(done) => done,
                // The command may go on in its container: nothing can stop it.
                Err(_) if has_started.load(Ordering::Relaxed) => Err(HookError::TooLong(hook.timeout)),
                Err(_) => Err(HookError::Unstarted(hook.timeout)),
            }
        };
        run.boxed()
    }
}

impl Kubelets {
    /// `has_started`: set once the API server has answered.
    async fn run(
        &self,
        pod: &PodId,
        container: Option<&str>,
        hook: &Hook,
        has_started: &AtomicBool,
    ) -> Result<(), HookError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let params = AttachParams { container: container.map(str::to_owned), ..AttachParams::default() };
        let started = api.exec(&pod.name, hook.command.clone(), &params).await;
        let mut process = started.map_err(|error| match error {
            error if is_forbidden(&error) => HookError::Forbidden(error),
            error => HookError::Refused(error),
        })?;
        has_started.store(true, Ordering::Relaxed);
        let status = process.take_status();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let ended = {
            let outputs = (process.stdout(), process.stderr());
            let reading =
                async { tokio::try_join!(keep(outputs.0, &mut stdout), keep(outputs.1, &mut stderr)) };
            let ending = async {
                match status {
                    Some(status) => status.await,
                    None => None,
                }
            };
            let mut reading = pin!(reading);
            let mut ending = pin!(ending);
            tokio::select! {
                ended = &mut ending => {
                    // Output that was written before the end may still be under way. It is told
                    // only of a command that failed, and the next hook need not wait for it.
                    if !ended.as_ref().is_some_and(is_success) {
                        let _ = timeout(REST, &mut reading).await;
                    }
                    ended
                }
                read = &mut reading => match read {
                    Ok(_) => ending.await,
                    Err(too_much) => return Err(too_much),
                },
            }
        };
        match ended {
            Some(status) if is_success(&status) => Ok(()),
            Some(status) if is_of_a_server(&status) => {
                Err(HookError::Unknown(failure(&status, &stdout, &stderr)))
            }
            Some(status) => Err(HookError::Failed(failure(&status, &stdout, &stderr))),
            None => Err(HookError::Lost(match process.join().await {
                Ok(()) => "it was closed".to_owned(),
                Err(error) => error.to_string(),
            })),
        }
    }
}

/// Reads all of the stream and keeps its end.
async fn keep(stream: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) -> Result<(), HookError> {
    let Some(mut stream) = stream else { return Ok(()) };
    let (mut chunk, mut read) = ([0; KEPT], 0);
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        kept.extend_from_slice(chunk.get(..count).unwrap_or_default());
        kept.drain(..kept.len().saturating_sub(KEPT));
        read += count;
        if read > MOST {
            let most = MOST / (1024 * 1024);
            let message = format!("it writes too much, more than {most} MiB, and may go on in its container");
            return Err(HookError::Failed(message));
        }
    }
    Ok(())
}

fn is_success(status: &Status) -> bool {
    status.status.as_deref() == Some("Success")
}

/// Whether the error is of the API server or the kubelet, and not of the command.
fn is_of_a_server(status: &Status) -> bool {
    let message = status.message.as_deref().unwrap_or_default();
    status.reason.as_deref() == Some("InternalError") && !message.contains(OF_THE_COMMAND)
}

/// Says in one line how a command failed.
fn failure(status: &Status, stdout: &[u8], stderr: &[u8]) -> String {
    let causes = status.details.as_ref().and_then(|details| details.causes.as_deref()).unwrap_or_default();
    let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message.as_deref()).map(|code| format!("exit code {code}"));
    let said = [stderr, stdout].into_iter().map(in_one_line).find(|text| !text.is_empty());
    let why = code.or_else(|| status.message.as_deref().map(|text| in_one_line(text.as_bytes())));
    let why = why.unwrap_or_else(|| "it failed".to_owned());
    said.map_or_else(|| why.clone(), |said| format!("{why}: {said}"))
}

/// The end of an arbitrary text, in one line.
fn in_one_line(text: &[u8]) -> String {
    let from = text.len().saturating_sub(KEPT);
    let text = String::from_utf8_lossy(text.get(from..).unwrap_or_default());
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
pub mod played;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(value: Value) -> Status {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_failure_says_the_exit_code_and_what_the_command_said_last() {
        let code = status(json!({
            "status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated with non-zero exit code",
            "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
        }));
        assert_eq!(failure(&code, b"out", b""), "exit code 3: out");
        assert_eq!(failure(&code, b"out", b"no such\ndevice\n"), "exit code 3: no such device");
        assert_eq!(failure(&code, b"", b" \n"), "exit code 3");
        let internal =
            status(json!({"status": "Failure", "reason": "InternalError", "message": "no such container"}));
        assert_eq!(failure(&internal, b"", b""), "no such container");
        assert_eq!(failure(&status(json!({})), b"", &[0xff, 0x1b, b'x']), "it failed: \u{fffd} x");
    }

    #[tokio::test]
    async fn of_what_a_command_writes_the_end_is_kept_however_much_it_is() {
        let text = [vec![b'a'; 100_000], b"the end".to_vec()].concat();
        let mut kept = Vec::new();
        keep(Some(text.as_slice()), &mut kept).await.unwrap();
        assert!(kept.len() == KEPT && kept.ends_with(b"the end"), "{}", kept.len());
        keep(None::<&[u8]>, &mut kept).await.unwrap();
        assert_eq!(kept.len(), KEPT);
        let long = status(json!({"message": "m".repeat(100_000)}));
        assert_eq!(failure(&long, b"", b"").len(), KEPT);
    }

    #[tokio::test]
    async fn a_command_that_writes_without_end_has_failed() {
        let mut kept = Vec::new();
        let endless = keep(Some(tokio::io::repeat(b'y')), &mut kept);
        let ended = timeout(Duration::from_secs(60), endless).await.unwrap();
        assert!(
            matches!(&ended, Err(HookError::Failed(why)) if why.contains("writes too much")),
            "{ended:?}"
        );
        assert!(keep(Some([b'y'; 100_000].as_slice()), &mut kept).await.is_ok());
    }

    #[test]
    fn what_may_go_well_in_a_moment_is_told_from_what_will_not() {
        let refused = |code: u16| {
            let status = kube::core::Status::failure("no", "Reason").with_code(code);
            HookError::Refused(kube::Error::Api(status.boxed()))
        };
        for (error, passes) in [
            (refused(429), true),
            (refused(500), true),
            (refused(503), true),
            (refused(400), false),
            (refused(404), false),
            (HookError::Refused(kube::Error::Service("reset".into())), true),
            (HookError::Lost("closed".to_owned()), true),
            (HookError::Failed("exit code 1".to_owned()), false),
            (HookError::Unstarted(REST), true),
            (HookError::TooLong(REST), false),
            (HookError::Gone, false),
        ] {
            assert_eq!(error.passes(), passes, "{error:?}");
        }
        for (reason, message, is_of_a_server_) in [
            ("InternalError", "Internal error occurred: error dialing backend: dial tcp: refused", true),
            (
                "InternalError",
                "Internal error occurred: error executing command in container: not found",
                false,
            ),
            ("NonZeroExitCode", "command terminated with non-zero exit code", false),
        ] {
            let status = status(json!({"status": "Failure", "reason": reason, "message": message}));
            assert_eq!(is_of_a_server(&status), is_of_a_server_, "{message}");
        }
    }
}
