//! Nudges data movers that were refused while a leader granted places, because a node-agent whose
//! write got a conflict tries again only when the object changes, or hours later.

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
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use super::objects::api;
use crate::text::chain;
use crate::watch::{list, of_namespace};
use crate::write::{Write, WriteResult, patch_metadata};

const LIST: Duration = Duration::from_secs(30);
const AT_ONCE: usize = 16;

/// Writes an annotation on each DataUpload and DataDownload that is New. For the other kinds
/// node-agents repeat a refused write by themselves. Returns how many were nudged.
pub async fn refused(client: &Client, namespace: &str) -> usize {
    let mut nudged = 0;
    for of_kind in
        [of_kind::<DataUpload>(client, namespace).await, of_kind::<DataDownload>(client, namespace).await]
    {
        match of_kind {
            Ok(count) => nudged += count,
            Err(error) => {
                warn!(error = format!("{error:#}"), "could not nudge the data movers that wait for a place");
            }
        }
    }
    nudged
}

/// Nudges the refused data movers each time the leader that granted places becomes silent
/// ([`super::ledger::InForce::silent`]). Never returns.
pub async fn when_silent(client: &Client, namespace: &str, mut silent: watch::Receiver<bool>) {
    while silent.changed().await.is_ok() {
        if *silent.borrow_and_update() {
            warn!("no leader grants places to data movers: none is held back from now on");
            refused(client, namespace).await;
        }
    }
    std::future::pending().await
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
    let nudged = futures::stream::iter(names).map(async |name| {
        match patch_metadata(api, Write::to(&name), mark.clone()).await {
            WriteResult::Written(_) => 1,
            WriteResult::Gone(_) => 0,
            WriteResult::Conflict(error) | WriteResult::Refused(error) => {
                warn!(%kind, name, error = chain(&error), "could not nudge data mover");
                0
            }
            WriteResult::TimedOut => {
                warn!(%kind, name, "could not nudge data mover: the API server takes too long");
                0
            }
        }
    });
    Ok(nudged.buffer_unordered(AT_ONCE).fold(0, async |sum, one| sum + one).await)
}

#[cfg(test)]
mod tests;
