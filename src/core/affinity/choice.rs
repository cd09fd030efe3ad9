//! Finds Velero's choice among the rules in the node affinity of a mover pod, and replaces it by
//! all alternatives.
//!
//! Velero writes a term in this order: the topology of the volume, the one element that it chose,
//! the operating system, and sometimes nodes to avoid. berth writes topology and operating system,
//! then an alternative. So an alternative *behind* the operating system is berth's. This is how a
//! pod that was changed before is recognised, even if an alternative equals the topology. For that
//! reason equal requirements of both are not merged: a requirement may occur twice in a term, which
//! makes no difference to the scheduler.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::term::{Expression, NodeSelectorOperator, Term};

/// A term of the pod, split into the requirements of the volume's topology and the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TermParts {
    own: Vec<Expression>,
    rest: Vec<Expression>,
    fields: Vec<Expression>,
}

impl TermParts {
    /// The term with another rest. What Velero adds to every term comes last, and once, because
    /// Velero 1.18.1 repeats it with every mover.
    fn with(&self, rest: impl IntoIterator<Item = Expression>) -> Term {
        let (added, mut expressions): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_velero);
        expressions.splice(0..0, self.own.iter().cloned());
        for (i, expression) in added.iter().enumerate() {
            if !added.iter().skip(i + 1).any(|later| later == expression) {
                expressions.push(expression.clone());
            }
        }
        Term { expressions, fields: self.fields.clone() }
    }
}

/// Splits each term by the topology of the volume, if that is known. The flag is true if every term
/// has its topology.
pub(super) fn take_apart(terms: &[Term], topology: Option<&[Term]>) -> (Vec<TermParts>, bool) {
    let parts = |term: &Term, own: &[Expression]| {
        without(&term.expressions, own).map(|rest| {
            let own = own.to_vec();
            TermParts { own, rest, fields: term.fields.clone() }
        })
    };
    let known: Option<Vec<TermParts>> = topology.and_then(|topology| {
        if topology.is_empty() {
            return terms.iter().map(|term| parts(term, &[])).collect();
        }
        // Terms and topology are in the same order, one for one, unless the pod was changed in
        // between.
        let pairs = terms.iter().zip(topology);
        if terms.len() == topology.len() && pairs.clone().all(|(term, own)| begins(term, own)) {
            return pairs.map(|(term, own)| parts(term, &own.expressions)).collect();
        }
        let find = |term: &Term| {
            let fitting = topology.iter().filter(|own| own.fields == term.fields);
            let fitting = fitting.filter_map(|own| parts(term, &own.expressions));
            // Velero puts the topology in front; the longest match is the complete one.
            fitting.max_by_key(|parts| (term.expressions.starts_with(&parts.own), parts.own.len()))
        };
        terms.iter().map(find).collect()
    });
    match known {
        Some(parts) => (parts, true),
        None => {
            let whole = |t: &Term| TermParts {
                own: Vec::new(),
                rest: t.expressions.clone(),
                fields: t.fields.clone(),
            };
            (terms.iter().map(whole).collect(), false)
        }
    }
}

fn begins(term: &Term, own: &Term) -> bool {
    term.fields == own.fields && term.expressions.starts_with(&own.expressions)
}

/// The terms without the alternatives, if each of them has the form that berth writes. The flag is
/// true if all of them have the same alternative, the first one.
pub(super) fn as_ours(
    parts: &[TermParts],
    alternatives: &[Vec<Expression>],
    system: Option<&Expression>,
) -> Option<(Vec<Term>, bool)> {
    let mut all_first = true;
    let mut terms = Vec::with_capacity(parts.len());
    for part in parts {
        let (alternative, at, length) = ours(&part.rest, alternatives, system)?;
        all_first &= alternative == 0;
        let (before, after) = (part.rest.iter().take(at), part.rest.iter().skip(at + length));
        terms.push(part.with(before.chain(after).cloned()));
    }
    (!terms.is_empty()).then_some((terms, all_first))
}

/// The alternative behind what Velero writes last: which one, its index, and its length. One at the
/// very end is preferred, because berth puts it there; other components may have added requirements
/// behind it.
fn ours(
    rest: &[Expression],
    alternatives: &[Vec<Expression>],
    system: Option<&Expression>,
) -> Option<(usize, usize, usize)> {
    let mut best: Option<(bool, usize, usize, Reverse<usize>)> = None;
    let is_movers = rest.iter().any(is_velero);
    for (i, alternative) in alternatives.iter().enumerate().filter(|(_, a)| !a.is_empty()) {
        for (at, window) in rest.windows(alternative.len()).enumerate() {
            if window != alternative.as_slice() {
                continue;
            }
            let is_end = at + window.len() == rest.len();
            let mut added = rest.iter().take(at).rev().take_while(|e| is_velero(e));
            let is_marked = if is_movers { added.any(|e| Some(e) == system) } else { is_end };
            if is_marked {
                best = best.max(Some((is_end, window.len(), at, Reverse(i))));
            }
        }
    }
    best.map(|(_, length, at, Reverse(i))| (i, at, length))
}

/// Does every term end as Velero writes it: with its choice, followed only by what it always adds?
pub(super) fn is_as_made(parts: &[TermParts], choice: &[Expression]) -> bool {
    parts.iter().all(|TermParts { rest, .. }| {
        let added = rest.iter().rev().take_while(|e| is_velero(e)).count();
        // The choice may end in such a requirement as well.
        (rest.len() - added..rest.len()).any(|end| {
            let start = end.checked_sub(choice.len());
            let window = start.and_then(|start| rest.get(start..end));
            window.is_some_and(|window| without(window, choice).is_some())
        })
    })
}

/// The terms without Velero's choice, if each of them has it.
pub(super) fn without_choice(parts: &[TermParts], choice: &[Expression]) -> Option<Vec<Term>> {
    let strip = |part: &TermParts| {
        let rest = without(&part.rest, choice)?;
        // A rule may contain the operating system in the form that Velero writes. Velero's own
        // requirement must not be taken for that rule.
        let system = part.rest.iter().rfind(|e| is_operating_system(e));
        system.is_none_or(|system| rest.contains(system)).then(|| part.with(rest))
    };
    parts.iter().map(strip).collect()
}

/// The terms without what a node-agent chose by an older configuration. Such a choice stands
/// between the topology, which must be known, and the operating system. Requirements behind that
/// one are not from Velero.
pub(super) fn without_old_choice(parts: &[TermParts]) -> Vec<Term> {
    let strip = |part: &TermParts| {
        let end = part.rest.iter().rposition(is_operating_system).unwrap_or_default();
        let kept = part.rest.iter().enumerate().filter(|(i, e)| *i >= end || is_velero(e));
        part.with(kept.map(|(_, e)| e.clone()))
    };
    parts.iter().map(strip).collect()
}

/// The terms unchanged.
pub(super) fn whole(parts: &[TermParts]) -> Vec<Term> {
    parts.iter().map(|part| part.with(part.rest.iter().cloned())).collect()
}

/// Is there anything besides the volume's topology and what Velero adds to every term?
pub(super) fn has_others(parts: &[TermParts]) -> bool {
    parts.iter().flat_map(|part| &part.rest).any(|e| !is_velero(e))
}

/// One term for each pair: a node satisfies one of them if and only if it satisfies a base term and
/// an alternative. A base term without requirements is satisfied by every node, and so is an empty
/// list of base terms. An empty result means no restriction.
pub(super) fn product(base: &[Term], alternatives: &[Vec<Expression>]) -> Vec<Term> {
    let everywhere = [Term::default()];
    let base = if base.is_empty() { everywhere.as_slice() } else { base };
    let (mut terms, mut seen, mut bases) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    // After the choice was removed from many terms, most of what remains is equal.
    for term in base.iter().filter(|term| bases.insert(term.sorted())) {
        for alternative in alternatives {
            let mut term = term.clone();
            term.expressions.extend(alternative.iter().cloned());
            if term.is_empty() {
                return Vec::new();
            }
            if seen.insert(term.sorted()) {
                terms.push(term);
            }
        }
    }
    terms
}

/// Are both lists equal, apart from their order?
pub(super) fn same(one: &[Term], other: &[Term]) -> bool {
    let sorted = |terms: &[Term]| -> Vec<Term> { terms.iter().map(Term::sorted).collect() };
    let (one, other) = (sorted(one), sorted(other));
    one.len() == other.len()
        && one.iter().all(|term| other.contains(term))
        && other.iter().all(|term| one.contains(term))
}

/// The operating system that Velero wrote last into every term.
pub(super) fn system(terms: &[Term]) -> Option<&Expression> {
    let last = |term: &'_ Term| term.expressions.iter().rposition(is_operating_system);
    let mut systems = terms.iter().map(|term| term.expressions.get(last(term)?));
    let first = systems.next()??;
    systems.all(|system| system == Some(first)).then_some(first)
}

/// The alternatives for a pod of that operating system, without duplicates, without duplicate
/// requirements, and without the operating system itself, which is already decided. Elements for
/// another system count only if there are no others. An alternative without requirements stands
/// alone, because it makes the others redundant.
pub(super) fn alternatives(
    elements: &[Vec<Expression>],
    system: Option<&Expression>,
) -> Vec<Vec<Expression>> {
    let is_foreign = |e: &Expression| system.is_some_and(|system| is_operating_system(e) && e != system);
    let all_foreign = elements.iter().all(|element| element.iter().any(is_foreign));
    let fitting = elements.iter().filter(|element| all_foreign || !element.iter().any(is_foreign));
    let (mut found, mut seen): (Vec<Vec<Expression>>, Vec<Vec<Expression>>) = (Vec::new(), Vec::new());
    for element in fitting {
        let mut alternative: Vec<Expression> = Vec::new();
        for expression in element {
            if Some(expression) != system && !alternative.contains(expression) {
                alternative.push(expression.clone());
            }
        }
        if alternative.is_empty() {
            return vec![alternative];
        }
        let mut sorted = alternative.clone();
        sorted.sort();
        if !seen.contains(&sorted) {
            seen.push(sorted);
            found.push(alternative);
        }
    }
    if found.is_empty() { vec![Vec::new()] } else { found }
}

/// Does the term require Windows and another system? No node satisfies both.
pub(super) fn contradicts(term: &Term) -> bool {
    let has = |operator| term.expressions.iter().any(|e| is_operating_system(e) && e.operator() == operator);
    has(NodeSelectorOperator::In) && has(NodeSelectorOperator::NotIn)
}

/// Does every term contradict itself, with no rule that helps, because all rules require the same
/// system?
pub(super) fn is_hopeless(terms: &[Term], elements: &[Vec<Expression>]) -> bool {
    let Some((first, others)) = elements.split_first() else { return false };
    let mut systems = first.iter().filter(|e| is_operating_system(e));
    terms.iter().all(contradicts) && systems.any(|system| others.iter().all(|other| other.contains(system)))
}

fn is_operating_system(expression: &Expression) -> bool {
    expression.key() == "kubernetes.io/os"
        && matches!(expression.operator(), NodeSelectorOperator::In | NodeSelectorOperator::NotIn)
        && matches!(expression.values(), [system] if system == "windows")
}

/// Is this a requirement in the form that Velero adds to every term?
fn is_velero(expression: &Expression) -> bool {
    let avoids_nodes =
        expression.key() == "kubernetes.io/hostname" && expression.operator() == NodeSelectorOperator::NotIn;
    avoids_nodes || is_operating_system(expression)
}

/// Removes each element of `part` from `all` once: from the front if `all` begins with `part`, else
/// from the end. `None` if an element is missing.
fn without(all: &[Expression], part: &[Expression]) -> Option<Vec<Expression>> {
    if let Some(rest) = all.strip_prefix(part) {
        return Some(rest.to_vec());
    }
    let mut left = all.to_vec();
    for expression in part {
        let at = left.iter().rposition(|e| e == expression)?;
        left.remove(at);
    }
    Some(left)
}
