//! Whether anything may be started: the cluster must know the phases of the queue, and the executor
//! must be there. If not, every Backup keeps its place and its message says what it waits for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::Backup;
use berth_core::limits;
use berth_core::queue::QueuePhase;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::{BackupCache, definition};
use crate::certificates::ca_bundles::called;
use crate::leader::LeaseAnnotations;
use crate::metrics::QueueMetrics;
use crate::pace::paced;
use crate::settings::Executor;
use crate::text::chain;
use crate::write::{self, Write, WriteResult};

/// Pause between checks while all is well.
const PERIOD: Duration = Duration::from_secs(60);
/// Pause between checks while something is missing.
const RETRY: Duration = Duration::from_secs(5);
/// How long to wait for Velero's answer; a running Velero answers within a second or two.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(250);
/// The first Velero that has a queue.
const LEAST_VERSION: (u64, u64) = (1, 18);
/// How long Velero may leave a backup in ReadyToStart before it is touched: Velero does not see one
/// that was there when it started.
const NUDGE: Duration = Duration::from_secs(30);

/// Why nothing can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    pub why: String,
    /// Whether Backups can be queued meanwhile.
    pub can_queue: bool,
}

pub struct Gate {
    pub client: Client,
    pub namespace: String,
    pub executor: Executor,
    pub store: Arc<BackupCache>,
    pub metrics: QueueMetrics,
    pub stopped: Arc<watch::Sender<Option<Stopped>>>,
    pub notes: LeaseAnnotations,
    /// Name of the webhook configurations.
    pub configuration: String,
}

impl Gate {
    /// Checks for ever.
    pub async fn keep(self) {
        let mut ready_since: HashMap<String, Instant> = HashMap::new();
        let mut checked: Option<Instant> = None;
        loop {
            let is_open = self.stopped.borrow().is_none();
            // Two queues must not run even for a minute; everything else may be noticed later.
            let is_alone = self.check_alone().await;
            if !is_open || is_alone.is_err() || checked.is_none_or(|at| at.elapsed() >= paced(PERIOD)) {
                let stopped = |why| Stopped { why, can_queue: false };
                let found = match is_alone {
                    Ok(()) => self.check().await.err(),
                    Err(why) => Some(stopped(why)),
                };
                self.set(found);
                checked = Some(Instant::now());
            }
            if self.executor == Executor::Velero {
                self.nudge(&mut ready_since).await;
            }
            sleep(paced(RETRY)).await;
        }
    }

    fn set(&self, stopped: Option<Stopped>) {
        self.metrics.executor_available.set(i64::from(stopped.is_none()));
        let changed = self.stopped.send_if_modified(|known| {
            let changed = *known != stopped;
            known.clone_from(&stopped);
            changed
        });
        let why = stopped.map(|stopped| stopped.why);
        self.notes.put(keys::STOPPED, why.clone().unwrap_or_default());
        match why {
            Some(why) if changed => warn!(%why, "starting no backups"),
            None if changed => info!("starting backups again"),
            _ => {}
        }
    }

    async fn check(&self) -> Result<(), Stopped> {
        let stopped = |can_queue| move |why| Stopped { why, can_queue };
        definition::check(&self.client).await.map_err(stopped(false))?;
        match self.executor {
            Executor::Berth => Ok(()),
            Executor::Velero => self.check_velero().await.map_err(stopped(true)),
        }
    }

    /// Checks which berth the webhooks call. If it is another one, two queues would run, and this
    /// one gives way.
    async fn check_alone(&self) -> Result<(), String> {
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let called = match timeout(PATIENCE, api.get_opt(&self.configuration)).await {
            Ok(Ok(configuration)) => configuration.as_ref().and_then(called),
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                return Err(format!(
                    "it cannot be seen which berth the webhooks of this cluster call ({}): another installation may have taken over the rights of this one; `berth check` tells more",
                    status.message
                ));
            }
            // Any other error says nothing about the webhooks.
            Ok(Err(_)) | Err(_) => None,
        };
        match called {
            Some(other) if other != self.namespace => Err(format!(
                "the webhooks of this cluster call another berth, in namespace {other}: two queues must not run; end one of them by `berth uninstall --namespace {other}` or `--namespace {}`",
                self.namespace
            )),
            _ => Ok(()),
        }
    }

    /// Velero answers a ServerStatusRequest with its version, as it does for `velero version`.
    async fn check_velero(&self) -> Result<(), String> {
        let kind = GroupVersionKind::gvk("velero.io", "v1", "ServerStatusRequest");
        let api: Api<DynamicObject> = Api::namespaced_with(
            self.client.clone(),
            &self.namespace,
            &ApiResource::from_gvk_with_plural(&kind, "serverstatusrequests"),
        );
        let namespace = &self.namespace;
        let asked: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1",
            "kind": "ServerStatusRequest",
            "metadata": {"generateName": "berth-", "namespace": namespace},
            "spec": {},
        }))
        .map_err(|error| error.to_string())?;
        let asked = match write::create(&api, &asked).await {
            WriteResult::Written(asked) => asked,
            WriteResult::Gone(_) => {
                return Err(
                    "Velero is not installed in this cluster: its ServerStatusRequest is unknown".to_owned()
                );
            }
            WriteResult::Conflict(error) | WriteResult::Refused(error) => {
                return Err(format!("Velero cannot be asked whether it is there: {}", chain(&error)));
            }
            WriteResult::TimedOut => {
                return Err(format!(
                    "Velero cannot be asked whether it is there: the API server took no request within {} s",
                    limits::WRITE.as_secs()
                ));
            }
        };
        let name = asked.name_any();
        let answered = async {
            loop {
                let found = api.get_opt(&name).await.ok().flatten();
                let version = found.as_ref().and_then(|object| object.data.pointer("/status/serverVersion"));
                if let Some(version) = version.and_then(Value::as_str).filter(|version| !version.is_empty()) {
                    return version.to_owned();
                }
                sleep(LOOK).await;
            }
        };
        let version = timeout(paced(PATIENCE), answered).await;
        // If this fails, a running Velero removes the request after a minute.
        let _ = write::delete(&api, Write::to(&name)).await;
        let Ok(version) = version else {
            return Err(format!(
                "no Velero server answers in namespace {namespace}: start one with --disable-controllers=backup-queue, or run with --executor=berth"
            ));
        };
        match release(&version) {
            Some(found) if found < LEAST_VERSION => Err(format!(
                "Velero {version} does not know ReadyToStart: 1.18 or later is needed, or run with --executor=berth"
            )),
            _ => Ok(()),
        }
    }

    async fn nudge(&self, ready_since: &mut HashMap<String, Instant>) {
        let ready = self.store.in_phase(QueuePhase::ReadyToStart);
        ready_since.retain(|uid, _| ready.iter().any(|item| item.entry.uid == *uid));
        let api: Api<Backup> = Api::namespaced(self.client.clone(), &self.namespace);
        for item in ready {
            let since = ready_since.entry(item.entry.uid.clone()).or_insert_with(Instant::now);
            if since.elapsed() < NUDGE {
                continue;
            }
            *since = Instant::now();
            let now = Timestamp::now().to_string();
            let patch = json!({"metadata": {"annotations": {keys::NUDGED_AT: now}}});
            let that_one = Write::to(&item.entry.name).uid(Some(&item.entry.uid));
            info!(name = %item.entry.name, "still ReadyToStart: waking Velero");
            match write::patch(&api, that_one, patch).await {
                WriteResult::Written(_) => {}
                WriteResult::Conflict(error) | WriteResult::Gone(error) | WriteResult::Refused(error) => {
                    warn!(name = %item.entry.name, error = chain(&error), "failed to wake Velero: trying again later");
                }
                WriteResult::TimedOut => {
                    warn!(name = %item.entry.name, "failed to wake Velero, because the API server did not answer in time: trying again later");
                    // The others would time out one after another, and checking that this queue is
                    // alone comes first.
                    return;
                }
            }
        }
    }
}

/// `v1.18.3-rc.1` as (1, 18). `None` for builds without a release.
fn release(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests;
