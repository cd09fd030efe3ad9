use super::*;

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
        let situation = AffinityInput { operation: with_topology(topology), ..situation(&rules, &there) };
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
    // The fourth would equal the second.
    let expected = ["zone=a linux zone=a", "zone=a linux zone=b", "zone=b linux zone=b"];
    for topology in [Some(topology.as_slice()), None] {
        let situation = AffinityInput { operation: with_topology(topology), ..situation(&rules, &there) };
        let first = decide(&situation);
        becomes(&first, &expected);
        let now = first.terms.unwrap_or_default();
        stays(&decide(&AffinityInput { terms: &now, ..situation }));
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
    assert_eq!(decision.findings, [AffinityFinding::TwoSystems]);
}

#[test]
fn what_somebody_else_asked_for_goes_on_counting() {
    let rules = rules(&["zone=a", "zone=b"]);
    for (there, expected) in [
        (&["zone=a linux spot!=yes"][..], &["linux spot!=yes zone=a", "linux spot!=yes zone=b"][..]),
        // Not in every term, so not from Velero.
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
        stays(&decide(&AffinityInput { operation, ..situation(&rules, &there) }));
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
        decide(&AffinityInput { operation, agents_outdated, ..base })
    };
    let (system, own) = ("linux kubernetes.io/hostname!=n1 spot!=yes", "disk=1 zone=z");
    let both = |base: &str| [format!("{base} zone=a"), format!("{base} zone=b")];
    let [a, b] = both(&format!("{own} {system}"));
    becomes(&decide(true, true), &[&a, &b]);
    let [a, b] = both(&format!("{own} pool=old {system}"));
    for known in [true, false] {
        becomes(&decide(known, false), &[&a, &b]);
    }
    // What Velero would choose now is recognised nevertheless.
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
        let situation = AffinityInput {
            operation: with_topology(None),
            agents_outdated: true,
            ..situation(&rules, &there)
        };
        let decision = decide(&situation);
        if expected.is_empty() {
            stays(&decision)
        } else {
            becomes(&decision, expected)
        }
        assert_eq!(decision.findings, [AffinityFinding::ChoiceKept]);
    }
    // A restore has no topology, so nothing is ambiguous.
    let rules = rules(&["zone=a", "zone=b"]);
    let operation = MoverOperation::Restore {
        class: None,
        binding: VolumeBindingMode::Immediate,
        ignore_delay_binding: false,
        selected_node: None,
    };
    let base = AffinityInput { operation, agents_outdated: true, ..situation(&rules, &there) };
    becomes(&decide(&base), &["linux zone=a", "linux zone=b"]);
    becomes(&decide(&AffinityInput { rules: &[], ..base }), &["linux"]);
}

#[test]
fn a_rule_that_asks_for_nothing_makes_the_others_idle() {
    let there = terms(&["disk=1 zone=a linux"]);
    let topology = terms(&["disk=1"]);
    let rules = rules(&["zone=a", "", "zone=b"]);
    let situation = AffinityInput { operation: with_topology(Some(&topology)), ..situation(&rules, &there) };
    let decision = decide(&situation);
    becomes(&decision, &["disk=1 linux"]);
    let now = decision.terms.unwrap_or_default();
    stays(&decide(&AffinityInput { terms: &now, ..situation }));
    // Nothing else remains either: no restriction at all.
    let there = terms(&["zone=a"]);
    assert_eq!(decide(&super::situation(&rules, &there)).terms, Some(Vec::new()));
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
    let fields = vec![Expression::new("metadata.name", NodeSelectorOperator::In, ["n1"])];
    let there = [Term { fields: fields.clone(), ..term("zone=a linux") }];
    let decision = decide(&situation(&rules, &there));
    let expected =
        [Term { fields: fields.clone(), ..term("linux zone=a") }, Term { fields, ..term("linux zone=b") }];
    assert_eq!(decision.terms.as_deref(), Some(expected.as_slice()));
}

#[test]
fn rules_for_the_other_system_count_only_if_there_are_no_others() {
    for (rules, there, expected) in [
        (
            &["zone=w windows", "zone=l", "zone=m linux"][..],
            "zone=w windows linux",
            &["linux zone=l", "linux zone=m"][..],
        ),
        (&["zone=w windows", "zone=l linux"], "zone=w windows windows", &["windows zone=w"]),
        (&["linux", "zone=l"], "linux linux", &["linux"]),
        // No rule helps.
        (&["zone=w windows", "zone=x windows"], "zone=w windows linux", &[]),
    ] {
        let (rules, there) = (super::rules(rules), [term(there)]);
        let first = decide(&situation(&rules, &there));
        if expected.is_empty() {
            stays(&first);
            assert_eq!(first.findings, [AffinityFinding::TwoSystems]);
            continue;
        }
        // The operating system once and in its place. If a single rule was written already, only
        // that changes.
        becomes(&first, expected);
        let now = first.terms.unwrap_or_default();
        stays(&decide(&situation(&rules, &now)));
    }
}

#[test]
fn a_rule_that_asks_for_nothing_waits_for_the_topology_to_be_known() {
    let (rules, there) = (rules(&["zone=a", ""]), terms(&["zone=a linux"]));
    let situation = situation(&rules, &there);
    let decision = decide(&AffinityInput { operation: with_topology(None), ..situation });
    stays(&decision);
    assert_eq!(decision.findings, [AffinityFinding::ChoiceKept]);
    becomes(&decide(&situation), &["linux"]);
}
