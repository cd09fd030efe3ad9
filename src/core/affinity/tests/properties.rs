use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Labels = BTreeMap<String, String>;

/// Few keys and values, so that topologies, rules and leftovers often overlap.
const WORDS: [&str; 10] =
    ["linux", "windows", "zone=a", "zone=b", "zone=a,b", "zone!=a", "pool=x", "pool=y", "pool", "!pool"];

fn words(of: &'static [&'static str], count: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(of), count).prop_map(|words| words.join(" "))
}

/// Rules and topologies that contradict themselves are excluded: contradictory rules are reported
/// where they are read.
fn is_possible(words: &str) -> bool {
    !words.contains("linux") || !words.contains("windows")
}

fn labels() -> impl Strategy<Value = Labels> {
    let zone = prop::option::of(prop::sample::select(vec!["a", "b", "c"]));
    let pool = prop::option::of(prop::sample::select(vec!["x", "y"]));
    let system = prop::sample::select(vec!["linux", "windows"]);
    (zone, pool, system).prop_map(|(zone, pool, system)| {
        let labels = [("zone", zone), ("pool", pool), ("kubernetes.io/os", Some(system))];
        labels.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned()))).collect()
    })
}

/// A pod as Velero creates it, and what it was created from.
#[derive(Clone, Debug)]
struct Made {
    topology: Vec<Term>,
    elements: Vec<String>,
    /// What the agent chose if it is older than the configuration.
    old: Option<String>,
    system: &'static str,
    nodes: Vec<(Labels, bool)>,
}

impl Made {
    fn choice(&self) -> String {
        self.old.clone().unwrap_or_else(|| self.elements.first().cloned().unwrap_or_default())
    }

    /// Topology, choice, operating system.
    fn pod(&self) -> Vec<Term> {
        let added = term(&format!("{} {}", self.choice(), self.system)).expressions;
        let mut terms = self.topology.clone();
        if terms.is_empty() {
            terms.push(Term::default());
        }
        terms.iter_mut().for_each(|term| term.expressions.extend(added.iter().cloned()));
        terms
    }

    fn rules(&self) -> Vec<LoadAffinityRule> {
        self.elements.iter().map(|element| rule(element)).collect()
    }

    fn nodes(&self) -> Nodes {
        let mut nodes = Nodes::default();
        for (i, (labels, agent)) in self.nodes.iter().enumerate() {
            let name = format!("n{i}");
            nodes.put_agent(&name, *agent);
            nodes.put(Node { name, labels: labels.clone(), taints: Vec::new() });
        }
        nodes
    }

    /// Topology and operating system: what every alternative must satisfy.
    fn allows(&self, name: &str, labels: &Labels) -> bool {
        let topology = self.topology.is_empty() || self.topology.iter().any(|t| t.matches(name, labels));
        topology
            && term(self.system)
                .expressions
                .iter()
                .all(|e| e.matches(labels.get(e.key()).map(String::as_str)))
    }
}

fn made() -> impl Strategy<Value = Made> {
    // A term that includes all requirements of another one would be redundant; volumes have no such
    // terms.
    let apart = |mut terms: Vec<Term>| {
        let holds = |one: &Term, other: &Term| other.expressions.iter().all(|e| one.expressions.contains(e));
        if terms.len() == 2 && (holds(&terms[0], &terms[1]) || holds(&terms[1], &terms[0])) {
            terms.pop();
        }
        terms
    };
    let topology = prop::collection::vec(words(&WORDS, 1..3), 0..3)
        .prop_map(|texts| texts.iter().filter(|text| is_possible(text)).map(|text| term(text)).collect());
    let topology = topology.prop_map(apart);
    let elements = prop::collection::vec(words(&WORDS, 1..3), 0..4)
        .prop_map(|texts| texts.into_iter().filter(|text| is_possible(text)).collect());
    let system = prop::sample::select(vec![
        "linux",
        "windows",
        "linux linux",
        "linux kubernetes.io/hostname!=n1",
        "linux kubernetes.io/hostname!=n1 linux kubernetes.io/hostname!=n1",
    ]);
    let nodes = prop::collection::vec((labels(), any::<bool>()), 0..6);
    // A choice with the operating system in Velero's form could not be distinguished from Velero's
    // own.
    let old = prop::option::of(words(&WORDS[2..], 0..3));
    (topology, elements, old, system, nodes).prop_map(|(topology, elements, old, system, nodes)| Made {
        topology,
        elements,
        old,
        system,
        nodes,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_node_matches_the_product_exactly_if_it_matches_a_base_term_and_an_alternative(
        base in prop::collection::vec(words(&WORDS, 0..3), 0..4),
        elements in prop::collection::vec(words(&WORDS, 0..3), 0..4),
        labels in labels(),
    ) {
        let base: Vec<Term> = base.iter().map(|text| term(text)).collect();
        let elements: Vec<Vec<Expression>> = elements.iter().map(|text| term(text).expressions).collect();
        let alternatives = choice::alternatives(&elements, None);
        let product = choice::product(&base, &alternatives);
        let all = |list: &[Expression]| list.iter().all(|e| e.matches(labels.get(e.key()).map(String::as_str)));
        let in_base = base.is_empty() || base.iter().any(|term| all(&term.expressions));
        let in_element = elements.is_empty() || elements.iter().any(|element| all(element));
        let in_product = product.is_empty() || product.iter().any(|term| term.matches("n", &labels));
        prop_assert_eq!(in_product, in_base && in_element);
        for term in &product {
            let holds = |part: &[Expression]| part.iter().all(|e| term.expressions.contains(e));
            prop_assert!(base.is_empty() || base.iter().any(|base| holds(&base.expressions)));
            prop_assert!(alternatives.iter().any(|alternative| holds(alternative)));
        }
    }

    #[test]
    fn a_mover_runs_where_its_volume_is_and_any_rule_allows(made in made()) {
        let (rules, there) = (made.rules(), made.pod());
        let situation = AffinityInput {
            operation: with_topology(Some(&made.topology)),
            agents_outdated: made.old.is_some(),
            ..situation(&rules, &there)
        };
        let decision = decide(&situation);
        let now = decision.terms.as_deref().unwrap_or(&there);
        for (i, (labels, _)) in made.nodes.iter().enumerate() {
            let name = format!("n{i}");
            let allowed = rules.is_empty() || rules.iter().any(|rule| rule.selector.matches(labels));
            let matches = now.iter().any(|term| term.matches(&name, labels));
            prop_assert_eq!(matches, allowed && made.allows(&name, labels), "{:#?} {:#?}", shown(now), labels);
        }
    }

    #[test]
    fn a_second_look_changes_nothing(made in made(), known: bool, placed: bool) {
        let (rules, there, nodes) = (made.rules(), made.pod(), made.nodes());
        let situation = AffinityInput {
            operation: with_topology(known.then_some(made.topology.as_slice())),
            agents_outdated: made.old.is_some(),
            nodes: placed.then_some(&nodes),
            ..situation(&rules, &there)
        };
        let first = decide(&situation);
        let now = first.terms.unwrap_or_else(|| there.clone());
        let second = decide(&AffinityInput { terms: &now, ..situation });
        prop_assert_eq!(second.terms.as_deref().map(shown), None, "{:#?} to {:#?}", shown(&there), shown(&now));
    }

    #[test]
    fn nothing_is_ever_allowed_that_a_stranger_forbids(
        there in prop::collection::vec(words(&WORDS, 0..4), 0..3),
        made in made(),
        known: bool,
    ) {
        let (rules, nodes) = (made.rules(), made.nodes());
        let there: Vec<Term> = there.iter().map(|text| term(&format!("{text} linux stranger"))).collect();
        let situation = AffinityInput {
            operation: with_topology(known.then_some(made.topology.as_slice())),
            agents_outdated: made.old.is_some(),
            nodes: Some(&nodes),
            ..situation(&rules, &there)
        };
        let decision = decide(&situation);
        let now = decision.terms.as_deref().unwrap_or(&there);
        prop_assert!(there.is_empty() || now.iter().all(|t| t.expressions.contains(&expression("stranger"))));
    }
}
