use berth_test_scripted::{Scripted, get, post};
use kube::Client;
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::client::Clients;
use crate::events::Events;
use crate::lifecycle::schedule::metrics::ScheduleMetrics;
use crate::node_agent::repositories::Repositories;
use crate::queue::{BackupCache, QueueSettings};
use crate::storage::Opener;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/velero/deployments";

fn deployment(args: &[&str], status: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "velero", "namespace": "velero", "uid": "d1", "generation": 2},
        "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "velero", "args": args}]}}},
        "status": status,
    })
}

fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "DeploymentList", "metadata": {}, "items": items})
}

fn seen(deployment: Value, before: &[Controller]) -> Vec<&'static str> {
    let deployment: Deployment = serde_json::from_value(deployment).unwrap();
    let before = before.iter().copied().collect();
    running(Some(&deployment), &before).into_iter().map(Controller::as_str).collect()
}

/// The controllers of a life that is in `api`, where the Event that is told is dropped.
pub fn lifecycle(client: &Client) -> Lifecycle {
    let (events, _) = Events::new(client.clone(), "velero", Counter::default());
    let opener = Opener::new(client.clone(), "velero", Vec::new().into());
    let repositories = Repositories::new(client.clone(), "velero", None, opener.clone());
    Lifecycle {
        clients: Clients { watch: client.clone(), call: client.clone() },
        namespace: "velero".to_owned(),
        opener,
        repositories: Arc::new(repositories),
        events,
        links: None,
        certificate_secret: crate::certificates::SECRET.to_owned(),
        disabled: BTreeSet::new(),
        backups: Arc::new(BackupCache::new(QueueSettings::default())),
        metrics: crate::backup::metrics::BackupMetrics::default(),
        schedule_metrics: ScheduleMetrics::default(),
        schedule: berth_core::schedule::ScheduleSettings::default(),
        notes: LeaseAnnotations::default(),
        velero_controllers: VeleroControllers::default(),
        known: Arc::default(),
        sync_period: std::time::Duration::from_secs(60),
        sync_metrics: Default::default(),
        namespace_metrics: 10,
        age_metrics: Default::default(),
        removals: Default::default(),
        cluster: Default::default(),
    }
}

#[test]
fn what_a_velero_runs_is_read_off_its_arguments() {
    let all: Vec<&str> = Controller::ALL.map(Controller::as_str).into();
    assert_eq!(seen(deployment(&["server"], json!({})), &[]), all);
    let off = ["server", "--disable-controllers=backup,backup-queue,schedule,gc", "--x"];
    assert_eq!(
        seen(deployment(&off, json!({})), &[]),
        ["backup-deletion", "backup-sync", "download-request", "server-status-request"]
    );
    for restores in ["--restore-only", "--restore-only=true"] {
        let left = seen(deployment(&["server", restores], json!({})), &[]);
        assert_eq!(left, ["backup-sync", "download-request", "server-status-request"]);
    }
    assert_eq!(seen(deployment(&["server", "--restore-only=false"], json!({})), &[]), all);
    let mut none = deployment(&["server"], json!({}));
    none["spec"]["replicas"] = json!(0);
    assert!(seen(none, &[]).is_empty());
    assert!(running(None, &BTreeSet::from(Controller::ALL)).is_empty());
}

#[test]
fn while_its_pods_are_replaced_what_ran_before_counts_too() {
    let off = ["server", "--disable-controllers=schedule,gc"];
    let rolling = [
        json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}),
        json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1}),
        json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 0}),
    ];
    for status in rolling {
        assert!(seen(deployment(&off, status.clone()), &[Controller::Gc]).contains(&"gc"), "{status}");
    }
    let settled = json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1});
    assert!(!seen(deployment(&off, settled), &[Controller::Gc]).contains(&"gc"));
    let mut scaled = deployment(&["server"], json!({"observedGeneration": 2, "replicas": 1}));
    scaled["spec"]["replicas"] = json!(0);
    assert_eq!(seen(scaled, &[Controller::Gc]), ["gc"]);
}

#[test]
fn while_nothing_is_known_only_what_does_no_harm_runs() {
    let leaves = |velero: &Velero| Controller::ALL.into_iter().filter(|one| velero.leaves(*one)).count();
    assert_eq!(leaves(&Velero::Unknown), 0);
    assert_eq!(leaves(&Velero::Unreadable), 3);
    assert!(!Velero::Unreadable.leaves(Controller::Gc));
    assert!(!Velero::Unreadable.leaves(Controller::BackupDeletion));
    assert_eq!(leaves(&Velero::Runs(BTreeSet::from([Controller::Gc]))), 5);
}

/// Which controllers the Lease is to show.
fn here(lifecycle: &Lifecycle) -> Vec<&'static str> {
    lifecycle.velero_controllers.here.lock().iter().map(|one| one.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_controller_ends_and_begins_as_velero_switches_it_on_and_off() {
    let on = list(&[deployment(&["server"], json!({}))]);
    let off = list(&[deployment(&["server", "--disable-controllers=gc"], json!({}))]);
    let api = Scripted::new()
        .next(get(DEPLOYMENTS).answers(off.clone()))
        .next(get(DEPLOYMENTS).answers(on))
        .next(get(DEPLOYMENTS).refuses(500))
        .next(get(DEPLOYMENTS).answers(off.clone()))
        .always(get(DEPLOYMENTS).answers(off));
    let mut lifecycle = lifecycle(&api.client("velero"));
    lifecycle.disabled.insert(Controller::BackupSync);
    let begun = AtomicUsize::new(0);
    let work = || async {
        begun.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<()>().await;
    };
    let story = async {
        let mut found = Vec::new();
        for _ in 0..5 {
            sleep(Duration::from_secs(1)).await;
            found.push((here(&lifecycle), begun.load(Ordering::Relaxed)));
            sleep(PERIOD - Duration::from_secs(1)).await;
        }
        found
    };
    let found = tokio::select! {
        found = story => found,
        () = async {
            tokio::join!(
                lifecycle.velero_controllers.follow(&lifecycle),
                lifecycle.unless_disabled(Controller::Gc, work),
                lifecycle.unless_disabled(Controller::BackupSync, || async { unreachable!() }),
            );
        } => unreachable!("they run for ever"),
    };
    // A look that failed changes nothing.
    let expected = [(vec!["gc"], 1), (vec![], 1), (vec![], 1), (vec!["gc"], 2), (vec!["gc"], 2)];
    assert_eq!(found, expected);
}

#[tokio::test(start_paused = true)]
async fn a_velero_that_cannot_be_read_stops_what_deletes() {
    let api = Scripted::new().always(get(DEPLOYMENTS).refuses(403));
    let lifecycle = lifecycle(&api.client("velero"));
    let forever = std::future::pending::<()>;
    let all = async {
        tokio::join!(
            lifecycle.velero_controllers.follow(&lifecycle),
            lifecycle.unless_disabled(Controller::Gc, forever),
            lifecycle.unless_disabled(Controller::Schedule, forever),
        );
    };
    assert!(timeout(Duration::from_secs(100), all).await.is_err());
    assert_eq!(*lifecycle.velero_controllers.velero.borrow(), Velero::Unreadable);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_to_a_velero_is_told_once_with_the_way_to_have_it_here() {
    let found = list(&[deployment(&["server", "--disable-controllers=gc"], json!({}))]);
    let api = Scripted::new()
        .always(get(DEPLOYMENTS).answers(found))
        .always(post("/apis/events.k8s.io/v1/namespaces/velero/events").takes_as("9"));
    let client = api.client("velero");
    let (events, sending) = Events::new(client.clone(), "velero", Counter::default());
    let lifecycle = Lifecycle { events, ..lifecycle(&client) };
    tokio::select! {
        () = sending => {}
        () = lifecycle.velero_controllers.follow(&lifecycle) => {}
        () = sleep(PERIOD * 4) => {}
    }
    let told = api.writes();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        (&told[0].body["reason"], &told[0].body["regarding"]["name"]),
        (&json!("LeftToVelero"), &json!("velero"))
    );
    let note = told[0].body["note"].as_str().unwrap();
    assert!(
        note.starts_with("berth leaves to this Velero: schedule, backup-deletion, backup-sync, "),
        "{note}"
    );
    assert!(note.contains("--disable-controllers") && !note.contains("gc"), "{note}");
}
