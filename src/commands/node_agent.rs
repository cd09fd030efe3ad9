//! `berth node-agent`: the agent of a node. `berth node-agent check`: on which nodes the data
//! movers of each StorageClass may run, and why.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context as _;
use berth_core::affinity::{
    Coverage, CoverageInput, MoverOperation, NodeSample, System, Toleration, VolumeBindingMode, cover,
};
use berth_core::pod_volume::FileAccess;
use prometheus_client::registry::Registry;
use serde::Serialize;
use tracing::{info, warn};

use super::namespaced::lease;
use super::queue::configmap;
use crate::args::{ClusterArgs, NodeAgentCommand, NodeAgentServerArgs, Output};
use crate::cli::print::{self, ColumnHead, note};
use crate::client::{Clients, persistent};
use crate::health::{self, Pulse};
use crate::movers::node_cache::NodeCacheState;
use crate::movers::{listing, reporter};
use crate::node_agent::{Agent, Settings, mover};
use crate::shutdown;
use crate::storage::Opener;
use crate::text::{chain, printable};

/// Exit code 0: every class has a node. 1: a class has none, or the configuration cannot be read.
/// 2: the check itself failed.
pub async fn run(target: ClusterArgs, command: NodeAgentCommand) -> ExitCode {
    match check(target, command).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            note!("berth: {}", chain(error.as_ref()));
            ExitCode::from(2)
        }
    }
}

/// The agent of a node, until it is told to stop; or a data mover, until its data is moved.
pub async fn serve(target: ClusterArgs, args: NodeAgentServerArgs) -> anyhow::Result<()> {
    let stop = shutdown::on_signal()?;
    if let Err(error) = berth_pod_volumes::open_many_files() {
        warn!(%error, "the limit of open files stays as it is");
    }
    let clients = Clients::new(target.source()).await?;
    health::serve(args.reports.health_address, Pulse::default(), || true, Registry::default(), stop.clone())?;
    let opener = Opener::new(clients.call.clone(), &target.namespace, args.folders.filesystem_roots.into());
    let settings = Settings {
        namespace: target.namespace,
        node: args.node_name.context("--node-name is missing")?,
        access: if args.files_by_movers { FileAccess::DataMovers } else { FileAccess::Agent },
        pods: args.host_pods_path,
        allows_unmounted: args.allow_unmounted,
        concurrency: usize::from(args.pod_volume_concurrency),
        configmap: args.node_agent_configmap,
        secret: args.repository_secret,
    };
    match args.carry {
        Some(task) => mover::run(clients, settings, opener, &task, stop).await?,
        None => Agent::new(clients, settings, opener).run(stop).await,
    }
    info!("stopped");
    Ok(())
}

async fn check(target: ClusterArgs, command: NodeAgentCommand) -> anyhow::Result<bool> {
    let NodeAgentCommand::Check { node_agent_configmap, output } = command;
    let client = persistent(target.source()).await?;
    let namespace = target.namespace.as_str();
    let leaders = || async { lease(&client, namespace).await.as_ref().and_then(configmap) };
    let given = match node_agent_configmap {
        Some(given) => Some(given),
        None => leaders().await,
    };
    let mut node_cache = listing::agents(&client, namespace, given.as_deref()).await?;
    listing::nodes(&client, &mut node_cache).await?;
    listing::classes(&client, &mut node_cache).await?;
    let report = NodeAgentReport::new(&node_cache, &listing::tolerations(&client, namespace).await?);
    let mut out = print::stdout();
    let written = match output {
        Output::Table => report.write(&mut out).map_err(anyhow::Error::from),
        structured => print::value(&mut out, &report, structured),
    };
    print::unless_closed(written, ())?;
    Ok(report.is_well())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeAgentReport {
    /// Name of the node-agents' ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    config_map: Option<String>,
    /// Can node-agents read it?
    usable: bool,
    /// Its faults, each with the field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<String>,
    /// Nodes whose node-agents started before it changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outdated: Vec<String>,
    nodes: usize,
    with_agent: usize,
    coverage: Vec<CoverageRow>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CoverageRow {
    /// `None`: all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_class: Option<String>,
    mover: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    os: Option<&'static str>,
    /// The class of a backup's claim, where `backupPVC` names another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_class: Option<String>,
    nodes: Vec<String>,
    why: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<String>,
}

impl NodeAgentReport {
    fn new(node_cache: &NodeCacheState, agent_tolerations: &[Toleration]) -> Self {
        let configuration = &node_cache.configuration;
        let mut served: Vec<System> =
            System::ALL.into_iter().filter(|s| s.is_served(&node_cache.nodes)).collect();
        if served.is_empty() {
            served.push(System::Linux);
        }
        let classes = node_cache.classes.iter();
        let rows = classes
            .flat_map(|(name, class)| rows(node_cache, agent_tolerations, name, class.binding, &served));
        let with_agent = with_agent(node_cache);
        let mut coverage: Vec<CoverageRow> = rows.collect();
        coverage.push(CoverageRow {
            storage_class: None,
            mover: "pod volume",
            os: None,
            claim_class: None,
            nodes: with_agent.clone(),
            why: "no rules: the node of the pod whose volume it is for".to_owned(),
            findings: Vec::new(),
        });
        let mut outdated: Vec<String> = node_cache.outdated().map(|agent| agent.node.clone()).collect();
        outdated.sort_unstable();
        Self {
            config_map: configuration.name.clone(),
            usable: !configuration.unusable,
            faults: reporter::faults(node_cache),
            outdated,
            nodes: node_cache.nodes.len(),
            with_agent: with_agent.len(),
            coverage,
        }
    }

    /// Does every class have a node for each kind of work, on any operating system?
    fn is_well(&self) -> bool {
        let has_node = |row: &CoverageRow| {
            let alike =
                |other: &&CoverageRow| (&other.storage_class, other.mover) == (&row.storage_class, row.mover);
            self.coverage.iter().filter(alike).any(|row| !row.nodes.is_empty())
        };
        self.usable && self.coverage.iter().all(has_node)
    }

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let agents = format!("node-agents are ready on {} of {} nodes", self.with_agent, self.nodes);
        match &self.config_map {
            Some(map) => writeln!(out, "ConfigMap {map}; {agents}")?,
            None => writeln!(out, "no node-agent names a ConfigMap (--node-agent-configmap); {agents}")?,
        }
        let word = if self.usable { "warning" } else { "FAULT" };
        for fault in &self.faults {
            writeln!(out, "{word:<8} {}", printable(&fault.to_string()))?;
        }
        if !self.usable {
            writeln!(out, "         below: as without a configuration")?;
        }
        if !self.outdated.is_empty() {
            let nodes = shortened(&self.outdated);
            writeln!(
                out,
                "warning  node-agents read it when they start, and began before its last change: {nodes}"
            )?;
        }
        writeln!(out)?;
        let heads = [
            ColumnHead::Always("STORAGECLASS"),
            ColumnHead::Always("MOVER"),
            ColumnHead::IfAny("OS"),
            ColumnHead::Always("NODES"),
            ColumnHead::Always("WHY"),
        ];
        // With one operating system its name is left out.
        let is_mixed = self.coverage.iter().any(|row| row.os == Some(System::Windows.as_str()));
        let row = |row: &CoverageRow| {
            vec![
                row.storage_class.clone().unwrap_or_else(|| "(any)".to_owned()),
                row.mover.to_owned(),
                row.os.filter(|_| is_mixed).unwrap_or_default().to_owned(),
                if row.nodes.is_empty() { "NONE".to_owned() } else { shortened(&row.nodes) },
                row.explained(),
            ]
        };
        print::table(out, &heads, &self.coverage.iter().map(row).collect::<Vec<_>>())
    }
}

impl CoverageRow {
    fn explained(&self) -> String {
        let claim = self.claim_class.as_ref();
        let claim = claim.map(|class| format!("its claim is of StorageClass {class} (backupPVC)"));
        let parts: Vec<&str> =
            claim.iter().chain([&self.why]).chain(&self.findings).map(String::as_str).collect();
        parts.join("; ")
    }
}

/// Backup and restore, for each system.
fn rows(
    node_cache: &NodeCacheState,
    agent_tolerations: &[Toleration],
    class: &str,
    binding: VolumeBindingMode,
    systems: &[System],
) -> Vec<CoverageRow> {
    let config = &node_cache.configuration.config;
    let cluster = CoverageInput {
        rules: &config.load_affinity,
        toleration_rules: &config.load_tolerations,
        agent_tolerations,
        nodes: &node_cache.nodes,
    };
    let mapped_class = config.mapped_class(class);
    let backup = MoverOperation::Backup {
        claim_class: None,
        mapped_class,
        source_class: Some(class),
        topology: Some(&[]),
    };
    let restore = MoverOperation::Restore {
        class: Some(class),
        binding,
        ignore_delay_binding: config.ignore_delay_binding,
        selected_node: None,
    };
    let works = [("backup", backup, mapped_class), ("restore", restore, None)];
    let works = works.into_iter().flat_map(|work| systems.iter().map(move |system| (work, *system)));
    works
        .map(|((mover, operation, claim_class), system)| {
            let Coverage { nodes, reason, findings } = cover(operation, system, &cluster);
            CoverageRow {
                storage_class: Some(class.to_owned()),
                mover,
                os: Some(system.as_str()),
                claim_class: claim_class.map(str::to_owned),
                nodes,
                why: reason.to_string(),
                findings: findings.iter().map(ToString::to_string).collect(),
            }
        })
        .collect()
}

fn with_agent(node_cache: &NodeCacheState) -> Vec<String> {
    let names = node_cache.nodes.iter().map(|node| node.name.clone());
    let mut names: Vec<String> = names.filter(|name| node_cache.nodes.has_agent(name)).collect();
    names.sort_unstable();
    names
}

/// The first few names.
fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 3;
    NodeSample { names: names.iter().take(SHOWN).cloned().collect(), count: names.len() }.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use berth_api::node_agent::{ReclaimPolicy, parse};
    use berth_core::affinity::Node;
    use serde_json::{Value, json};

    use super::*;
    use crate::movers::configuration::ConfigurationState;
    use crate::movers::node_cache::{NodeAgentPod, StorageClassState};

    /// Nodes with these pools, each with a node-agent; two classes.
    fn node_cache(pools: &[(&str, &str)], config: &Value) -> NodeCacheState {
        let mut node_cache = NodeCacheState::default();
        for (name, pool) in pools {
            let labels = [("pool".to_owned(), (*pool).to_owned())].into();
            node_cache.nodes.put(Node { name: (*name).to_owned(), labels, taints: Vec::new() });
            node_cache.nodes.put_agent(name, true);
        }
        let class = |binding| StorageClassState {
            provisioner: String::new(),
            binding,
            reclaim: ReclaimPolicy::Delete,
        };
        node_cache.classes.insert("fast".to_owned(), class(VolumeBindingMode::Immediate));
        node_cache.classes.insert("slow".to_owned(), class(VolumeBindingMode::WaitForFirstConsumer));
        let data = BTreeMap::from([("config.json".to_owned(), config.to_string())]);
        node_cache.configuration = match parse(&data) {
            Ok(parsed) => ConfigurationState {
                name: Some("agents".to_owned()),
                config: Arc::new(parsed.config),
                faults: parsed.violations,
                ..ConfigurationState::default()
            },
            Err(faults) => ConfigurationState { faults, unusable: true, ..ConfigurationState::default() },
        };
        node_cache
    }

    fn printed(report: &NodeAgentReport) -> String {
        let mut out = Vec::new();
        assert!(report.write(&mut out).is_ok());
        String::from_utf8_lossy(&out).into_owned()
    }

    fn rule(class: &str, pool: &str) -> Value {
        json!({"storageClass": class, "nodeSelector": {"matchLabels": {"pool": pool}}})
    }

    #[test]
    fn every_class_has_its_nodes_and_the_reason() {
        let config = json!({
            "loadAffinity": [rule("fast", "one"), rule("fast", "two"), rule("slow", "three")],
            "backupPVC": {"fast": {"storageClass": "slow"}},
        });
        let mut node_cache = node_cache(&[("a", "one"), ("b", "two"), ("c", "three"), ("d", "two")], &config);
        let report = NodeAgentReport::new(&node_cache, &[]);
        let expected = "\
ConfigMap agents; node-agents are ready on 4 of 4 nodes

STORAGECLASS  MOVER       NODES              WHY
fast          backup      c                  its claim is of StorageClass slow (backupPVC); the rule of StorageClass slow
fast          restore     a, b, d            any of the 2 rules of StorageClass fast
slow          backup      c                  the rule of StorageClass slow
slow          restore     a, b, c and 1 more no rules: StorageClass slow waits for the volume's consumer, whose node it is (restorePVC.ignoreDelayBinding would change that)
(any)         pod volume  a, b, c and 1 more no rules: the node of the pod whose volume it is for
";
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&printed(&report)), squeezed(expected));
        assert!(report.is_well());
        // An operating system without a node is no fault as long as the other one has a node.
        let labels = [("kubernetes.io/os".to_owned(), "windows".to_owned())].into();
        node_cache.nodes.put(Node { name: "w".to_owned(), labels, taints: Vec::new() });
        node_cache.nodes.put_agent("w", true);
        let report = NodeAgentReport::new(&node_cache, &[]);
        let table = squeezed(&printed(&report));
        assert!(table.contains("fast restore windows NONE any of the 2 rules"), "{table}");
        assert!(report.is_well(), "{table}");
        node_cache.nodes.put_agent("c", false);
        let report = NodeAgentReport::new(&node_cache, &[]);
        assert!(!report.is_well());
        let table = printed(&report);
        assert!(table.contains("no node-agent runs on a node that matches: c"), "{table}");
    }

    #[test]
    fn faults_of_the_configuration_come_first() {
        let odd = node_cache(
            &[("a", "one")],
            &json!({"prepareQueueLength": 2, "loadAffinity": [rule("gone", "one")]}),
        );
        let report = NodeAgentReport::new(&odd, &[]);
        let table = printed(&report);
        for line in [
            "warning  data[config.json].prepareQueueLength: does not belong here",
            "warning  data[config.json].loadAffinity[0].storageClass: there is no StorageClass \"gone\"",
        ] {
            assert!(table.contains(line), "{table}");
        }
        assert!(report.is_well(), "Velero reads it");
        let broken = node_cache(&[("a", "one")], &json!([]));
        let report = NodeAgentReport::new(&broken, &[]);
        let table = printed(&report);
        assert!(table.contains("FAULT    data[config.json]") && !report.is_well(), "{table}");
    }

    #[test]
    fn node_agents_that_began_before_the_last_change_are_named() {
        let mut node_cache = node_cache(&[("a", "one")], &json!({}));
        node_cache.configuration.changed_at = "2026-01-02T00:00:00Z".parse().ok();
        for (pod, started_at) in [("old", "2026-01-01T00:00:00Z"), ("new", "2026-01-03T00:00:00Z")] {
            let started_at = started_at.parse().ok();
            let agent =
                NodeAgentPod { pod: pod.to_owned(), node: format!("on-{pod}"), ready: true, started_at };
            node_cache.agents.insert(pod.to_owned(), agent);
        }
        let report = NodeAgentReport::new(&node_cache, &[]);
        assert_eq!(report.outdated, ["on-old"]);
        assert!(printed(&report).contains("began before its last change: on-old"));
    }
}
