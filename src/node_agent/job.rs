//! One job: what it writes into the status of its object from the start to the end, while [`work`]
//! does the work.

mod end;
mod fence;
mod locked;
mod work;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use berth_api::keys::{CARRIED_AT, CARRIER, PROGRESS_TEXT, RUNS};
use berth_api::velero::{DataMover, DataMoverStatus, PodVolumeBackup, PodVolumeRestore};
use berth_core::limits;
use berth_core::mover::MoverKind;
use berth_core::mover::grant::MoverPhase;
use berth_core::pod_volume::progress::{Pace, text};
use berth_core::pod_volume::{number, whole_seconds};
use berth_pod_volumes::{Fault, Progress, Watched};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::AgentContext;
use super::concurrency::Place;
use crate::patch::merge_into;
use crate::text::chain;
use crate::write::{Write, WriteResult, patch};

use end::write_end;
pub use end::{End, EndWrite, end_canceled, hand_over, write_canceled};
pub(super) use fence::is_of_another;
use fence::{Fence, Fenced};

/// Time between two writes of the progress.
const PROGRESS: Duration = Duration::from_secs(1);
/// A job that has read and written nothing for this long is canceled.
const SILENCE: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub enum Kind {
    Backup(Arc<PodVolumeBackup>),
    Restore(Arc<PodVolumeRestore>),
}

impl Kind {
    /// Sorts by age.
    pub fn age(&self) -> (Option<Time>, String) {
        let created = match self {
            Self::Backup(object) => &object.metadata.creation_timestamp,
            Self::Restore(object) => &object.metadata.creation_timestamp,
        };
        (created.clone(), self.name())
    }

    fn name(&self) -> String {
        match self {
            Self::Backup(object) => object.name_any(),
            Self::Restore(object) => object.name_any(),
        }
    }
}

pub struct Job {
    pub(super) context: Arc<AgentContext>,
    watched: Watched,
    stop: CancellationToken,
    is_try: bool,
    place: Place,
    /// The ID of the job, by which its object names it.
    pub(super) id: String,
    /// The object names this job.
    pub(super) has_begun: AtomicBool,
    /// What the job waits for, as `status.message` says it; empty while it works.
    waits_for: Mutex<String>,
}

/// A volume whose job has ended the agent's process so often is not tried again.
const TRIES: u32 = 3;

/// How many processes have started on an object that is in progress, and did not finish it.
pub(super) fn runs<K: DataMover>(object: &K) -> u32 {
    let runs = object.annotations().get(RUNS).and_then(|runs| runs.parse().ok());
    runs.filter(|_| object.phase_text() == "InProgress").unwrap_or(0)
}

pub(super) fn ensure_few(runs: u32) -> anyhow::Result<()> {
    ensure!(runs < TRIES, "{runs} processes of the node agent ended while they worked on it");
    Ok(())
}

/// The pod of a restore that was started does not wait for it: another process started the restore,
/// or it was started before the pod stopped.
#[derive(Debug, thiserror::Error)]
#[error("the pod does not wait for the restore of its volume")]
pub(super) struct NotYet;

impl Job {
    /// `is_try`: the job tries the work, which it may do only a few times. Otherwise it only writes
    /// the end. `place`: the place of the job among those of the process.
    pub fn new(
        context: Arc<AgentContext>,
        watched: Watched,
        stop: CancellationToken,
        is_try: bool,
        place: Place,
    ) -> Self {
        let id = context.job();
        let has_begun = AtomicBool::new(false);
        Self { context, watched, stop, is_try, place, id, has_begun, waits_for: Mutex::default() }
    }

    pub async fn run(&self, kind: Kind) -> EndWrite {
        match kind {
            Kind::Backup(object) => {
                let spec = &object.spec;
                let namespace = spec.pod.as_ref().and_then(|pod| pod.namespace.as_deref());
                let repository = (spec.backup_storage_location.as_deref(), namespace);
                self.carry_unlocked(&*object, repository, || self.backup(Arc::clone(&object))).await
            }
            Kind::Restore(object) => {
                let spec = &object.spec;
                let repository = (spec.backup_storage_location.as_deref(), spec.source_namespace.as_deref());
                self.carry_unlocked(&*object, repository, || self.restore(Arc::clone(&object))).await
            }
        }
    }

    /// Works on an object that needs one repository (location and namespace), which other processes
    /// may lock.
    pub(super) async fn carry_unlocked<K, F>(
        &self,
        object: &K,
        (location, namespace): (Option<&str>, Option<&str>),
        work: impl Fn() -> F,
    ) -> EndWrite
    where
        K: DataMover + kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned,
        F: Future<Output = anyhow::Result<End>>,
    {
        self.carry(object, self.unlocked(work, || self.look(location, namespace))).await
    }

    async fn carry<K>(&self, object: &K, work: impl Future<Output = anyhow::Result<End>>) -> EndWrite
    where
        K: DataMover + kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned,
    {
        let name = object.name_any();
        let api: Api<K> =
            Api::namespaced(self.context.clients.call.clone(), &self.context.settings.namespace);
        let has_begun = object.phase() == MoverPhase::InProgress;
        let at = (!has_begun).then(|| whole_seconds(Timestamp::now()));
        let node = Some(self.context.settings.node.as_str());
        let status = DataMoverStatus::carried(at, node.filter(|_| K::KIND != MoverKind::PodVolumeBackup));
        let uid = object.uid();
        let runs_before = runs(object);
        let counted = |runs: u32| json!({"annotations": {RUNS: runs.to_string()}});
        let mut change = json!({"status": status});
        if self.is_try {
            change["metadata"] = counted(runs_before.saturating_add(1));
        }
        change["metadata"]["annotations"][CARRIER] = json!(self.id);
        let begun = match patch(&api, Write::on(object), change).await {
            WriteResult::Written(begun) => begun,
            WriteResult::Conflict(_) | WriteResult::Gone(_) => return EndWrite::Failed,
            answer => {
                let error = answer.written().err().map(|error| chain(&error)).unwrap_or_default();
                warn!(kind = K::KIND.as_str(), name, error, "the job could not be started");
                return EndWrite::Failed;
            }
        };
        let mut fence = Fence::new(&api, begun, &self.id);
        self.has_begun.store(true, Ordering::Release);
        info!(kind = K::KIND.as_str(), name, "begun");
        let (mut is_silent, mut is_lost, mut is_unseen) = (false, false, false);
        let result = {
            let mut work = std::pin::pin!(work);
            let (mut signs, mut sign) = (0, Instant::now());
            let mut ticks = interval(PROGRESS);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let (mut shown, mut told) = ((Progress::default(), 0), String::new());
            let (since, mut pace) = (Instant::now(), Pace::default());
            loop {
                tokio::select! {
                    result = &mut work => break result,
                    _ = ticks.tick() => {
                        let now = (self.watched.progress(), self.watched.files());
                        let rate = pace.rate(since.elapsed(), now.0.done);
                        if signs != self.watched.signs() {
                            (signs, sign) = (self.watched.signs(), Instant::now());
                        } else if sign.elapsed() > SILENCE && !self.watched.is_canceled() {
                            is_silent = true;
                            self.watched.cancel();
                        }
                        if is_lost || is_unseen {
                            continue;
                        }
                        let waits_for = self.waits_for.lock().clone();
                        let (mut change, mut is_change) = (json!({}), false);
                        if now != shown {
                            merge_into(&mut change, json!({"status": moved(now.0)}));
                            // The next progress says more than a second attempt to write this one.
                            shown = now;
                            is_change = true;
                        }
                        if waits_for != told {
                            let status = DataMoverStatus::explained(&cut(&waits_for));
                            merge_into(&mut change, json!({"status": status}));
                            if self.is_try {
                                // If a process ends while its job waits, the volume is not the
                                // reason, so the try does not count.
                                let more = u32::from(waits_for.is_empty());
                                change["metadata"] = counted(runs_before.saturating_add(more));
                            }
                            is_change = true;
                        }
                        if fence.is_quiet() {
                            change["metadata"]["annotations"][CARRIED_AT] = json!(Timestamp::now());
                            is_change = true;
                        }
                        // Whatever is written tells it, so that the rate of a job that stands still
                        // does not stay as it was.
                        if is_change && now != (Progress::default(), 0) {
                            change["metadata"]["annotations"][PROGRESS_TEXT] = json!(text(now.1, rate));
                        }
                        let fenced = match is_change {
                            true => fence.write(&change).await,
                            false => fence.glance().await,
                        };
                        match fenced {
                            Fenced::Written => told = waits_for,
                            Fenced::Unwritten => {}
                            Fenced::Unseen => {
                                info!(kind = K::KIND.as_str(), name, "could not read for too long whether another process works on the object: stopping the restore");
                                is_unseen = true;
                                self.watched.cancel();
                            }
                            Fenced::Lost => {
                                info!(kind = K::KIND.as_str(), name, "the object has ended, or another process works on it: stopping the job");
                                is_lost = true;
                                self.watched.cancel();
                            }
                        }
                    }
                }
            }
        };
        if (self.stop.is_cancelled() || is_unseen) && result.is_err() {
            // The process did not end because of the volume, so the try does not count.
            let change = json!({"metadata": counted(runs_before)});
            fence.write(&change).await;
            info!(kind = K::KIND.as_str(), name, "left the object to the next job");
            return if self.stop.is_cancelled() { EndWrite::Done } else { EndWrite::Failed };
        }
        if let Err(error) = &result
            && error.is::<NotYet>()
        {
            if self.is_try {
                // Nothing was tried.
                fence.write(&json!({"metadata": counted(runs_before)})).await;
            }
            info!(kind = K::KIND.as_str(), name, %error, "not begun again");
            return EndWrite::Failed;
        }
        let mut more = Value::Null;
        let (phase, message) = match result {
            Ok(end) => {
                more = end.change;
                match end.message {
                    Some(why) => (MoverPhase::Failed, why),
                    None => (MoverPhase::Completed, self.watched.notes()),
                }
            }
            Err(error) if is_canceled(&error) && is_silent => {
                let minutes = SILENCE.as_secs() / 60;
                (MoverPhase::Failed, format!("nothing was read or written for {minutes} minutes"))
            }
            Err(error) if is_canceled(&error) => (MoverPhase::Canceled, "canceled".to_owned()),
            Err(error) => (MoverPhase::Failed, chain(error.as_ref())),
        };
        let at = whole_seconds(Timestamp::now());
        let mut change = json!({"status": DataMoverStatus::ended(phase, &cut(&message), at)});
        let (shown, files) = (self.watched.progress(), self.watched.files());
        if shown != Progress::default() {
            merge_into(&mut change, json!({"status": moved(shown)}));
        }
        if files > 0 {
            change["metadata"]["annotations"][PROGRESS_TEXT] = json!(text(files, None));
        }
        if !more.is_null() {
            merge_into(&mut change, more);
        }
        let (phase, message) = (&change["status"]["phase"], &change["status"]["message"]);
        info!(kind = K::KIND.as_str(), name, %phase, %message, "ended");
        write_end(&api, &name, uid.as_deref(), Some(&self.id), &change).await
    }
}

fn is_canceled(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<Fault>(), Some(Fault::Canceled))
}

pub(super) fn moved(progress: Progress) -> Value {
    DataMoverStatus::progressed(number(progress.done), number(progress.total))
}

fn cut(message: &str) -> String {
    message.chars().take(limits::VOLUME_MESSAGE).collect()
}

#[cfg(test)]
mod tests;
