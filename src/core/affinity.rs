//! The nodes on which a data mover can run, that is, the pod in which Velero moves the content of
//! one volume.
//!
//! Velero applies one element of `loadAffinity` and ignores the others. Here all elements that
//! apply are alternatives. [`decide`] computes everything that admission changes in the pod.

mod choice;
mod coverage;
mod nodes;
mod placement;
mod reason;
mod term;
mod toleration;

pub use coverage::{Coverage, CoverageInput, System, cover};
use nodes::Questions;
pub use nodes::{Node, Nodes};
pub use reason::{AffinityFinding, AffinityReason, Lacking, NearMiss, NodeSample};
pub use term::{Expression, NodeSelectorOperator, Term};
pub use toleration::{Effect, Taint, Toleration, TolerationRule};

use crate::label::Selector;

/// An element of `loadAffinity`: the nodes for movers whose volume has that StorageClass. Without a
/// class, the element is for movers of classes that have no rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadAffinityRule {
    pub storage_class: Option<String>,
    /// Like a label selector: without requirements it matches every node.
    pub selector: Selector,
}

impl LoadAffinityRule {
    /// The requirements in the form in which Velero writes them into a term.
    pub fn expressions(&self) -> Vec<Expression> {
        term::expressions(&self.selector)
    }

    /// Does the rule allow this node?
    fn allows(&self, node: &Node) -> bool {
        self.selector.matches(&node.labels)
    }
}

/// When a volume of a StorageClass is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeBindingMode {
    Immediate,
    WaitForFirstConsumer,
}

/// The work of the mover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoverOperation<'a> {
    /// A DataUpload. Candidates for its class: that of the claim that Velero made for it, that of
    /// `backupPVC` for the source's class, that of the source. The first one that is known counts.
    Backup {
        claim_class: Option<&'a str>,
        mapped_class: Option<&'a str>,
        source_class: Option<&'a str>,
        /// The topology that Velero copied from the source's volume into the pod. Empty if the
        /// volume has none or its class binds immediately. `None`: not known.
        topology: Option<&'a [Term]>,
    },
    /// A DataDownload.
    Restore {
        class: Option<&'a str>,
        binding: VolumeBindingMode,
        ignore_delay_binding: bool,
        /// The pod's `nodeSelector` for `kubernetes.io/hostname`.
        selected_node: Option<&'a str>,
    },
    /// A PodVolumeBackup or PodVolumeRestore. Its pod already names its node, so the kubelet would
    /// refuse a pod that does not fit.
    PodVolume { class: Option<&'a str>, node: &'a str },
}

impl<'a> MoverOperation<'a> {
    /// The StorageClass by which rules are found. Some volumes have none.
    pub fn class(&self) -> Option<&'a str> {
        let named = |class: Option<&'a str>| class.filter(|class| !class.is_empty());
        match *self {
            Self::Backup { claim_class, mapped_class, source_class, .. } => {
                named(claim_class).or(named(mapped_class)).or(named(source_class))
            }
            Self::Restore { class, .. } | Self::PodVolume { class, .. } => named(class),
        }
    }

    /// The node that is decided already, whatever the rules say.
    fn given_node(&self) -> Option<&'a str> {
        match *self {
            Self::Restore { selected_node, .. } => selected_node,
            Self::PodVolume { node, .. } => Some(node),
            Self::Backup { .. } => None,
        }
    }

    /// Why the rules do not apply; `None` if they do.
    fn exempt(&self) -> Option<AffinityReason> {
        match *self {
            Self::Backup { .. } => None,
            Self::PodVolume { node, .. } => Some(AffinityReason::NodeGiven { node: node.to_owned() }),
            Self::Restore { selected_node: Some(node), .. } => {
                Some(AffinityReason::NodeSelected { node: node.to_owned() })
            }
            Self::Restore { binding, ignore_delay_binding, .. } => {
                let waits = binding == VolumeBindingMode::WaitForFirstConsumer && !ignore_delay_binding;
                let class = self.class().unwrap_or_default().to_owned();
                waits.then_some(AffinityReason::WaitsForConsumer { class })
            }
        }
    }
}

/// Everything that the decision about one mover pod depends on.
#[derive(Clone, Copy, Debug)]
pub struct AffinityInput<'a> {
    pub operation: MoverOperation<'a>,
    pub rules: &'a [LoadAffinityRule],
    pub toleration_rules: &'a [TolerationRule],
    /// Terms of the pod's required node affinity; empty if it has none.
    pub terms: &'a [Term],
    pub tolerations: &'a [Toleration],
    /// A node-agent is running that started before the last change of the configuration, so it may
    /// have applied an older one.
    pub agents_outdated: bool,
    /// `None`: the nodes are not known, so there are no findings about them and no alternative is
    /// omitted because of them.
    pub nodes: Option<&'a Nodes>,
}

/// The changes to the pod, and the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffinityDecision {
    /// The new terms of the required node affinity; empty: it is removed. `None`: it stays as it
    /// is.
    pub terms: Option<Vec<Term>>,
    /// Tolerations to add.
    pub tolerations: Vec<Toleration>,
    pub reason: AffinityReason,
    pub findings: Vec<AffinityFinding>,
}

/// Decides about one pod. Idempotent: for a pod that was changed accordingly, nothing changes.
pub fn decide(situation: &AffinityInput<'_>) -> AffinityDecision {
    let class = situation.operation.class();
    let (_, chosen) = of_class(situation.toleration_rules, class, |rule| rule.storage_class.as_deref());
    let tolerations = toleration::missing(&chosen, situation.tolerations);
    let tolerated =
        || -> Vec<Toleration> { situation.tolerations.iter().chain(&tolerations).cloned().collect() };
    let (by_class, rules) = of_class(situation.rules, class, |rule| rule.storage_class.as_deref());

    if let Some(reason) = situation.operation.exempt() {
        let findings = about_given_node(situation, &rules);
        return AffinityDecision { terms: None, tolerations, reason, findings };
    }
    let reason = match (class, rules.len()) {
        (_, 0) => AffinityReason::NoRules,
        (Some(class), rules) if by_class => AffinityReason::ClassRules { class: class.to_owned(), rules },
        (_, rules) => AffinityReason::GlobalRules { rules },
    };
    let mut questions = situation.nodes.map(Questions::new);
    let (terms, mut findings) = place(situation, &rules, questions.as_mut());
    let now = terms.as_deref().unwrap_or(situation.terms);
    if now.iter().any(choice::contradicts) {
        findings.push(AffinityFinding::TwoSystems);
    }
    findings.extend(questions.as_mut().and_then(|questions| placement::judge(now, &tolerated(), questions)));
    AffinityDecision { terms, tolerations, reason, findings }
}

/// The rules of that class, or, if it has none, those without a class. The flag is true for rules
/// of the class.
fn of_class<'r, R>(
    rules: &'r [R],
    class: Option<&str>,
    of: impl Fn(&'r R) -> Option<&'r str>,
) -> (bool, Vec<&'r R>) {
    let select =
        |class: Option<&str>| -> Vec<&'r R> { rules.iter().filter(|rule| of(rule) == class).collect() };
    let own = class.map(|class| select(Some(class))).unwrap_or_default();
    if own.is_empty() { (false, select(None)) } else { (true, own) }
}

fn about_given_node(situation: &AffinityInput<'_>, rules: &[&LoadAffinityRule]) -> Vec<AffinityFinding> {
    let mut findings = Vec::new();
    let Some(name) = situation.operation.given_node() else { return findings };
    let Some((nodes, node)) = situation.nodes.and_then(|nodes| Some((nodes, nodes.get(name)?))) else {
        return findings;
    };
    if !rules.is_empty() && !rules.iter().any(|rule| rule.allows(node)) {
        findings.push(AffinityFinding::NodeOutsideRules { node: name.to_owned() });
    }
    // The node-agent that handles the volume of a pod is the one that created the mover.
    let is_restore = matches!(situation.operation, MoverOperation::Restore { .. });
    if is_restore && !nodes.has_agent(name) {
        findings
            .push(AffinityFinding::NoAgent { nodes: NodeSample { names: vec![name.to_owned()], count: 1 } });
    }
    findings
}

/// The new terms, if they must change.
fn place(
    situation: &AffinityInput<'_>,
    rules: &[&LoadAffinityRule],
    mut questions: Option<&mut Questions<'_>>,
) -> (Option<Vec<Term>>, Vec<AffinityFinding>) {
    // Terms without requirements match nothing, so they are dropped.
    let there: Vec<Term> = situation.terms.iter().filter(|term| !term.is_empty()).cloned().collect();
    if there.is_empty() && !situation.terms.is_empty() {
        return (None, Vec::new());
    }
    let topology = match situation.operation {
        MoverOperation::Backup { topology, .. } => topology,
        _ => Some([].as_slice()),
    };
    let elements: Vec<Vec<Expression>> = rules.iter().map(|rule| rule.expressions()).collect();
    if choice::is_hopeless(&there, &elements) {
        return (None, Vec::new());
    }
    // The rules that apply are in the order of the configuration, so the first is the one that
    // Velero applies.
    let choice = elements.first().map(Vec::as_slice).unwrap_or_default();
    let system = choice::system(&there);
    let alternatives = choice::alternatives(&elements, system);
    let (parts, topology_known) = choice::take_apart(&there, topology);

    let ours = choice::as_ours(&parts, &alternatives, system);
    let mut is_mixed = false;
    if let Some((base, all_first)) = ours {
        let (terms, findings) = placement::terms(&base, &alternatives, questions.as_deref_mut());
        if choice::same(&terms, &there) {
            return (None, findings);
        }
        is_mixed = !all_first && !choice::is_as_made(&parts, choice);
    }
    let (mut base, mut kept_choice) = (None, false);
    let is_idle = alternatives.iter().all(Vec::is_empty);
    if situation.agents_outdated && topology_known {
        base = Some(choice::without_old_choice(&parts));
    } else if !topology_known && is_idle && choice.iter().any(|e| Some(e) != system) {
        // With no alternative behind the terms, a topology equal to Velero's choice would be
        // mistaken for that choice at the second evaluation, and removed.
        kept_choice = choice::has_others(&parts);
    } else if !is_mixed {
        base = choice::without_choice(&parts, choice);
        let may_be_old = situation.agents_outdated && (base.is_none() || choice.is_empty());
        kept_choice = may_be_old && choice::has_others(&parts);
    }
    // All other requirements were put there on purpose, so they stay.
    let base = base.unwrap_or_else(|| choice::whole(&parts));
    let (terms, mut findings) = placement::terms(&base, &alternatives, questions);
    if kept_choice {
        findings.push(AffinityFinding::ChoiceKept);
    }
    ((!choice::same(&terms, &there)).then_some(terms), findings)
}

#[cfg(test)]
mod tests;
