//! Backups that write to a storage location. One that is read-only keeps others from beginning; those that have begun end.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::velero::{Backup, BackupPhase};
use kube::api::{Api, ListParams};
use kube::{Client, Error};

/// Whoever began a backup before he knew that its location is read-only has said so after this.
pub const SETTLED: Duration = Duration::from_secs(1);

/// How many of these locations' backups have begun and not ended.
pub async fn running(client: &Client, namespace: &str, locations: &BTreeSet<String>) -> Result<usize, Error> {
    let api: Api<Backup> = Api::namespaced(client.clone(), namespace);
    let all = api.list(&ListParams::default()).await?;
    let is_there = |backup: &&Backup| {
        let location = backup.spec.storage_location.as_deref().unwrap_or_default();
        locations.contains(location) && is_running(backup)
    };
    Ok(all.iter().filter(is_there).count())
}

fn is_running(backup: &Backup) -> bool {
    let phase = backup.phase();
    !phase.is_final() && !matches!(phase, BackupPhase::New | BackupPhase::Queued)
}

#[cfg(test)]
mod tests {
    use berth_api::velero::{BackupSpec, BackupStatus};

    use super::*;

    #[test]
    fn what_waits_or_has_ended_does_not_write() {
        use BackupPhase::{
            Completed, Failed, FailedValidation, Finalizing, FinalizingPartiallyFailed, InProgress, New,
            PartiallyFailed, Queued, ReadyToStart, WaitingForPluginOperations,
            WaitingForPluginOperationsPartiallyFailed,
        };
        let backup = |phase| {
            let mut backup = Backup::new("b", BackupSpec::default());
            backup.status = Some(BackupStatus { phase: Some(phase), ..BackupStatus::default() });
            backup
        };
        for phase in [
            ReadyToStart,
            InProgress,
            WaitingForPluginOperations,
            WaitingForPluginOperationsPartiallyFailed,
            Finalizing,
            FinalizingPartiallyFailed,
        ] {
            assert!(is_running(&backup(phase)), "{phase:?}");
        }
        for phase in [New, Queued, FailedValidation, Completed, PartiallyFailed, Failed] {
            assert!(!is_running(&backup(phase)), "{phase:?}");
        }
    }
}
