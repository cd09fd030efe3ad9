//! `berth queue`: what waits, why, and moving it. Reads the API; steers by annotations, which the leader obeys.

mod list;
mod situation;

pub(super) use list::told;
pub(super) use situation::{Line, read};

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use berth_api::keys::{self, FIELD_MANAGER};
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::queue::Order;
use jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::args::{QueueArgs, QueueCommand, Which};
use crate::client::Clients;
use crate::queue::store::entry;

pub async fn run(args: QueueArgs) -> anyhow::Result<()> {
    let clients = Clients::new(args.target.kubeconfig.as_deref()).await?;
    let here = Here { client: clients.call.clone(), namespace: args.target.namespace };
    match args.command {
        QueueCommand::List { output } => list::show(&situation::read(&here).await?, output),
        QueueCommand::Watch { output } => list::watch(&here, &clients.watch, output).await,
        QueueCommand::Explain { name, output } => {
            list::explain(&situation::read(&here).await?, &name, output)
        }
        QueueCommand::Hold(which) => here.mark(which, keys::HOLD, true, "held").await,
        QueueCommand::Release(which) => here.mark(which, keys::HOLD, false, "released").await,
        QueueCommand::Cancel(which) => {
            let names = here.names(which).await?;
            here.annotate_waiting(&names, keys::CANCEL, |_| json!("true"), "canceled").await
        }
        QueueCommand::First(which) => {
            let names = here.names(which).await?;
            let now = Timestamp::now();
            // The last one moved goes first, so the one named first gets the latest time.
            let at = |i: usize| {
                let behind = SignedDuration::from_micros(i64::try_from(i).unwrap_or(i64::MAX));
                json!(format!("{:.6}", now.checked_sub(behind).unwrap_or(now)))
            };
            here.annotate_waiting(&names, keys::FIRST, at, "moved to the front").await
        }
    }
}

/// The namespace that is looked at.
pub(super) struct Here {
    pub client: Client,
    pub namespace: String,
}

impl Here {
    fn backups(&self) -> Api<Backup> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Backups that are named, or that wait.
    async fn names(&self, which: Which) -> anyhow::Result<Vec<String>> {
        if !which.all && which.location.is_none() {
            return Ok(which.names);
        }
        let backups =
            self.backups().list(&ListParams::default()).await.context("failed to list the Backups")?;
        let waiting =
            |backup: &&Backup| entry(backup, &Order::default()).is_some_and(|e| !e.phase.is_running());
        let there =
            |backup: &&Backup| which.location.is_none() || which.location == backup.spec.storage_location;
        Ok(backups.iter().filter(waiting).filter(there).map(ResourceExt::name_any).collect())
    }

    async fn mark(&self, which: Which, key: &str, set: bool, done: &str) -> anyhow::Result<()> {
        let value = if set { json!("true") } else { Value::Null };
        if let Some(location) = which.location {
            let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
            annotate(&api, &location, key, &value).await?;
            println!("storage location {location} {done}");
            return Ok(());
        }
        let names = self.names(which).await?;
        self.annotate_waiting(&names, key, |_| value.clone(), done).await
    }

    async fn annotate_waiting(
        &self,
        names: &[String],
        key: &str,
        value: impl Fn(usize) -> Value,
        done: &str,
    ) -> anyhow::Result<()> {
        ensure!(!names.is_empty(), "nothing waits here");
        let api = self.backups();
        for (i, name) in names.iter().enumerate() {
            let found = api.get(name).await.with_context(|| format!("failed to get Backup {name}"))?;
            let is_over = entry(&found, &Order::default()).is_none();
            ensure!(!is_over, "Backup {name} has ended already ({})", found.phase().as_str());
            annotate(&api, name, key, &value(i)).await?;
            println!("{name} {done}");
        }
        Ok(())
    }
}

async fn annotate<K>(api: &Api<K>, name: &str, key: &str, value: &Value) -> anyhow::Result<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let annotations: BTreeMap<&str, &Value> = [(key, value)].into();
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let kind = K::kind(&());
    api.patch(name, &params, &patch).await.with_context(|| format!("failed to annotate {kind} {name}"))?;
    Ok(())
}
