//! What is refused of shared buckets, by the real API server: dry and real, each answer as it is
//! written down; by the webhook while berth is there, and by the policies in the same words while
//! it is away.

mod answers;
mod policies;

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::support::Kubectl;
use crate::support::PATIENCE;
use crate::support::kubectl::Answer;

const HUB: &str = "garden.berth.dev/v1alpha1";
const MEMBER: &str = "extensions.gardener.cloud/v1alpha1";
const CROSS: &str = "garden.berth.dev/allow-cross-provider";
const FORCE: &str = "garden.berth.dev/force-deletion";
const FORGET: &str = "garden.berth.dev/forget-data";
const OWNER: &str = "garden.berth.dev/cloud-profile";
const CONFIRM: &str = "confirmation.gardener.cloud/deletion";

fn object(api: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn annotated(mut object: Value, key: &str, value: &str) -> Value {
    object["metadata"]["annotations"][key] = json!(value);
    object
}

fn secret(name: &str) -> Value {
    json!({"name": name, "namespace": "garden"})
}

/// Of clusters at `packet`.
fn profile(name: &str, mut backup: Value) -> Value {
    let mut spec = json!({"provider": "packet", "constraints": {"regions": ["ewr1", "ams1"]}});
    if !backup.is_null() {
        if backup["providerConfig"].is_null() {
            backup["providerConfig"] = json!({"locationKeys": "shared"});
        }
        spec["backup"] = backup;
    }
    object(HUB, "CloudProfile", name, spec)
}

/// Of clusters at `aws`, each backed up in its own region.
fn aws(name: &str, regions: &[&str]) -> Value {
    let spec = json!({
        "provider": "aws",
        "constraints": {"regions": regions},
        "backup": {"secretRef": secret("operator"), "providerConfig": {"locationKeys": "shared"}},
    });
    object(HUB, "CloudProfile", name, spec)
}

fn seed(name: &str, profile: &str, region: &str) -> Value {
    object(HUB, "Seed", name, json!({"cloudProfileName": profile, "region": region}))
}

fn bucket(name: &str, region: &str) -> Value {
    let spec = json!({"provider": "aws", "region": region, "secretRef": secret("operator")});
    object(HUB, "BackupBucket", name, spec)
}

fn entry(name: &str, seed: &str, bucket: &str) -> Value {
    let mut spec = json!({"seedName": seed});
    if !bucket.is_empty() {
        spec["bucketName"] = json!(bucket);
    }
    let mut entry = object(HUB, "BackupEntry", name, spec);
    entry["metadata"]["namespace"] = json!("garden-dev");
    entry
}

fn member_bucket(name: &str, provider: &str, region: &str) -> Value {
    let spec = json!({"type": provider, "region": region, "secretRef": secret("bucket-x")});
    object(MEMBER, "BackupBucket", name, spec)
}

fn member_entry(name: &str, region: &str, bucket: &str) -> Value {
    let spec = json!({"type": "aws", "region": region, "bucketName": bucket, "secretRef": secret("entry-x")});
    object(MEMBER, "BackupEntry", name, spec)
}

fn location(name: &str, bucket: &str, prefix: &str, region: &str) -> Value {
    let spec = json!({
        "provider": "aws",
        "objectStorage": {"bucket": bucket, "prefix": prefix},
        "config": {"region": region},
    });
    let mut location = object("velero.io/v1", "BackupStorageLocation", name, spec);
    location["metadata"]["namespace"] = json!("velero");
    location
}

/// Warnings, and who refused it with which words.
fn said(answer: &Answer) -> String {
    let mut said = String::new();
    for warning in answer.warnings() {
        let _ = writeln!(said, "  warning: {warning}");
    }
    let refused = answer.stderr.lines().find_map(|line| {
        let (who, what) =
            line.split_once(" denied the request: ").or_else(|| line.split_once(" denied request: "))?;
        let name = who.split(['"', '\'']).rev().nth(if who.ends_with('"') { 1 } else { 3 }).unwrap_or(who);
        Some(format!("  refused by {name}: {what}\n"))
    });
    match refused {
        Some(refused) => said + &refused,
        None if answer.status.success() => said + "  accepted\n",
        None => said + &format!("  failed: {}\n", answer.stderr.trim_end()),
    }
}

fn apply(kubectl: &Kubectl, object: &Value, dry_run: bool) -> Answer {
    // Hundreds of cases: `every_way_is_the_same_way` has the other ways.
    let mut args = vec!["apply", "--server-side", "--force-conflicts", "-f", "-"];
    if dry_run {
        args.push("--dry-run=server");
    }
    kubectl.answer(&args, &object.to_string()).unwrap()
}

fn prepare(kubectl: &Kubectl) {
    for namespace in ["garden-dev", "garden-prod"] {
        kubectl.run(&["create", "namespace", namespace]).unwrap();
    }
    let keys = ["--from-literal=accessKeyID=a", "--from-literal=secretAccessKey=b"];
    for (name, keys) in [("operator", &keys[..]), ("half", &keys[..1])] {
        let args = ["create", "secret", "generic", name, "-n", "garden"];
        kubectl.run(&[&args[..], keys].concat()).unwrap();
    }
}
