//! What of a mover pod's node affinity is Velero's choice among the rules, and what it becomes when all of them
//! count.
//!
//! Velero writes a term as the volume's own topology, then the one element it chose, then the operating system
//! (and, seldom, nodes to avoid). We write topology and operating system, then an alternative. So an alternative
//! *behind* the operating system is ours: that is how a pod that is looked at twice is known again, even where an
//! alternative asks for the same as the topology does. For that reason the two are not merged: a requirement may
//! stand twice in a term of ours, which means nothing to the scheduler.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::term::{Expression, Operator, Term};

/// A term as it stands on the pod: what is known to be the volume's own, and the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    own: Vec<Expression>,
    rest: Vec<Expression>,
    fields: Vec<Expression>,
}

impl Parts {
    /// With that rest; what Velero adds to every term comes last, and once: Velero 1.18.1 repeats it with every
    /// mover.
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

/// Takes each term apart, by the volume's topology where that is known. The flag: every term has its topology.
pub(super) fn take_apart(terms: &[Term], topology: Option<&[Term]>) -> (Vec<Parts>, bool) {
    let parts = |term: &Term, own: &[Expression]| {
        without(&term.expressions, own).map(|rest| {
            let own = own.to_vec();
            Parts { own, rest, fields: term.fields.clone() }
        })
    };
    let known: Option<Vec<Parts>> = topology.and_then(|topology| {
        if topology.is_empty() {
            return terms.iter().map(|term| parts(term, &[])).collect();
        }
        // One for one and in the same order, as long as nobody has touched them.
        let pairs = terms.iter().zip(topology);
        if terms.len() == topology.len() && pairs.clone().all(|(term, own)| begins(term, own)) {
            return pairs.map(|(term, own)| parts(term, &own.expressions)).collect();
        }
        let find = |term: &Term| {
            let fitting = topology.iter().filter(|own| own.fields == term.fields);
            let fitting = fitting.filter_map(|own| parts(term, &own.expressions));
            // Velero leaves the topology in front; the longest is the whole of it.
            fitting.max_by_key(|parts| (term.expressions.starts_with(&parts.own), parts.own.len()))
        };
        terms.iter().map(find).collect()
    });
    match known {
        Some(parts) => (parts, true),
        None => {
            let whole =
                |t: &Term| Parts { own: Vec::new(), rest: t.expressions.clone(), fields: t.fields.clone() };
            (terms.iter().map(whole).collect(), false)
        }
    }
}

fn begins(term: &Term, own: &Term) -> bool {
    term.fields == own.fields && term.expressions.starts_with(&own.expressions)
}

/// The terms before the alternatives, if every one of them looks like ours, and whether all hold the same
/// alternative, the first one.
pub(super) fn as_ours(
    parts: &[Parts],
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

/// The alternative that stands behind what Velero writes last: which one, where, and how long it is. At the very
/// end is best, for that is where we put it; others may have added theirs behind it.
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

/// Does every term end as Velero leaves it: with its choice, and behind that nothing but what it always adds?
pub(super) fn is_as_made(parts: &[Parts], choice: &[Expression]) -> bool {
    parts.iter().all(|Parts { rest, .. }| {
        let added = rest.iter().rev().take_while(|e| is_velero(e)).count();
        // The choice may end in such as well.
        (rest.len() - added..rest.len()).any(|end| {
            let start = end.checked_sub(choice.len());
            let window = start.and_then(|start| rest.get(start..end));
            window.is_some_and(|window| without(window, choice).is_some())
        })
    })
}

/// The terms without Velero's choice, if each of them holds it.
pub(super) fn without_choice(parts: &[Parts], choice: &[Expression]) -> Option<Vec<Term>> {
    let strip = |part: &Parts| {
        let rest = without(&part.rest, choice)?;
        // A rule may ask for the operating system in Velero's words: Velero's own are not that rule.
        let system = part.rest.iter().rfind(|e| is_operating_system(e));
        system.is_none_or(|system| rest.contains(system)).then(|| part.with(rest))
    };
    parts.iter().map(strip).collect()
}

/// The terms without what a node-agent chose by a configuration that is gone. It stands between the topology,
/// which has to be known, and the operating system; what follows that one is somebody else's.
pub(super) fn without_old_choice(parts: &[Parts]) -> Vec<Term> {
    let strip = |part: &Parts| {
        let end = part.rest.iter().rposition(is_operating_system).unwrap_or_default();
        let kept = part.rest.iter().enumerate().filter(|(i, e)| *i >= end || is_velero(e));
        part.with(kept.map(|(_, e)| e.clone()))
    };
    parts.iter().map(strip).collect()
}

/// The terms as they are.
pub(super) fn whole(parts: &[Parts]) -> Vec<Term> {
    parts.iter().map(|part| part.with(part.rest.iter().cloned())).collect()
}

/// Is there anything besides the volume's own and what Velero adds to every term?
pub(super) fn has_others(parts: &[Parts]) -> bool {
    parts.iter().flat_map(|part| &part.rest).any(|e| !is_velero(e))
}

/// One term for each pair: a node fulfils one of them exactly if it fulfils a base term and an alternative.
/// A base term without requirements holds everywhere, as does no base term at all. No term in the result: no
/// restriction.
pub(super) fn product(base: &[Term], alternatives: &[Vec<Expression>]) -> Vec<Term> {
    let everywhere = [Term::default()];
    let base = if base.is_empty() { everywhere.as_slice() } else { base };
    let (mut terms, mut seen, mut bases) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    // Where a choice was taken out of many, what is left of them is mostly the same.
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

/// Do both say the same, whatever the order?
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

/// The alternatives of the elements, for a pod of that operating system: none twice, nothing twice in one and no
/// word about the system, which is settled; elements for another system count only if there are no others. One
/// that asks for nothing stands alone, because the others add nothing to it.
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

/// Windows and not Windows: nothing fulfils both.
pub(super) fn contradicts(term: &Term) -> bool {
    let has = |operator| term.expressions.iter().any(|e| is_operating_system(e) && e.operator() == operator);
    has(Operator::In) && has(Operator::NotIn)
}

/// Does every term contradict itself, and is there no rule to lead out of it, because all ask for the same system?
pub(super) fn is_hopeless(terms: &[Term], elements: &[Vec<Expression>]) -> bool {
    let Some((first, others)) = elements.split_first() else { return false };
    let mut systems = first.iter().filter(|e| is_operating_system(e));
    terms.iter().all(contradicts) && systems.any(|system| others.iter().all(|other| other.contains(system)))
}

fn is_operating_system(expression: &Expression) -> bool {
    expression.key() == "kubernetes.io/os"
        && matches!(expression.operator(), Operator::In | Operator::NotIn)
        && matches!(expression.values(), [system] if system == "windows")
}

/// In the form in which Velero adds it to every term.
fn is_velero(expression: &Expression) -> bool {
    let avoids_nodes =
        expression.key() == "kubernetes.io/hostname" && expression.operator() == Operator::NotIn;
    avoids_nodes || is_operating_system(expression)
}

/// Takes each of `part` from `all` once, from the front if all of it stands there, else from the end; `None` if one is
/// not there.
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
