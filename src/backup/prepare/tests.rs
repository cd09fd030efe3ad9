use std::collections::BTreeMap;

use berth_api::policy;
use bytes::Bytes;
use proptest::prelude::*;

use super::*;

const NAMESPACES: [&str; 4] = ["*", "app-*", "app-1", "gone"];
const TYPES: [&str; 9] = [
    "*",
    "pods",
    "deploy*",
    "*.io",
    "volumesnapshots",
    SNAPSHOTS,
    SNAPSHOT_CONTENTS,
    "nodes",
    "nothing.example.com",
];

/// What a policy may name.
const IN_POLICIES: [&str; 8] = [
    "pods",
    "deploy*",
    "*.io",
    "volumesnapshots",
    SNAPSHOTS,
    SNAPSHOT_CONTENTS,
    "nodes",
    "nothing.example.com",
];

fn kind(resource: &str, group: &str, namespaced: bool) -> ResourceType {
    ResourceType {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: resource.trim_end_matches('s').to_owned(),
        resource: resource.to_owned(),
        singular: resource.trim_end_matches('s').to_owned(),
        short_names: Vec::new(),
        namespaced,
    }
}

fn types() -> Vec<ResourceType> {
    vec![
        kind("pods", "", true),
        kind("namespaces", "", false),
        kind("nodes", "", false),
        kind("persistentvolumes", "", false),
        kind("deployments", "apps", true),
        kind("storageclasses", "storage.k8s.io", false),
        kind("volumesnapshots", "snapshot.storage.k8s.io", true),
        kind("volumesnapshotcontents", "snapshot.storage.k8s.io", false),
        kind("customresourcedefinitions", "apiextensions.k8s.io", false),
    ]
}

fn namespace(name: &str, excluded: bool) -> Namespace {
    Namespace {
        name: name.to_owned(),
        labels: BTreeMap::new(),
        json: Bytes::new(),
        lacks_type: true,
        deleting: false,
        excluded,
    }
}

fn prepared(spec: &Value) -> Prepared {
    tried(spec, &Ok(Policies::default())).unwrap_or_else(|faults| panic!("{spec}: {faults}"))
}

fn tried(spec: &Value, policies: &Result<Policies, Violations>) -> Result<Prepared, Violations> {
    let backup = json!({
        "apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": "b"}, "spec": spec,
    });
    let location = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "default"},
        "spec": {"provider": "aws", "objectStorage": {"bucket": "b"}, "default": true},
    });
    let situation = StartInput {
        backup: &serde_json::from_value(backup).unwrap(),
        locations: &[serde_json::from_value(location).unwrap()],
        namespaces: &[namespace("app-1", false), namespace("app-2", false), namespace("kept-out", true)],
        types: &types(),
        policies,
        server: &Info::default(),
        default_ttl: Duration::from_secs(3600),
        default_files: false,
        default_moves: false,
        now: Timestamp::UNIX_EPOCH,
    };
    prepare(&situation)
}

/// What a finished Backup says that was created with this spec.
fn effective(spec: &Value) -> Value {
    let mut effective = spec.clone();
    let changed = prepared(spec).patch["spec"].as_object().unwrap().clone();
    effective.as_object_mut().unwrap().extend(changed);
    effective
}

fn read(policy: &str) -> Result<Policies, Violations> {
    let data = BTreeMap::from([("policy".to_owned(), format!("version: v1\n{policy}"))]);
    policy::parse(&data, &Field::root("ConfigMap velero/p"))
}

/// Two lists that go together: an `*` stands alone, and nothing is in both.
fn pair(entries: &'static [&'static str]) -> impl Strategy<Value = (Vec<&'static str>, Vec<&'static str>)> {
    let some = || prop::sample::subsequence(entries.to_vec(), 0..=2);
    (some(), some()).prop_map(|(mut includes, mut excludes)| {
        if includes.contains(&"*") {
            includes = vec!["*"];
        }
        excludes.retain(|entry| *entry != "*" && !includes.contains(entry));
        (includes, excludes)
    })
}

proptest! {
    #[test]
    fn the_effective_spec_selects_what_the_spec_did(
        style in 0..3,
        namespaces in pair(&NAMESPACES),
        first in pair(&TYPES),
        second in pair(&TYPES),
        cluster in prop::option::of(any::<bool>()),
    ) {
        let mut spec = json!({"includedNamespaces": namespaces.0, "excludedNamespaces": namespaces.1});
        if style == 1 {
            spec["includedResources"] = json!(first.0);
            spec["excludedResources"] = json!(first.1);
            spec["includeClusterResources"] = json!(cluster);
        } else if style == 2 {
            spec["includedNamespaceScopedResources"] = json!(first.0);
            spec["excludedNamespaceScopedResources"] = json!(first.1);
            spec["includedClusterScopedResources"] = json!(second.0);
            spec["excludedClusterScopedResources"] = json!(second.1);
        }
        let (once, again) = (prepared(&spec), prepared(&effective(&spec)));
        prop_assert_eq!(once.selection, again.selection);
        prop_assert_eq!(once.resolved, again.resolved);
        prop_assert_eq!(once.idle, again.idle);
        prop_assert_eq!(once.missing, again.missing);
    }

    /// A policy stands in no spec: what it says it says of the effective one, too.
    #[test]
    fn the_effective_spec_selects_with_a_policy_what_the_spec_did_with_it(
        namespaces in pair(&NAMESPACES),
        first in pair(&TYPES),
        second in pair(&TYPES),
        of_cluster in pair(&IN_POLICIES),
        in_namespaces in pair(&IN_POLICIES),
        kinds in prop::sample::subsequence(vec!["Pod", "deployment", "nodes", "nothing"], 0..3),
    ) {
        let spec = json!({
            "includedNamespaces": namespaces.0, "excludedNamespaces": namespaces.1,
            "includedNamespaceScopedResources": first.0, "excludedNamespaceScopedResources": first.1,
            "includedClusterScopedResources": second.0, "excludedClusterScopedResources": second.1,
            "resourcePolicy": {"kind": "configmap", "name": "p"},
        });
        // JSON is YAML.
        let policy = json!({
            "version": "v1",
            "includeExcludePolicy": {
                "includedClusterScopedResources": of_cluster.0, "excludedClusterScopedResources": of_cluster.1,
                "includedNamespaceScopedResources": in_namespaces.0, "excludedNamespaceScopedResources": in_namespaces.1,
            },
            "namespacedFilterPolicies": [{"namespaces": ["app-*"], "resourceFilters": [{"kinds": kinds, "labelSelector": {"a": "b"}}]}],
        });
        let data = BTreeMap::from([("policy".to_owned(), policy.to_string())]);
        let policies = policy::parse(&data, &Field::root("p"));
        let (once, again) = (tried(&spec, &policies).unwrap(), tried(&effective(&spec), &policies).unwrap());
        prop_assert_eq!(&once.selection, &again.selection);
        prop_assert_eq!(once.filters, again.filters);
        prop_assert_eq!(once.left_out, again.left_out);
        // What the spec says of a type by name counts for more.
        let alone = prepared(&spec).selection;
        for kind in types().iter().filter(|kind| !first.0.is_empty() && kind.namespaced) {
            let fate = alone.fate(kind);
            prop_assert!(fate == TypeSelection::Unnamed || once.selection.fate(kind) == fate, "{}", kind.qualified());
        }
    }
}

#[test]
fn a_policy_that_says_which_objects_are_taken_goes_with_the_scoped_filters_only() {
    let old = json!({"includedResources": ["pods"], "resourcePolicy": {"kind": "ConfigMap", "name": "p"}});
    for (policy, is_taken) in [
        ("volumePolicies: [{action: {type: skip}}]", true),
        ("includeExcludePolicy: {}", false),
        ("clusterScopedFilterPolicy: {resourceFilters: [{kinds: [Node]}]}", false),
        ("namespacedFilterPolicies: [{namespaces: [app-1], resourceFilters: [{}]}]", false),
    ] {
        let policies = read(policy);
        assert!(policies.is_ok(), "{policies:?}");
        let faults = tried(&old, &policies).err().unwrap_or_default();
        assert_eq!(faults.is_empty(), is_taken, "{policy}: {faults}");
        assert!(is_taken || faults.to_string().starts_with("spec.resourcePolicy: "), "{faults}");
        let scoped = json!({"includedNamespaceScopedResources": ["pods"]});
        assert!(tried(&scoped, &policies).is_ok(), "{policy}");
    }
}

#[test]
fn what_is_wrong_with_a_policy_is_told_with_what_is_wrong_with_the_spec() {
    let faults = tried(&json!({"ttl": "soon"}), &read("volumePolicies: [{action: {type: keep}}]"));
    let faults = faults.err().unwrap_or_default().lines();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].starts_with("spec.ttl: "), "{faults:?}");
    let field = "ConfigMap velero/p.data[policy].volumePolicies[0].action.type: ";
    assert!(faults[1].starts_with(field), "{faults:?}");
}

#[test]
fn a_full_backup_is_full_where_a_label_keeps_namespaces_out_and_when_it_is_created_again() {
    let class = kind("storageclasses", "storage.k8s.io", false);
    for full in [
        json!({}),
        json!({"includedNamespaceScopedResources": ["*"]}),
        json!({"includedNamespaces": ["*"], "includedResources": ["*"]}),
    ] {
        for spec in [&full, &effective(&full)] {
            assert_eq!(prepared(spec).selection.fate(&class), TypeSelection::Listed, "{spec}");
        }
    }
    let part = prepared(&json!({"excludedNamespaces": ["app-1"]}));
    assert_eq!(part.selection.fate(&class), TypeSelection::Needed);
}

#[test]
fn what_matches_nothing_is_warned_of() {
    let warnings = |spec: &Value| {
        let log = BackupLog::new(String::new());
        prepared(spec).warn(&log);
        log.counts().warnings
    };
    assert_eq!(warnings(&json!({"includedNamespaces": ["app-*", "*-1"]})), 0);
    // The one that it matches is kept out by its label.
    assert_eq!(warnings(&json!({"includedNamespaces": ["app-*", "kept-*"]})), 1);
    let nothing = json!({
        "includedNamespaces": ["x-*", "y-*"],
        "includedResources": ["pods", "widgets"], "excludedResources": ["gadgets.example.com"],
    });
    assert_eq!(warnings(&nothing), 3);
    assert_eq!(warnings(&effective(&nothing)), 3, "what is excluded by itself is no slip of the pen");
    let ordered = json!({"includedNamespaceScopedResources": ["pods"], "orderedResources": {"pods": "a/b"}});
    assert_eq!(warnings(&ordered), 0);
    for idle in [json!({"widgets": "a/b"}), json!({"deployments": "a/b"})] {
        let ordered = json!({"includedNamespaceScopedResources": ["pods"], "orderedResources": idle});
        assert_eq!(warnings(&ordered), 1, "{ordered}");
    }
}

#[test]
fn what_a_policy_names_in_vain_is_warned_of() {
    let warnings = |policy: &str| {
        let log = BackupLog::new(String::new());
        tried(&json!({}), &read(policy)).unwrap_or_else(|faults| panic!("{faults}")).warn(&log);
        log.counts().warnings
    };
    for (policy, expected) in [
        (
            "includeExcludePolicy: {excludedNamespaceScopedResources: [pods], includedClusterScopedResources: [nodes]}",
            0,
        ),
        (
            "includeExcludePolicy: {excludedNamespaceScopedResources: [widgets], includedClusterScopedResources: [pods]}",
            2,
        ),
        ("clusterScopedFilterPolicy: {resourceFilters: [{kinds: [nodes, Widget]}]}", 1),
        ("namespacedFilterPolicies: [{namespaces: [app-1], resourceFilters: [{kinds: [pods, nodes]}]}]", 1),
        // No namespace has it: a ConfigMap may be for several Backups.
        ("namespacedFilterPolicies: [{namespaces: [nowhere], resourceFilters: [{kinds: [pods]}]}]", 0),
        (
            "includeExcludePolicy: {excludedNamespaceScopedResources: [pods]}\nnamespacedFilterPolicies: [{namespaces: [app-1], resourceFilters: [{kinds: [pods]}]}]",
            1,
        ),
    ] {
        assert_eq!(warnings(policy), expected, "{policy}");
    }
}
