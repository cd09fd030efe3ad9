use std::collections::BTreeMap;

use berth_core::selection::Fate;
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
    let backup = json!({
        "apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": "b"}, "spec": spec,
    });
    let location = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "default"},
        "spec": {"provider": "aws", "objectStorage": {"bucket": "b"}, "default": true},
    });
    let situation = Situation {
        backup: &serde_json::from_value(backup).unwrap(),
        locations: &[serde_json::from_value(location).unwrap()],
        namespaces: &[namespace("app-1", false), namespace("app-2", false), namespace("kept-out", true)],
        types: &types(),
        server: &Info::default(),
        default_ttl: Duration::from_secs(3600),
        now: Timestamp::UNIX_EPOCH,
    };
    prepare(&situation).unwrap_or_else(|faults| panic!("{spec}: {faults}"))
}

/// What a finished Backup says that was created with this spec.
fn effective(spec: &Value) -> Value {
    let mut effective = spec.clone();
    let changed = prepared(spec).patch["spec"].as_object().unwrap().clone();
    effective.as_object_mut().unwrap().extend(changed);
    effective
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
            assert_eq!(prepared(spec).selection.fate(&class), Fate::Listed, "{spec}");
        }
    }
    let part = prepared(&json!({"excludedNamespaces": ["app-1"]}));
    assert_eq!(part.selection.fate(&class), Fate::Needed);
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
}
