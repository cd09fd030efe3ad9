//! The nodes that the alternatives allow, and whether those have node-agents.

use super::choice;
use super::nodes::{Node, Nodes, Questions, Set};
use super::reason::{AffinityFinding, Lacking, NearMiss, NodeSample};
use super::term::{Expression, Term};
use super::toleration::{Effect, Taint, Toleration};

/// The terms for these alternatives. An alternative whose nodes all lack a node-agent is omitted if
/// a node of another one has one. An alternative without any node stays, because an autoscaler may
/// add some.
pub(super) fn terms(
    base: &[Term],
    alternatives: &[Vec<Expression>],
    questions: Option<&mut Questions<'_>>,
) -> (Vec<Term>, Vec<AffinityFinding>) {
    let Some(questions) = questions else { return (choice::product(base, alternatives), Vec::new()) };
    let (nodes, mut within) = (questions.nodes, Set::default());
    for term in base {
        within.add(&questions.fulfilling(&term.expressions, &term.fields));
    }
    if base.is_empty() {
        within.clone_from(nodes.all());
    }
    let found: Vec<(&Vec<Expression>, Set)> = alternatives
        .iter()
        .map(|alternative| {
            let mut set = questions.fulfilling(alternative, &[]);
            set.keep(&within);
            (alternative, set)
        })
        .collect();
    let is_staffed = |set: &Set| set.meets(nodes.with_agent());
    let any_staffed = found.iter().any(|(_, set)| is_staffed(set));
    let (mut kept, mut findings) = (Vec::new(), Vec::new());
    for (alternative, set) in found {
        if any_staffed && !set.is_empty() && !is_staffed(&set) {
            findings.push(AffinityFinding::LeftOut {
                alternative: alternative.clone(),
                nodes: named(&set, nodes),
            });
        } else {
            kept.push(alternative.clone());
        }
    }
    (choice::product(base, &kept), findings)
}

/// What prevents a mover with these terms from running.
pub(super) fn judge(
    terms: &[Term],
    tolerations: &[Toleration],
    questions: &mut Questions<'_>,
) -> Option<AffinityFinding> {
    let (nodes, mut matching) = (questions.nodes, Set::default());
    for term in terms.iter().filter(|term| !term.is_empty()) {
        matching.add(&questions.fulfilling(&term.expressions, &term.fields));
    }
    if terms.is_empty() {
        matching.clone_from(nodes.all());
    }
    if matching.is_empty() {
        return Some(AffinityFinding::NoNode { nearest: nearest(terms, questions) });
    }
    if !matching.meets(nodes.with_agent()) {
        return Some(AffinityFinding::NoAgent { nodes: named(&matching, nodes) });
    }
    matching.keep(nodes.with_agent());
    let mut first = None;
    for node in matching.iter().filter_map(|number| nodes.node(number)) {
        // One suitable node is enough: then there is no finding.
        let taint = untolerated(node, tolerations)?.clone();
        first = first.or(Some(AffinityFinding::NotTolerated { node: node.name.clone(), taint }));
    }
    first
}

/// The taint of the node that keeps a mover with these tolerations away, if there is one.
pub(super) fn untolerated<'n>(node: &'n Node, tolerations: &[Toleration]) -> Option<&'n Taint> {
    let mut hard = node.taints.iter().filter(|taint| taint.effect != Effect::PreferNoSchedule);
    hard.find(|taint| !tolerations.iter().any(|toleration| toleration.tolerates(taint)))
}

/// The node that fails the fewest requirements of a term. Among equals, one with a node-agent, then
/// the first by name.
fn nearest(terms: &[Term], questions: &mut Questions<'_>) -> Option<NearMiss> {
    let nodes = questions.nodes;
    let found = terms.iter().filter(|term| !term.is_empty()).map(|term| (term, questions.nearest(term)));
    let found: Vec<(&Term, (usize, Set))> = found.collect();
    let fewest = found.iter().map(|(_, (failed, _))| *failed).min()?;
    let mut nearest = found.iter().filter(|(_, (failed, _))| *failed == fewest);
    let is_staffed = |set: &Set| set.meets(nodes.with_agent());
    let (term, set) = match nearest.clone().find(|(_, (_, set))| is_staffed(set)) {
        Some((term, (_, set))) => {
            let mut set = set.clone();
            set.keep(nodes.with_agent());
            (term, set)
        }
        None => nearest.next().map(|(term, (_, set))| (term, set.clone()))?,
    };
    let node = set.iter().filter_map(|number| nodes.node(number)).min_by_key(|node| &node.name)?;
    let mut lacking: Vec<Lacking> = Vec::new();
    for expression in &term.expressions {
        let has = node.labels.get(expression.key());
        let is_new = lacking.iter().all(|known| known.expression != *expression);
        if is_new && !expression.matches(has.map(String::as_str)) {
            lacking.push(Lacking { expression: expression.clone(), has: has.cloned() });
        }
    }
    for field in term.fields.iter().filter(|field| !field.matches_field(&node.name)) {
        lacking.push(Lacking { expression: field.clone(), has: Some(node.name.clone()) });
    }
    Some(NearMiss { node: node.name.clone(), lacking })
}

/// The first few by name.
fn named(set: &Set, nodes: &Nodes) -> NodeSample {
    const SHOWN: usize = 3;
    let mut names: Vec<&str> = Vec::with_capacity(SHOWN + 1);
    for node in set.iter().filter_map(|number| nodes.node(number)) {
        let at = names.partition_point(|name| *name < node.name.as_str());
        if at < SHOWN {
            names.insert(at, &node.name);
            names.truncate(SHOWN);
        }
    }
    NodeSample { names: names.into_iter().map(str::to_owned).collect(), count: set.len() }
}
