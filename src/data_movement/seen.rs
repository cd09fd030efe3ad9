//! What berth keeps of the pod of a movement.

use berth_core::mover::own::PodStage;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::ResourceExt as _;

use crate::text::beginning;

/// How many characters are kept of messages of the kubelet and the scheduler.
const WHY: usize = 500;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenPod {
    /// UID of the movement.
    pub of: String,
    pub uid: String,
    pub stage: PodStage,
    /// When the pod was created or was last ready, because after a restart of its node it may wait
    /// again. If it is being deleted, when it should be gone.
    pub since: Option<Timestamp>,
    pub node: Option<String>,
    /// Why the pod does not run, as far as that is known.
    pub why: String,
}

impl SeenPod {
    /// By name. `None`: the pod belongs to no movement.
    pub fn read(pod: &Pod) -> (String, Option<Self>) {
        let status = pod.status.clone().unwrap_or_default();
        let stage = match status.phase.as_deref() {
            _ if pod.metadata.deletion_timestamp.is_some() => PodStage::Waiting,
            Some("Running") => PodStage::Running,
            Some("Failed") if is_lost(&status) => PodStage::Lost,
            Some("Succeeded" | "Failed") => PodStage::Ended,
            _ => PodStage::Waiting,
        };
        let containers = status.container_statuses.iter().flatten();
        let states = containers.filter_map(|container| container.state.as_ref());
        let waiting = states.clone().filter_map(|state| {
            let waiting = state.waiting.as_ref()?;
            Some([waiting.reason.clone(), waiting.message.clone()].into_iter().flatten().collect::<Vec<_>>())
        });
        let ended = states.filter_map(|state| {
            let ended = state.terminated.as_ref()?;
            Some(vec![ended.reason.clone().unwrap_or_default(), format!("exit code {}", ended.exit_code)])
        });
        let unscheduled = status.conditions.iter().flatten().filter_map(|condition| {
            let is_it = condition.type_ == "PodScheduled" && condition.status == "False";
            condition.message.clone().filter(|_| is_it).map(|message| vec![message])
        });
        let of_pod: Vec<String> =
            [status.reason.clone(), status.message.clone()].into_iter().flatten().collect();
        let why = waiting.chain(ended).chain(unscheduled).chain([of_pod]).flatten();
        let why: Vec<String> = why.filter(|text| !text.is_empty()).collect();
        let unready =
            status.conditions.iter().flatten().filter(|one| one.type_ == "Ready" && one.status == "False");
        let waits_since = unready
            .filter_map(|one| one.last_transition_time.as_ref())
            .chain(pod.metadata.creation_timestamp.as_ref())
            .max();
        let owner = berth_api::mover_pod::owner(&pod.metadata);
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let seen = owner.map(|owner| Self {
            of: owner.uid,
            uid: pod.uid().unwrap_or_default(),
            stage,
            since: pod.metadata.deletion_timestamp.as_ref().or(waits_since).map(|time| time.0),
            node: node.filter(|node| !node.is_empty()),
            why: beginning(&why.join(": "), WHY).into_owned(),
        });
        (pod.name_any(), seen)
    }
}

/// Was a pod that failed ended from outside? Its containers are restarted whenever they fail, so a
/// pod that fails by itself has no reason.
fn is_lost(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    status.reason.as_ref().is_some_and(|reason| !reason.is_empty())
        || conditions.any(|one| one.type_ == "DisruptionTarget" && one.status == "True")
}
