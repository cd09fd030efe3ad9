//! Backups that are InProgress while the executor changes. They must end first, because the new
//! executor does not end the old one's Backups.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use tokio::time::sleep;

use super::InstallCluster;
use crate::client::is_not_found;

const LOOK: Duration = Duration::from_millis(500);
/// Most names in one message.
const MOST: usize = 10;

/// Names of the Backups that are InProgress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningBackups {
    /// Backups with the annotation of a run of berth's engine, which only berth writes.
    pub by_berth: Vec<String>,
    /// Backups of a Velero.
    pub by_others: Vec<String>,
}

impl RunningBackups {
    /// # Errors
    /// When the Backups cannot be listed.
    pub async fn read(cluster: &InstallCluster) -> anyhow::Result<Self> {
        let kind = ApiResource::erase::<Backup>(&());
        // As dynamic objects, because a Backup with an unreadable spec may run as well.
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &kind);
        match api.list(&ListParams::default()).await {
            Ok(all) => Ok(Self::of(&all.items)),
            // The kind is not defined yet.
            Err(error) if is_not_found(&error) => Ok(Self::default()),
            Err(error) => Err(error).context("the Backups cannot be listed"),
        }
    }

    fn of(backups: &[DynamicObject]) -> Self {
        let mut running = Self::default();
        let runs = |one: &&DynamicObject| one.data["status"]["phase"] == BackupPhase::InProgress.as_str();
        for backup in backups.iter().filter(runs) {
            let is_berths = backup.annotations().contains_key(keys::RUN);
            let names = if is_berths { &mut running.by_berth } else { &mut running.by_others };
            names.push(backup.name_any());
        }
        running
    }
}

/// Waits until none of the Backups that `of` selects is left, and passes the remaining ones to
/// `tell`. Returns those that remain after `patience`.
///
/// # Errors
/// When the Backups cannot be listed.
pub async fn ended(
    cluster: &InstallCluster,
    patience: Duration,
    of: impl Fn(RunningBackups) -> Vec<String>,
    tell: impl Fn(&str),
) -> anyhow::Result<Vec<String>> {
    let begun = Instant::now();
    let mut told = Vec::new();
    loop {
        let left = of(RunningBackups::read(cluster).await?);
        if left.is_empty() || begun.elapsed() >= patience {
            return Ok(left);
        }
        if left != told {
            tell(&names(&left));
            told = left;
        }
        sleep(LOOK).await;
    }
}

/// The first few names, and how many more there are.
pub fn names(all: &[String]) -> String {
    let first = all.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_runs_a_backup_is_told_by_its_mark() {
        let of = |name: &str, phase: &str, annotations: &[&str]| -> DynamicObject {
            let annotations: std::collections::BTreeMap<_, _> =
                annotations.iter().map(|key| (*key, "a")).collect();
            serde_json::from_value(json!({
                "apiVersion": "velero.io/v1", "kind": "Backup",
                "metadata": {"name": name, "annotations": annotations}, "status": {"phase": phase},
            }))
            .unwrap()
        };
        let backups = [
            of("berths", "InProgress", &[keys::RUN, keys::ENQUEUED_AT]),
            of("veleros", "InProgress", &[keys::ENQUEUED_AT]),
            of("done", "Completed", &[keys::RUN]),
            of("next", "ReadyToStart", &[keys::ENQUEUED_AT]),
        ];
        let expected =
            RunningBackups { by_berth: vec!["berths".to_owned()], by_others: vec!["veleros".to_owned()] };
        assert_eq!(RunningBackups::of(&backups), expected);
    }

    #[test]
    fn a_message_names_a_few() {
        let all: Vec<String> = (0..12).map(|i| format!("b{i}")).collect();
        assert_eq!(names(&all[..2]), "b0, b1");
        assert!(names(&all).ends_with("b9 and 2 more"), "{}", names(&all));
    }
}
