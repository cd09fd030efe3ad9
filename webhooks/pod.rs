//! Pods of data movers at admission: every alternative of their StorageClass counts, and
//! tolerations are added. A pod stays as Velero made it unless it is certain where it may run.

use berth_api::mover_pod::{constraints, owner, required, write_term, write_toleration};
use berth_core::affinity::AffinityDecision;
use berth_core::mover::placement::MoverRef;
use berth_core::violation::tellable;
use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod};
use serde_json::{Value, json};
use tracing::info;

use crate::listers::Listers;
use crate::patch::Edit;
use crate::review::{AdmissionOperation, AdmissionRequest, ReviewError, ReviewVerdict};
use crate::state::AdmissionState;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Writes node affinity and tolerations into the pod of a data mover.
///
/// # Errors
/// When the object cannot be read.
pub async fn place<K: Listers>(
    state: &AdmissionState<K>,
    request: &AdmissionRequest<'_>,
) -> Result<ReviewVerdict, ReviewError> {
    let pod: Pod = serde_json::from_str(request.object.ok_or(ReviewError::NoObject)?.get())?;
    if request.operation != AdmissionOperation::Create {
        return Ok(ReviewVerdict::allow());
    }
    let Some(owner) = owner(&pod.metadata) else {
        let name = tellable(&request.name);
        info!(%name, "pod has a data mover's label and no data mover as owner: left unchanged");
        return Ok(ReviewVerdict::allow());
    };
    let mover = MoverRef { kind: owner.kind, name: &owner.name, uid: &owner.uid };
    let decision = match state.listers().place(&mover, &constraints(&pod)).await {
        Ok(Some(decision)) => decision,
        Ok(None) => return Ok(ReviewVerdict::allow()),
        Err(why) => {
            let warning = format!("berth: the pod of {} {} is left unchanged: {why}", owner.kind, owner.name);
            return Ok(ReviewVerdict { warnings: vec![warning], ..ReviewVerdict::allow() });
        }
    };
    let warnings = decision.findings.iter().map(|finding| format!("berth: {finding}")).collect();
    if !request.is_dry_run() {
        decision.findings.iter().for_each(|finding| state.events().placement(&mover, finding));
    }
    let patch = edit(&pod, &decision).into_patch();
    if !patch.0.is_empty() {
        let (kind, name, reason) = (owner.kind, tellable(&owner.name), &decision.reason);
        let terms = decision.terms.as_ref().map(Vec::len);
        info!(%kind, %name, %reason, terms, tolerations = decision.tolerations.len(), "placed a data mover");
    }
    Ok(ReviewVerdict { patch: Some(patch), warnings, refused: None })
}

fn edit(pod: &Pod, decision: &AffinityDecision) -> Edit {
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
