//! berth as it is installed: its Deployments run as the manifests say, the API server reaches them
//! through their Service.
//!
//! What is done here is what `docs/install.md` tells people to do: the commands are taken from that
//! page.

mod beside_velero;
mod cert_manager;
pub mod load;
mod member;
mod rotation;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use berth_api::velero::BackupPhase;
use futures::future::try_join_all;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::PartialObjectMeta;
use kube::discovery::{Discovery, verbs};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::admission::program;
use crate::install::said;
pub use crate::support::PATIENCE;
use crate::support::peers::S3;
use crate::support::pods::Cluster;
use crate::support::times::Wait;
use crate::support::{backup, binaries, project, wait_for};
use load::Load;

pub const NAMESPACE: &str = "velero";
pub const IMAGE: &str = concat!("berth:", env!("CARGO_PKG_VERSION"));
/// What the upgrade goes to.
const NEXT: &str = "berth:next";
/// Creates while the page's commands are run.
const PER_SECOND: u32 = 10;
/// How often pods are looked at that are to be killed.
const LOOK: Duration = Duration::from_millis(200);

pub fn images() -> BTreeMap<String, PathBuf> {
    BTreeMap::from([(IMAGE.to_owned(), program()), (NEXT.to_owned(), program())])
}

/// Runs a command line of the documentation, with this berth and this kubectl on its PATH.
pub fn run(cluster: &Cluster, line: &str) -> String {
    let [kubectl] = binaries::get(["kubectl"]).unwrap();
    let folders = [program().parent().unwrap().to_owned(), kubectl.parent().unwrap().to_owned()];
    let path = format!("{}:{}:/usr/bin:/bin", folders[0].display(), folders[1].display());
    let mut command = Command::new("bash");
    command.args(["-euc", line]).current_dir(project()).env("PATH", path);
    command.env("KUBECONFIG", cluster.plane().kubeconfig());
    // A busy machine takes more than the two seconds now and then; an admission that is lost
    // otherwise is lost at once.
    command.env("BERTH_WEBHOOK_TIMEOUT", "30s");
    let _wait = Wait::start(line);
    // A command that asks people something fails, in place of waiting for them.
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{line}: {}", said(&output));
    said(&output)
}

/// Runs `berth uninstall`, which waits until the last pod has ended. Nobody calls the webhooks any
/// more, so their replicas are killed: they would go on answering for ten seconds, until every API
/// server must have noticed that they stop. How they end by themselves is what the page shows.
pub fn uninstall(cluster: &Cluster) -> String {
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| run(cluster, "berth uninstall"));
        while !removing.is_finished() {
            let pods = cluster.pods(NAMESPACE, "app.kubernetes.io/name=berth-webhook").unwrap_or_default();
            for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
                // It may have ended by now.
                let _ = cluster.signal(NAMESPACE, &pod.name_any(), Signal::SIGKILL);
            }
            std::thread::sleep(LOOK);
        }
        removing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The commands of a page's blocks marked `sh`, in order.
fn commands(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(project().join(page)).unwrap();
    let blocks = text.split("\n```sh\n").skip(1).map(|block| block.split("\n```").next().unwrap());
    blocks.flat_map(str::lines).map(str::to_owned).collect()
}

/// Every object that the API server has, but for what comes and goes by itself. All kinds at once:
/// it takes a tenth of a second for each, until its cache is up to date.
///
/// # Errors
/// When a kind goes while they are listed, too.
fn objects(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let passing = ["Event", "Lease", "Endpoints", "Node", "ComponentStatus"];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut all = runtime.block_on(async {
        let client = cluster.plane().client().await?;
        let discovery = Discovery::new(client.clone()).run_aggregated().await?;
        let kinds = discovery.groups().flat_map(|group| group.recommended_resources());
        let kinds = kinds.filter(|(kind, can)| {
            can.supports_operation(verbs::LIST) && !passing.contains(&kind.kind.as_str())
        });
        let lists = kinds.map(|(kind, _)| {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
            async move { anyhow::Ok((kind.kind, api.list_metadata(&ListParams::default()).await?.items)) }
        });
        let mut all = Vec::new();
        for (kind, items) in try_join_all(lists).await? {
            let line = |one: &PartialObjectMeta<DynamicObject>| {
                let words = [Some(kind.clone()), one.namespace(), Some(one.name_any())];
                words.into_iter().flatten().collect::<Vec<_>>().join(" ")
            };
            all.extend(items.iter().map(line));
        }
        anyhow::Ok(all)
    })?;
    all.sort();
    all.dedup();
    Ok(all)
}

/// A bucket that pods can reach, as the default location.
pub fn make_location(cluster: &Cluster) -> S3 {
    let s3 = S3::start(cluster.plane(), "cluster").unwrap();
    let mut location = s3.location("default", "");
    location["spec"]["default"] = json!(true);
    location["metadata"]["namespace"] = json!(NAMESPACE);
    cluster.plane().apply(vec![s3.keys.secret_object(NAMESPACE), location]).unwrap();
    // The webhooks learn of it through a watch.
    let probe = backup("probe", json!({})).to_string();
    let dry_run = ["create", "--dry-run=server", "-n", NAMESPACE, "-f", "-"];
    let is_known = || Ok(cluster.kubectl().answer(&dry_run, &probe)?.status.success().then_some(()));
    wait_for("the location to be known", PATIENCE, is_known).unwrap();
    s3
}

/// Creates the five Backups of the demo, and waits until all are Completed.
pub fn demo(cluster: &Cluster) {
    let kubectl = cluster.kubectl();
    for number in 1..=9 {
        kubectl.answer(&["create", "namespace", &format!("ns{number}")], "").unwrap();
    }
    let backups = project().join("tests/demo/backups.yaml");
    let made = kubectl.run(&["create", "-o", "json", "-f", backups.to_str().unwrap()]).unwrap();
    for made in serde_json::Deserializer::from_str(&made).into_iter::<Value>() {
        let made = made.unwrap();
        for made in made["items"].as_array().unwrap_or(&vec![made.clone()]) {
            assert_eq!(made["status"]["phase"], "Queued", "{made}");
        }
    }
    wait_for("the five backups", PATIENCE, || {
        let all = kubectl.backups(NAMESPACE)?;
        let five: Vec<BackupPhase> = (1..=5).map(|i| all[&format!("backup{i}")].phase()).collect();
        assert!(five.iter().all(|p| !p.is_final() || *p == BackupPhase::Completed), "{five:?}");
        Ok(five.iter().all(|phase| *phase == BackupPhase::Completed).then_some(()))
    })
    .unwrap();
}

/// Install, back up, rotate, upgrade, remove: nothing is lost on the way, and nothing is left but
/// the Backups.
#[test]
fn the_page_about_installing_does_what_it_says() {
    let cluster = Cluster::start(images()).unwrap();
    let before = objects(&cluster).unwrap();
    let commands = commands("docs/install.md");
    assert!(commands.len() >= 10, "{commands:?}");
    let mut s3 = None;
    let mut load: Option<Load> = None;
    for command in commands {
        let is_removal = command == "berth uninstall";
        if command.starts_with("berth uninstall --dry-run") {
            // Every create while certificates were rotated and replicas replaced got its place in
            // the very answer.
            let done = load.take().unwrap().finish();
            assert!(done.created > 50, "{done:?}");
            done.ensure_all_queued();
        }
        let begun = Instant::now();
        let text = run(&cluster, &command);
        println!("{:.1} s  {command}", begun.elapsed().as_secs_f64());
        if command.starts_with("berth install") && !command.contains("dry-run") && s3.is_none() {
            s3 = Some(make_location(&cluster));
            demo(&cluster);
            let again = run(&cluster, &command);
            assert!(!again.contains(" created") && !again.contains(" changed"), "not idempotent: {again}");
            load = Some(Load::start(&cluster, PER_SECOND));
        }
        if command.contains("dry-run") {
            assert!(text.contains("dry run") || text.contains("would be removed"), "{text}");
        }
        if is_removal {
            assert!(text.contains("kept"), "{text}");
        }
    }
    // What people made, and what comes with every namespace.
    let is_theirs = |line: &String| {
        line.contains("velero.io")
            || ["Backup velero", "BackupStorageLocation velero", "Secret velero cloud-credentials"]
                .iter()
                .any(|theirs| line.starts_with(theirs))
            || line.starts_with("Namespace ")
            || line.ends_with(" kube-root-ca.crt")
            || (line.starts_with("ServiceAccount ") && line.ends_with(" default"))
    };
    let mut left = Vec::new();
    wait_for("nothing else to be left", PATIENCE, || {
        let Ok(all) = objects(&cluster) else { return Ok(None) };
        left = all.into_iter().filter(|line| !before.contains(line) && !is_theirs(line)).collect();
        Ok(left.is_empty().then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {left:?}"));
    let backups = cluster.kubectl().backups(NAMESPACE).unwrap();
    assert!((1..=5).all(|i| backups[&format!("backup{i}")].phase() == BackupPhase::Completed));
    // Without them, everything goes.
    let kubectl = cluster.kubectl();
    kubectl.run(&["delete", "backups.velero.io,bsl", "--all", "-n", NAMESPACE]).unwrap();
    kubectl.run(&["delete", "secret", "cloud-credentials", "-n", NAMESPACE]).unwrap();
    run(&cluster, "berth uninstall");
    for number in 1..=9 {
        kubectl.run(&["delete", "namespace", &format!("ns{number}"), "--wait=false"]).unwrap();
    }
    wait_for("the list of objects to be as before", PATIENCE, || {
        Ok(objects(&cluster).is_ok_and(|all| all == before).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", objects(&cluster)));
}
