//! One container: its program is started, watched, restarted, and ended in time.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, Pod,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::probe::{self, News};
use super::site::{self, Host};
use super::volumes::Volume;
use super::{environment, launch};
use crate::log;
use crate::network::Place;

/// Before a start that failed is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// The first restart comes at once, then these, doubled up to the most.
const BACK_OFF: Duration = Duration::from_secs(1);
const MOST_BACK_OFF: Duration = Duration::from_secs(60);
const CALLS: Duration = Duration::from_secs(10);
/// How long a starter is looked for the program that it becomes.
const LOOK: Duration = Duration::from_millis(5);

/// Bytes of what a container says of its end.
const MOST_MESSAGE: usize = 4096;

/// How a pod's containers do, in their order.
pub type Board = Arc<watch::Sender<Vec<ContainerStatus>>>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Run,
    End { by: Instant },
}

pub struct Container {
    pub host: Arc<Host>,
    pub pod: Arc<Pod>,
    pub index: usize,
    pub spec: Spec,
    pub place: Arc<Place>,
    pub volumes: Arc<BTreeMap<String, Volume>>,
    pub board: Board,
}

/// Why a program does not run yet, as kubelet calls it.
struct NotStarted {
    reason: &'static str,
    error: anyhow::Error,
}

pub fn waiting(reason: &str, message: &str) -> Option<ContainerState> {
    let message = (!message.is_empty()).then(|| message.to_owned());
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() })
}

impl Container {
    /// Until it gets the order to end, or its pod does not want it restarted.
    pub async fn run(self, mut orders: watch::Receiver<Order>) {
        let mut images = self.host.site.images.subscribe();
        let mut pause = Duration::ZERO;
        let mut said = String::new();
        while *orders.borrow_and_update() == Order::Run {
            images.mark_unchanged();
            let mut child = match self.start().await {
                Ok(child) => child,
                Err(NotStarted { reason, error }) => {
                    let why = format!("{error:#}");
                    if why != said {
                        self.note(&format!("{reason}: {why}"));
                        self.waits(reason, &why);
                        said = why;
                    }
                    tokio::select! {
                        () = sleep(RETRY) => {}
                        _ = images.changed() => {}
                        () = told_to_end(&mut orders) => {}
                    }
                    continue;
                }
            };
            said.clear();
            let ended = self.attend(&mut child, &mut orders).await;
            self.forget();
            self.has_ended(ended);
            if *orders.borrow() != Order::Run || !self.is_restarted(ended) {
                return;
            }
            if !pause.is_zero() {
                self.waits("CrashLoopBackOff", &format!("restarts after {pause:?}"));
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = told_to_end(&mut orders) => return,
            }
            pause = (pause * 2).clamp(BACK_OFF, MOST_BACK_OFF);
            self.update(|status| status.restart_count += 1);
        }
    }

    /// Returns once the program itself runs.
    async fn start(&self) -> Result<Child, NotStarted> {
        let site = &self.host.site;
        let image = self.spec.image.as_deref().unwrap_or_default();
        let program = site.images.borrow().get(image).cloned().ok_or_else(|| NotStarted {
            reason: "ErrImageNeverPull",
            error: anyhow::anyhow!("the test names no program for image {image:?}"),
        })?;
        let configured = async {
            let env = environment::of(&self.host, &self.pod, &self.spec, self.place.address);
            let env = timeout(CALLS, env).await.context("the API server does not answer")??;
            launch::command(site, &self.pod, &self.spec, &self.place, &self.volumes, &program, &env)
        };
        let command =
            configured.await.map_err(|error| NotStarted { reason: "CreateContainerConfigError", error })?;
        let started = async {
            let mut child = Command::from(command).kill_on_drop(true).spawn().context("setsid")?;
            let pid = pid(&child).context("it has no id")?;
            self.wait_for_program(&mut child, pid, &program).await?;
            anyhow::Ok((child, pid))
        };
        let (child, pid) =
            started.await.map_err(|error| NotStarted { reason: "RunContainerError", error })?;
        let mut running = site.running();
        running.entry(site::key(&self.pod)).or_default().insert(self.index, (self.spec.name.clone(), pid));
        drop(running);
        self.note(&format!("{} runs as {pid}", self.spec.name));
        let now = Some(Time(Timestamp::now()));
        self.update(|status| {
            remember(status);
            status.image_id = program.display().to_string();
            status.container_id = Some(format!("process://{pid}"));
            let running = ContainerStateRunning { started_at: now };
            status.state = Some(ContainerState { running: Some(running), ..ContainerState::default() });
        });
        Ok(child)
    }

    /// A signal that came earlier would meet the programs that lead to it.
    async fn wait_for_program(&self, child: &mut Child, pid: Pid, program: &Path) -> anyhow::Result<()> {
        let wanted = identity(program).with_context(|| format!("no program {}", program.display()))?;
        let exe = format!("/proc/{pid}/exe");
        while identity(Path::new(&exe)).ok() != Some(wanted) {
            if let Some(status) = child.try_wait()? {
                let (namespace, name) = site::key(&self.pod);
                let log = self.host.site.log_of(&namespace, &name, &self.spec.name);
                bail!("it did not come so far ({status}): {}", log::tail(&log, 3));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Until the program has ended, of itself or because it must.
    async fn attend(&self, child: &mut Child, orders: &mut watch::Receiver<Order>) -> Option<ExitStatus> {
        let tell = |news| {
            self.update(|status| match news {
                News::Started => status.started = Some(true),
                News::Ready(is_ready) => status.ready = is_ready,
            });
        };
        let patience = tokio::select! {
            status = child.wait() => return status.ok(),
            () = told_to_end(orders) => None,
            failed = probe::attend(&self.spec, self.place.address, &tell) => {
                self.note(&format!("{}: the {} probe failed", self.spec.name, failed.probe));
                let pod = self.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
                let grace = failed.grace.or(pod).unwrap_or(30);
                Some(Instant::now() + Duration::from_secs(u64::try_from(grace).unwrap_or_default()))
            }
        };
        self.end(child, orders, patience).await
    }

    async fn end(
        &self,
        child: &mut Child,
        orders: &mut watch::Receiver<Order>,
        patience: Option<Instant>,
    ) -> Option<ExitStatus> {
        let hook = self.spec.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref()?.sleep.as_ref());
        let before = hook.map_or(0, |sleep| u64::try_from(sleep.seconds).unwrap_or_default());
        let pid = pid(child);
        let asking = async {
            sleep(Duration::from_secs(before)).await;
            if let Some(pid) = pid {
                let _ = kill(pid, Signal::SIGTERM);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            status = child.wait() => return status.ok(),
            () = expired(orders, patience) => {}
            () = asking => {}
        }
        let _ = child.start_kill();
        child.wait().await.ok()
    }

    fn has_ended(&self, status: Option<ExitStatus>) {
        let signal = status.and_then(|status| status.signal());
        let code = status.and_then(|status| status.code());
        let exit_code = code.unwrap_or_else(|| 128 + signal.unwrap_or_default());
        let message =
            std::fs::read(launch::message_of(&self.host.site, &self.pod, &self.spec)).unwrap_or_default();
        let message = message.get(..MOST_MESSAGE).unwrap_or(&message);
        let message = String::from_utf8_lossy(message).into_owned();
        let reason = if exit_code == 0 { "Completed" } else { "Error" };
        self.note(&format!("{} has ended: {status:?}", self.spec.name));
        self.update(|status| {
            let began = status.state.take().and_then(|state| state.running?.started_at);
            let terminated = ContainerStateTerminated {
                container_id: status.container_id.clone(),
                exit_code,
                signal,
                started_at: began,
                finished_at: Some(Time(Timestamp::now())),
                reason: Some(reason.to_owned()),
                message: (!message.is_empty()).then_some(message),
            };
            status.state = Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() });
            status.ready = false;
            status.started = Some(false);
        });
    }

    fn is_restarted(&self, status: Option<ExitStatus>) -> bool {
        let policy = self.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
        match policy {
            Some("Never") => false,
            Some("OnFailure") => status.is_none_or(|status| !status.success()),
            _ => true,
        }
    }

    fn forget(&self) {
        let key = site::key(&self.pod);
        let mut running = self.host.site.running();
        if let Some(containers) = running.get_mut(&key) {
            containers.remove(&self.index);
            if containers.is_empty() {
                running.remove(&key);
            }
        }
    }

    fn waits(&self, reason: &str, why: &str) {
        self.update(|status| {
            remember(status);
            status.state = waiting(reason, why);
        });
    }

    fn update(&self, change: impl FnOnce(&mut ContainerStatus)) {
        self.board.send_modify(|board| {
            if let Some(status) = board.get_mut(self.index) {
                change(status);
            }
        });
    }

    fn note(&self, text: &str) {
        self.host.site.note(&self.pod, text);
    }
}

/// How it ended stays known while it waits or runs again.
fn remember(status: &mut ContainerStatus) {
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        status.last_state = status.state.take();
    }
}

fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw)
}

/// Of a file, under whatever name.
fn identity(file: &Path) -> std::io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(file)?;
    Ok((metadata.dev(), metadata.ino()))
}

async fn told_to_end(orders: &mut watch::Receiver<Order>) {
    // A dropped sender is an order to end, too.
    let _ = orders.wait_for(|order| *order != Order::Run).await;
}

/// The earlier of what is ordered and what a failed probe left.
async fn expired(orders: &mut watch::Receiver<Order>, patience: Option<Instant>) {
    loop {
        let ordered = match *orders.borrow_and_update() {
            Order::Run => None,
            Order::End { by } => Some(by),
        };
        let Some(by) = ordered.into_iter().chain(patience).min() else { return };
        tokio::select! {
            () = sleep_until(by) => return,
            changed = orders.changed() => if changed.is_err() { return },
        }
    }
}
