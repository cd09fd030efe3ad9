//! Hundreds of all kinds at once, while who grants sees everything late and is killed, and
//! node-agents are, too. The node-agents are played, all in this process: as many stock ones would
//! need a machine each.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::{NAMESPACE, ensure_in_order, wait_for_gate};
use crate::admission::program;
use crate::support::Kubectl;
use crate::support::PATIENCE;
use crate::support::csi::define_snapshots;
use crate::support::lag::Lag;
use crate::support::movers::{Agents, History, KINDS, Kind, SOURCE, Work, patiently, spec};
use crate::support::peers::define_movers;
use crate::support::{Berth, ControlPlane, Options, wait_for};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const CLIENTS: usize = 4;
/// Calls at once of one client.
const AT_ONCE: usize = 8;
/// What a grant may have been decided on is older by that much: what the proxy adds, and some time
/// to decide. A busy machine takes more: some times what it stood still for, because a decision is
/// some calls.
const SLACK: Duration = Duration::from_secs(2);
const CALLS: u32 = 4;

struct Crowd {
    count: usize,
    limit: usize,
    work: Work,
    /// By how much the controllers see everything late.
    late: Duration,
    /// After so many have ended, the next one is killed: the controllers by turns, or a node-agent.
    kill_controller_at: Vec<usize>,
    kill_agent_at: Vec<usize>,
}

#[test]
fn a_crowd_of_all_kinds_keeps_to_the_limit_and_the_order_whoever_is_killed() {
    quick(150, vec![30, 80], vec![15, 50, 110]);
}

#[test]
#[ignore = "takes minutes: make test-large"]
fn five_hundred_of_all_kinds_keep_to_the_limit_and_the_order_whoever_is_killed() {
    quick(500, vec![60, 250], vec![20, 40, 120]);
}

fn quick(count: usize, kill_controller_at: Vec<usize>, kill_agent_at: Vec<usize>) {
    let moment = Duration::from_millis(20);
    let work = Work { data_paths: 4, expose: moment, start: moment, run: moment };
    let late = Duration::from_millis(200);
    Crowd { count, limit: 24, work, late, kill_controller_at, kill_agent_at }.pass();
}

#[test]
#[ignore = "takes minutes: make test-large"]
fn two_thousand_of_all_kinds_keep_to_the_limit_with_many_killed() {
    let work = Work {
        data_paths: 2,
        expose: Duration::from_millis(200),
        start: Duration::from_millis(100),
        run: Duration::from_millis(50),
    };
    Crowd {
        count: 2_000,
        limit: 30,
        work,
        late: Duration::from_millis(500),
        kill_controller_at: (1..10).map(|i| i * 200).collect(),
        kill_agent_at: (1..40).map(|i| i * 48).collect(),
    }
    .pass();
}

impl Crowd {
    fn pass(&self) {
        let plane = ControlPlane::start().unwrap();
        plane.define().unwrap();
        define_movers(&plane).unwrap();
        define_snapshots(&plane).unwrap();
        let lag = Lag::start(plane.address(), self.late).unwrap();
        let options = Options {
            controller_url: Some(format!("https://{}", lag.address())),
            // A node-agent that is killed between accepting one and making its pod never makes it.
            controller_args: vec!["--mover-orphaned-after=5s".to_owned()],
            ..Options::new(program(), NAMESPACE)
        };
        let mut berth = Berth::start(plane, options).unwrap();
        let mut second = berth.start_another_controller("controller-2").unwrap();
        let kubectl = berth.kubectl().clone();
        berth.plane().apply(scenery(self.limit)).unwrap();
        NODES.iter().for_each(|node| hold_for_restore(berth.kubectl(), &application(node)));
        let history = History::start(berth.plane(), NAMESPACE).unwrap();
        let agents = Agents::start(berth.plane(), NAMESPACE, &NODES, self.work).unwrap();
        wait_for_gate(berth.kubectl());

        create(berth.plane(), self.count);
        let mut kills: Vec<(usize, bool)> = self.kill_controller_at.iter().map(|at| (*at, true)).collect();
        kills.extend(self.kill_agent_at.iter().map(|at| (*at, false)));
        kills.sort_unstable();
        for (turn, (at, is_controller)) in kills.into_iter().enumerate() {
            agents.ensure_work().unwrap();
            history.wait_ended(at, PATIENCE).unwrap();
            if !is_controller {
                agents.kill(turn % NODES.len()).unwrap();
                continue;
            }
            let first_leads = berth.controller.leads(&kubectl, NAMESPACE).unwrap();
            let leader = if first_leads { &mut berth.controller } else { &mut second };
            leader.kill(&kubectl, NAMESPACE).unwrap();
            leader.process.restart().unwrap();
        }
        wait_for("all to end", PATIENCE, || {
            agents.ensure_work()?;
            berth.ensure_runs()?;
            let phases = history.phases()?;
            Ok((phases.get("Completed") == Some(&self.count)).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}: they are {:?}", history.phases()));
        let most = history.most_preparing().unwrap();
        let stall = history.longest_stall().unwrap();
        println!(
            "{} at once, {} wanted: {most} at most, in {:?}, stalled for {stall:?} at most",
            self.count,
            self.limit,
            history.work().unwrap()
        );
        // Places are taken as they are seen to be free: how many at once depends on how fast
        // node-agents are.
        assert!(1 < most && most <= self.limit, "{most}");
        ensure_in_order(&history, self.limit, self.late + SLACK + stall * CALLS);
    }
}

/// What node-agents and berth look for besides the objects themselves.
fn scenery(limit: usize) -> Vec<Value> {
    let config = json!({"loadConcurrency": {"globalConfig": 4, "prepareQueueLength": limit}}).to_string();
    let labels = json!({"name": "node-agent"});
    let container = json!({
        "name": "node-agent", "image": "none", "args": ["node-agent", "server", "--node-agent-configmap=config"],
    });
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SOURCE}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config", "namespace": NAMESPACE},
            "data": {"config.json": config}}),
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "node-agent", "namespace": NAMESPACE},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"containers": [container]}}}}),
        // All uploads are of this Backup, which no controller takes over here.
        json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "snapshot", "namespace": SOURCE},
            "spec": {"source": {"persistentVolumeClaimName": "data"}}}),
    ];
    // What is bound to a node that is none of the cluster cannot begin anew.
    objects.extend(NODES.map(|node| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})));
    objects.extend(NODES.map(|node| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": application(node), "namespace": SOURCE},
            "spec": {"nodeName": node, "containers": [{"name": "application", "image": "none"}]}})
    }));
    objects
}

fn application(node: &str) -> String {
    format!("application-{node}")
}

/// What a restore waits for: the pod is held by its first container.
fn hold_for_restore(kubectl: &Kubectl, pod: &str) {
    let waits = json!({"status": {"initContainerStatuses": [{
        "name": "restore-wait", "image": "none", "imageID": "", "ready": false, "restartCount": 0, "state": {"running": {}},
    }]}})
    .to_string();
    let args = ["patch", "pod", pod, "-n", SOURCE, "--subresource=status", "--type=merge", "-p", &waits];
    kubectl.run(&args).unwrap();
}

/// Several clients, each with its share of every kind.
fn create(plane: &ControlPlane, count: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let one = async |client: &Client, i: usize| -> anyhow::Result<()> {
        let kind = KINDS[i % KINDS.len()];
        let node = NODES[i / KINDS.len() % NODES.len()];
        let pod = json!({"kind": "Pod", "namespace": SOURCE, "name": application(node)});
        let name = format!("{}-{i:04}", kind.plural());
        let volume = if kind == Kind::DataUpload { "snapshot" } else { name.as_str() };
        let object = json!({
            "apiVersion": kind.api_version(), "kind": kind.name(),
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec(kind, volume, node, &pod),
        });
        let (api, params, object) =
            (kind.api(client, NAMESPACE), PostParams::default(), serde_json::from_value(object)?);
        match patiently(|| api.create(&params, &object)).await {
            // One whose answer was lost.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    };
    let client = async |share: usize| -> anyhow::Result<()> {
        let client = plane.client().await?;
        let own = (share..count).step_by(CLIENTS);
        let created = stream::iter(own).map(|i| one(&client, i)).buffer_unordered(AT_ONCE);
        created.try_collect::<()>().await
    };
    runtime.block_on(futures::future::try_join_all((0..CLIENTS).map(client))).unwrap();
}
