use super::*;

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
        let base = AffinityInput { nodes: Some(&nodes), ..situation(&rules, &there) };
        let decision = decide(&base);
        becomes(&decision, expected);
        assert_eq!(told(&decision), findings);
        let now = decision.terms.clone().unwrap_or_default();
        let again = decide(&AffinityInput { terms: &now, ..base });
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
        let decision = decide(&AffinityInput { nodes: Some(&nodes), ..situation(&rules, &there) });
        let told = told(&decision);
        if rule.starts_with('!') {
            // Equally near, by either half: the first by name.
            assert_eq!(told, ["no node matches zone Exists; nearest: node-a has no zone"]);
        } else {
            assert_eq!(told, [expected]);
        }
    }
    let empty = Nodes::default();
    let there = terms(&["linux"]);
    let decision = decide(&AffinityInput { nodes: Some(&empty), ..situation(&[], &there) });
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
    let base = AffinityInput { tolerations: &there, nodes: Some(&nodes), ..situation(&[], &[]) };
    let without = decide(&base);
    assert_eq!(without.findings.iter().map(AffinityFinding::word).collect::<Vec<_>>(), ["NotTolerated"]);
    assert!(told(&without)[0].contains("n1 has gpu:NoSchedule"), "{:?}", told(&without));
    let base = AffinityInput { toleration_rules: &rules, ..base };
    let with = decide(&base);
    assert_eq!(with.tolerations, [toleration("pool"), toleration("gpu")]);
    assert_eq!(with.findings, []);
    // A given node may be tainted as well.
    let operation = MoverOperation::PodVolume { class: None, node: "n1" };
    assert_eq!(decide(&AffinityInput { operation, ..base }).tolerations, [toleration("global")]);
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
        let situation = AffinityInput { operation, nodes: Some(&nodes), ..situation(&rules, &there) };
        let (start, rounds) = (std::time::Instant::now(), 200);
        for _ in 0..rounds {
            assert!(decide(&situation).terms.is_some());
        }
        println!("{what}: {:?}", start.elapsed() / rounds);
    }
}
