use super::super::coverage::{CoverageInput, System, cover};
use super::*;

fn restore(class: &str, binding: VolumeBindingMode) -> MoverOperation<'_> {
    MoverOperation::Restore { class: Some(class), binding, ignore_delay_binding: false, selected_node: None }
}

fn backup<'a>(class: &'a str, mapped_class: Option<&'a str>) -> MoverOperation<'a> {
    MoverOperation::Backup { claim_class: None, mapped_class, source_class: Some(class), topology: Some(&[]) }
}

#[test]
fn movers_of_a_class_may_run_where_a_rule_a_system_and_a_node_agent_are() {
    let rules = rules(&["fast: zone=a", "fast: zone=b", "zone=c", "slow: zone=x"]);
    let mut nodes = nodes(&[
        "a2* zone=a",
        "a1* zone=a",
        "b* zone=b",
        "b-bare zone=b",
        "c* zone=c",
        "win* zone=a kubernetes.io/os=windows",
    ]);
    let taint =
        |key: &str| Taint { key: key.to_owned(), value: "yes".to_owned(), effect: Effect::NoSchedule };
    let tainted = |name: &str, key: &str| {
        let labels = [("zone".to_owned(), "b".to_owned())].into();
        Node { name: name.to_owned(), labels, taints: vec![taint(key)] }
    };
    for (name, key) in [("b-critical", "CriticalAddonsOnly"), ("b-own", "own"), ("b-other", "other")] {
        nodes.put(tainted(name, key));
        nodes.put_agent(name, true);
    }
    let exists = |key: &str| Toleration { key: key.to_owned(), value: None, effect: None, seconds: None };
    let toleration_rules =
        [TolerationRule { storage_class: Some("fast".to_owned()), tolerations: vec![exists("own")] }];
    let agent_tolerations = [exists("CriticalAddonsOnly"), exists("other")];
    let cluster = CoverageInput {
        rules: &rules,
        toleration_rules: &toleration_rules,
        agent_tolerations: &agent_tolerations,
        nodes: &nodes,
    };
    let (linux, windows) = (System::Linux, System::Windows);
    let waits = restore("fast", VolumeBindingMode::WaitForFirstConsumer);
    for (operation, system, expected, reason, findings) in [
        (backup("fast", None), linux, &["a1", "a2", "b", "b-critical", "b-own"][..], "ClassRules", &[][..]),
        (backup("fast", None), windows, &["win"], "ClassRules", &[]),
        (backup("fast", Some("other")), linux, &["c"], "GlobalRules", &[]),
        (
            backup("slow", None),
            linux,
            &[],
            "ClassRules",
            &["no node matches zone In [x]; nearest: a1 has zone=a"],
        ),
        (restore("fast", VolumeBindingMode::Immediate), windows, &["win"], "ClassRules", &[]),
        (waits, linux, &["a1", "a2", "b", "b-critical", "b-own", "c"], "WaitsForConsumer", &[]),
    ] {
        let found = cover(operation, system, &cluster);
        assert_eq!(found.nodes, expected, "{operation:?} {system:?}");
        assert_eq!(found.reason.word(), reason, "{operation:?}");
        let told: Vec<String> = found.findings.iter().map(ToString::to_string).collect();
        assert_eq!(told, findings, "{operation:?} {system:?}");
    }
    assert!(linux.is_served(&nodes) && windows.is_served(&nodes));
    nodes.put_agent("win", false);
    assert!(linux.is_served(&nodes) && !windows.is_served(&nodes));
}

#[test]
fn a_class_that_waits_for_its_consumer_needs_some_node_too() {
    let nodes = nodes(&["n1", "n2"]);
    let cluster = CoverageInput { rules: &[], toleration_rules: &[], agent_tolerations: &[], nodes: &nodes };
    let found = cover(restore("fast", VolumeBindingMode::WaitForFirstConsumer), System::Linux, &cluster);
    let told: Vec<String> = found.findings.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["no node-agent runs on a node that matches: n1, n2"]);
    assert_eq!(found.nodes, [""; 0]);
}
