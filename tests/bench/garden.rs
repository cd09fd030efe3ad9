//! Shared buckets: how fast many entries find their places, and what that costs the API server.
//! Couriers are played, and stores take no time.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_garden_api::operation::OperationState;
use berth_garden_api::{BackupBucket, BackupEntry};
use berth_test_support::courier::Couriers;
use berth_test_support::{Berth, ControlPlane, Options, wait_until};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::observer;
use crate::report::{Aim, Report};
use crate::system;

const ENTRIES: usize = 1_000;
const EACH: usize = 50;
const AT_ONCE: usize = 32;
const PATIENCE: Duration = Duration::from_secs(300);

pub fn measure(runtime: &Runtime, program: &Path, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("Shared buckets:");
    let mut options = Options::new(program, "velero");
    options.controller_args.push(format!("--bucket-quota=aws={EACH}"));
    let berth = Berth::start(ControlPlane::start()?, options)?;
    let couriers = Couriers::start(&berth.plane().kubeconfig())?;
    couriers.serve("seed");
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store", "namespace": "garden"}},
        {
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "CloudProfile", "metadata": {"name": "packet"},
            "spec": {"provider": "packet", "backup": {
                "provider": "aws", "region": "eu-west-1", "secretRef": {"name": "store", "namespace": "garden"},
                "providerConfig": {"locationKeys": "shared"},
            }},
        },
        {
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "Seed", "metadata": {"name": "seed"},
            "spec": {"cloudProfileName": "packet", "region": "ewr1"},
        },
    ]});
    berth.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &objects.to_string())?;
    let (buckets, took, writes) = runtime.block_on(async {
        let client = berth.plane().client().await?;
        wait_until("the first bucket", PATIENCE, async || Ok((made(&client).await? == 1).then_some(())))
            .await?;
        let before = writes(&client).await?;
        let begun = Instant::now();
        create(&client).await?;
        wait_until("all entries to be reconciled", PATIENCE, async || {
            let all: Vec<BackupEntry> = list(&client).await?;
            let is_done = |entry: &&BackupEntry| {
                let last = entry.status.as_ref().and_then(|status| status.last_operation.as_ref());
                entry.spec.bucket_name.is_some()
                    && last.is_some_and(|last| last.state == OperationState::Succeeded)
            };
            Ok((all.iter().filter(is_done).count() == ENTRIES).then_some(()))
        })
        .await?;
        let took = begun.elapsed();
        anyhow::Ok((made(&client).await?, took, writes(&client).await? - before))
    })?;
    ensure!(buckets == ENTRIES / EACH, "{buckets} buckets were made");
    ensure!(couriers.faults().is_empty(), "{:?}", couriers.faults());
    let part = "shared buckets, 1000 entries in 20";
    let controller = berth.controller.process.id();
    report.add(part, "created, placed, reconciled", took.as_secs_f64(), "s", Aim::None);
    report.add(part, "API writes, all parties", writes / ENTRIES as f64, "per entry", Aim::AtMost(6.0));
    report.add(
        part,
        "CPU of the controller",
        system::cpu_seconds(controller)? * 1000.0 / ENTRIES as f64,
        "ms per entry",
        Aim::None,
    );
    report.add(part, "peak memory of the controller", system::peak_mib(controller)?, "MiB", Aim::None);
    Ok(())
}

async fn list<K>(client: &Client) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    Ok(api.list(&ListParams::default()).await?.items)
}

async fn made(client: &Client) -> anyhow::Result<usize> {
    let all: Vec<BackupBucket> = list(client).await?;
    let is_made = |bucket: &&BackupBucket| {
        let last = bucket.status.as_ref().and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| last.state == OperationState::Succeeded)
    };
    Ok(all.iter().filter(is_made).count())
}

/// Creating entries is a write, too, and so is what couriers say of them.
async fn writes(client: &Client) -> anyhow::Result<f64> {
    let mut all = 0.0;
    for resource in ["backupentries", "backupbuckets", "cloudprofiles", "configmaps", "secrets"] {
        all += observer::writes(client, resource).await?;
    }
    Ok(all)
}

async fn create(client: &Client) -> anyhow::Result<()> {
    let api: Api<BackupEntry> = Api::namespaced(client.clone(), "default");
    let make = async |i: usize| {
        let entry = json!({
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "BackupEntry",
            "metadata": {"name": format!("cluster-{i}")}, "spec": {"seedName": "seed"},
        });
        let entry = serde_json::from_value(entry).context("an entry")?;
        api.create(&PostParams::default(), &entry).await?;
        anyhow::Ok(())
    };
    stream::iter(0..ENTRIES).map(make).buffer_unordered(AT_ONCE).try_collect().await
}
