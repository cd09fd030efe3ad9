//! More Backups than anybody should create, and what becomes of everybody's place.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use berth_api::velero::{Backup, BackupPhase};
use futures::{StreamExt, TryStreamExt, stream};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

use crate::admission::program;
use crate::support::backup::backup_of;
use crate::support::wait::wait_until;
use crate::support::{Berth, ControlPlane, Options};

const COUNT: usize = 10_000;
const AT_ONCE: usize = 24;
const PATIENCE: Duration = Duration::from_secs(120);

/// Ten thousand creates, as fast as the API server takes them (far below a minute): none fails, each is queued, and places end up unique and dense.
#[test]
fn ten_thousand_creates_at_once_all_get_a_place() {
    let berth = Berth::start(ControlPlane::start().unwrap(), Options::new(program(), "velero")).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(press(&berth)).unwrap();
}

async fn press(berth: &Berth) -> anyhow::Result<()> {
    let api: Api<Backup> = Api::namespaced(berth.plane().client().await?, berth.namespace());
    let begun = Instant::now();
    let create = async |i: usize| {
        let mut backup = backup_of(&format!("p-{i}"), &["default"]);
        // Nothing is to run: what counts is the line.
        backup["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
        api.create(&PostParams::default(), &serde_json::from_value(backup)?).await?;
        anyhow::Ok(())
    };
    stream::iter(0..COUNT).map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    println!("{COUNT} creates in {:.1?}", begun.elapsed());
    wait_until("every place to be unique and dense", PATIENCE, async || {
        let all = api.list(&ListParams::default()).await?;
        let unqueued =
            all.iter().filter(|b| b.phase() != BackupPhase::Queued).map(ResourceExt::name_any).next();
        anyhow::ensure!(unqueued.is_none(), "{unqueued:?} is not Queued");
        let places: BTreeSet<i64> =
            all.iter().filter_map(|b| b.status.as_ref().and_then(|s| s.queue_position)).collect();
        Ok((places == (1..=COUNT as i64).collect()).then_some(()))
    })
    .await
}
