use crate::label::RawRequirement;
use crate::violation::{Field, Violations};

use super::*;

mod applying;
mod covering;
mod placing;
mod properties;

/// `zone=a,b`, `zone!=a`, `gpu`, `!gpu`, `cores>4`, `cores<4`.
fn expression(text: &str) -> Expression {
    let values = |list: &str| list.split(',').map(str::to_owned).collect::<Vec<_>>();
    if let Some((key, list)) = text.split_once("!=") {
        Expression::new(key, NodeSelectorOperator::NotIn, values(list))
    } else if let Some((key, list)) = text.split_once('=') {
        Expression::new(key, NodeSelectorOperator::In, values(list))
    } else if let Some((key, bound)) = text.split_once('>') {
        Expression::new(key, NodeSelectorOperator::Gt, [bound])
    } else if let Some((key, bound)) = text.split_once('<') {
        Expression::new(key, NodeSelectorOperator::Lt, [bound])
    } else if let Some(key) = text.strip_prefix('!') {
        Expression::new(key, NodeSelectorOperator::DoesNotExist, [""; 0])
    } else {
        Expression::new(text, NodeSelectorOperator::Exists, [""; 0])
    }
}

/// Requirements separated by blanks. `linux` and `windows` stand for what Velero adds.
fn term(text: &str) -> Term {
    let word = |word| match word {
        "linux" => expression("kubernetes.io/os!=windows"),
        "windows" => expression("kubernetes.io/os=windows"),
        other => expression(other),
    };
    Term { expressions: text.split_whitespace().map(word).collect(), fields: Vec::new() }
}

fn terms(texts: &[&str]) -> Vec<Term> {
    texts.iter().map(|text| term(text)).collect()
}

/// `class: requirements`, or the requirements alone.
fn rule(text: &str) -> LoadAffinityRule {
    let (class, text) = text.split_once(": ").map_or((None, text), |(class, text)| (Some(class), text));
    LoadAffinityRule { storage_class: class.map(str::to_owned), selector: selector(&term(text)) }
}

fn selector(term: &Term) -> Selector {
    let raw = term.expressions.iter().map(|e| RawRequirement {
        key: e.key(),
        operator: e.operator().name(),
        values: e.values(),
    });
    let mut found = Violations::default();
    let selector = Selector::parse(std::iter::empty(), raw, &Field::root("s"), &mut found);
    assert!(found.is_empty(), "{found}");
    selector
}

fn rules(texts: &[&str]) -> Vec<LoadAffinityRule> {
    texts.iter().map(|text| rule(text)).collect()
}

/// `name zone=a pool=x`; a `*` after the name means that a node-agent runs there.
fn nodes(texts: &[&str]) -> Nodes {
    let mut nodes = Nodes::default();
    for text in texts {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        nodes.put_agent(name.trim_end_matches('*'), name.ends_with('*'));
        let labels = words.filter_map(|word| word.split_once('='));
        let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        nodes.put(Node { name: name.trim_end_matches('*').to_owned(), labels, taints: Vec::new() });
    }
    nodes
}

const BACKUP: MoverOperation<'_> = MoverOperation::Backup {
    claim_class: Some("fast"),
    mapped_class: None,
    source_class: None,
    topology: Some(&[]),
};

fn situation<'a>(rules: &'a [LoadAffinityRule], terms: &'a [Term]) -> AffinityInput<'a> {
    AffinityInput {
        operation: BACKUP,
        rules,
        toleration_rules: &[],
        terms,
        tolerations: &[],
        agents_outdated: false,
        nodes: None,
    }
}

fn with_topology(topology: Option<&[Term]>) -> MoverOperation<'_> {
    MoverOperation::Backup { claim_class: Some("fast"), mapped_class: None, source_class: None, topology }
}

fn shown(terms: &[Term]) -> Vec<String> {
    terms.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn becomes(decision: &AffinityDecision, expected: &[&str]) {
    let expected = terms(expected);
    let now = decision.terms.as_deref().unwrap_or_default();
    let is_so = decision.terms.is_some() && now.len() == expected.len() && choice::same(now, &expected);
    assert!(is_so, "{:#?} instead of {:#?}", shown(now), shown(&expected));
}

#[track_caller]
fn stays(decision: &AffinityDecision) {
    assert_eq!(decision.terms.as_deref().map(shown), None);
}

fn told(decision: &AffinityDecision) -> Vec<String> {
    decision.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_backup_goes_by_the_class_of_its_own_claim_then_of_the_mapping_then_of_the_source() {
    let class = |claim_class, mapped_class, source_class| {
        MoverOperation::Backup { claim_class, mapped_class, source_class, topology: None }.class()
    };
    assert_eq!(class(Some("claim"), Some("mapped"), Some("source")), Some("claim"));
    assert_eq!(class(None, Some("mapped"), Some("source")), Some("mapped"));
    assert_eq!(class(Some(""), Some(""), Some("source")), Some("source"), "an empty name is none");
    assert_eq!(class(None, None, None), None);
}

#[test]
fn the_rules_of_the_class_count_else_the_global_ones_else_none() {
    let rules = rules(&["zone=a", "fast: zone=b", "zone=c", "fast: zone=d", "slow: zone=e"]);
    for (class, injected, expected, reason) in [
        ("fast", "zone=b linux", &["linux zone=b", "linux zone=d"][..], "ClassRules"),
        ("slow", "zone=e linux", &[], "ClassRules"),
        ("other", "zone=a linux", &["linux zone=a", "linux zone=c"], "GlobalRules"),
        ("", "zone=a linux", &["linux zone=a", "linux zone=c"], "GlobalRules"),
    ] {
        let there = terms(&[injected]);
        let mut situation = situation(&rules, &there);
        situation.operation = MoverOperation::Backup {
            claim_class: Some(class),
            mapped_class: None,
            source_class: None,
            topology: Some(&[]),
        };
        let decision = decide(&situation);
        assert_eq!(decision.reason.word(), reason, "{class}");
        // A single rule is what Velero wrote: nothing changes.
        if expected.is_empty() { stays(&decision) } else { becomes(&decision, expected) }
    }
    let there = terms(&["linux"]);
    let decision = decide(&situation(&[], &there));
    assert_eq!((decision.reason, decision.terms), (AffinityReason::NoRules, None));
}

#[test]
fn a_restore_leaves_the_node_to_the_consumer_of_the_volume() {
    let rules = rules(&["fast: zone=a", "fast: zone=b"]);
    let restore = |binding, ignore_delay_binding, selected_node| MoverOperation::Restore {
        class: Some("fast"),
        binding,
        ignore_delay_binding,
        selected_node,
    };
    let there = terms(&["zone=a linux"]);
    let decide = |operation| decide(&AffinityInput { operation, ..situation(&rules, &there) });
    let waits = decide(restore(VolumeBindingMode::WaitForFirstConsumer, false, None));
    assert_eq!((waits.reason.word(), &waits.terms), ("WaitsForConsumer", &None));
    for (binding, ignore) in
        [(VolumeBindingMode::WaitForFirstConsumer, false), (VolumeBindingMode::Immediate, true)]
    {
        let selected = decide(restore(binding, ignore, Some("n1")));
        assert_eq!((selected.reason.word(), &selected.terms), ("NodeSelected", &None));
    }
    for (binding, ignore) in
        [(VolumeBindingMode::WaitForFirstConsumer, true), (VolumeBindingMode::Immediate, false)]
    {
        let applied = decide(restore(binding, ignore, None));
        assert_eq!(applied.reason.word(), "ClassRules");
        becomes(&applied, &["linux zone=a", "linux zone=b"]);
    }
}

#[test]
fn a_mover_with_a_given_node_is_left_alone_and_told_about() {
    let (rules, nodes) = (rules(&["zone=a", "zone=b"]), nodes(&["n1* zone=a", "n2* zone=c", "n3 zone=b"]));
    let there = terms(&["linux"]);
    let base = AffinityInput { nodes: Some(&nodes), ..situation(&rules, &there) };
    let beside = |node| {
        decide(&AffinityInput { operation: MoverOperation::PodVolume { class: Some("fast"), node }, ..base })
    };
    assert_eq!(told(&beside("n1")), Vec::<String>::new());
    assert_eq!(told(&beside("n2")), ["the rules of loadAffinity exclude node n2, but do not count here"]);
    assert_eq!(told(&beside("n3")), Vec::<String>::new(), "its agent made the mover");
    assert_eq!(told(&beside("unknown")), Vec::<String>::new());
    assert_eq!(beside("n2").reason, AffinityReason::NodeGiven { node: "n2".to_owned() });
    stays(&beside("n2"));
    let restore = |node| {
        let operation = MoverOperation::Restore {
            class: Some("fast"),
            binding: VolumeBindingMode::WaitForFirstConsumer,
            ignore_delay_binding: false,
            selected_node: Some(node),
        };
        decide(&AffinityInput { operation, ..base })
    };
    assert_eq!(told(&restore("n2")), ["the rules of loadAffinity exclude node n2, but do not count here"]);
    assert_eq!(told(&restore("n3")), ["no node-agent runs on a node that matches: n3"]);
}

#[test]
fn every_word_is_in_the_closed_set() {
    let named = || NodeSample { names: Vec::new(), count: 0 };
    let taint = Taint { key: String::new(), value: String::new(), effect: Effect::NoSchedule };
    let findings = [
        AffinityFinding::NoNode { nearest: None },
        AffinityFinding::NoAgent { nodes: named() },
        AffinityFinding::NotTolerated { node: String::new(), taint },
        AffinityFinding::LeftOut { alternative: Vec::new(), nodes: named() },
        AffinityFinding::NodeOutsideRules { node: String::new() },
        AffinityFinding::ChoiceKept,
        AffinityFinding::TwoSystems,
    ];
    assert_eq!(findings.iter().map(AffinityFinding::word).collect::<Vec<_>>(), AffinityFinding::WORDS);
    let name = String::new;
    let reasons = [
        AffinityReason::ClassRules { class: name(), rules: 1 },
        AffinityReason::GlobalRules { rules: 1 },
        AffinityReason::NoRules,
        AffinityReason::NodeSelected { node: name() },
        AffinityReason::WaitsForConsumer { class: name() },
        AffinityReason::NodeGiven { node: name() },
    ];
    assert_eq!(reasons.iter().map(AffinityReason::word).collect::<Vec<_>>(), AffinityReason::WORDS);
}
