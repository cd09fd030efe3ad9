use berth_core::affinity::{Binding, Operation, Situation, Term, decide};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn map(text: impl ToString) -> BTreeMap<String, String> {
    BTreeMap::from([("config.json".to_owned(), text.to_string())])
}

fn faults(value: serde_json::Value) -> Vec<String> {
    match parse(&map(value)) {
        Ok((_, faults)) | Err(faults) => faults.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn what_velero_cannot_read_cannot_be_used() {
    for (data, words) in [
        (BTreeMap::new(), "exactly one key"),
        (BTreeMap::from([("a".to_owned(), "{}".to_owned()), ("b".to_owned(), "{}".to_owned())]), "a, b"),
        (map("{"), "line 1 column 1"),
        (map(json!([])), "must be an object"),
        (map(json!({"loadAffinity": {}})), "loadAffinity: must be a list"),
        (
            map(json!({"loadConcurrency": {"prepareQueueLength": "2"}})),
            "prepareQueueLength: must be a whole number",
        ),
        (map(json!({"loadConcurrency": {"prepareQueueLength": 1.5}})), "must be a whole number"),
        (map(json!({"privilegedFsBackup": "yes"})), "must be true or false"),
    ] {
        let refused = parse(&data).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn every_fault_is_told_with_its_path() {
    let told = faults(json!({
        "prepareQueueLength": 2,
        "loadconcurrency": {},
        "loadConcurrency": {"perNodeConfig": [{"nodeSelector": {}, "number": 0, "prepareQueueLength": 1}]},
        "loadAffinity": [
            {"nodeSelector": {"matchExpressions": [{"key": "zone", "operator": "Inn", "values": ["a"]}]}},
            {"nodeSelector": {"matchLabels": {"z": "a"}, "matchExpressions": [{"key": "z", "operator": "In", "values": ["b"]}]}},
            {"storageClass": "gold", "nodeSelector": {"matchLabels": {"z": "a"}}},
            {"storageClass": "gold", "nodeSelector": {"matchExpressions": [{"key": "z", "operator": "In", "values": ["a"]}]}},
            {"storageClass": "gold", "nodeSelector": {}},
        ],
        "loadTolerations": [{"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}, {"effect": "No", "key": "x"}]}],
        "backupPVC": {"gold": {"spcNoRelabeling": true}},
        "cachePVC": {},
        "podResources": {"cpuRequest": "one"},
    }));
    let root = "data[config.json].";
    let expected = [
        "prepareQueueLength: is ignored here",
        "loadconcurrency: is ignored",
        "loadConcurrency.perNodeConfig[0].prepareQueueLength: is ignored here",
        "loadConcurrency.perNodeConfig[0].number: must be above 0",
        "loadAffinity[0].nodeSelector.matchExpressions[0].operator: \"Inn\"",
        "loadAffinity[1].nodeSelector: no node can match: the requirements of z",
        "loadAffinity[3]: says the same as loadAffinity[2]",
        "loadAffinity[4].nodeSelector: takes every node",
        "loadTolerations[0].tolerations[0].value: operator Exists takes none",
        "loadTolerations[0].tolerations[1].effect: is none of",
        "backupPVC[gold].spcNoRelabeling: goes with readOnly",
        "cachePVC.storageClass: is missing",
        "podResources.cpuRequest: is no quantity",
    ];
    for words in expected {
        assert!(told.iter().any(|fault| fault.starts_with(&format!("{root}{words}"))), "{words}: {told:#?}");
    }
    assert_eq!(told.len(), expected.len(), "{told:#?}");
}

#[test]
fn what_is_in_order_is_read_whole() {
    let (config, faults) = parse(&map(json!({
        "loadConcurrency": {
            "globalConfig": 2,
            "perNodeConfig": [{"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "node1"}}, "number": 3}],
            "prepareQueueLength": 2,
        },
        "loadTolerations": [{"storageClass": "gold", "tolerations": [{"key": "storage", "operator": "Exists"}]}],
        "backupPVC": {"gold": {"storageClass": "fast", "readOnly": true, "spcNoRelabeling": true}},
        "restorePVC": {"ignoreDelayBinding": true},
        "podResources": {"cpuRequest": "500m", "memoryLimit": "1.5Gi", "memoryRequest": "1e3", "cpuLimit": "0"},
        "cachePVC": {"storageClass": "cache", "residentThresholdInMB": 100},
        "podLabels": {"a": "b"},
    })))
    .unwrap();
    assert!(faults.is_empty(), "{faults}");
    assert_eq!((config.global_config, config.prepare_queue_length), (2, Some(2)));
    assert_eq!(config.per_node.len(), 1);
    assert_eq!(config.load_tolerations[0].tolerations[0].value, None);
    assert!(config.backup_pvc["gold"].read_only && config.ignore_delay_binding);
    let mut unknown = Violations::default();
    check_classes(&config, &BTreeSet::from(["gold".to_owned()]), &mut unknown);
    let unknown: Vec<String> = unknown.iter().map(|fault| fault.field.to_string()).collect();
    assert_eq!(unknown, ["backupPVC[gold].storageClass", "cachePVC.storageClass"]);
    for off in [json!(0), json!(-1), json!(null)] {
        let (config, faults) = parse(&map(json!({"loadConcurrency": {"prepareQueueLength": off}}))).unwrap();
        assert!(config.prepare_queue_length.is_none() && faults.is_empty(), "{faults}");
    }
}

/// The examples of the design for node affinity per StorageClass.
const MULTIPLE: &str = r#"{"loadAffinity": [
    {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}}},
    {"nodeSelector": {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-central1-a"]}]}}
]}"#;
const PER_CLASS: &str = r#"{"loadAffinity": [
    {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}}},
    {"nodeSelector": {"matchExpressions": [{"key": "kubernetes.io/os", "values": ["linux"], "operator": "In"}]},
     "storageClass": "kibishii-storage-class"},
    {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B8ms"}},
     "storageClass": "kibishii-storage-class"}
]}"#;
const BACKUP_PVC: &str = r#"{"loadAffinity": [
    {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}},
     "storageClass": "kibishii-storage-class"},
    {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B2ms"}},
     "storageClass": "worker-storagepolicy"}
], "backupPVC": {"kibishii-storage-class": {"storageClass": "worker-storagepolicy"}}}"#;
const RESTORE_PVC: &str = r#"{"loadAffinity": [
    {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}},
     "storageClass": "kibishii-storage-class"}
], "restorePVC": {"ignoreDelayBinding": false}}"#;

fn terms(config: &str, operation: impl Fn(&NodeAgentConfig) -> Operation<'_>) -> Option<Vec<String>> {
    let (config, faults) = parse(&map(config)).unwrap();
    assert!(faults.is_empty(), "{faults}");
    let decision = decide(&Situation {
        operation: operation(&config),
        rules: &config.load_affinity,
        toleration_rules: &config.load_tolerations,
        terms: &[],
        tolerations: &[],
        agents_outdated: false,
        nodes: None,
    });
    let text =
        |term: &Term| term.expressions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    decision.terms.map(|terms| terms.iter().map(text).collect())
}

fn backup<'c>(class: &'c str, config: &'c NodeAgentConfig) -> Operation<'c> {
    let mapped_class = config.backup_pvc.get(class).and_then(|claim| claim.storage_class.as_deref());
    Operation::Backup { claim_class: None, mapped_class, source_class: Some(class), topology: Some(&[]) }
}

#[test]
fn the_examples_of_the_design_hold() {
    const INSTANCE: &str = "beta.kubernetes.io/instance-type In";
    let some = |terms: &[&str]| Some(terms.iter().map(|term| (*term).to_owned()).collect::<Vec<_>>());
    let [b2, b4, b8] = ["B2ms", "B4ms", "B8ms"].map(|size| format!("{INSTANCE} [Standard_{size}]"));
    let zone = "topology.kubernetes.io/zone In [us-central1-a]";
    assert_eq!(terms(MULTIPLE, |config| backup("any", config)), some(&[&b4, zone]));
    let class = "kibishii-storage-class";
    let linux = "kubernetes.io/os In [linux]";
    assert_eq!(terms(PER_CLASS, |config| backup(class, config)), some(&[linux, &b8]));
    assert_eq!(terms(PER_CLASS, |config| backup("other", config)), some(&[&b4]));
    assert_eq!(terms(BACKUP_PVC, |config| backup(class, config)), some(&[&b2]));
    let restore = |binding| {
        terms(RESTORE_PVC, |config| Operation::Restore {
            class: Some(class),
            binding,
            ignore_delay_binding: config.ignore_delay_binding,
            selected_node: None,
        })
    };
    assert_eq!(restore(Binding::WaitForFirstConsumer), None);
    assert_eq!(restore(Binding::Immediate), some(&[&b4]));
}

proptest! {
    #[test]
    fn nothing_that_is_read_panics(text in "[\\[\\]{}a-zA-Z:,\"0-9 ]{0,60}") {
        let _ = parse(&map(text));
    }

    #[test]
    fn no_structure_panics(key in prop::sample::select(vec!["loadAffinity", "loadConcurrency", "backupPVC", "loadTolerations", "podResources", "cachePVC"]), value in "(null|1|-1|\"x\"|\\[\\]|\\[1\\]|\\{\\}|\\{\"a\":\\{\\}\\}|\\[\\{\\}\\]|true)") {
        let _ = parse(&map(format!("{{\"{key}\": {value}}}")));
    }
}
