use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

const AT: &str = "ConfigMap velero/p";

fn data(text: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("policy".to_owned(), text.to_owned())])
}

fn read(text: &str) -> Policies {
    parse(&data(text), &Field::root(AT)).unwrap_or_else(|faults| unreachable!("{faults}\n{text}"))
}

fn faults(text: &str) -> Vec<String> {
    let faults = parse(&data(text), &Field::root(AT)).err().unwrap_or_default();
    faults.iter().map(ToString::to_string).collect()
}

fn list(entries: &[&str]) -> Vec<String> {
    entries.iter().map(|entry| (*entry).to_owned()).collect()
}

#[test]
fn all_that_the_contract_has_is_read() {
    let policies = read(
        r#"
version: v1
volumePolicies:
- conditions:
    capacity: "10Gi,100Gi"
    storageClass: [gp2]
    nfs: {server: s, path: p}
    csi: {driver: d, volumeAttributes: {k: v}}
    volumeTypes: [nfs, csi]
    pvcLabels: {k: v, backup: true, shard: 0x10}
    pvcPhase: [Bound, Pending, Lost]
  action:
    type: skip
    parameters: {dataMover: velero, more: [1, {a: b}]}
- conditions: {nfs: {}, capacity: ",1Gi"}
  action: {type: fs-backup}
- action: {type: snapshot}
- {conditions: {}, action: {type: custom}}
includeExcludePolicy:
  includedClusterScopedResources: []
  excludedClusterScopedResources: [storageclasses]
  includedNamespaceScopedResources: [configmaps, "*.apps"]
  excludedNamespaceScopedResources:
"#,
    );
    let [first, second, third, fourth] = policies.volumes.as_slice() else { panic!("{policies:?}") };
    let gib = Quantity::parse("1Gi").map_or(0, Quantity::billionths);
    let attributes = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let mut labels = attributes.clone();
    // Values as written, as Go's YAML reads them.
    labels.extend([("backup".to_owned(), "true".to_owned()), ("shard".to_owned(), "0x10".to_owned())]);
    let conditions = VolumeConditions {
        at_least: 10 * gib,
        at_most: 100 * gib,
        storage_classes: list(&["gp2"]),
        nfs: Some(NfsSource { server: "s".to_owned(), path: "p".to_owned() }),
        csi: Some(CsiSource { driver: "d".to_owned(), attributes }),
        kinds: list(&["nfs", "csi"]),
        labels,
        phases: list(&["Bound", "Pending", "Lost"]),
    };
    assert_eq!(*first, VolumePolicy { conditions, action: VolumeAction::Skip });
    assert_eq!((second.conditions.at_most, second.conditions.nfs.is_some()), (gib, true));
    assert_eq!(
        [second, third, fourth].map(|one| one.action),
        [VolumeAction::FsBackup, VolumeAction::Snapshot, VolumeAction::Custom]
    );
    let lists = Lists {
        cluster: Filter { includes: Vec::new(), excludes: list(&["storageclasses"]) },
        namespaced: Filter { includes: list(&["configmaps", "*.apps"]), excludes: Vec::new() },
    };
    assert_eq!(policies.types, Some(lists));
    assert!(policies.chooses() && !read("version: v1").chooses());
}

#[test]
fn the_sample_is_a_policy_and_a_backup_that_has_it() {
    let sample = include_str!("../../../manifests/samples/backup-policy-accepted.yaml");
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(sample).unwrap();
    let [map, backup] = documents.as_slice() else { panic!("{documents:?}") };
    let policies = read(map["data"]["policy"].as_str().unwrap());
    assert!(policies.chooses() && policies.volumes.len() == 1);
    let spec = serde_json::from_value(backup["spec"].clone()).unwrap();
    let wanted = crate::parse::backup(&spec).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!((wanted.hooks.len(), wanted.ordered.len()), (1, 1));
    assert!(crate::unserved::unserved(&spec).is_empty());
    assert_eq!(backup["spec"]["resourcePolicy"]["name"], map["metadata"]["name"]);
}

#[test]
fn filters_are_read_with_both_forms_of_selectors() {
    let policies = read(
        r#"
version: v1
clusterScopedFilterPolicy:
  resourceFilters:
  - kinds: [ClusterRole, storageclasses.storage.k8s.io]
    names: ["my-app-*", "system:node"]
namespacedFilterPolicies:
- namespaces: [ns-a, "team-*"]
  resourceFilters:
  - kinds: [ConfigMap]
    labelSelector: {app: web, tier: "1"}
    excludedNames: ["*-tmp"]
  - kinds: ["*"]
    labelSelector:
      matchLabels: {app: web}
      matchExpressions: [{key: env, operator: In, values: [prod, dev]}, {key: x, operator: DoesNotExist}]
- namespaces: [ns-b]
  resourceFilters:
  - orLabelSelectors: [{app: a}, {matchLabels: {app: b}}]
  - {kinds: [Pod], orLabelSelectors: [{app: a}, {}], labelSelector: {}}
"#,
    );
    assert_eq!(policies.cluster[0].kinds, list(&["ClusterRole", "storageclasses.storage.k8s.io"]));
    assert!(
        policies.cluster[0].names.contain("my-app-x") && policies.cluster[0].names.contain("system:node")
    );
    let [first, second] = policies.namespaced.as_slice() else { panic!("{policies:?}") };
    let queries = |rule: &ResourceFilterRule| rule.selectors.iter().map(Selector::query).collect::<Vec<_>>();
    assert_eq!(queries(&first.rules[0]), ["app=web,tier=1"]);
    assert!(first.rules[0].excluded.contain("a-tmp"));
    assert_eq!(queries(&first.rules[1]), ["app=web,env in (prod,dev),!x"]);
    assert!(first.rules[1].kinds.is_empty() && second.rules[0].kinds.is_empty());
    assert_eq!(queries(&second.rules[0]), ["app=a", "app=b"]);
    assert_eq!(queries(&second.rules[1]), [""; 0], "one that matches everything makes the others idle");
}

#[test]
fn a_config_map_has_one_key() {
    let (none, mut two) = (BTreeMap::new(), data("version: v1"));
    two.insert("other".to_owned(), "version: v1".to_owned());
    for (data, words) in [(none, "has 0 keys, "), (two, "has 2 keys, ")] {
        let faults = parse(&data, &Field::root(AT)).err().unwrap_or_default().to_string();
        assert!(faults.starts_with(&format!("ConfigMap velero/p.data: {words}")), "{faults}");
    }
}

#[test]
fn what_is_no_policy_is_told_with_its_line() {
    for (text, words) in [
        ("", "version"),
        ("version: v1\nvolumePolicy: []", "volumePolicy"),
        ("version: v1\nvolumePolicies:\n- conditions: {capacty: x}\n  action: {type: skip}", "capacty"),
        ("version: v1\nincludeExcludePolicy: {includedResources: [pods]}", "includedResources"),
        ("version: v1\nvolumePolicies: {}", "line 2"),
        ("version: v1\nvolumePolicies:\n- conditions: {pvcLabels: [a]}", "line 3"),
        ("version: v1\nversion: v1", "duplicate"),
        ("version: v1\nvolumePolicies: [", ""),
        ("version: v1\n---\nversion: v1", ""),
        ("- a", ""),
    ] {
        let faults = faults(text);
        assert_eq!(faults.len(), 1, "{text}: {faults:?}");
        assert!(faults[0].starts_with("ConfigMap velero/p.data[policy]"), "{faults:?}");
        assert!(faults[0].contains(words), "{words}: {faults:?}");
    }
}

/// The creator of a Backup can name every ConfigMap of its namespace, and may not be allowed to
/// read it.
#[test]
fn nothing_is_told_of_what_stands_in_a_config_map_that_is_no_policy() {
    for text in [
        "hunter2",
        "- hunter2",
        "'hunter2",
        "[hunter2",
        "*hunter2",
        "!hunter2 x",
        "db: user: hunter2",
        "password is hunter2: x",
        "version: [hunter2]",
        "version: {hunter2: hunter2}",
        "version: *hunter2",
        "version: v1\nhunter2 hunter2",
        "version: v1\nvolumePolicies: hunter2",
        "version: v1\nvolumePolicies: [hunter2]",
        "version: v1\nvolumePolicies: [{conditions: {pvcLabels: hunter2}}]",
        "version: v1\nvolumePolicies: [{conditions: {pvcLabels: {hunter2: a, hunter2: b}}}]",
        "version: v1\nnamespacedFilterPolicies: [{resourceFilters: [{labelSelector: hunter2}]}]",
        "version: v1\nnamespacedFilterPolicies: [{resourceFilters: [{labelSelector: {matchLabels: {}, hunter2: x}}]}]",
        "version: v1\n---\nhunter2",
    ] {
        let faults = faults(text);
        assert_eq!(faults.len(), 1, "{text}: {faults:?}");
        assert!(!faults[0].contains("hunter2"), "{text}: {faults:?}");
        assert!(
            faults[0].starts_with("ConfigMap velero/p.data[policy]: is not YAML of a"),
            "{text}: {faults:?}"
        );
    }
}

/// Each with the path of its field, after that of the ConfigMap and its key.
#[test]
fn every_fault_is_told_with_its_field() {
    for (text, fields) in [
        ("version: v2", &["version"][..]),
        ("{}", &["version"]),
        (
            "version: v1\nvolumePolicies: [{action: {type: keep}}, {}, {conditions: {capacity: 10Gi}, action: {type: skip}}]",
            &[
                "volumePolicies[0].action.type",
                "volumePolicies[1].action.type",
                "volumePolicies[2].conditions.capacity",
            ],
        ),
        (
            "version: v1\nvolumePolicies: [{conditions: {capacity: '2Gi,1Gi', volumeTypes: [nfs, floppy], pvcPhase: [bound], csi: {volumeAttributes: {a: b}}}, action: {type: skip}}]",
            &[
                "volumePolicies[0].conditions.capacity",
                "volumePolicies[0].conditions.csi.volumeAttributes",
                "volumePolicies[0].conditions.volumeTypes[1]",
                "volumePolicies[0].conditions.pvcPhase[0]",
            ],
        ),
        (
            "version: v1\nincludeExcludePolicy: {includedClusterScopedResources: ['*'], includedNamespaceScopedResources: [pods, a/b], excludedNamespaceScopedResources: [pods]}",
            &[
                "includeExcludePolicy.includedClusterScopedResources",
                "includeExcludePolicy.includedNamespaceScopedResources[1]",
                "includeExcludePolicy.excludedNamespaceScopedResources[0]",
            ],
        ),
        ("version: v1\nclusterScopedFilterPolicy: {}", &["clusterScopedFilterPolicy.resourceFilters"]),
        (
            "version: v1\nclusterScopedFilterPolicy: {resourceFilters: [{kinds: ['*']}, {kinds: [A, B, A]}, {kinds: [B]}]}",
            &[
                "clusterScopedFilterPolicy.resourceFilters[0].kinds",
                "clusterScopedFilterPolicy.resourceFilters[1].kinds[2]",
                "clusterScopedFilterPolicy.resourceFilters[2].kinds[0]",
            ],
        ),
        (
            "version: v1\nnamespacedFilterPolicies: [{}, {namespaces: ['a**', Upper, a], resourceFilters: [{}, {kinds: ['*'], names: [x]}]}, {namespaces: [a], resourceFilters: [{kinds: [Pod, '*']}]}]",
            &[
                "namespacedFilterPolicies[0].namespaces",
                "namespacedFilterPolicies[0].resourceFilters",
                "namespacedFilterPolicies[1].namespaces[0]",
                "namespacedFilterPolicies[1].namespaces[1]",
                "namespacedFilterPolicies[1].resourceFilters[1].kinds",
                "namespacedFilterPolicies[1].resourceFilters[1].names",
                "namespacedFilterPolicies[2].resourceFilters[0].kinds",
                "namespacedFilterPolicies[2].namespaces",
            ],
        ),
        (
            "version: v1\nnamespacedFilterPolicies: [{namespaces: [a], resourceFilters: [{kinds: ['a b'], names: ['a{b}'], excludedNames: ['['], labelSelector: {app: x}, orLabelSelectors: [{'a b': c}, {matchExpressions: [{key: k, operator: Is}]}]}]}]",
            &[
                "namespacedFilterPolicies[0].resourceFilters[0].kinds[0]",
                "namespacedFilterPolicies[0].resourceFilters[0].orLabelSelectors",
                "namespacedFilterPolicies[0].resourceFilters[0].orLabelSelectors[0].matchLabels.a b",
                "namespacedFilterPolicies[0].resourceFilters[0].orLabelSelectors[1].matchExpressions[0].operator",
                "namespacedFilterPolicies[0].resourceFilters[0].names[0]",
                "namespacedFilterPolicies[0].resourceFilters[0].excludedNames[0]",
            ],
        ),
    ] {
        let faults = faults(text);
        let told: Vec<&str> = faults.iter().filter_map(|fault| fault.split(": ").next()).collect();
        let expected: Vec<String> = fields.iter().map(|field| format!("{AT}.data[policy].{field}")).collect();
        assert_eq!(told, expected, "{faults:#?}");
    }
}

#[test]
fn what_would_grow_or_takes_long_is_refused_before_it_is_read() {
    // Parameters of the action may have any form.
    let mut bomb = "version: v1\nvolumePolicies:\n- action:\n    type: skip\n    parameters:\n      a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..10 {
        let before = vec![format!("*a{}", i - 1); 10].join(", ");
        bomb.push_str(&format!("      a{i}: &a{i} [{before}]\n"));
    }
    let deep = format!("version: v1\nvolumePolicies: {}{}", "[".repeat(10_000), "]".repeat(10_000));
    let large = format!("version: v1\n# {}", "x".repeat(limits::POLICY));
    let labels: Vec<String> = (0..20_000).map(|i| format!("{i}: a")).collect();
    let wide =
        format!("version: v1\nvolumePolicies: [{{conditions: {{pvcLabels: {{{}}}}}}}]", labels.join(","));
    let kinds: Vec<String> = (0..2000).map(|i| format!("k{i}")).collect();
    let many = format!(
        "version: v1\nclusterScopedFilterPolicy: {{resourceFilters: [{{kinds: [{}]}}]}}",
        kinds.join(",")
    );
    let begun = Instant::now();
    for text in [bomb, deep, large, wide, many] {
        let faults = faults(&text);
        assert!(!faults.is_empty() && faults.len() <= limits::VIOLATIONS, "{}", faults.len());
        assert!(faults.iter().all(|fault| fault.len() < 1500), "{faults:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let patterns = |count: usize| {
        let entry = |i: usize| format!("{{namespaces: ['a{i}-*', 'b{i}-*'], resourceFilters: [{{}}]}}");
        let entries: Vec<String> = (0..count).map(entry).collect();
        faults(&format!("version: v1\nnamespacedFilterPolicies: [{}]", entries.join(", ")))
    };
    assert_eq!(patterns(50), [""; 0]);
    assert!(patterns(51)[0].contains("102 patterns"), "{:?}", patterns(51));
    let values = |all: usize| {
        let one = |count: usize| {
            let values = vec!["v"; count].join(",");
            format!("{{matchExpressions: [{{key: a, operator: In, values: [{values}]}}]}}")
        };
        let either = vec![one(limits::VALUES); 3].join(",");
        let (cluster, rest) = (one(limits::VALUES), one(all - 4 * limits::VALUES));
        faults(&format!(
            "version: v1\nclusterScopedFilterPolicy: {{resourceFilters: [{{kinds: [ClusterRole], labelSelector: {cluster}}}]}}\n\
             namespacedFilterPolicies: [{{namespaces: [a], resourceFilters: [{{orLabelSelectors: [{either},{rest}]}}]}}]"
        ))
    };
    assert_eq!(values(5000), [""; 0]);
    assert!(
        values(5001)[0].contains("have 5001 labels and values in all, and at most 5000"),
        "{:?}",
        values(5001)
    );
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_and_never_panics(
        text in prop_oneof![
            "\\PC{0,80}",
            "(version: v1\n)?((volumePolicies|includeExcludePolicy|namespacedFilterPolicies):? ?[\\[\\]{}&*a-z:, \n'\"-]{0,60}){0,3}",
        ],
    ) {
        let _ = parse(&data(&text), &Field::root(AT));
    }
}
