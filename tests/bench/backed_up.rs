//! A Backup from its creation to its end, seen through a watch.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_api::velero::{Backup, BackupPhase, BackupStatus};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::Value;

/// A Backup that ended well.
pub struct BackedUp {
    pub seconds: f64,
    pub status: BackupStatus,
}

/// Creates a Backup with this spec, and waits for its end.
///
/// # Errors
/// When it does not end Completed.
pub async fn back_up(
    client: &Client,
    namespace: &str,
    name: &str,
    spec: Value,
    longest: Duration,
) -> anyhow::Result<BackedUp> {
    let started = Instant::now();
    create(client, namespace, name, spec).await?;
    await_end(client, namespace, name, started, longest).await
}

/// # Errors
/// When the API server refuses it.
pub async fn create(client: &Client, namespace: &str, name: &str, spec: Value) -> anyhow::Result<()> {
    let backup: Backup = serde_json::from_value(berth_test_support::backup(name, spec))?;
    let api: Api<Backup> = Api::namespaced(client.clone(), namespace);
    api.create(&PostParams::default(), &backup).await?;
    Ok(())
}

/// Waits for the end of a Backup that was created at `started`.
///
/// # Errors
/// When it does not end Completed.
pub async fn await_end(
    client: &Client,
    namespace: &str,
    name: &str,
    started: Instant,
    longest: Duration,
) -> anyhow::Result<BackedUp> {
    let api: Api<Backup> = Api::namespaced(client.clone(), namespace);
    let is_final = |backup: Option<&Backup>| backup.is_some_and(|backup| backup.phase().is_final());
    let ended = tokio::time::timeout(longest, await_condition(api, name, is_final)).await;
    let seconds = started.elapsed().as_secs_f64();
    let ended = ended.with_context(|| format!("backup {name} takes longer than {longest:?}"))?;
    let status = ended?.and_then(|backup| backup.status);
    let status = status.with_context(|| format!("Backup {name} is gone"))?;
    ensure!(status.phase == Some(BackupPhase::Completed), "{name} ended {status:?}");
    Ok(BackedUp { seconds, status })
}
