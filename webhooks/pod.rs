//! Pods of data movers at admission: every alternative of their StorageClass counts, and tolerations are added. Whatever is
//! not known for certain leaves the pod as Velero made it.

use berth_api::mover_pod::{owner, term, toleration, write_term, write_toleration};
use berth_core::affinity::Decision;
use berth_core::violation::tellable;
use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod};
use serde_json::{Value, json};
use tracing::info;

use crate::desk::Desk;
use crate::known::{Known, Mover, MoverPod};
use crate::patch::Edit;
use crate::review::{Operation, Question, ReviewError, Verdict};

const HOSTNAME: &str = "kubernetes.io/hostname";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// # Errors
/// When the object cannot be read.
pub async fn place<K: Known>(desk: &Desk<K>, question: &Question<'_>) -> Result<Verdict, ReviewError> {
    let pod: Pod = serde_json::from_str(question.object.ok_or(ReviewError::NoObject)?.get())?;
    if question.operation != Operation::Create {
        return Ok(Verdict::allow());
    }
    let Some(owner) = owner(&pod.metadata) else {
        let name = tellable(&question.name);
        info!(%name, "a pod with a data mover's label that belongs to none: left as it is");
        return Ok(Verdict::allow());
    };
    let mover = Mover { kind: owner.kind, name: &owner.name, uid: &owner.uid };
    let decision = match desk.known().place(&mover, &read(&pod)).await {
        Ok(Some(decision)) => decision,
        Ok(None) => return Ok(Verdict::allow()),
        Err(why) => {
            let warning = format!("berth: the pod of {} {} is left as it is: {why}", owner.kind, owner.name);
            return Ok(Verdict { warnings: vec![warning], ..Verdict::allow() });
        }
    };
    let warnings = decision.findings.iter().map(|finding| format!("berth: {finding}")).collect();
    if !question.is_dry_run() {
        decision.findings.iter().for_each(|finding| desk.known().tell(&mover, finding));
    }
    let patch = edit(&pod, &decision).into_patch();
    if !patch.0.is_empty() {
        let (kind, name, reason) = (owner.kind, tellable(&owner.name), &decision.reason);
        let terms = decision.terms.as_ref().map(Vec::len);
        info!(%kind, %name, %reason, terms, tolerations = decision.tolerations.len(), "placed a data mover");
    }
    Ok(Verdict { patch: Some(patch), warnings, refused: None })
}

/// What the pod says about where it may run.
pub fn read(pod: &Pod) -> MoverPod {
    let spec = pod.spec.as_ref();
    let selector = spec.and_then(|spec| spec.node_selector.as_ref());
    MoverPod {
        terms: required(pod).iter().map(term).collect(),
        tolerations: spec
            .and_then(|spec| spec.tolerations.as_ref())
            .into_iter()
            .flatten()
            .map(toleration)
            .collect(),
        selected_node: selector.and_then(|selector| selector.get(HOSTNAME)).cloned(),
        node: spec.and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty()),
    }
}

fn required(pod: &Pod) -> &[NodeSelectorTerm] {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.map_or(&[], |required| required.node_selector_terms.as_slice())
}

fn edit(pod: &Pod, decision: &Decision) -> Edit {
    let mut edit = Edit::default();
    let spec = pod.spec.as_ref();
    let affinity = spec.and_then(|spec| spec.affinity.as_ref());
    let node_affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    match decision.terms.as_deref() {
        Some([]) if !required(pod).is_empty() => edit.remove(&["spec", "affinity", "nodeAffinity", REQUIRED]),
        Some([]) | None => {}
        Some(terms) => {
            let terms: Vec<NodeSelectorTerm> = terms.iter().map(write_term).collect();
            let value = json!({"nodeSelectorTerms": terms});
            match (affinity, node_affinity) {
                (Some(_), Some(_)) => edit.set(&["spec", "affinity", "nodeAffinity"], true, REQUIRED, value),
                (Some(_), None) => {
                    edit.set(&["spec", "affinity"], true, "nodeAffinity", json!({REQUIRED: value}))
                }
                (None, _) => {
                    edit.set(&["spec"], true, "affinity", json!({"nodeAffinity": {REQUIRED: value}}));
                }
            }
        }
    }
    if !decision.tolerations.is_empty() {
        let there = spec.and_then(|spec| spec.tolerations.clone()).unwrap_or_default();
        let all: Vec<Value> = there
            .iter()
            .cloned()
            .chain(decision.tolerations.iter().map(write_toleration))
            .map(|toleration| json!(toleration))
            .collect();
        edit.set(&["spec"], true, "tolerations", json!(all));
    }
    edit
}
