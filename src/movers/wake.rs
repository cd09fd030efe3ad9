//! Those that were refused while places were granted: a node-agent that was told of a conflict looks again at what changes, and
//! at nothing else for hours.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::Context as _;
use berth_api::keys;
use berth_api::velero::{DataDownload, DataMover, DataUpload};
use berth_core::mover::grant::MoverPhase;
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::timeout;
use tracing::warn;

use super::objects::api;
use crate::text::chain;
use crate::watch::{list, of_namespace};
use crate::write::{Answer, Write, patch_metadata};

const LIST: Duration = Duration::from_secs(30);
const AT_ONCE: usize = 16;

/// Writes a mark on each DataUpload and DataDownload that is New: of the other kinds a refusal is asked about again by itself.
/// Gives how many there were.
pub async fn refused(client: &Client, namespace: &str) -> usize {
    let mut woken = 0;
    for of_kind in
        [of_kind::<DataUpload>(client, namespace).await, of_kind::<DataDownload>(client, namespace).await]
    {
        match of_kind {
            Ok(count) => woken += count,
            Err(error) => {
                warn!(error = format!("{error:#}"), "those that wait for a place could not be woken");
            }
        }
    }
    woken
}

async fn of_kind<K>(client: &Client, namespace: &str) -> anyhow::Result<usize>
where
    K: DataMover + Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + Debug + DeserializeOwned,
{
    let everything = ListParams::default();
    let found = timeout(LIST, list(of_namespace::<K>(client, namespace), &everything)).await;
    let found = found.context("listing them took too long")??;
    let movers = found.iter().map(DataMover::mover);
    let names: Vec<String> =
        movers.filter(|mover| mover.phase == MoverPhase::New).map(|mover| mover.name).collect();
    let (api, kind) = (&api(client, namespace, K::KIND), K::KIND);
    let mark = json!({"metadata": {"annotations": {keys::NUDGED_AT: Timestamp::now().to_string()}}});
    let mark = &mark;
    let woken = futures::stream::iter(names).map(async |name| {
        match patch_metadata(api, Write::to(&name), mark.clone()).await {
            Answer::Written(_) => 1,
            Answer::Gone(_) => 0,
            Answer::Conflict(error) | Answer::Refused(error) => {
                warn!(%kind, name, error = chain(&error), "could not be woken");
                0
            }
            Answer::TimedOut => {
                warn!(%kind, name, "waking it took too long");
                0
            }
        }
    });
    Ok(woken.buffer_unordered(AT_ONCE).fold(0, async |sum, one| sum + one).await)
}

#[cfg(test)]
mod tests;
