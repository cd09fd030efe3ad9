use crate::label::RawRequirement;
use crate::violation::{Field, Violations};

use super::*;

mod properties;

/// `zone=a,b`, `zone!=a`, `gpu`, `!gpu`, `cores>4`, `cores<4`.
fn expression(text: &str) -> Expression {
    let values = |list: &str| list.split(',').map(str::to_owned).collect::<Vec<_>>();
    if let Some((key, list)) = text.split_once("!=") {
        Expression::new(key, Operator::NotIn, values(list))
    } else if let Some((key, list)) = text.split_once('=') {
        Expression::new(key, Operator::In, values(list))
    } else if let Some((key, bound)) = text.split_once('>') {
        Expression::new(key, Operator::Gt, [bound])
    } else if let Some((key, bound)) = text.split_once('<') {
        Expression::new(key, Operator::Lt, [bound])
    } else if let Some(key) = text.strip_prefix('!') {
        Expression::new(key, Operator::DoesNotExist, [""; 0])
    } else {
        Expression::new(text, Operator::Exists, [""; 0])
    }
}

/// Requirements separated by blanks. `linux` and `windows` are what Velero adds.
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
fn rule(text: &str) -> Rule {
    let (class, text) = text.split_once(": ").map_or((None, text), |(class, text)| (Some(class), text));
    Rule { storage_class: class.map(str::to_owned), selector: selector(&term(text)) }
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

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| rule(text)).collect()
}

/// `name zone=a pool=x`; with a `*` behind the name a node-agent runs there.
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

const BACKUP: Operation<'_> = Operation::Backup {
    claim_class: Some("fast"),
    mapped_class: None,
    source_class: None,
    topology: Some(&[]),
};

fn situation<'a>(rules: &'a [Rule], terms: &'a [Term]) -> Situation<'a> {
    Situation {
        operation: BACKUP,
        rules,
        toleration_rules: &[],
        terms,
        tolerations: &[],
        agents_outdated: false,
        nodes: None,
    }
}

fn with_topology(topology: Option<&[Term]>) -> Operation<'_> {
    Operation::Backup { claim_class: Some("fast"), mapped_class: None, source_class: None, topology }
}

fn shown(terms: &[Term]) -> Vec<String> {
    terms.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn becomes(decision: &Decision, expected: &[&str]) {
    let expected = terms(expected);
    let now = decision.terms.as_deref().unwrap_or_default();
    let is_so = decision.terms.is_some() && now.len() == expected.len() && choice::same(now, &expected);
    assert!(is_so, "{:#?} instead of {:#?}", shown(now), shown(&expected));
}

#[track_caller]
fn stays(decision: &Decision) {
    assert_eq!(decision.terms.as_deref().map(shown), None);
}

fn told(decision: &Decision) -> Vec<String> {
    decision.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_backup_goes_by_the_class_of_its_own_claim_then_of_the_mapping_then_of_the_source() {
    let class = |claim_class, mapped_class, source_class| {
        Operation::Backup { claim_class, mapped_class, source_class, topology: None }.class()
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
        situation.operation = Operation::Backup {
            claim_class: Some(class),
            mapped_class: None,
            source_class: None,
            topology: Some(&[]),
        };
        let decision = decide(&situation);
        assert_eq!(decision.reason.word(), reason, "{class}");
        // One rule is what Velero wrote: nothing changes.
        if expected.is_empty() { stays(&decision) } else { becomes(&decision, expected) }
    }
    let there = terms(&["linux"]);
    let decision = decide(&situation(&[], &there));
    assert_eq!((decision.reason, decision.terms), (Reason::NoRules, None));
}

#[test]
fn a_restore_leaves_the_node_to_the_consumer_of_the_volume() {
    let rules = rules(&["fast: zone=a", "fast: zone=b"]);
    let restore = |binding, ignore_delay_binding, selected_node| Operation::Restore {
        class: Some("fast"),
        binding,
        ignore_delay_binding,
        selected_node,
    };
    let there = terms(&["zone=a linux"]);
    let decide = |operation| decide(&Situation { operation, ..situation(&rules, &there) });
    let waits = decide(restore(Binding::WaitForFirstConsumer, false, None));
    assert_eq!((waits.reason.word(), &waits.terms), ("WaitsForConsumer", &None));
    for (binding, ignore) in [(Binding::WaitForFirstConsumer, false), (Binding::Immediate, true)] {
        let selected = decide(restore(binding, ignore, Some("n1")));
        assert_eq!((selected.reason.word(), &selected.terms), ("NodeSelected", &None));
    }
    for (binding, ignore) in [(Binding::WaitForFirstConsumer, true), (Binding::Immediate, false)] {
        let applied = decide(restore(binding, ignore, None));
        assert_eq!(applied.reason.word(), "ClassRules");
        becomes(&applied, &["linux zone=a", "linux zone=b"]);
    }
}

#[test]
fn a_mover_with_a_given_node_is_left_alone_and_told_about() {
    let (rules, nodes) = (rules(&["zone=a", "zone=b"]), nodes(&["n1* zone=a", "n2* zone=c", "n3 zone=b"]));
    let there = terms(&["linux"]);
    let base = Situation { nodes: Some(&nodes), ..situation(&rules, &there) };
    let beside =
        |node| decide(&Situation { operation: Operation::PodVolume { class: Some("fast"), node }, ..base });
    assert_eq!(told(&beside("n1")), Vec::<String>::new());
    assert_eq!(told(&beside("n2")), ["the rules of loadAffinity exclude node n2, but do not count here"]);
    assert_eq!(told(&beside("n3")), Vec::<String>::new(), "its agent made the mover");
    assert_eq!(told(&beside("unknown")), Vec::<String>::new());
    assert_eq!(beside("n2").reason, Reason::NodeGiven { node: "n2".to_owned() });
    stays(&beside("n2"));
    let restore = |node| {
        let operation = Operation::Restore {
            class: Some("fast"),
            binding: Binding::WaitForFirstConsumer,
            ignore_delay_binding: false,
            selected_node: Some(node),
        };
        decide(&Situation { operation, ..base })
    };
    assert_eq!(told(&restore("n2")), ["the rules of loadAffinity exclude node n2, but do not count here"]);
    assert_eq!(told(&restore("n3")), ["no node-agent runs on a node that matches: n3"]);
}

#[test]
fn the_first_of_the_class_is_taken_back_wherever_it_stands() {
    let rules = rules(&["zone=g", "slow: zone=s", "fast: zone=a", "zone=h", "fast: zone=b pool=x"]);
    let there = terms(&["zone=a linux"]);
    becomes(&decide(&situation(&rules, &there)), &["linux zone=a", "linux zone=b pool=x"]);
}

#[test]
fn each_topology_term_is_combined_with_each_alternative() {
    let rules = rules(&["zone=a pool=x", "zone=b"]);
    let topology = terms(&["disk=1", "disk=2 rack=r"]);
    let there = terms(&["disk=1 pool=x zone=a linux", "disk=2 rack=r zone=a pool=x linux"]);
    for topology in [Some(topology.as_slice()), None] {
        let situation = Situation { operation: with_topology(topology), ..situation(&rules, &there) };
        becomes(
            &decide(&situation),
            &[
                "disk=1 linux zone=a pool=x",
                "disk=1 linux zone=b",
                "disk=2 rack=r linux zone=a pool=x",
                "disk=2 rack=r linux zone=b",
            ],
        );
    }
}

#[test]
fn a_topology_that_asks_for_the_same_as_a_rule_stays() {
    let rules = rules(&["zone=a", "zone=b"]);
    let topology = terms(&["zone=a", "zone=b"]);
    let there = terms(&["zone=a zone=a linux", "zone=b zone=a linux"]);
    // The fourth would be the second once more.
    let expected = ["zone=a linux zone=a", "zone=a linux zone=b", "zone=b linux zone=b"];
    for topology in [Some(topology.as_slice()), None] {
        let situation = Situation { operation: with_topology(topology), ..situation(&rules, &there) };
        let first = decide(&situation);
        becomes(&first, &expected);
        let now = first.terms.unwrap_or_default();
        stays(&decide(&Situation { terms: &now, ..situation }));
    }
}

#[test]
fn what_velero_repeats_is_kept_once_and_a_contradiction_is_told() {
    let avoid = "kubernetes.io/hostname!=n1,n2";
    let one = rules(&["zone=a"]);
    let there = [term(&format!("zone=a linux linux {avoid} linux {avoid}"))];
    becomes(&decide(&situation(&one, &there)), &[&format!("linux {avoid} zone=a")]);
    let two = rules(&["zone=a", "zone=b"]);
    let there = terms(&["zone=a windows linux windows linux"]);
    let decision = decide(&situation(&two, &there));
    becomes(&decision, &["windows linux zone=a", "windows linux zone=b"]);
    assert_eq!(decision.findings, [Finding::TwoSystems]);
}

#[test]
fn what_somebody_else_asked_for_goes_on_counting() {
    let rules = rules(&["zone=a", "zone=b"]);
    for (there, expected) in [
        (&["zone=a linux spot!=yes"][..], &["linux spot!=yes zone=a", "linux spot!=yes zone=b"][..]),
        // Not in every term: not Velero's.
        (
            &["zone=a linux", "pool=x linux"],
            &["zone=a linux zone=a", "zone=a linux zone=b", "pool=x linux zone=a", "pool=x linux zone=b"],
        ),
        (&["cores>4"], &["cores>4 zone=a", "cores>4 zone=b"]),
        (&[], &["zone=a", "zone=b"]),
    ] {
        let there = terms(there);
        becomes(&decide(&situation(&rules, &there)), expected);
    }
}

#[test]
fn what_somebody_adds_to_our_terms_changes_nothing_more() {
    let rules = rules(&["zone=a", "zone=b"]);
    let there = terms(&["disk=1 linux zone=a spot!=yes", "disk=1 linux zone=b spot!=yes"]);
    for topology in [None, Some(terms(&["disk=1"]))] {
        let operation = with_topology(topology.as_deref());
        stays(&decide(&Situation { operation, ..situation(&rules, &there) }));
    }
}

#[test]
fn an_older_choice_goes_only_if_an_agent_may_have_made_it() {
    let rules = rules(&["zone=a", "zone=b"]);
    let topology = terms(&["disk=1 zone=z"]);
    let there = terms(&["disk=1 zone=z pool=old zone=a linux kubernetes.io/hostname!=n1 spot!=yes"]);
    let base = situation(&rules, &there);
    let decide = |known: bool, agents_outdated| {
        let operation = with_topology(known.then_some(topology.as_slice()));
        decide(&Situation { operation, agents_outdated, ..base })
    };
    let (system, own) = ("linux kubernetes.io/hostname!=n1 spot!=yes", "disk=1 zone=z");
    let both = |base: &str| [format!("{base} zone=a"), format!("{base} zone=b")];
    let [a, b] = both(&format!("{own} {system}"));
    becomes(&decide(true, true), &[&a, &b]);
    let [a, b] = both(&format!("{own} pool=old {system}"));
    for known in [true, false] {
        becomes(&decide(known, false), &[&a, &b]);
    }
    // What Velero would choose now is recognised all the same.
    becomes(&decide(false, true), &[&a, &b]);
    assert_eq!(decide(false, true).findings, []);
}

#[test]
fn an_older_choice_that_cannot_be_told_from_the_topology_is_kept_and_told() {
    let there = terms(&["zone=c linux"]);
    for (rules, expected) in [
        (rules(&["zone=a", "zone=b"]), &["zone=c linux zone=a", "zone=c linux zone=b"][..]),
        (rules(&["slow: zone=a"]), &[]),
    ] {
        let situation =
            Situation { operation: with_topology(None), agents_outdated: true, ..situation(&rules, &there) };
        let decision = decide(&situation);
        if expected.is_empty() {
            stays(&decision)
        } else {
            becomes(&decision, expected)
        }
        assert_eq!(decision.findings, [Finding::ChoiceKept]);
    }
    // A restore has no topology: nothing is unclear.
    let rules = rules(&["zone=a", "zone=b"]);
    let operation = Operation::Restore {
        class: None,
        binding: Binding::Immediate,
        ignore_delay_binding: false,
        selected_node: None,
    };
    let base = Situation { operation, agents_outdated: true, ..situation(&rules, &there) };
    becomes(&decide(&base), &["linux zone=a", "linux zone=b"]);
    becomes(&decide(&Situation { rules: &[], ..base }), &["linux"]);
}

#[test]
fn a_rule_that_asks_for_nothing_makes_the_others_idle() {
    let there = terms(&["disk=1 zone=a linux"]);
    let topology = terms(&["disk=1"]);
    let rules = rules(&["zone=a", "", "zone=b"]);
    let situation = Situation { operation: with_topology(Some(&topology)), ..situation(&rules, &there) };
    let decision = decide(&situation);
    becomes(&decision, &["disk=1 linux"]);
    let now = decision.terms.unwrap_or_default();
    stays(&decide(&Situation { terms: &now, ..situation }));
    // Nothing else either: no restriction at all.
    let there = terms(&["zone=a"]);
    assert_eq!(decide(&super::tests::situation(&rules, &there)).terms, Some(Vec::new()));
}

#[test]
fn a_term_that_matches_nothing_does_not_come_to_match() {
    let rules = rules(&["zone=a", "zone=b"]);
    stays(&decide(&situation(&rules, &[Term::default()])));
    let there = [Term::default(), term("zone=a linux")];
    becomes(&decide(&situation(&rules, &there)), &["linux zone=a", "linux zone=b"]);
}

#[test]
fn fields_stay_with_their_term() {
    let rules = rules(&["zone=a", "zone=b"]);
    let fields = vec![Expression::new("metadata.name", Operator::In, ["n1"])];
    let there = [Term { fields: fields.clone(), ..term("zone=a linux") }];
    let decision = decide(&situation(&rules, &there));
    let expected =
        [Term { fields: fields.clone(), ..term("linux zone=a") }, Term { fields, ..term("linux zone=b") }];
    assert_eq!(decision.terms.as_deref(), Some(expected.as_slice()));
}

#[test]
fn an_alternative_without_agents_is_left_out_if_another_has_one() {
    let rules = rules(&["zone=a", "zone=b", "zone=none"]);
    let there = terms(&["zone=a linux"]);
    for (texts, expected, findings) in [
        (
            &["n1* zone=a", "n2* zone=b"][..],
            &["linux zone=a", "linux zone=b", "linux zone=none"][..],
            &[][..],
        ),
        (
            &["n1 zone=a", "n2* zone=b", "n3 zone=a"],
            &["linux zone=b", "linux zone=none"],
            &["left out: zone In [a], because no node-agent runs on n1, n3"],
        ),
        (
            &["n1 zone=a", "n2 zone=b"],
            &["linux zone=a", "linux zone=b", "linux zone=none"],
            &["no node-agent runs on a node that matches: n1, n2"],
        ),
        (
            &["n4 zone=c", "n3* zone=c", "n2"],
            &["linux zone=a", "linux zone=b", "linux zone=none"],
            &["no node matches zone In [a]; nearest: n3 has zone=c"],
        ),
    ] {
        let nodes = nodes(texts);
        let base = Situation { nodes: Some(&nodes), ..situation(&rules, &there) };
        let decision = decide(&base);
        becomes(&decision, expected);
        assert_eq!(told(&decision), findings);
        let now = decision.terms.clone().unwrap_or_default();
        let again = decide(&Situation { terms: &now, ..base });
        stays(&again);
        assert_eq!(again.findings, decision.findings, "a second look says the same");
    }
}

#[test]
fn the_nearest_miss_names_what_is_lacking() {
    let nodes = nodes(&["node-a", "node-b zone=a", "node-c zone=a pool=x", "node-d"]);
    for (rule, expected) in [
        ("zone=b pool=x", "no node matches zone In [b]; nearest: node-c has zone=a"),
        ("zone=b disk", "no node matches zone In [b] and disk Exists; nearest: node-a has no zone, no disk"),
        ("!zone zone", "no node matches zone DoesNotExist; nearest: node-b has zone=a"),
    ] {
        let rules = rules(&[rule]);
        let there = [term(&format!("{rule} linux"))];
        let decision = decide(&Situation { nodes: Some(&nodes), ..situation(&rules, &there) });
        let told = told(&decision);
        if rule.starts_with('!') {
            // Equally near, by either half: the first name.
            assert_eq!(told, ["no node matches zone Exists; nearest: node-a has no zone"]);
        } else {
            assert_eq!(told, [expected]);
        }
    }
    let empty = Nodes::default();
    let there = terms(&["linux"]);
    let decision = decide(&Situation { nodes: Some(&empty), ..situation(&[], &there) });
    assert_eq!(told(&decision), ["no node matches"]);
}

#[test]
fn tolerations_of_the_class_beat_the_global_ones_and_open_tainted_nodes() {
    let toleration = |key: &str| Toleration {
        key: key.to_owned(),
        value: None,
        effect: Some(Effect::NoSchedule),
        seconds: None,
    };
    let rule = |class: Option<&str>, keys: &[&str]| TolerationRule {
        storage_class: class.map(str::to_owned),
        tolerations: keys.iter().map(|key| toleration(key)).collect(),
    };
    let rules =
        [rule(None, &["global"]), rule(Some("fast"), &["pool", "old"]), rule(Some("fast"), &["pool", "gpu"])];
    let there = [toleration("old")];
    let mut nodes = nodes(&["n1*"]);
    let taint = Taint { key: "gpu".to_owned(), value: String::new(), effect: Effect::NoSchedule };
    nodes.put(Node { name: "n1".to_owned(), labels: Default::default(), taints: vec![taint] });
    let base = Situation { tolerations: &there, nodes: Some(&nodes), ..situation(&[], &[]) };
    let without = decide(&base);
    assert_eq!(without.findings.iter().map(Finding::word).collect::<Vec<_>>(), ["NotTolerated"]);
    assert!(told(&without)[0].contains("n1 has gpu:NoSchedule"), "{:?}", told(&without));
    let base = Situation { toleration_rules: &rules, ..base };
    let with = decide(&base);
    assert_eq!(with.tolerations, [toleration("pool"), toleration("gpu")]);
    assert_eq!(with.findings, []);
    // A given node may be tainted as well.
    let operation = Operation::PodVolume { class: None, node: "n1" };
    assert_eq!(decide(&Situation { operation, ..base }).tolerations, [toleration("global")]);
}

#[test]
fn every_word_is_in_the_closed_set() {
    let named = || Named { names: Vec::new(), count: 0 };
    let taint = Taint { key: String::new(), value: String::new(), effect: Effect::NoSchedule };
    let findings = [
        Finding::NoNode { nearest: None },
        Finding::NoAgent { nodes: named() },
        Finding::NotTolerated { node: String::new(), taint },
        Finding::LeftOut { alternative: Vec::new(), nodes: named() },
        Finding::NodeOutsideRules { node: String::new() },
        Finding::ChoiceKept,
        Finding::TwoSystems,
    ];
    assert_eq!(findings.iter().map(Finding::word).collect::<Vec<_>>(), Finding::WORDS);
    let name = String::new;
    let reasons = [
        Reason::ClassRules { class: name(), rules: 1 },
        Reason::GlobalRules { rules: 1 },
        Reason::NoRules,
        Reason::NodeSelected { node: name() },
        Reason::WaitsForConsumer { class: name() },
        Reason::NodeGiven { node: name() },
    ];
    assert_eq!(reasons.iter().map(Reason::word).collect::<Vec<_>>(), Reason::WORDS);
}

#[test]
#[ignore = "prints a time: cargo test --release -p berth-core placing -- --ignored --nocapture"]
fn placing_a_mover_among_five_thousand_nodes() {
    let mut nodes = Nodes::default();
    for i in 0..5000 {
        let name = format!("node-{i}");
        nodes.put_agent(&name, i % 3 != 0);
        let labels = (0..20).map(|k| (format!("example.com/label-{k}"), format!("v{}", i % (k + 10))));
        let host =
            [("kubernetes.io/hostname".to_owned(), name.clone()), ("zone".to_owned(), format!("z{}", i % 3))];
        nodes.put(Node { name, labels: labels.chain(host).collect(), taints: Vec::new() });
    }
    for (what, value) in [("with nodes", "v1"), ("without a node", "none")] {
        let texts: Vec<String> = (0..10)
            .map(|i| format!("example.com/label-{i}={value} example.com/label-{}!=v0", i + 1))
            .collect();
        let rules = rules(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let topology = terms(&["zone=z0", "zone=z1", "zone=z2"]);
        let there: Vec<Term> = (0..3).map(|i| term(&format!("zone=z{i} {} linux", texts[0]))).collect();
        let operation = with_topology(Some(&topology));
        let situation = Situation { operation, nodes: Some(&nodes), ..situation(&rules, &there) };
        let (start, rounds) = (std::time::Instant::now(), 200);
        for _ in 0..rounds {
            assert!(decide(&situation).terms.is_some());
        }
        println!("{what}: {:?}", start.elapsed() / rounds);
    }
}
