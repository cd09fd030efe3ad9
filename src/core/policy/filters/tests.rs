use proptest::prelude::*;

use super::*;

fn kind(qualified: &str, kind: &str, namespaced: bool) -> ResourceType {
    let (resource, group) = qualified.split_once('.').unwrap_or((qualified, ""));
    ResourceType {
        group: group.into(),
        version: "v1".into(),
        kind: kind.into(),
        resource: resource.into(),
        singular: kind.to_ascii_lowercase(),
        short_names: Vec::new(),
        namespaced,
    }
}

fn types() -> Vec<ResourceType> {
    vec![
        kind("pods", "Pod", true),
        kind("configmaps", "ConfigMap", true),
        kind("secrets", "Secret", true),
        kind("deployments.apps", "Deployment", true),
        kind("clusterroles.rbac.authorization.k8s.io", "ClusterRole", false),
        kind("storageclasses.storage.k8s.io", "StorageClass", false),
    ]
}

fn of(name: &str) -> ResourceType {
    types().into_iter().find(|kind| kind.qualified() == name).unwrap_or_else(|| unreachable!("{name}"))
}

fn list(entries: &[&str]) -> Vec<String> {
    entries.iter().map(|entry| (*entry).to_owned()).collect()
}

fn labels(app: &str) -> ObjectLabels {
    if app.is_empty() {
        ObjectLabels::new()
    } else {
        ObjectLabels::from([("app".to_owned(), app.to_owned())])
    }
}

fn selector(app: &str) -> Selector {
    let (mut found, labels) = (Violations::default(), labels(app));
    let labels = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    Selector::parse(labels, std::iter::empty(), &Field::root("s"), &mut found)
}

fn names(entries: &[&str]) -> NameFilter {
    let mut found = Violations::default();
    let names = NameFilter::parse(&list(entries), &Field::root("names"), &mut found);
    assert!(found.is_empty(), "{found}");
    names
}

fn rule(kinds: &[&str]) -> ResourceFilterRule {
    ResourceFilterRule { kinds: list(kinds), ..ResourceFilterRule::default() }
}

fn labelled(kinds: &[&str], app: &str) -> ResourceFilterRule {
    ResourceFilterRule { selectors: vec![selector(app)], ..rule(kinds) }
}

fn policy(namespaces: &[&str], rules: &[ResourceFilterRule]) -> NamespacePolicy {
    let glob = |text: &&str| Glob::parse(text).unwrap_or_else(|error| unreachable!("{error}"));
    NamespacePolicy { namespaces: namespaces.iter().map(glob).collect(), rules: rules.to_vec() }
}

const NAMESPACES: [&str; 5] = ["ns-a", "ns-b", "team-frontend-dev", "team-frontend-prod", "team-backend"];

fn resolved(cluster: &[ResourceFilterRule], namespaced: &[NamespacePolicy]) -> Filters {
    let policies =
        Policies { cluster: cluster.to_vec(), namespaced: namespaced.to_vec(), ..Policies::default() };
    Filters::resolve(&policies, &types(), NAMESPACES)
}

/// Is a listed object taken, and is one taken that another object needs? The spec's selector is
/// `app=spec`.
fn takes(filters: &Filters, kind: &str, namespace: &str, name: &str, app: &str) -> (bool, bool) {
    let spec = [selector("spec")];
    let namespace = Some(namespace).filter(|name| !name.is_empty());
    match filters.of(&of(kind)) {
        Some(rules) => {
            (rules.takes_listed(namespace, name, &labels(app), &spec), rules.takes_needed(namespace, name))
        }
        None => (matches_one(&spec, &labels(app)), true),
    }
}

#[test]
fn a_policy_takes_just_its_kinds_from_its_namespaces_by_its_own_selectors() {
    let filters = resolved(
        &[],
        &[policy(&["ns-a"], &[labelled(&["ConfigMap", "deployments.apps"], "mine"), rule(&["pods"])])],
    );
    for (kind, namespace, app, expected) in [
        ("configmaps", "ns-a", "mine", (true, true)),
        ("configmaps", "ns-a", "spec", (false, true)),
        ("deployments.apps", "ns-a", "mine", (true, true)),
        // A rule without a selector applies none.
        ("pods", "ns-a", "", (true, true)),
        ("secrets", "ns-a", "mine", (false, true)),
        // No policy matches that namespace.
        ("secrets", "ns-b", "spec", (true, true)),
        ("secrets", "ns-b", "mine", (false, true)),
    ] {
        assert_eq!(takes(&filters, kind, namespace, "x", app), expected, "{kind} {namespace} {app}");
    }
    let secrets = of("secrets");
    assert!(filters.of(&secrets).is_some_and(|rules| rules.leaves("ns-a") && !rules.leaves("ns-b")));
    assert!(filters.of(&of("storageclasses.storage.k8s.io")).is_none());
    assert!(filters.names(&of("pods")) && !filters.names(&secrets));
}

#[test]
fn names_are_taken_by_pattern_and_what_is_excluded_goes_before() {
    let rule = ResourceFilterRule {
        names: names(&["app-*", "vm-1"]),
        excluded: names(&["*-tmp", "app-x?"]),
        ..rule(&["cm", "configmaps"])
    };
    let filters = resolved(&[], &[policy(&["ns-a"], &[rule])]);
    for (name, expected) in [
        ("app-config", true),
        ("app-", true),
        ("vm-1", true),
        ("vm-12", false),
        ("monitoring-config", false),
        ("app-tmp", false),
        ("app-x1", false),
        ("app-x12", true),
    ] {
        // Names apply to objects that others need, too.
        assert_eq!(takes(&filters, "configmaps", "ns-a", name, ""), (expected, expected), "{name}");
    }
    assert_eq!(
        filters.idle,
        [("namespacedFilterPolicies", list(&["cm"]))],
        "this cluster has no such short name"
    );
}

#[test]
fn a_rule_without_kinds_is_for_all_that_no_other_rule_has() {
    let only = ResourceFilterRule { names: names(&["db"]), ..rule(&["Secret"]) };
    let filters = resolved(&[], &[policy(&["ns-a"], &[labelled(&[], "backup"), only])]);
    for (kind, name, app, expected) in [
        ("secrets", "db", "", true),
        ("secrets", "other", "backup", false),
        ("pods", "any", "backup", true),
        // The spec's selector does not apply.
        ("pods", "any", "spec", false),
    ] {
        assert_eq!(takes(&filters, kind, "ns-a", name, app).0, expected, "{kind} {name} {app}");
    }
    let all = resolved(&[], &[policy(&["ns-a"], &[rule(&[])])]);
    assert!(takes(&all, "pods", "ns-a", "any", "").0);
}

/// Example 8 of Velero's guide: a plain name takes precedence over patterns, and among these the
/// first match applies.
#[test]
fn a_namespace_has_the_policy_that_names_it_or_else_the_first_one_that_fits() {
    let policies = [
        policy(&["team-frontend-*"], &[rule(&["pods", "configmaps"])]),
        policy(&["team-*"], &[rule(&["pods"])]),
        policy(&["team-frontend-prod"], &[rule(&["secrets"])]),
    ];
    let filters = resolved(&[], &policies);
    for (namespace, expected) in [
        ("team-frontend-prod", [false, false, true]),
        ("team-frontend-dev", [true, true, false]),
        ("team-backend", [true, false, false]),
        ("ns-a", [true, true, true]),
    ] {
        let taken =
            ["pods", "configmaps", "secrets"].map(|kind| takes(&filters, kind, namespace, "x", "spec").0);
        assert_eq!(taken, expected, "{namespace}");
    }
    let broad_first = [policies[1].clone(), policies[0].clone()];
    assert!(!takes(&resolved(&[], &broad_first), "configmaps", "team-frontend-dev", "x", "spec").0);
}

#[test]
fn kinds_of_the_cluster_that_have_a_rule_are_tightened_and_the_others_are_as_ever() {
    let mine = ResourceFilterRule {
        names: names(&["my-*"]),
        excluded: names(&["my-debug"]),
        ..labelled(&["ClusterRole"], "mine")
    };
    let filters = resolved(&[mine], &[]);
    let (roles, classes) = ("clusterroles.rbac.authorization.k8s.io", "storageclasses.storage.k8s.io");
    for (kind, name, app, expected) in [
        (roles, "my-app", "mine", (true, true)),
        (roles, "my-app", "spec", (false, true)),
        (roles, "my-debug", "mine", (false, false)),
        (roles, "other", "mine", (false, false)),
        (classes, "any", "spec", (true, true)),
        (classes, "any", "mine", (false, true)),
        ("pods", "any", "spec", (true, true)),
    ] {
        let namespace = if kind == "pods" { "ns-a" } else { "" };
        assert_eq!(takes(&filters, kind, namespace, name, app), expected, "{kind} {name} {app}");
    }
}

#[test]
fn kinds_that_name_nothing_there_or_what_another_rule_has_are_known() {
    let filters = resolved(
        &[rule(&["ConfigMap", "storageclasses"])],
        &[policy(&["ns-*"], &[rule(&["pods", "ClusterRole", "Widget"]), labelled(&["Pod", "secrets"], "x")])],
    );
    let expected = [
        ("clusterScopedFilterPolicy", list(&["ConfigMap"])),
        ("namespacedFilterPolicies", list(&["ClusterRole", "Pod", "Widget"])),
    ];
    assert_eq!(filters.idle, expected);
    // The first rule with a kind keeps it.
    assert!(takes(&filters, "pods", "ns-a", "any", "").0);
}

#[test]
fn a_policy_of_namespaces_that_the_backup_does_not_take_says_nothing() {
    let filters = resolved(&[], &[policy(&["elsewhere", "gone-*"], &[rule(&["pods"])])]);
    assert!(types().iter().all(|kind| filters.of(kind).is_none() && !filters.names(kind)));
}

#[test]
fn what_is_no_name_is_refused_with_its_place() {
    let mut found = Violations::default();
    let long = "x".repeat(254);
    let bad = ["", "a**b", "a{b,c}", "a|b", "!a", "[", "a[]", "a/b", "a%2f", "a\nb", long.as_str()];
    let read = NameFilter::parse(&list(&bad), &Field::root("names"), &mut found);
    assert!(read.is_empty());
    let fields: Vec<String> = found.iter().map(|one| one.field.to_string()).collect();
    assert_eq!(fields, (0..bad.len()).map(|i| format!("names[{i}]")).collect::<Vec<_>>());
    assert!(names(&["system:node", "vs.example.com", "*"]).contain("system:node"));
    let many: Vec<String> = (0..=limits::PATTERNS).map(|i| format!("a*{i}*")).collect();
    let mut found = Violations::default();
    assert!(NameFilter::parse(&many, &Field::root("names"), &mut found).is_empty());
    assert!(found.to_string().contains("has 101 patterns"), "{found}");
}

proptest! {
    /// The rules in the order of Velero's design page.
    #[test]
    fn what_is_taken_is_what_the_rules_say(
        policies in prop::collection::vec(
            (
                prop::sample::subsequence(vec!["ns-a", "ns-b", "team-*", "team-frontend-*", "*"], 1..=2),
                prop::collection::vec((prop::sample::subsequence(vec!["Pod", "secrets", "Deployment"], 0..=2), prop::sample::select(vec!["", "mine", "spec"])), 1..3),
            ),
            0..4,
        ),
        namespace in prop::sample::select(NAMESPACES.to_vec()),
        which in prop::sample::select(vec![("pods", "Pod"), ("secrets", "secrets"), ("configmaps", "ConfigMap")]),
        app in prop::sample::select(vec!["", "mine", "spec"]),
    ) {
        let read = |(namespaces, rules): &(Vec<&str>, Vec<(Vec<&str>, &str)>)| {
            let rules = rules.iter().map(|(kinds, app)| if app.is_empty() { rule(kinds) } else { labelled(kinds, app) });
            policy(namespaces, &rules.collect::<Vec<_>>())
        };
        let read: Vec<NamespacePolicy> = policies.iter().map(read).collect();
        let has = |exact: bool| move |one: &&NamespacePolicy| {
            one.namespaces.iter().any(|glob| (glob.literal().is_some() == exact) && glob.matches(namespace))
        };
        let chosen = read.iter().find(has(true)).or_else(|| read.iter().find(has(false)));
        let expected = match chosen {
            None => app == "spec",
            Some(one) => {
                let named = one.rules.iter().find(|rule| rule.kinds.iter().any(|kind| kind == which.1));
                let rest = || one.rules.iter().find(|rule| rule.kinds.is_empty());
                named.or_else(rest).is_some_and(|rule| matches_one(&rule.selectors, &labels(app)))
            }
        };
        prop_assert_eq!(takes(&resolved(&[], &read), which.0, namespace, "x", app), (expected, true));
    }
}
