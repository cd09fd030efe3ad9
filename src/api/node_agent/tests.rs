use proptest::prelude::*;
use serde_json::{Value, json};

use berth_core::affinity::{Effect, Toleration};

use super::*;

fn data(text: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("config.json".to_owned(), text.to_owned())])
}

#[track_caller]
fn usable(json: &Value) -> Parsed {
    parse(&data(&json.to_string())).unwrap_or_else(|faults| unreachable!("{faults}"))
}

fn told(violations: &Violations) -> Vec<String> {
    let places = |text: String| text.replace("data[config.json]", "$");
    violations.iter().map(|violation| places(violation.to_string())).collect()
}

/// Velero accepts it, and these are the beginnings of the faults.
#[track_caller]
fn passes_over(json: Value, expected: &[&str]) -> NodeAgentConfig {
    let parsed = usable(&json);
    begin(&told(&parsed.violations), expected);
    assert_eq!(check(&data(&json.to_string())).is_ok(), expected.is_empty());
    parsed.config
}

/// Velero fails on it.
#[track_caller]
fn fails(text: &str, expected: &[&str]) {
    match parse(&data(text)) {
        Ok(parsed) => panic!("read {text}: {parsed:?}"),
        Err(faults) => begin(&told(&faults), expected),
    }
    assert!(check(&data(text)).is_err());
}

#[track_caller]
fn begin(told: &[String], expected: &[&str]) {
    let is_so = told.len() == expected.len() && told.iter().zip(expected).all(|(t, e)| t.starts_with(e));
    assert!(is_so, "{told:#?} instead of {expected:#?}");
}

#[test]
fn everything_that_velero_knows_is_read() {
    let config = passes_over(
        json!({
            "loadConcurrency": {
                "globalConfig": 2,
                "perNodeConfig": [{"nodeSelector": {"matchLabels": {"size": "big"}}, "number": 5}],
                "prepareQueueLength": 10,
            },
            "loadAffinity": [
                {"nodeSelector": {"matchLabels": {"pool": "x"}}, "storageClass": "fast"},
                {"nodeSelector": {"matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["a"]},
                    {"key": "gpu", "operator": "DoesNotExist"},
                ]}},
            ],
            "backupPVC": {
                "fast": {"storageClass": "copy", "readOnly": true, "spcNoRelabeling": true,
                         "annotations": {"a": "b"}, "secretNames": ["s"], "configMapNames": ["c"]},
                "slow": {},
            },
            "restorePVC": {"ignoreDelayBinding": true, "secretNames": ["s"], "configMapNames": []},
            "podResources": {"cpuRequest": "100m", "cpuLimit": "1", "memoryRequest": "1Gi", "memoryLimit": "0",
                             "ephemeralStorageRequest": "5Gi", "ephemeralStorageLimit": "10Gi"},
            "priorityClassName": "low",
            "privilegedFsBackup": true,
            "cachePVC": {"storageClass": "fast", "residentThresholdInMB": 1024},
            "podAnnotations": {"a/b": "any text"},
            "podLabels": {"team": "storage"},
        }),
        &[],
    );
    assert_eq!((config.global_config, config.prepare_queue_length), (2, Some(10)));
    assert_eq!(
        config.per_node.iter().map(|(selector, n)| (selector.query(), *n)).collect::<Vec<_>>(),
        [("size=big".to_owned(), 5)]
    );
    let rules: Vec<_> = config
        .load_affinity
        .iter()
        .map(|rule| (rule.storage_class.as_deref(), rule.selector.query()))
        .collect();
    assert_eq!(rules, [(Some("fast"), "pool=x".to_owned()), (None, "zone=a,!gpu".to_owned())]);
    assert!(config.ignore_delay_binding);
    assert_eq!((config.mapped_class("fast"), config.mapped_class("slow")), (Some("copy"), None));
    let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let copy = BackupClaim {
        storage_class: Some("copy".to_owned()),
        read_only: true,
        no_relabeling: true,
        annotations: [text("a", "b")].into(),
    };
    assert_eq!(config.backup_pvc.get("fast"), Some(&copy));
    let resources = PodResources {
        requests: [text("cpu", "100m"), text("memory", "1Gi"), text("ephemeral-storage", "5Gi")].into(),
        // A limit of zero is none.
        limits: [text("cpu", "1"), text("ephemeral-storage", "10Gi")].into(),
    };
    let pods = MoverPods {
        resources: Some(resources),
        priority_class: Some("low".to_owned()),
        labels: [text("team", "storage")].into(),
        annotations: [text("a/b", "any text")].into(),
        privileged_for_files: true,
    };
    assert_eq!(config.pods, pods);
}

#[test]
fn what_is_absent_has_velero_s_defaults() {
    for empty in ["{}", "null", r#"{"loadConcurrency": null, "loadAffinity": null, "loadTolerations": []}"#] {
        let parsed = parse(&data(empty)).unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(parsed, Parsed { config: NodeAgentConfig::default(), violations: Violations::default() });
        assert_eq!((parsed.config.global_config, parsed.config.prepare_queue_length), (1, None));
    }
    let zero = passes_over(json!({"loadConcurrency": {"prepareQueueLength": 0}}), &[]);
    assert_eq!(zero.prepare_queue_length, None, "off");
    let below = passes_over(
        json!({"loadConcurrency": {"globalConfig": 0, "prepareQueueLength": -1}}),
        &["$.loadConcurrency.globalConfig: must be above 0, is 0"],
    );
    assert_eq!((below.global_config, below.prepare_queue_length), (1, None));
}

#[test]
fn what_velero_cannot_read_is_refused() {
    let faults = |data| parse(&data).err().map(|faults: Violations| faults.to_string()).unwrap_or_default();
    assert_eq!(faults(BTreeMap::new()), "data: must have one key, with JSON as its value: there is none");
    let two = BTreeMap::from([("a".to_owned(), "{}".to_owned()), ("b".to_owned(), "{}".to_owned())]);
    assert_eq!(faults(two), "data: must have one key and no more, there are a, b: leave one");
    fails("{\n  \"loadAffinity\": [,]\n}", &["$: is not JSON: expected value at line 2 column 20"]);
    fails("", &["$: is not JSON: EOF while parsing a value at line 1 column 0"]);
    fails("{} {}", &["$: is not JSON: trailing characters at line 1 column 4"]);
    fails("[]", &["$: must be an object, is a list"]);
    fails(r#"{"loadAffinity": [null]}"#, &["$.loadAffinity[0]: must be an object, is null"]);
    fails(
        r#"{
            "loadConcurrency": {"globalConfig": "2", "prepareQueueLength": 1.5, "perNodeConfig": {}},
            "loadAffinity": [{"nodeSelector": {"matchLabels": {"zone": 1}}, "storageClass": ["fast"]}],
            "backupPVC": {"fast": {"readOnly": "yes"}},
            "restorePVC": [],
            "podResources": {"cpuRequest": 1, "cpuLimit": "1", "memoryRequest": "1", "memoryLimit": "1"},
            "podLabels": {"a": true},
            "unknown": 1
        }"#,
        &[
            "$.unknown: Velero knows no such key here and ignores it: it knows loadConcurrency, ",
            "$.loadConcurrency.globalConfig: must be a whole number, is a text",
            "$.loadConcurrency.prepareQueueLength: must be a whole number, is a fraction",
            "$.loadConcurrency.perNodeConfig: must be a list, is an object",
            "$.loadAffinity[0].storageClass: must be a text, is a list",
            "$.loadAffinity[0].nodeSelector.matchLabels.zone: must be a text, is a number",
            "$.backupPVC[fast].readOnly: must be true or false, is a text",
            "$.restorePVC: must be an object, is a list",
            "$.podResources.cpuRequest: must be a text, is a number",
            "$.podLabels.a: must be a text, is a boolean",
        ],
    );
}

#[test]
fn keys_that_velero_ignores_are_told_with_the_place_where_they_belong() {
    passes_over(
        json!({
            "prepareQueueLength": 2,
            "loadAffinty": [],
            "loadConcurrency": {"perNodeConfig": [{"number": 1, "prepareQueueLength": 2, "labels": {}}]},
            "loadAffinity": [{
                "matchLabels": {"a": "b"},
                "nodeSelector": {"storageClass": "fast", "matchExpressions": [{"key": "zone", "operator": "Exists", "value": "a"}]},
            }],
            "backupPVC": {"fast": {"ignoreDelayBinding": true, "mode": 1}},
            "restorePVC": {"loadAffinity": []},
            "cachePVC": {"storageClass": "fast", "size": "1Gi"},
            "podResources": {"cpuRequest": "1", "cpuLimit": "1", "memoryRequest": "1", "memoryLimit": "1", "cpu": "1"},
            "loadTolerations": [{"taints": [], "tolerations": [{"key": "a", "operator": "Exists", "seconds": 1}]}],
        }),
        &[
            "$.loadAffinty: Velero knows no such key here and ignores it: it knows loadConcurrency, loadAffinity, ",
            "$.prepareQueueLength: does not belong here, where Velero ignores it, but under loadConcurrency",
            "$.loadConcurrency.perNodeConfig[0].labels: Velero knows no such key",
            "$.loadConcurrency.perNodeConfig[0].prepareQueueLength: does not belong here",
            "$.loadAffinity[0].matchLabels: does not belong here, where Velero ignores it, but under a nodeSelector",
            "$.loadAffinity[0].nodeSelector.storageClass: does not belong here",
            "$.loadAffinity[0].nodeSelector.matchExpressions[0].value: Velero knows no such key",
            "$.loadTolerations[0].taints: Velero knows no such key",
            "$.loadTolerations[0].tolerations[0].seconds: Velero knows no such key",
            "$.backupPVC[fast].ignoreDelayBinding: does not belong here, where Velero ignores it, but under restorePVC",
            "$.backupPVC[fast].mode: Velero knows no such key",
            "$.restorePVC.loadAffinity: does not belong here, where Velero ignores it, but at the top",
            "$.cachePVC.size: Velero knows no such key",
            "$.podResources.cpu: Velero knows no such key",
        ],
    );
}

#[test]
fn keys_are_read_as_velero_reads_them_whatever_their_case_and_number() {
    let text = r#"{"LoadConcurrency": {"globalconfig": 3}, "restorePVC": {"ignoreDelayBinding": true},
                   "restorePVC": {}, "podLabels": {"a": "b", "a": "c"}}"#;
    let Parsed { config, violations } = parse(&data(text)).unwrap_or_else(|e| unreachable!("{e}"));
    begin(
        &told(&violations),
        &[
            "$.LoadConcurrency: write loadConcurrency",
            "$.restorePVC: stands here twice",
            "$.loadConcurrency.globalconfig: write globalConfig",
            "$.podLabels.a: stands here twice",
        ],
    );
    assert_eq!((config.global_config, config.ignore_delay_binding), (3, false));
}

#[test]
fn selectors_that_kubernetes_refuses_are_left_out() {
    let config = passes_over(
        json!({
            "loadAffinity": [
                {"nodeSelector": {"matchLabels": {"a b": "c"}}},
                {"nodeSelector": {"matchExpressions": [
                    {"key": "zone", "operator": "Is", "values": ["a"]},
                    {"key": "zone", "operator": "In"},
                    {"key": "zone", "operator": "Exists", "values": ["a"]},
                ]}},
                {"nodeSelector": {"matchLabels": {"pool": "x"}}},
            ],
            "loadConcurrency": {"perNodeConfig": [
                {"nodeSelector": {"matchLabels": {"a": "b c"}}, "number": 3},
                {"nodeSelector": {}, "number": 0},
                {"nodeSelector": {}, "number": -1},
                {"nodeSelector": {}},
                {"number": 4},
            ]},
        }),
        &[
            "$.loadConcurrency.perNodeConfig[0].nodeSelector.matchLabels.a: \"b c\" is not a label value",
            "$.loadConcurrency.perNodeConfig[1].number: must be above 0, is 0",
            "$.loadConcurrency.perNodeConfig[2].number: must be above 0, is -1",
            "$.loadConcurrency.perNodeConfig[3].number: must be above 0, is 0",
            "$.loadAffinity[0].nodeSelector.matchLabels.a b: ",
            "$.loadAffinity[1].nodeSelector.matchExpressions[0].operator: \"Is\" is not one of",
            "$.loadAffinity[1].nodeSelector.matchExpressions[1].values: operator In needs",
            "$.loadAffinity[1].nodeSelector.matchExpressions[2].values: operator Exists takes no values",
        ],
    );
    assert_eq!(config.load_affinity.len(), 1);
    assert_eq!(config.per_node, [(Selector::default(), 4)]);
}

#[test]
fn rules_that_match_nothing_or_make_others_idle_are_told() {
    let zone = |values: &[&str]| json!({"key": "zone", "operator": "In", "values": values});
    let pool = json!({"key": "pool", "operator": "In", "values": ["x"]});
    let config = passes_over(
        json!({"loadAffinity": [
            {"nodeSelector": {"matchExpressions": [zone(&["a", "b"]), pool]}},
            {"nodeSelector": {"matchExpressions": [zone(&["a"]), zone(&["b"])]}},
            {"nodeSelector": {"matchLabels": {"pool": "x"}, "matchExpressions": [zone(&["b", "a"])]}},
            {"nodeSelector": {"matchExpressions": [zone(&["a", "b"]), pool]}, "storageClass": "fast"},
            {"nodeSelector": {}, "storageClass": "fast"},
            {"storageClass": "slow"},
            {"nodeSelector": {"matchExpressions": [
                {"key": "a", "operator": "Exists"}, {"key": "a", "operator": "DoesNotExist"}]}},
            {"nodeSelector": {"matchExpressions": [
                zone(&["a"]), {"key": "zone", "operator": "NotIn", "values": ["a", "c"]}]}},
        ]}),
        &[
            "$.loadAffinity[1].nodeSelector: matches no node, because these exclude each other: zone In [a], zone In [b]",
            "$.loadAffinity[6].nodeSelector: matches no node, because these exclude each other: a Exists, a DoesNotExist",
            "$.loadAffinity[7].nodeSelector: matches no node, because these exclude each other: zone In [a], zone NotIn [a, c]",
            "$.loadAffinity[2]: says the same as $.loadAffinity[0]: remove one",
            "$.loadAffinity[4].nodeSelector: matches every node and so makes its alternatives pointless ($.loadAffinity[3])",
        ],
    );
    assert_eq!(config.load_affinity.len(), 8, "Velero goes by them nevertheless");
}

#[test]
fn blocks_that_velero_drops_are_told() {
    let resources = |request: &str, limit: &str| json!({"podResources": {"cpuRequest": request, "cpuLimit": limit, "memoryRequest": "1Gi", "memoryLimit": "1Gi"}});
    assert!(passes_over(resources("500m", "1"), &[]).pods.resources.is_some());
    assert!(passes_over(resources("2", "0"), &[]).pods.resources.is_some());
    let dropped = |json: Value, expected: &[&str]| {
        assert_eq!(passes_over(json, expected).pods.resources, None, "{expected:?}");
    };
    dropped(
        resources("1 core", "1"),
        &["$.podResources.cpuRequest: \"1 core\" is not a quantity, so Velero ignores all"],
    );
    dropped(resources("1001m", "1"), &["$.podResources.cpuRequest: is above cpuLimit"]);
    dropped(resources("-1", "1"), &["$.podResources.cpuRequest: \"-1\" is below 0"]);
    dropped(
        json!({"podResources": {"cpuRequest": "1", "memoryLimit": "", "ephemeralStorageLimit": "5GB"}}),
        &[
            "$.podResources.cpuLimit: is missing, so Velero ignores all",
            "$.podResources.memoryRequest: is missing",
            "$.podResources.memoryLimit: is missing",
            "$.podResources.ephemeralStorageLimit: \"5GB\" is not a quantity",
        ],
    );
    passes_over(json!({"cachePVC": {"residentThresholdInMB": 1}}), &["$.cachePVC.storageClass: is missing"]);
    let config = passes_over(
        json!({"backupPVC": {"fast": {"spcNoRelabeling": true}}}),
        &["$.backupPVC[fast].spcNoRelabeling: goes with readOnly only"],
    );
    assert!(config.backup_pvc.get("fast").is_some_and(|claim| !claim.no_relabeling));
    let config = passes_over(
        json!({"podLabels": {"velero.io/data-upload": "x", "a": "not a value"}}),
        &[
            "$.podLabels.a: \"not a value\" is not a label value",
            "$.podLabels.velero.io/data-upload: is the label by which",
        ],
    );
    assert!(!config.pods.labels.contains_key("a"), "a pod with it would be refused");
}

#[test]
fn tolerations_follow_the_rules_of_kubernetes() {
    let config = passes_over(
        json!({"loadTolerations": [
            {"tolerations": [
                {"key": "pool", "value": "backup", "effect": "NoSchedule"},
                {"key": "pool", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
                {"operator": "Exists"},
                {"key": "pool", "operator": "Equal"},
                {"value": "x"},
                {"key": "a b", "operator": "Exists", "value": "x", "effect": "Never"},
                {"key": "pool", "operator": "Gt", "value": "1"},
                {"key": "pool", "value": "not a value", "effect": "NoSchedule", "tolerationSeconds": 0},
                {"key": 1},
                "pool",
            ]},
            {"storageClass": "fast", "tolerations": []},
            {"storageClass": 1, "tolerations": []},
            5,
        ]}),
        &[
            "$.loadTolerations[0].tolerations[4].operator: must be Exists where there is no key",
            "$.loadTolerations[0].tolerations[5].key: \"a b\" is not a label key",
            "$.loadTolerations[0].tolerations[5].value: operator Exists takes no value",
            "$.loadTolerations[0].tolerations[5].effect: \"Never\" is not one of",
            "$.loadTolerations[0].tolerations[6].operator: \"Gt\" is not one of Equal, Exists",
            "$.loadTolerations[0].tolerations[7].value: \"not a value\" is not a label value",
            "$.loadTolerations[0].tolerations[7].effect: must be NoExecute where tolerationSeconds is set",
            "$.loadTolerations[0].tolerations[8].key: must be a text",
            "$.loadTolerations[0].tolerations[9]: must be an object",
            "$.loadTolerations[2].storageClass: must be a text",
            "$.loadTolerations[3]: must be an object",
        ],
    );
    let toleration = |key: &str, value: Option<&str>, effect, seconds| Toleration {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        effect,
        seconds,
    };
    let global = vec![
        toleration("pool", Some("backup"), Some(Effect::NoSchedule), None),
        toleration("pool", None, Some(Effect::NoExecute), Some(60)),
        toleration("", None, None, None),
        toleration("pool", Some(""), None, None),
    ];
    let rule = |class: Option<&str>, tolerations| TolerationRule {
        storage_class: class.map(str::to_owned),
        tolerations,
    };
    // A rule that cannot be parsed does not apply to all classes instead.
    assert_eq!(config.load_tolerations, [rule(None, global), rule(Some("fast"), Vec::new())]);
    passes_over(json!({"loadTolerations": {}}), &["$.loadTolerations: must be a list"]);
}

#[test]
fn classes_that_are_not_there_are_told_with_their_places() {
    let config = passes_over(
        json!({
            "loadAffinity": [
                {"nodeSelector": {"matchLabels": {"a b": "c"}}, "storageClass": "gone"},
                {"nodeSelector": {"matchLabels": {"a": "b"}}, "storageClass": "fast"},
            ],
            "loadTolerations": [{"storageClass": "gone", "tolerations": []}],
            "backupPVC": {"gone": {"storageClass": "fast"}, "fast": {"storageClass": "gone"}},
            "cachePVC": {"storageClass": "gone"},
        }),
        &["$.loadAffinity[0].nodeSelector.matchLabels.a b: "],
    );
    let known = BTreeMap::from([("fast".to_owned(), ReclaimPolicy::Retain)]);
    assert_eq!(
        told(&check_classes(&config, &known)),
        [
            "$.loadAffinity[0].storageClass: there is no StorageClass \"gone\"",
            "$.loadTolerations[0].storageClass: there is no StorageClass \"gone\"",
            "$.backupPVC[fast].storageClass: there is no StorageClass \"gone\"",
            "$.backupPVC[gone]: there is no StorageClass \"gone\"",
            "$.cachePVC.storageClass: there is no StorageClass \"gone\"",
        ]
    );
    assert!(check_classes(&NodeAgentConfig::default(), &BTreeMap::new()).is_empty());
}

#[test]
fn a_cache_must_go_with_its_claim() {
    let config = passes_over(
        json!({"backupPVC": {"kept": {"storageClass": "kept"}}, "cachePVC": {"storageClass": "kept"}}),
        &[],
    );
    let known = |policy| BTreeMap::from([("kept".to_owned(), policy)]);
    assert_eq!(
        told(&check_classes(&config, &known(ReclaimPolicy::Retain))),
        [
            "$.cachePVC.storageClass: StorageClass \"kept\" must have the reclaimPolicy Delete, or Velero ignores all of cachePVC"
        ]
    );
    assert!(check_classes(&config, &known(ReclaimPolicy::Delete)).is_empty());
}

fn anything() -> impl Strategy<Value = Value> {
    let word = || {
        prop::sample::select(
            [TOP.as_slice(), &["nodeSelector", "matchExpressions", "key", "values", "fast"]].concat(),
        )
    };
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((word(), inner), 0..5)
                .prop_map(|entries| entries.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_read_or_refused_and_never_panics(json in anything()) {
        let data = data(&json.to_string());
        let (lenient, strict) = (parse(&data), check(&data));
        // A configuration that is written without a fault is read without one.
        prop_assert_eq!(strict.is_ok(), lenient.as_ref().is_ok_and(|parsed| parsed.violations.is_empty()));
        if let (Err(lenient), Err(strict)) = (lenient, strict) {
            prop_assert_eq!(lenient, strict);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_and_never_panics(text in "\\PC{0,40}") {
        let _ = parse(&data(&text));
    }
}
