//! Rights of the agent in a member cluster. One agent leads at a time, so the tests run one after
//! another. The cluster is its own hub without a leader; the test plays the hub.

use std::path::PathBuf;

use berth::install::hub::HUB_SECRET;
use berth::install::{InstallSettings, MemberParts, member, render};
use berth_garden_api::crd;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::none::{GARDEN_AGENT, NOBODY, granted};
use super::{PATIENCE, logged, refusals, tail};
use crate::admission::program;
use crate::support::berth::SHORT_LEASE;
use crate::support::process::in_own_session;
use crate::support::{ControlPlane, Process, port, wait_for};

const DUTY: &str = "garden-agent";
/// berth serves no such store: no executor acts on the synced objects.
const PLAYED: &str = "played";
const HUB_ENTRIES: &str = "backupentries.garden.berth.dev";
const HUB_BUCKETS: &str = "backupbuckets.garden.berth.dev";
const ENTRIES: &str = "backupentries.extensions.gardener.cloud";

/// A rule of the agent's roles.
pub struct Right {
    role: &'static str,
    /// Of the Role; empty for a ClusterRole.
    namespace: &'static str,
    rule: usize,
    needed_for: &'static str,
    /// What the API server says to the agent that lacks it.
    refusal: &'static str,
}

const AGENT: &str = member::AGENT;
const COURIER: &str = "berth-garden-courier";

pub const RIGHTS: [Right; 13] = [
    right(
        AGENT,
        "",
        0,
        "knowing what is to be made and removed; finalizers",
        r#"cannot list resource "backupbuckets""#,
    ),
    right(AGENT, "", 1, "telling what became of it", r#"cannot patch resource "backupbuckets/status""#),
    right(AGENT, "default", 0, "Events about them", r#"cannot create resource "events""#),
    right(
        AGENT,
        "garden",
        0,
        "the stores' keys, kept as long as they are needed",
        r#"cannot list resource "secrets""#,
    ),
    right(
        AGENT,
        "garden",
        1,
        "records of data that was left in a store",
        r#"cannot create resource "configmaps""#,
    ),
    right(AGENT, "velero", 0, "becoming leader where there was none", r#"cannot create resource "leases""#),
    right(AGENT, "velero", 1, "staying leader", r#"cannot get resource "leases""#),
    right(
        COURIER,
        "",
        0,
        "what the hub gave to this seed, and took from it",
        r#"cannot create resource "backupbuckets""#,
    ),
    right(COURIER, "", 1, "telling which cluster it is", r#"cannot get resource "namespaces""#),
    right(COURIER, "garden", 0, "copies of the hub's credentials", r#"cannot create resource "secrets""#),
    right(
        COURIER,
        "velero",
        0,
        "storage locations of entries",
        r#"cannot list resource "backupstoragelocations""#,
    ),
    right(
        COURIER,
        "velero",
        1,
        "credentials of these",
        r#"resource "secrets" in API group "" in the namespace "velero""#,
    ),
    right(
        COURIER,
        "velero",
        2,
        "what is of a location that goes, goes with it",
        r#"cannot list resource "backups""#,
    ),
];

const fn right(
    role: &'static str,
    namespace: &'static str,
    rule: usize,
    needed_for: &'static str,
    refusal: &'static str,
) -> Right {
    Right { role, namespace, rule, needed_for, refusal }
}

impl Right {
    fn is_of(&self, role: &Value) -> bool {
        role["metadata"]["name"] == self.role
            && role["metadata"]["namespace"].as_str().unwrap_or_default() == self.namespace
            && role["rules"].is_array()
    }
}

pub fn needed_for(role: &Value, rule: usize) -> Option<&'static str> {
    RIGHTS.iter().find(|right| right.rule == rule && right.is_of(role)).map(|right| right.needed_for)
}

/// Several Roles go by each of the agent's names, and by that of the hub's seeds: the namespace of
/// those that are not in berth's own.
pub fn elsewhere(role: &Value) -> Option<&str> {
    let is_of_seeds = role["metadata"]["name"] == "berth-garden-seeds";
    let namespace = role["metadata"]["namespace"].as_str()?;
    let is_named = is_of_seeds || RIGHTS.iter().any(|right| right.is_of(role));
    (is_named && namespace != "velero").then_some(namespace)
}

struct Site {
    plane: ControlPlane,
    kubeconfig: PathBuf,
}

impl Site {
    fn start() -> anyhow::Result<Self> {
        let plane = ControlPlane::start()?;
        let definitions = [berth_api::crd::velero(), crd::hub(), crd::member()].concat();
        let mut objects: Vec<Value> = definitions.iter().map(|crd| json!(crd)).collect();
        let named = |name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        objects.extend(["velero", "garden"].map(named));
        plane.apply(objects)?;
        plane.kubectl().await_definitions()?;
        let seed = json!({
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "Seed", "metadata": {"name": "ship"},
            "spec": {"cloudProfileName": "packet", "region": "ewr1"},
        });
        plane.apply([roles(None), vec![seed]].concat())?;
        // What is refused before the API server knows the roles is no fault of theirs.
        let account = format!("system:serviceaccount:velero:{AGENT}");
        for (namespace, verb, resource) in [
            ("velero", "create", "leases.coordination.k8s.io"),
            ("garden", "list", "secrets"),
            ("default", "list", "backupbuckets.extensions.gardener.cloud"),
        ] {
            plane.kubectl().await_right(&account, namespace, verb, resource)?;
        }
        let kubeconfig = plane.service_account_kubeconfig("velero", AGENT)?;
        Ok(Self { plane, kubeconfig })
    }

    /// The agent, and its log.
    fn start_agent(&self, name: &str) -> anyhow::Result<(Process, PathBuf)> {
        let mut command = in_own_session(&program());
        command.args(["garden", "agent", "--namespace=velero", SHORT_LEASE, "--seed=ship"]);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.arg("--filesystem-root").arg(self.plane.folder());
        command.arg("--hub-kubeconfig").arg(self.plane.kubeconfig());
        command.arg(format!("--health-address=127.0.0.1:{}", port::free()?));
        // An Event that the API server refuses is no reason to alert people.
        command.env("BERTH_LOG", "info,berth::events=debug");
        let log = self.plane.folder().join(format!("{name}.log"));
        Ok((Process::start("berth garden agent", command, &log)?, log))
    }

    /// Something to do for every rule: a bucket and an entry of this cluster, the second of which
    /// goes and leaves its data; and the same of the hub.
    fn give_work(&self, name: &str) -> anyhow::Result<()> {
        let kubectl = self.plane.kubectl();
        let own = format!("{name}-own");
        let secret = json!({"name": name, "namespace": "garden"});
        let folder = self.plane.folder().join(name);
        std::fs::create_dir_all(&folder)?;
        let config =
            json!({"apiVersion": "garden.berth.dev/v1alpha1", "kind": "StoreConfig", "path": folder});
        let of_member = |kind: &str, metadata: Value| {
            json!({
                "apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": kind, "metadata": metadata,
                "spec": {
                    "type": "berth.dev/filesystem", "region": "eu", "secretRef": secret, "providerConfig": config,
                },
            })
        };
        let mut entry = of_member(
            "BackupEntry",
            json!({
                "name": own,
                "finalizers": ["extensions.gardener.cloud/backupentry"],
                "annotations": {
                    "garden.berth.dev/forget-data": "a test", "confirmation.gardener.cloud/deletion": "true",
                },
            }),
        );
        entry["spec"]["bucketName"] = json!(own);
        let of_hub = |kind: &str, spec: Value| {
            json!({
                "apiVersion": "garden.berth.dev/v1alpha1", "kind": kind,
                "metadata": {"name": name, "namespace": "default", "finalizers": ["garden.berth.dev/backup"]},
                "spec": spec,
            })
        };
        let mut bucket =
            of_hub("BackupBucket", json!({"provider": PLAYED, "region": "eu", "secretRef": secret}));
        bucket["metadata"]["namespace"].take();
        self.plane.apply(vec![
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": secret,
                "stringData": {"accessKeyID": "id", "secretAccessKey": "key"},
            }),
            of_member("BackupBucket", json!({"name": own})),
            entry,
            bucket,
            of_hub("BackupEntry", json!({"seedName": "ship", "bucketName": name})),
        ])?;
        kubectl.run(&["delete", ENTRIES, &own, "--wait=false"])?;
        kubectl.run(&["delete", HUB_ENTRIES, name, "-n", "default", "--wait=false"])?;
        let patch = |kind: &str, status: Value| {
            let text = json!({"status": status}).to_string();
            let args =
                ["patch", kind, name, "-n", "default", "--subresource=status", "--type=merge", "-p", &text];
            kubectl.run(&args).map(drop)
        };
        patch(HUB_BUCKETS, json!({"seed": "ship"}))?;
        patch(HUB_ENTRIES, json!({"seed": "ship", "releasedAt": Timestamp::now()}))
    }
}

/// The agent's roles and their bindings, but for one rule.
fn roles(without: Option<&Right>) -> Vec<Value> {
    let hub = member::HubCredentialsSecret { secret: HUB_SECRET.to_owned(), digest: None };
    let settings =
        InstallSettings { member: Some(MemberParts::Courier(hub)), ..InstallSettings::new("velero") };
    let mut objects = render(&settings).unwrap();
    objects.retain(|object| {
        let name = object["metadata"]["name"].as_str().unwrap();
        let is_right = object["rules"].is_array() || object["subjects"].is_array();
        (name == AGENT || name == COURIER) && (is_right || object["kind"] == "ServiceAccount")
    });
    if let Some(right) = without {
        let role = objects.iter_mut().find(|object| right.is_of(object)).unwrap();
        role["rules"].as_array_mut().unwrap().remove(right.rule);
    }
    objects
}

#[test]
fn without_any_one_rule_the_agent_cannot_do_something() {
    let site = Site::start().unwrap();
    let kubectl = site.plane.kubectl();
    let account = format!("system:serviceaccount:velero:{AGENT}");
    kubectl.await_right(&account, "velero", "delete", "secrets").unwrap();
    let too_many = granted(kubectl, "velero", AGENT, NOBODY.iter().chain(GARDEN_AGENT));
    assert_eq!(too_many, [("delete", "secrets", "OWN")], "credentials of storage locations");
    let (agent, log) = site.start_agent("whole").unwrap();
    site.give_work("whole").unwrap();
    wait_for("everything to be done with all rights", PATIENCE, || {
        let records = kubectl.run(&["get", "configmaps", "-n", "garden", "-o", "name"])?;
        let buckets = kubectl.run(&["get", "backupbuckets.extensions.gardener.cloud", "-o", "name"])?;
        let is_done = records.contains("tombstone-whole-own") && buckets.lines().count() == 2;
        Ok(is_done.then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {}", tail(&logged(std::slice::from_ref(&log)))));
    drop(agent);
    let text = logged(std::slice::from_ref(&log));
    assert!(refusals(&text, "velero", DUTY).is_empty(), "{:#?}", refusals(&text, "velero", DUTY));

    for (index, right) in RIGHTS.iter().enumerate() {
        let name = format!("agent-rule-{index}");
        kubectl.run(&["delete", "lease", AGENT, "-n", "velero", "--ignore-not-found"]).unwrap();
        site.plane.apply(roles(Some(right))).unwrap();
        let (agent, log) = site.start_agent(&name).unwrap();
        site.give_work(&name).unwrap();
        let logs = std::slice::from_ref(&log);
        let what = format!("{} {} rule {} ({})", right.role, right.namespace, right.rule, right.needed_for);
        wait_for(&format!("{:?} without {what}", right.refusal), PATIENCE, || {
            // Logged as a field, in quotes.
            let text = logged(logs).replace(r#"\""#, "\"");
            let is_told = refusals(&text, "velero", DUTY).iter().any(|line| line.contains(right.refusal));
            Ok(is_told.then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}: {}", tail(&logged(logs))));
        drop(agent);
    }
}
