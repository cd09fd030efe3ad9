//! `berth queue`: shows which Backups wait and why, and changes their order by annotations, which
//! the leader reads.

mod list;
mod movers;
mod operations;
mod situation;

pub(super) use list::{expected_time, write_explanation};
pub(super) use situation::{Explanation, QueueSituation, configmap, read, read_with};

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use berth_api::keys;
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::queue::QueueOrder;
use berth_core::stage::Stage;
use jiff::{SignedDuration, Timestamp};
use kube::Resource;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::namespaced::NamespacedClient;
use super::version;
use crate::args::{BackupSelectionArgs, QueueArgs, QueueCommand};
use crate::cli::print::{note, say};
use crate::client::{Clients, is_not_found, persistent};
use crate::queue::seen::entry;
use crate::text::chain;
use crate::write::{Write, patch_to_fit};

/// Of a person who waits, on a client that tries again what the API server puts off.
const PATIENCE: Duration = Duration::from_secs(300);

pub async fn run(args: QueueArgs) -> anyhow::Result<()> {
    let client = persistent(args.target.source()).await?;
    let here = NamespacedClient { client, namespace: args.target.namespace.clone() };
    match args.command {
        QueueCommand::List { output } => list::show(&here.situation().await?, output),
        QueueCommand::Watch { output } => {
            list::watch(&here, &Clients::new(args.target.source()).await?.watch, output).await
        }
        QueueCommand::Explain { name, output } => list::explain(&here.situation().await?, &name, output),
        QueueCommand::Movers { output } => movers::show(&here, output).await,
        QueueCommand::Hold(which) => here.steer(which, QueueChange::Hold).await,
        QueueCommand::Release(which) => here.steer(which, QueueChange::Release).await,
        QueueCommand::Cancel(which) => here.steer(which, QueueChange::Cancel).await,
        QueueCommand::First(which) => here.steer(which, QueueChange::First).await,
    }
}

/// A change of a Backup that an annotation asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QueueChange {
    Hold,
    Release,
    First,
    Cancel,
}

impl QueueChange {
    fn key(self) -> &'static str {
        match self {
            Self::Hold | Self::Release => keys::HOLD,
            Self::First => keys::FIRST,
            Self::Cancel => keys::CANCEL,
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Hold => "held",
            Self::Release => "released",
            Self::First => "moved to the front",
            Self::Cancel => "canceled",
        }
    }

    /// The latest time goes first, so the Backup that is named first gets the latest one.
    fn value(self, index: usize, now: Timestamp) -> Value {
        let behind = SignedDuration::from_micros(i64::try_from(index).unwrap_or(i64::MAX));
        match self {
            Self::Hold | Self::Cancel => json!("true"),
            Self::Release => Value::Null,
            Self::First => json!(format!("{:.6}", now.checked_sub(behind).unwrap_or(now))),
        }
    }
}

impl NamespacedClient {
    fn backups(&self) -> Api<Backup> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// With what data movers say of their progress.
    async fn situation(&self) -> anyhow::Result<QueueSituation> {
        let mut situation = situation::read(self).await?;
        situation.operations = operations::read(self, &situation.after, situation.now).await;
        Ok(situation)
    }

    async fn steer(&self, which: BackupSelectionArgs, wish: QueueChange) -> anyhow::Result<()> {
        if let (Some(location), QueueChange::Hold | QueueChange::Release) = (&which.location, wish) {
            version::compare_in(self).await;
            let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
            annotate(&api, location, wish.key(), &wish.value(0, Timestamp::now())).await?;
            say!("storage location {location} {}", wish.done());
            return Ok(());
        }
        let situation = situation::read(self).await?;
        let all = which.all || which.location.is_some();
        let names = if all {
            let location = which.location.as_deref();
            // Waiting Backups first, because they would otherwise start in the slots of canceled
            // ones.
            let mut names = situation.waiting_at(location);
            if wish == QueueChange::Cancel {
                names.extend(situation.running_at(location));
            }
            names
        } else {
            which.names
        };
        ensure!(
            !names.is_empty(),
            "nothing waits{} here",
            if wish == QueueChange::Cancel { " or runs" } else { "" }
        );
        let (now, mut failed) = (Timestamp::now(), 0);
        for (i, name) in names.iter().enumerate() {
            match self.wish(&situation, name, wish, wish.value(i, now)).await {
                Ok(()) => say!("{name} {}", wish.done()),
                // The remaining Backups are changed all the same.
                Err(error) => {
                    note!("{}", chain(error.as_ref()));
                    failed += 1;
                }
            }
        }
        ensure!(failed == 0, "{failed} of {} could not be {}", names.len(), wish.done());
        Ok(())
    }

    async fn wish(
        &self,
        situation: &QueueSituation,
        name: &str,
        wish: QueueChange,
        value: Value,
    ) -> anyhow::Result<()> {
        let api = self.backups();
        let found = match api.get(name).await {
            Err(error) if is_not_found(&error) => {
                bail!("there is no Backup {name} in namespace {}{}", self.namespace, situation.meant(name))
            }
            found => found.with_context(|| format!("failed to get Backup {name}"))?,
        };
        if Stage::of(found.phase().as_str()).is_some() {
            ensure!(
                wish == QueueChange::Cancel,
                "Backup {name} has stored its objects, and its data is still moved: let it end, or cancel it"
            );
            let is_berths = found.metadata.annotations.iter().any(|all| all.contains_key(keys::RUN));
            ensure!(
                is_berths && !situation.velero_runs,
                "no berth completes Backup {name}, and Velero cannot be told to stop: delete it when it has ended"
            );
            return annotate(&api, name, wish.key(), &value).await;
        }
        let Some(entry) = entry(&found, &QueueOrder::default()) else {
            bail!("Backup {name} has ended already ({})", found.phase().as_str());
        };
        if entry.phase.is_running() && wish != QueueChange::Release {
            ensure!(wish == QueueChange::Cancel, "Backup {name} runs already: let it end, or cancel it");
            let is_berths = found.metadata.annotations.iter().any(|all| all.contains_key(keys::RUN));
            ensure!(
                is_berths || !situation.velero_runs,
                "Velero runs Backup {name}, and cannot be told to stop: delete it when it has ended"
            );
            if situation.velero_runs {
                note!(
                    "berth began Backup {name}, and nobody runs it while Velero runs the backups: it ends once berth does again (`berth install --executor=berth`)"
                );
            }
        }
        annotate(&api, name, wish.key(), &value).await
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
    let change = json!({"metadata": {"annotations": annotations}});
    let written = patch_to_fit(api, Write::to(name).within(PATIENCE), change).await.written();
    written.with_context(|| format!("failed to annotate {} {name}", K::kind(&())))?;
    Ok(())
}
