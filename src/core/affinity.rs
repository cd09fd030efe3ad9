//! On which nodes a data mover may run: the pod in which Velero moves the content of one volume.
//!
//! Velero chooses one element of `loadAffinity` and leaves the others; here the elements that apply are
//! alternatives. [`decide`] is the whole way from what is known about the mover to what its pod becomes.

mod choice;
mod coverage;
mod finding;
mod nodes;
mod placement;
mod term;
mod toleration;

pub use coverage::{Cluster, Coverage, System, cover};
pub use finding::{Finding, Lacking, Named, NearMiss, Reason};
use nodes::Questions;
pub use nodes::{Node, Nodes};
pub use term::{Expression, Operator, Term};
pub use toleration::{Effect, Taint, Toleration, TolerationRule};

use crate::label::Selector;

/// An element of `loadAffinity`: the nodes for movers whose volume is of that class; without a class, for the
/// movers of classes that have no rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub storage_class: Option<String>,
    /// As a label selector reads: without requirements it takes every node.
    pub selector: Selector,
}

impl Rule {
    /// As Velero writes it into a term.
    pub fn expressions(&self) -> Vec<Expression> {
        term::expressions(&self.selector)
    }

    /// Does it allow this node?
    fn allows(&self, node: &Node) -> bool {
        self.selector.matches(&node.labels)
    }
}

/// When the volume of a StorageClass comes into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    Immediate,
    WaitForFirstConsumer,
}

/// What the mover is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// A DataUpload. Classes: of the claim that Velero made for it, of `backupPVC` for the source's, of the
    /// source; the first that is known counts.
    Backup {
        claim_class: Option<&'a str>,
        mapped_class: Option<&'a str>,
        source_class: Option<&'a str>,
        /// What Velero put into the pod from the source's volume; empty if that has nothing to say or its class
        /// binds at once. `None`: not known.
        topology: Option<&'a [Term]>,
    },
    /// A DataDownload.
    Restore {
        class: Option<&'a str>,
        binding: Binding,
        ignore_delay_binding: bool,
        /// The pod's `nodeSelector` for `kubernetes.io/hostname`.
        selected_node: Option<&'a str>,
    },
    /// A PodVolumeBackup or PodVolumeRestore: its node is in the pod already, so that what does not fit would be
    /// refused by the kubelet.
    PodVolume { class: Option<&'a str>, node: &'a str },
}

impl<'a> Operation<'a> {
    /// The class that rules are looked up by. Some volumes have none.
    pub fn class(&self) -> Option<&'a str> {
        let named = |class: Option<&'a str>| class.filter(|class| !class.is_empty());
        match *self {
            Self::Backup { claim_class, mapped_class, source_class, .. } => {
                named(claim_class).or(named(mapped_class)).or(named(source_class))
            }
            Self::Restore { class, .. } | Self::PodVolume { class, .. } => named(class),
        }
    }

    /// The node that is settled, whatever the rules say.
    fn given_node(&self) -> Option<&'a str> {
        match *self {
            Self::Restore { selected_node, .. } => selected_node,
            Self::PodVolume { node, .. } => Some(node),
            Self::Backup { .. } => None,
        }
    }

    /// Why the rules do not count, if they do not.
    fn exempt(&self) -> Option<Reason> {
        match *self {
            Self::Backup { .. } => None,
            Self::PodVolume { node, .. } => Some(Reason::NodeGiven { node: node.to_owned() }),
            Self::Restore { selected_node: Some(node), .. } => {
                Some(Reason::NodeSelected { node: node.to_owned() })
            }
            Self::Restore { binding, ignore_delay_binding, .. } => {
                let waits = binding == Binding::WaitForFirstConsumer && !ignore_delay_binding;
                let class = self.class().unwrap_or_default().to_owned();
                waits.then_some(Reason::WaitsForConsumer { class })
            }
        }
    }
}

/// All that counts about one mover pod.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    pub operation: Operation<'a>,
    pub rules: &'a [Rule],
    pub toleration_rules: &'a [TolerationRule],
    /// Of the required node affinity of the pod. Empty: there is none.
    pub terms: &'a [Term],
    pub tolerations: &'a [Toleration],
    /// A node-agent runs that started before the last change of the configuration, and so may have chosen by an
    /// older one.
    pub agents_outdated: bool,
    /// `None`: not known, so nothing is said about them and nothing left out for their sake.
    pub nodes: Option<&'a Nodes>,
}

/// What becomes of the pod, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The terms of the required node affinity; empty: it goes. `None`: it stays as it is.
    pub terms: Option<Vec<Term>>,
    /// To be added.
    pub tolerations: Vec<Toleration>,
    pub reason: Reason,
    pub findings: Vec<Finding>,
}

/// Decides about one pod. A second look at a pod that was changed accordingly changes nothing.
pub fn decide(situation: &Situation<'_>) -> Decision {
    let class = situation.operation.class();
    let (_, chosen) = of_class(situation.toleration_rules, class, |rule| rule.storage_class.as_deref());
    let tolerations = toleration::missing(&chosen, situation.tolerations);
    let tolerated =
        || -> Vec<Toleration> { situation.tolerations.iter().chain(&tolerations).cloned().collect() };
    let (by_class, rules) = of_class(situation.rules, class, |rule| rule.storage_class.as_deref());

    if let Some(reason) = situation.operation.exempt() {
        let findings = about_given_node(situation, &rules);
        return Decision { terms: None, tolerations, reason, findings };
    }
    let reason = match (class, rules.len()) {
        (_, 0) => Reason::NoRules,
        (Some(class), rules) if by_class => Reason::ClassRules { class: class.to_owned(), rules },
        (_, rules) => Reason::GlobalRules { rules },
    };
    let mut questions = situation.nodes.map(Questions::new);
    let (terms, mut findings) = place(situation, &rules, questions.as_mut());
    let now = terms.as_deref().unwrap_or(situation.terms);
    if now.iter().any(choice::contradicts) {
        findings.push(Finding::TwoSystems);
    }
    findings.extend(questions.as_mut().and_then(|questions| placement::judge(now, &tolerated(), questions)));
    Decision { terms, tolerations, reason, findings }
}

/// The rules of that class if there are any (then the flag is set), else those without a class.
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

fn about_given_node(situation: &Situation<'_>, rules: &[&Rule]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(name) = situation.operation.given_node() else { return findings };
    let Some((nodes, node)) = situation.nodes.and_then(|nodes| Some((nodes, nodes.get(name)?))) else {
        return findings;
    };
    if !rules.is_empty() && !rules.iter().any(|rule| rule.allows(node)) {
        findings.push(Finding::NodeOutsideRules { node: name.to_owned() });
    }
    // The agent that works for a pod's volume is the one that made the mover.
    let is_restore = matches!(situation.operation, Operation::Restore { .. });
    if is_restore && !nodes.has_agent(name) {
        findings.push(Finding::NoAgent { nodes: Named { names: vec![name.to_owned()], count: 1 } });
    }
    findings
}

/// The terms, if they have to change.
fn place(
    situation: &Situation<'_>,
    rules: &[&Rule],
    mut questions: Option<&mut Questions<'_>>,
) -> (Option<Vec<Term>>, Vec<Finding>) {
    // A term that asks for nothing matches nothing, so it takes no part.
    let there: Vec<Term> = situation.terms.iter().filter(|term| !term.is_empty()).cloned().collect();
    if there.is_empty() && !situation.terms.is_empty() {
        return (None, Vec::new());
    }
    let topology = match situation.operation {
        Operation::Backup { topology, .. } => topology,
        _ => Some([].as_slice()),
    };
    let elements: Vec<Vec<Expression>> = rules.iter().map(|rule| rule.expressions()).collect();
    if choice::is_hopeless(&there, &elements) {
        return (None, Vec::new());
    }
    // The rules that apply are in the order of the configuration, so the first is what Velero takes.
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
        // No alternative would stand behind the terms, so at a second look a topology that asks for the same as
        // Velero's choice would be taken for that, and go.
        kept_choice = choice::has_others(&parts);
    } else if !is_mixed {
        base = choice::without_choice(&parts, choice);
        let may_be_old = situation.agents_outdated && (base.is_none() || choice.is_empty());
        kept_choice = may_be_old && choice::has_others(&parts);
    }
    // Whatever else stands there is somebody's wish: it goes on counting.
    let base = base.unwrap_or_else(|| choice::whole(&parts));
    let (terms, mut findings) = placement::terms(&base, &alternatives, questions);
    if kept_choice {
        findings.push(Finding::ChoiceKept);
    }
    ((!choice::same(&terms, &there)).then_some(terms), findings)
}

#[cfg(test)]
mod tests;
