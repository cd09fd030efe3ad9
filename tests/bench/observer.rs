//! What a watch of one namespace's Backups shows, with the moment at which it was shown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_api::velero::{Backup, BackupPhase};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const CREATES_AT_ONCE: usize = 16;

/// A Backup came into this phase.
#[derive(Clone, Debug)]
pub struct Change {
    pub at: Instant,
    pub name: String,
    pub phase: BackupPhase,
}

pub struct Observer {
    changes: Arc<Mutex<Vec<Change>>>,
    ended: watch::Receiver<usize>,
    watching: JoinHandle<anyhow::Result<()>>,
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Observer {
    /// Sees everything from here on. `seen` is called at each change.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn start(
        client: &Client,
        namespace: &str,
        mut seen: impl FnMut(&Change) + Send + 'static,
    ) -> anyhow::Result<Self> {
        let api: Api<Backup> = Api::namespaced(client.clone(), namespace);
        let mut version =
            api.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
        let changes = Arc::new(Mutex::new(Vec::new()));
        let (count, ended) = watch::channel(0);
        let kept = Arc::clone(&changes);
        let watching = tokio::spawn(async move {
            let mut last = std::collections::HashMap::new();
            loop {
                let params = WatchParams::default().timeout(290);
                let mut events = std::pin::pin!(api.watch(&params, &version).await?);
                while let Some(event) = events.try_next().await? {
                    let backup = match event {
                        WatchEvent::Added(backup) | WatchEvent::Modified(backup) => backup,
                        WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => continue,
                        WatchEvent::Error(error) => anyhow::bail!("the watch failed: {error:?}"),
                    };
                    version = backup.resource_version().unwrap_or_default();
                    let change =
                        Change { at: Instant::now(), name: backup.name_any(), phase: backup.phase() };
                    if last.insert(change.name.clone(), change.phase) == Some(change.phase) {
                        continue;
                    }
                    seen(&change);
                    if change.phase.is_final() {
                        count.send_modify(|count| *count += 1);
                    }
                    kept.lock().push(change);
                }
            }
        });
        Ok(Self { changes, ended, watching })
    }

    /// Waits until so many have ended.
    ///
    /// # Errors
    /// When it takes longer than `patience`.
    pub async fn wait_ended(&mut self, count: usize, patience: Duration) -> anyhow::Result<()> {
        let waited = tokio::time::timeout(patience, self.ended.wait_for(|ended| *ended >= count)).await;
        let ended = |_| format!("{} of {count} ended in {patience:?}", self.changes.lock().len());
        waited.map_err(|e| anyhow::anyhow!(ended(e)))?.context("the watch ended").map(drop)
    }

    pub fn changes(&self) -> Vec<Change> {
        self.changes.lock().clone()
    }
}

/// # Errors
/// When one is refused.
pub async fn create(client: &Client, namespace: &str, backups: Vec<Value>) -> anyhow::Result<()> {
    let api: Api<Backup> = Api::namespaced(client.clone(), namespace);
    let create = async |backup: Value| {
        api.create(&PostParams::default(), &serde_json::from_value(backup)?).await?;
        anyhow::Ok(())
    };
    stream::iter(backups).map(create).buffer_unordered(CREATES_AT_ONCE).try_collect().await
}

/// Writes to objects of this resource that the API server has taken so far, all namespaces and
/// groups together, by its own count.
///
/// # Errors
/// When it does not tell.
pub async fn writes(client: &Client, resource: &str) -> anyhow::Result<f64> {
    requests(client, |line| {
        line.contains(&format!("resource=\"{resource}\""))
            && ["PATCH", "PUT", "POST", "DELETE", "APPLY"]
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    })
    .await
}

/// Requests that the API server has answered so far, by its own count. `is_counted`: by the line
/// of that count, with its labels.
///
/// # Errors
/// When it does not tell.
pub async fn requests(client: &Client, is_counted: impl Fn(&str) -> bool) -> anyhow::Result<f64> {
    let text = client.request_text(http::Request::get("/metrics").body(Vec::new())?).await?;
    let is_it = |line: &&str| line.starts_with("apiserver_request_total{") && is_counted(line);
    let count = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
    Ok(text.lines().filter(is_it).filter_map(count).sum())
}
