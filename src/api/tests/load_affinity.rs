//! The examples from the design of `loadAffinity`, from their JSON to the nodes on which a mover
//! can run.

use std::collections::BTreeMap;

use berth_api::node_agent::{self, NodeAgentConfig};
use berth_core::affinity::{
    AffinityDecision, AffinityInput, Expression, MoverOperation, Node, NodeSelectorOperator, Nodes, Term,
    VolumeBindingMode, decide,
};

const MULTIPLE: &str = r#"{
    "loadAffinity": [
        {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}}},
        {"nodeSelector": {"matchExpressions": [
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-central1-a"]}
        ]}}
    ]
}"#;

const PER_CLASS: &str = r#"{
    "loadAffinity": [
        {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}}},
        {
            "nodeSelector": {"matchExpressions": [
                {"key": "kubernetes.io/os", "values": ["linux"], "operator": "In"}
            ]},
            "storageClass": "kibishii-storage-class"
        },
        {
            "nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B8ms"}},
            "storageClass": "kibishii-storage-class"
        }
    ]
}"#;

const BACKUP_PVC: &str = r#"{
    "loadAffinity": [
        {
            "nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}},
            "storageClass": "kibishii-storage-class"
        },
        {
            "nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B2ms"}},
            "storageClass": "worker-storagepolicy"
        }
    ],
    "backupPVC": {"kibishii-storage-class": {"storageClass": "worker-storagepolicy"}}
}"#;

const RESTORE_PVC: &str = r#"{
    "loadAffinity": [
        {
            "nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}},
            "storageClass": "kibishii-storage-class"
        }
    ],
    "restorePVC": {"ignoreDelayBinding": false}
}"#;

const TYPE: &str = "beta.kubernetes.io/instance-type";
const ZONE: &str = "topology.kubernetes.io/zone";
const CLASS: Option<&str> = Some("kibishii-storage-class");

/// A configuration without faults.
fn config(json: &str) -> NodeAgentConfig {
    let data = BTreeMap::from([("node-agent-config.json".to_owned(), json.to_owned())]);
    node_agent::check(&data).unwrap_or_else(|faults| unreachable!("{faults}"))
}

fn nodes() -> Nodes {
    let mut nodes = Nodes::default();
    for (name, size, zone, system) in [
        ("b2", "Standard_B2ms", "us-central1-b", "linux"),
        ("b4", "Standard_B4ms", "us-central1-b", "linux"),
        ("b8", "Standard_B8ms", "us-central1-b", "linux"),
        ("zone-a", "Standard_B2ms", "us-central1-a", "linux"),
        ("windows", "Standard_B4ms", "us-central1-a", "windows"),
    ] {
        let labels = [(TYPE, size), (ZONE, zone), ("kubernetes.io/os", system)];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        nodes.put_agent(name, true);
        nodes.put(Node { name: name.to_owned(), labels, taints: Vec::new() });
    }
    nodes
}

/// A term as Velero writes it: its choice, and the operating system.
fn term(choice: Option<Expression>) -> Term {
    let system = Expression::new("kubernetes.io/os", NodeSelectorOperator::NotIn, ["windows"]);
    Term { expressions: choice.into_iter().chain([system]).collect(), fields: Vec::new() }
}

fn is_size(size: &str) -> Expression {
    Expression::new(TYPE, NodeSelectorOperator::In, [size])
}

fn decided(
    config: &NodeAgentConfig,
    operation: MoverOperation<'_>,
    pod: &Term,
) -> (AffinityDecision, Vec<String>) {
    let (nodes, terms) = (nodes(), std::slice::from_ref(pod));
    let situation = AffinityInput {
        operation,
        rules: &config.load_affinity,
        toleration_rules: &config.load_tolerations,
        terms,
        tolerations: &[],
        agents_outdated: false,
        nodes: Some(&nodes),
    };
    let decision = decide(&situation);
    let now = decision.terms.clone().unwrap_or_else(|| terms.to_vec());
    assert_eq!(
        decide(&AffinityInput { terms: &now, ..situation }).terms,
        None,
        "a second look changes nothing"
    );
    let names = ["b2", "b4", "b8", "zone-a", "windows"].into_iter().filter(|name| {
        let labels = nodes.get(name).map(|node| node.labels.clone()).unwrap_or_default();
        now.iter().any(|term| term.matches(name, &labels))
    });
    (decision, names.map(str::to_owned).collect())
}

fn backup<'a>(config: &'a NodeAgentConfig, source: &'a str) -> MoverOperation<'a> {
    MoverOperation::Backup {
        claim_class: None,
        mapped_class: config.mapped_class(source),
        source_class: Some(source),
        topology: Some(&[]),
    }
}

fn restore(
    config: &NodeAgentConfig,
    binding: VolumeBindingMode,
    selected_node: Option<&'static str>,
) -> MoverOperation<'static> {
    let ignore_delay_binding = config.ignore_delay_binding;
    MoverOperation::Restore { class: CLASS, binding, ignore_delay_binding, selected_node }
}

#[test]
fn multiple_load_affinities() {
    let config = config(MULTIPLE);
    let (decision, names) = decided(&config, backup(&config, "any"), &term(Some(is_size("Standard_B4ms"))));
    assert_eq!(names, ["b4", "zone-a"], "of that type, or in that zone");
    assert_eq!(decision.reason.word(), "GlobalRules");
}

#[test]
fn load_affinity_per_storage_class() {
    let config = config(PER_CLASS);
    let linux = Expression::new("kubernetes.io/os", NodeSelectorOperator::In, ["linux"]);
    let (decision, names) = decided(&config, backup(&config, "kibishii-storage-class"), &term(Some(linux)));
    assert_eq!(names, ["b2", "b4", "b8", "zone-a"], "Linux, or of that type");
    assert_eq!(decision.reason.word(), "ClassRules");
    let (decision, names) = decided(&config, backup(&config, "other"), &term(Some(is_size("Standard_B4ms"))));
    assert_eq!((names, decision.terms), (vec!["b4".to_owned()], None), "one rule is what Velero wrote");
}

#[test]
fn load_affinity_goes_by_the_class_of_the_backup_s_claim() {
    let config = config(BACKUP_PVC);
    let operation = backup(&config, "kibishii-storage-class");
    assert_eq!(operation.class(), Some("worker-storagepolicy"));
    let (_, names) = decided(&config, operation, &term(Some(is_size("Standard_B2ms"))));
    assert_eq!(names, ["b2", "zone-a"]);
}

#[test]
fn a_class_that_waits_for_its_consumer_leaves_the_rules_aside() {
    let config = config(RESTORE_PVC);
    for selected in [None, Some("b8")] {
        let operation = restore(&config, VolumeBindingMode::WaitForFirstConsumer, selected);
        let (decision, names) = decided(&config, operation, &term(None));
        assert_eq!((decision.terms, names.len()), (None, 4));
    }
}

#[test]
fn a_class_that_binds_at_once_goes_by_the_rules() {
    let config = config(RESTORE_PVC);
    let operation = restore(&config, VolumeBindingMode::Immediate, None);
    let (decision, names) = decided(&config, operation, &term(Some(is_size("Standard_B4ms"))));
    assert_eq!((names, decision.reason.word()), (vec!["b4".to_owned()], "ClassRules"));
}
