//! Those that were refused while places were granted: a node-agent that was told of a conflict looks again at what changes, and
//! at nothing else for hours.

use std::time::Duration;

use berth_api::keys::{self, FIELD_MANAGER};
use berth_core::mover::MoverKind;
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::timeout;
use tracing::warn;

use super::granting::api;
use crate::client::{is_conflict, is_not_found};
use crate::telemetry::chain;

const CALL: Duration = Duration::from_secs(10);
const PAGE: u32 = 500;
const AT_ONCE: usize = 16;

/// Writes a mark on each DataUpload and DataDownload that is New: of the other kinds a refusal is asked about again by itself.
/// Gives how many there were.
pub async fn refused(client: &Client, namespace: &str) -> usize {
    let mut woken = 0;
    for kind in MoverKind::ALL.into_iter().filter(|kind| !kind.is_bound()) {
        match of_kind(client, namespace, kind).await {
            Ok(count) => woken += count,
            Err(error) => {
                warn!(%kind, error = chain(&error), "those that wait for a place could not be woken");
            }
        }
    }
    woken
}

async fn of_kind(client: &Client, namespace: &str, kind: MoverKind) -> Result<usize, kube::Error> {
    let api = api(client, namespace, kind);
    let mut params = ListParams::default().limit(PAGE);
    let mut names = Vec::new();
    loop {
        let page = match api.list(&params).await {
            // Without Velero.
            Err(error) if is_not_found(&error) => return Ok(0),
            page => page?,
        };
        let is_new = |phase: Option<&str>| phase.is_none_or(|phase| matches!(phase, "" | "New"));
        let new = page.items.iter().filter(|one| is_new(one.data["status"]["phase"].as_str()));
        names.extend(new.map(|one| one.name_any()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    let mark = json!({"metadata": {"annotations": {keys::NUDGED_AT: Timestamp::now().to_string()}}});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let woken = futures::stream::iter(&names)
        .map(async |name| {
            match timeout(CALL, api.patch_metadata(name, &params, &Patch::Merge(&mark))).await {
                Ok(Ok(_)) => 1,
                Ok(Err(error)) if is_not_found(&error) || is_conflict(&error) => 0,
                Ok(Err(error)) => {
                    warn!(%kind, name, error = chain(&error), "could not be woken");
                    0
                }
                Err(_) => 0,
            }
        })
        .buffer_unordered(AT_ONCE)
        .fold(0, async |sum, one| sum + one)
        .await;
    Ok(woken)
}
