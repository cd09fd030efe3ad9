//! How a job ends, and the write of that end.

use std::fmt::Debug;
use std::time::Duration;

use berth_api::keys::BY_MOVER;
use berth_api::velero::{DataMover, DataMoverStatus, PodVolumeBackup, PodVolumeRestore};
use berth_core::mover::grant::MoverPhase;
use berth_core::pod_volume::whole_seconds;
use jiff::Timestamp;
use kube::api::Api;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::AgentContext;
use super::Kind;
use super::fence::is_of_another;
use crate::text::chain;
use crate::write::{Pauses, Write, WriteResult, patch};

/// How long berth tries to write the end of a job.
const END: Duration = Duration::from_secs(600);

/// The result of a job. Its phase is Failed if it has a message, and otherwise Completed.
pub struct End {
    /// Fields of the patch that replace those that are written for every end.
    pub change: Value,
    pub message: Option<String>,
}

impl End {
    pub fn completed(status: &Value) -> Self {
        Self { change: json!({"status": status}), message: None }
    }

    pub fn failed(status: &Value, why: String) -> Self {
        Self { message: Some(why), ..Self::completed(status) }
    }
}

/// What became of the write of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndWrite {
    /// The end is written, or nobody needs it any more.
    Done,
    /// Another process works on the object by now, and will write its end.
    OfAnother,
    /// The write has to be tried again.
    Failed,
}

/// Writes the end. Each attempt uses the latest version of the object, unless it has already ended
/// in another way. `carrier`: the job that started it. Another job may have started it since and be
/// in the middle of its work, because a pod that is removed by force lives on until its kubelet
/// notices.
pub(super) async fn write_end<K>(
    api: &Api<K>,
    name: &str,
    uid: Option<&str>,
    carrier: Option<&str>,
    change: &Value,
) -> EndWrite
where
    K: DataMover + kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let (begun, mut pauses) = (Instant::now(), Pauses::default());
    loop {
        let object = match api.get_opt(name).await {
            Ok(Some(object)) if object.meta().uid.as_deref() == uid => Some(object),
            Ok(_) => return EndWrite::Done,
            Err(_) => None,
        };
        if let Some(object) = object {
            if matches!(object.phase_text(), "Completed" | "Failed" | "Canceled") {
                return EndWrite::Done;
            }
            if carrier.is_some_and(|carrier| is_of_another(&object, carrier)) {
                info!(name, "another process works on the object: leaving the end to it");
                return EndWrite::OfAnother;
            }
            match patch(api, Write::on(&object), change.clone()).await {
                WriteResult::Written(_) | WriteResult::Gone(_) => return EndWrite::Done,
                WriteResult::Conflict(_) => {}
                answer => {
                    let error = answer.written().err().map(|error| chain(&error)).unwrap_or_default();
                    warn!(name, error, "the end could not be written");
                }
            }
        }
        if begun.elapsed() > END {
            return EndWrite::Failed;
        }
        pauses.wait().await;
    }
}

fn canceled(message: &str) -> Value {
    let at = whole_seconds(Timestamp::now());
    json!({"status": DataMoverStatus::ended(MoverPhase::Canceled, message, at)})
}

/// Writes that a movement is canceled. No job will start on it any more.
pub async fn write_canceled<K>(api: &Api<K>, name: &str, uid: &str) -> EndWrite
where
    K: DataMover + kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    write_end(api, name, Some(uid), None, &canceled("canceled")).await
}

/// Writes that an object is canceled. No job works on it.
pub async fn end_canceled(context: &AgentContext, kind: &Kind) -> bool {
    write(context, kind, canceled("canceled before it began")).await
}

/// Marks an object as one that a data mover pod carries, so that the leader makes that pod. What
/// another process had begun begins anew: the leader makes pods for what is New, when there is
/// room.
pub async fn hand_over(context: &AgentContext, kind: &Kind) -> bool {
    // The spec of a PodVolumeBackup has its node.
    let node = matches!(kind, Kind::Restore(_)).then_some(context.settings.node.as_str());
    let status = DataMoverStatus::handed_over(node);
    let change = json!({"metadata": {"annotations": {BY_MOVER: "true"}}, "status": status});
    let is_written = write(context, kind, change).await;
    if is_written {
        info!(name = kind.name(), "handed over to the leader, for a data mover pod");
    }
    is_written
}

/// Writes to an object that no job works on, on the version that was seen.
async fn write(context: &AgentContext, kind: &Kind, change: Value) -> bool {
    let client = || context.clients.call.clone();
    let namespace = &context.settings.namespace;
    let answer = match kind {
        Kind::Backup(object) => {
            patch(&Api::<PodVolumeBackup>::namespaced(client(), namespace), Write::on(&**object), change)
                .await
                .written()
                .map(drop)
        }
        Kind::Restore(object) => {
            patch(&Api::<PodVolumeRestore>::namespaced(client(), namespace), Write::on(&**object), change)
                .await
                .written()
                .map(drop)
        }
    };
    answer.is_ok()
}
