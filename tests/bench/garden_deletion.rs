//! How fast a directory of a shared bucket is removed, beside what the store can do at best.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth::storage::Roots;
use berth::storage::bucket::{Bucket, PAGE, Version};
use berth_garden_api::StoreConfig;
use berth_garden_api::crd;
use berth_test_support::peers::S3;
use berth_test_support::process::in_own_session;
use berth_test_support::{ControlPlane, Process, port, wait_for};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use object_store::ObjectStoreExt as _;
use object_store::aws::AmazonS3Builder;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::report::{Aim, Report};
use crate::system;

const OBJECTS: usize = 100_000;
const WRITERS: usize = 32;
const BUCKET: &str = "shared";
const REGION: &str = "us-east-1";
const PATIENCE: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(1800);
const PART: &str = "garden-deletion";

pub fn measure(runtime: &Runtime, program: &Path, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("Removing a directory of {OBJECTS} objects:");
    let plane = ControlPlane::start()?;
    let mut objects: Vec<Value> = crd::member().iter().map(|crd| json!(crd)).collect();
    for name in ["garden", "velero"] {
        objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    }
    plane.apply(objects)?;
    plane.kubectl().await_definitions()?;
    let s3 = S3::start(&plane, "deletion")?;
    let config =
        json!({"apiVersion": "garden.berth.dev/v1alpha1", "kind": "StoreConfig", "endpoint": s3.url()});
    let agent = start_agent(&plane, program)?;
    let keys = json!({"name": "keys", "namespace": "garden"});
    let object = |kind: &str, name: &str| {
        let mut spec = json!({"type": "aws", "region": REGION, "providerConfig": config, "secretRef": keys});
        if kind == "BackupEntry" {
            spec["bucketName"] = json!(BUCKET);
        }
        json!({
            "apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": kind, "metadata": {"name": name},
            "spec": spec,
        })
    };
    apply(
        &plane,
        &json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": keys,
            "stringData": {"accessKeyID": s3.keys.id, "secretAccessKey": s3.keys.secret},
        }),
    )?;
    apply(&plane, &object("BackupBucket", BUCKET))?;
    succeeded(&plane, "backupbuckets", BUCKET)?;
    apply(&plane, &object("BackupEntry", "entry"))?;
    succeeded(&plane, "backupentries", "entry")?;

    let filling = Instant::now();
    runtime.block_on(async { tokio::try_join!(fill(&s3, "plain/"), fill(&s3, "entry/")) })?;
    eprintln!("  created in {:.0} s", filling.elapsed().as_secs_f64());

    let config: StoreConfig = serde_json::from_value(config.clone())?;
    let plain = runtime.block_on(plain(&s3, &config))?;
    let begun = Instant::now();
    let annotation = "confirmation.gardener.cloud/deletion=true";
    plane.kubectl().run(&["annotate", "backupentries.extensions.gardener.cloud", "entry", annotation])?;
    plane.kubectl().run(&["delete", "backupentries.extensions.gardener.cloud", "entry", "--wait=false"])?;
    wait_for("the entry to be gone", LONGEST, || {
        let args =
            ["get", "backupentries.extensions.gardener.cloud", "entry", "--ignore-not-found", "-o", "name"];
        Ok(plane.kubectl().run(&args)?.trim().is_empty().then_some(()))
    })
    .with_context(|| format!("see {}", agent.log().display()))?;
    let seconds = begun.elapsed().as_secs_f64();
    let peak = system::peak_mib(agent.id())?;
    let rate = OBJECTS as f64 / seconds;
    report.add(PART, "DeleteObjects in a loop, keys known", plain, "objects/s", Aim::None);
    report.add(PART, "berth: from kubectl delete to gone", seconds, "s", Aim::None);
    report.add(
        PART,
        "berth: rate, with listing, counting and a look whether all is gone",
        rate,
        "objects/s",
        Aim::None,
    );
    report.add(PART, "berth: rate to that loop's", rate / plain, "×", Aim::AtLeast(0.8));
    report.add(PART, "berth: peak memory", peak, "MiB", Aim::AtMost(64.0));
    Ok(())
}

fn start_agent(plane: &ControlPlane, program: &Path) -> anyhow::Result<Process> {
    let mut command = in_own_session(program);
    command.args(["garden", "agent", "--lease-duration=3s", "--kubeconfig"]).arg(plane.kubeconfig());
    command.arg(format!("--health-address={}:{}", Ipv4Addr::LOCALHOST, port::free()?));
    let mut process = Process::start("berth garden agent", command, &plane.folder().join("agent.log"))?;
    wait_for("an agent that leads", PATIENCE, || {
        process.ensure_runs()?;
        Ok(process.log_text()?.contains("leading").then_some(()))
    })?;
    Ok(process)
}

fn apply(plane: &ControlPlane, object: &Value) -> anyhow::Result<()> {
    plane.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &object.to_string()).map(|_| ())
}

fn succeeded(plane: &ControlPlane, plural: &str, name: &str) -> anyhow::Result<()> {
    let kind = format!("{plural}.extensions.gardener.cloud");
    wait_for(&format!("{kind} {name}"), PATIENCE, || {
        let found: Value = serde_json::from_str(&plane.kubectl().run(&["get", &kind, name, "-o", "json"])?)?;
        Ok((found["status"]["lastOperation"]["state"] == "Succeeded").then_some(()))
    })
}

fn key(prefix: &str, i: usize) -> String {
    format!("{prefix}etcd-main/{:03}/object-{i}", i % 100)
}

async fn fill(s3: &S3, prefix: &str) -> anyhow::Result<()> {
    let builder =
        AmazonS3Builder::new().with_access_key_id(&s3.keys.id).with_secret_access_key(&s3.keys.secret);
    let builder = builder.with_endpoint(s3.url()).with_bucket_name(BUCKET).with_region(REGION);
    let store = builder.with_allow_http(true).build()?;
    let puts = (0..OBJECTS).map(|i| {
        let store = &store;
        async move { store.put(&key(prefix, i).into(), "sevenby".into()).await }
    });
    stream::iter(puts).buffer_unordered(WRITERS).try_for_each(|_| async { Ok(()) }).await?;
    Ok(())
}

/// Objects per second of the same calls by the same client, one after another, with nothing to find
/// out.
async fn plain(s3: &S3, config: &StoreConfig) -> anyhow::Result<f64> {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let data = [
        ("accessKeyID".to_owned(), bytes(&s3.keys.id)),
        ("secretAccessKey".to_owned(), bytes(&s3.keys.secret)),
    ];
    let secret = Secret { data: Some(data.into()), ..Secret::default() };
    let bucket = Bucket::open("aws", BUCKET, REGION, config, &secret, &Roots::default())?;
    let all: Vec<Version> =
        (0..OBJECTS).map(|i| Version { key: key("plain/", i), ..Version::default() }).collect();
    let begun = Instant::now();
    for page in all.chunks(PAGE) {
        let removal = bucket.remove(page.to_vec()).await?;
        anyhow::ensure!(removal.removed.len() == page.len(), "{:?}", removal.failed);
    }
    Ok(OBJECTS as f64 / begun.elapsed().as_secs_f64())
}
