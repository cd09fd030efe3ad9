//! Conversion of a data mover's pod from and to JSON types: its owner, node affinity, tolerations,
//! and where it may run.

use berth_core::affinity::{Effect, Expression, NodeSelectorOperator, Term, Toleration};
use berth_core::mover::MoverKind;
use berth_core::mover::placement::PodConstraints;
use k8s_openapi::api::core::v1 as wire;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const HOSTNAME: &str = "kubernetes.io/hostname";

/// The data mover that a pod belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoverPodOwner {
    pub kind: MoverKind,
    pub name: String,
    pub uid: String,
}

/// The data mover that this pod belongs to. The label alone proves nothing, because every user can
/// write it, and a configured pod label overwrites its value. The name of the owner is the name of
/// the pod.
pub fn owner(metadata: &ObjectMeta) -> Option<MoverPodOwner> {
    let labels = metadata.labels.as_ref()?;
    let kind = MoverKind::ALL.into_iter().find(|kind| labels.contains_key(kind.pod_label()))?;
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let is_owner = owner.kind == kind.as_str()
        && owner.api_version == kind.api_version()
        && metadata.name.as_ref() == Some(&owner.name)
        && !owner.uid.is_empty();
    is_owner.then(|| MoverPodOwner { kind, name: owner.name.clone(), uid: owner.uid.clone() })
}

/// What a pod says about where it may run.
pub fn constraints(pod: &wire::Pod) -> PodConstraints {
    let spec = pod.spec.as_ref();
    let selector = spec.and_then(|spec| spec.node_selector.as_ref());
    PodConstraints {
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

/// The terms of the required node affinity of a pod.
pub fn required(pod: &wire::Pod) -> &[wire::NodeSelectorTerm] {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.map_or(&[], |required| required.node_selector_terms.as_slice())
}

/// Drops requirements with an unknown operator, because the API server admits none.
pub fn term(term: &wire::NodeSelectorTerm) -> Term {
    let read = |one: &wire::NodeSelectorRequirement| {
        let operator = NodeSelectorOperator::parse(&one.operator)?;
        Some(Expression::new(one.key.clone(), operator, one.values.clone().unwrap_or_default()))
    };
    let all = |list: &Option<Vec<_>>| list.iter().flatten().filter_map(read).collect();
    Term { expressions: all(&term.match_expressions), fields: all(&term.match_fields) }
}

/// Converts back to the JSON type.
pub fn write_term(term: &Term) -> wire::NodeSelectorTerm {
    let write = |one: &Expression| wire::NodeSelectorRequirement {
        key: one.key().to_owned(),
        operator: one.operator().name().to_owned(),
        values: Some(one.values().to_vec()).filter(|values| !values.is_empty()),
    };
    let all =
        |list: &[Expression]| Some(list.iter().map(write).collect()).filter(|list: &Vec<_>| !list.is_empty());
    wire::NodeSelectorTerm { match_expressions: all(&term.expressions), match_fields: all(&term.fields) }
}

/// An unknown effect is read as every effect, because the API server admits none.
pub fn toleration(toleration: &wire::Toleration) -> Toleration {
    let exists = toleration.operator.as_deref() == Some("Exists");
    Toleration {
        key: toleration.key.clone().unwrap_or_default(),
        value: (!exists).then(|| toleration.value.clone().unwrap_or_default()),
        effect: toleration.effect.as_deref().and_then(Effect::parse),
        seconds: toleration.toleration_seconds,
    }
}

/// Converts back to the JSON type.
pub fn write_toleration(toleration: &Toleration) -> wire::Toleration {
    let operator = if toleration.value.is_some() { "Equal" } else { "Exists" };
    wire::Toleration {
        key: Some(toleration.key.clone()).filter(|key| !key.is_empty()),
        operator: Some(operator.to_owned()),
        value: toleration.value.clone().filter(|value| !value.is_empty()),
        effect: toleration.effect.map(|effect| effect.name().to_owned()),
        toleration_seconds: toleration.seconds,
    }
}
