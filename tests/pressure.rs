//! More Backups than anybody should create, and what becomes of everybody's place.

use std::collections::BTreeSet;
use std::time::Instant;

use berth_api::velero::{Backup, BackupPhase};
use futures::{StreamExt, TryStreamExt, stream};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};

use crate::admission::program;
use crate::support::PATIENCE;
use crate::support::backup::backup_of;
use crate::support::wait::wait_until;
use crate::support::{Berth, ControlPlane, Options, number, wait_for};

/// `make test-large` takes ten thousand.
const MANY: usize = 2_000;
const FEW: usize = 100;
const AT_ONCE: usize = 24;

/// As fast as the API server takes them: none fails, each is queued, and places end up unique and
/// dense.
#[test]
fn thousands_of_creates_at_once_all_get_a_place() {
    let berth = Berth::start(ControlPlane::start().unwrap(), Options::new(program(), "velero")).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(press(&berth, number("BERTH_CREATES", MANY))).unwrap();
}

/// Two replicas, each of which learns of the other's answers only through its watch: the API server
/// asks the one or the other by a label.
#[test]
fn two_replicas_that_answer_at_once_leave_no_gap_and_no_place_twice() {
    let options = Options::new(program(), "two-replicas");
    let berth = Berth::start(ControlPlane::shared().unwrap(), options).unwrap();
    let (second, address) = berth.start_another_webhook("webhook-2").unwrap();
    wait_for("the second replica to be ready", PATIENCE, || Ok(second.is_ready().then_some(()))).unwrap();
    let kubectl = berth.kubectl();
    let name = "berth-two-replicas";
    let text = kubectl.run(&["get", "mutatingwebhookconfiguration", name, "-o", "json"]).unwrap();
    let mut first: Value = serde_json::from_str(&text).unwrap();
    first["metadata"] = json!({"name": name});
    let mut other = first.clone();
    other["metadata"]["name"] = json!(format!("{name}-2"));
    let selector = |operator: &str| json!({"matchExpressions": [{"key": "replica", "operator": operator, "values": ["2"]}]});
    for webhook in first["webhooks"].as_array_mut().unwrap() {
        webhook["objectSelector"] = selector("NotIn");
    }
    for webhook in other["webhooks"].as_array_mut().unwrap() {
        webhook["objectSelector"] = selector("In");
        let url = webhook["clientConfig"]["url"].as_str().unwrap();
        let url = url.replace(&berth.webhook_address().to_string(), &address.to_string());
        webhook["clientConfig"]["url"] = json!(url);
    }
    let both = json!({"apiVersion": "v1", "kind": "List", "items": [first, other]}).to_string();
    kubectl.run_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &both).unwrap();
    let probe = held("probe", 1);
    wait_for("the second replica to be asked", PATIENCE, || {
        let args = ["create", "--dry-run=server", "-n", berth.namespace(), "-o", "json", "-f", "-"];
        kubectl.answer(&args, &probe.to_string())?;
        Ok(second.metrics()?.contains("rule=\"enqueue\"").then_some(()))
    })
    .unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(press(&berth, FEW)).unwrap();
    let asked = |metrics: String| {
        let line = metrics
            .lines()
            .find(|line| line.contains("rule=\"enqueue\",verdict=\"Allowed\""))
            .map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).unwrap_or(0)
    };
    let answers = [&berth.webhook, &second].map(|server| asked(server.metrics().unwrap()));
    assert!(answers.iter().all(|count| *count >= FEW / 2), "each answers its half: {answers:?}");
}

/// Nothing runs, because only the queue matters. Every second create goes to the second replica, if
/// there is one.
fn held(name: &str, i: usize) -> Value {
    let mut backup = backup_of(name, &["default"]);
    backup["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
    backup["metadata"]["labels"] = json!({"replica": (1 + i % 2).to_string()});
    backup
}

async fn press(berth: &Berth, count: usize) -> anyhow::Result<()> {
    let api: Api<Backup> = Api::namespaced(berth.plane().client().await?, berth.namespace());
    let begun = Instant::now();
    let create = async |i: usize| {
        api.create(&PostParams::default(), &serde_json::from_value(held(&format!("p-{i}"), i))?).await?;
        anyhow::Ok(())
    };
    stream::iter(0..count).map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    println!("{count} creates in {:.1?}", begun.elapsed());
    wait_until("every place to be unique and dense", PATIENCE, async || {
        let all = api.list(&ListParams::default()).await?;
        let unqueued =
            all.iter().filter(|b| b.phase() != BackupPhase::Queued).map(ResourceExt::name_any).next();
        anyhow::ensure!(unqueued.is_none(), "{unqueued:?} is not Queued");
        let places: BTreeSet<i64> =
            all.iter().filter_map(|b| b.status.as_ref().and_then(|s| s.queue_position)).collect();
        Ok((places == (1..=count as i64).collect()).then_some(()))
    })
    .await
}
