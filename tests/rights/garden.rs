//! Rights of the hub of shared buckets. Its objects are the whole cluster's: another berth would do
//! what one may not, so each has its turn alone.

use std::sync::OnceLock;

use serde_json::json;

use super::needs::needs;
use super::{PATIENCE, Symptom, logged, refusals, tail};
use crate::admission::program;
use crate::support::courier::Couriers;
use crate::support::{Berth, ControlPlane, Options, wait_for};

#[test]
fn without_any_one_rule_the_hub_cannot_do_something() {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    let plane = PLANE.get_or_init(|| ControlPlane::start().unwrap());
    plane.define().unwrap();
    let couriers = Couriers::start(&plane.kubeconfig()).unwrap();
    couriers.serve("seed");
    for (index, need) in needs().enumerate() {
        let Symptom::OfHub(words) = need.symptom else { continue };
        let name = format!("hub-rule-{index}");
        let options = Options {
            without_rule: Some((need.kind, need.role, need.rule)),
            ..Options::new(program(), &name)
        };
        let berth = Berth::start(plane, options).unwrap();
        let of_garden = |kind: &str, name: &str, spec: serde_json::Value| {
            json!({
                "apiVersion": "garden.berth.dev/v1alpha1", "kind": kind,
                "metadata": {"name": name, "namespace": "default"}, "spec": spec,
            })
        };
        let backup = json!({
            "region": "eu",
            "secretRef": {"name": "store", "namespace": "garden"},
            "providerConfig": {"locationKeys": "shared"},
        });
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store", "namespace": "garden"}},
            of_garden("CloudProfile", &name, json!({"provider": "aws", "backup": backup})),
            of_garden("Seed", "seed", json!({"cloudProfileName": name, "region": "eu"})),
            of_garden("BackupEntry", &name, json!({"seedName": "seed"})),
        ]});
        plane.kubectl().run_with(&["apply", "-f", "-"], &objects.to_string()).unwrap();
        let log = [plane.folder().join(&name).join("controller.log")];
        wait_for(&format!("the log to tell {words:?} without {}", need.needed_for), PATIENCE, || {
            // What has a place and goes is recorded.
            let path = "jsonpath={.metadata.finalizers}";
            let entry = ["bec", &name, "-n", "default", "--ignore-not-found"];
            if !plane.kubectl().run(&[&["get"][..], &entry, &["-o", path]].concat())?.is_empty() {
                plane.kubectl().run(&[&["delete", "--wait=false"][..], &entry].concat())?;
            }
            Ok(logged(&log).contains(words).then_some(()))
        })
        .unwrap();
        drop(berth);
        let text = logged(&log);
        assert!(!refusals(&text, &name, "controller").is_empty(), "{}: {}", need.needed_for, tail(&text));
        let patch = json!({"metadata": {"finalizers": null}}).to_string();
        let args = ["patch", "bec", &name, "-n", "default", "--type=merge", "-p", &patch];
        let _ = plane.kubectl().answer(&args, "").unwrap();
    }
}
