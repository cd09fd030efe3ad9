//! The nodes of a cluster, indexed by their labels, because each admission may search thousands of
//! them.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::term::{Expression, NodeSelectorOperator, Term};
use super::toleration::Taint;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
}

/// All nodes, and on which of them a node-agent runs. Each node has a number, and each label value
/// has the set of numbers of its nodes. Queries combine these sets instead of walking over the
/// nodes.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    slots: Vec<Option<Node>>,
    free: Vec<usize>,
    numbers: HashMap<String, usize>,
    labels: HashMap<String, HashMap<String, Vec<usize>>>,
    all: Set,
    /// Names and not numbers, because an agent may be seen before its node.
    agents: HashSet<String>,
    with_agent: Set,
}

impl Nodes {
    /// Adds a node, or updates it.
    pub fn put(&mut self, node: Node) {
        if let Some(number) = self.numbers.get(&node.name).copied() {
            let known = self.slots.get_mut(number).and_then(Option::as_mut);
            if let Some(known) = known.filter(|known| known.labels == node.labels) {
                // Most updates of a node are status reports of the kubelet, which do not change its
                // labels.
                *known = node;
                return;
            }
        }
        self.remove(&node.name);
        let number = self.free.pop().unwrap_or(self.slots.len());
        for (key, value) in &node.labels {
            let numbers = self.labels.entry(key.clone()).or_default().entry(value.clone()).or_default();
            numbers.push(number);
        }
        self.all.put(number, true);
        self.with_agent.put(number, self.agents.contains(&node.name));
        self.numbers.insert(node.name.clone(), number);
        match self.slots.get_mut(number) {
            Some(slot) => *slot = Some(node),
            None => self.slots.push(Some(node)),
        }
    }

    pub fn remove(&mut self, name: &str) {
        let Some(number) = self.numbers.remove(name) else { return };
        let Some(node) = self.slots.get_mut(number).and_then(Option::take) else { return };
        for (key, value) in &node.labels {
            let Some(values) = self.labels.get_mut(key) else { continue };
            let numbers = values.get_mut(value);
            let is_last = numbers.is_some_and(|numbers| {
                numbers.retain(|n| *n != number);
                numbers.is_empty()
            });
            if is_last {
                values.remove(value);
            }
            if values.is_empty() {
                self.labels.remove(key);
            }
        }
        self.all.put(number, false);
        self.with_agent.put(number, false);
        self.free.push(number);
    }

    /// Records that a node-agent runs on that node, or no longer does.
    pub fn put_agent(&mut self, node: &str, runs: bool) {
        if runs {
            self.agents.insert(node.to_owned());
        } else {
            self.agents.remove(node);
        }
        if let Some(number) = self.numbers.get(node) {
            self.with_agent.put(*number, runs);
        }
    }

    pub fn get(&self, name: &str) -> Option<&Node> {
        self.numbers.get(name).and_then(|number| self.node(*number))
    }

    pub fn has_agent(&self, name: &str) -> bool {
        self.agents.contains(name)
    }

    /// In no order.
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.slots.iter().flatten()
    }

    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    pub(super) fn node(&self, number: usize) -> Option<&Node> {
        self.slots.get(number).and_then(Option::as_ref)
    }

    pub(super) fn all(&self) -> &Set {
        &self.all
    }

    pub(super) fn with_agent(&self) -> &Set {
        &self.with_agent
    }

    fn with_label(&self, expression: &Expression) -> Set {
        let values = self.labels.get(expression.key());
        let mut found = Set::default();
        if !expression.matches(None) {
            match expression.operator() {
                NodeSelectorOperator::In => {
                    let numbers = expression.values().iter().filter_map(|value| values?.get(value));
                    numbers.flatten().for_each(|number| found.put(*number, true));
                }
                _ => {
                    let matching = values.into_iter().flatten().filter(|(v, _)| expression.matches(Some(v)));
                    matching.flat_map(|(_, numbers)| numbers).for_each(|number| found.put(*number, true));
                }
            }
            return found;
        }
        // Satisfied without the key: all nodes except those with an excluded value.
        found.clone_from(&self.all);
        let others = values.into_iter().flatten().filter(|(v, _)| !expression.matches(Some(v)));
        others.flat_map(|(_, numbers)| numbers).for_each(|number| found.put(*number, false));
        found
    }

    fn with_field(&self, field: &Expression) -> Set {
        let mut found = Set::default();
        let named = field.values().first().and_then(|name| self.numbers.get(name));
        if field.matches_field("") {
            found.clone_from(&self.all);
            named.into_iter().for_each(|number| found.put(*number, false));
        } else {
            let matching =
                named.filter(|n| self.node(**n).is_some_and(|node| field.matches_field(&node.name)));
            matching.into_iter().for_each(|number| found.put(*number, true));
        }
        found
    }
}

/// Caches the answers for one pod, because its terms repeat the same few requirements.
pub(super) struct Questions<'n> {
    pub nodes: &'n Nodes,
    labels: HashMap<Expression, Set>,
}

impl<'n> Questions<'n> {
    pub fn new(nodes: &'n Nodes) -> Self {
        Self { nodes, labels: HashMap::new() }
    }

    /// Nodes that satisfy all requirements. Without requirements, all nodes.
    pub fn fulfilling(&mut self, expressions: &[Expression], fields: &[Expression]) -> Set {
        let mut found = self.nodes.all.clone();
        for expression in expressions {
            found.keep(self.with_label(expression));
        }
        for field in fields {
            found.keep(&self.nodes.with_field(field));
        }
        found
    }

    /// Nodes that fail the fewest requirements of the term, and how many they fail. Nodes that fail
    /// `FAR` or more count as equally far.
    pub fn nearest(&mut self, term: &Term) -> (usize, Set) {
        const FAR: usize = 8;
        // At each index, the nodes that have failed that many requirements or fewer.
        let mut at_most = vec![self.nodes.all.clone(); FAR + 1];
        let mut requirements: Vec<&Expression> = term.expressions.iter().collect();
        requirements.sort();
        requirements.dedup();
        let labels = requirements.into_iter().map(|expression| self.with_label(expression).clone());
        let mut sets: Vec<Set> = labels.collect();
        sets.extend(term.fields.iter().map(|field| self.nodes.with_field(field)));
        for set in sets {
            for failed in (0..FAR).rev() {
                let (fewer, this) = at_most.split_at_mut(failed);
                let Some(this) = this.first_mut() else { continue };
                this.keep(&set);
                fewer.last().into_iter().for_each(|fewer| this.add(fewer));
            }
        }
        let nearest = at_most.into_iter().enumerate().find(|(_, set)| !set.is_empty());
        nearest.unwrap_or_default()
    }

    fn with_label(&mut self, expression: &Expression) -> &Set {
        // Looked up twice, because that is cheaper than copying the key each time.
        if !self.labels.contains_key(expression) {
            self.labels.insert(expression.clone(), self.nodes.with_label(expression));
        }
        self.labels.entry(expression.clone()).or_default()
    }
}

/// A set of small numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Set(Vec<u64>);

impl Set {
    fn put(&mut self, number: usize, member: bool) {
        let (word, bit) = (number / 64, 1_u64 << (number % 64));
        if member && self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        if let Some(word) = self.0.get_mut(word) {
            if member { *word |= bit } else { *word &= !bit }
        }
    }

    /// Removes the numbers that are not in `other`.
    pub fn keep(&mut self, other: &Self) {
        self.0.truncate(other.0.len());
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= other);
    }

    pub fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Do both sets share a number?
    pub fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(word, other)| word & other != 0)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(i, word)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i * 64 + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str, labels: &[(&str, &str)]) -> Node {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Node { name: name.to_owned(), labels, taints: Vec::new() }
    }

    fn names(nodes: &Nodes, expression: Expression) -> Vec<&str> {
        let found = Questions::new(nodes).fulfilling(&[expression], &[]);
        let mut names: Vec<&str> =
            found.iter().filter_map(|n| nodes.node(n)).map(|n| n.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_node_that_changes_or_goes_is_found_where_it_is() {
        let mut nodes = Nodes::default();
        nodes.put_agent("a", true);
        nodes.put(node("a", &[("zone", "x")]));
        nodes.put(node("b", &[("zone", "x")]));
        let zone = |value: &str| Expression::new("zone", NodeSelectorOperator::In, [value]);
        assert_eq!(names(&nodes, zone("x")), ["a", "b"]);
        assert_eq!(nodes.with_agent().iter().count(), 1, "its agent was seen before it");
        nodes.put(node("a", &[("zone", "y")]));
        assert_eq!((names(&nodes, zone("x")), names(&nodes, zone("y"))), (vec!["b"], vec!["a"]));
        assert!(nodes.has_agent("a") && nodes.with_agent().len() == 1);
        nodes.remove("a");
        nodes.put(node("c", &[]));
        assert_eq!(names(&nodes, zone("y")), Vec::<&str>::new());
        assert!(nodes.with_agent().is_empty(), "the place of a was taken over by c, its agent was not");
        assert_eq!((nodes.len(), nodes.get("a")), (2, None));
    }

    fn expression() -> impl Strategy<Value = Expression> {
        let operator = prop::sample::select(NodeSelectorOperator::ALL.to_vec());
        let values = prop::collection::vec(prop::sample::select(vec!["a", "b", "1", "2"]), 0..3);
        (prop::sample::select(vec!["k", "l"]), operator, values)
            .prop_map(|(key, operator, values)| Expression::new(key, operator, values))
    }

    fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
        let (key, value) =
            (prop::sample::select(vec!["k", "l"]), prop::sample::select(vec!["a", "b", "1", "2"]));
        prop::collection::btree_map(key.prop_map(str::to_owned), value.prop_map(str::to_owned), 0..3)
    }

    proptest! {
        #[test]
        fn the_index_and_a_walk_over_the_nodes_agree(
            expressions in prop::collection::vec(expression(), 0..3),
            named in prop::option::of((any::<bool>(), 0_usize..12)),
            steps in prop::collection::vec((0_usize..10, prop::option::of(labels())), 0..30),
        ) {
            let mut nodes = Nodes::default();
            let mut known: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
            for (number, labels) in steps {
                let name = format!("n{number}");
                match labels {
                    Some(labels) => {
                        known.insert(name.clone(), labels.clone());
                        nodes.put(Node { name, labels, taints: Vec::new() });
                    }
                    None => {
                        known.remove(&name);
                        nodes.remove(&name);
                    }
                }
            }
            let field = |(is_in, n): (bool, usize)| {
                let operator = if is_in { NodeSelectorOperator::In } else { NodeSelectorOperator::NotIn };
                Expression::new("metadata.name", operator, [format!("n{n}")])
            };
            let term = Term { expressions, fields: named.map(field).into_iter().collect() };
            let found = Questions::new(&nodes).fulfilling(&term.expressions, &term.fields);
            let mut found: Vec<String> =
                found.iter().filter_map(|n| nodes.node(n)).map(|n| n.name.clone()).collect();
            found.sort();
            let expected = known.iter().filter(|(name, labels)| term.is_empty() || term.matches(name, labels));
            prop_assert_eq!(found, expected.map(|(name, _)| name.clone()).collect::<Vec<_>>());
        }
    }
}
