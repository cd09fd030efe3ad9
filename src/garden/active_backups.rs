//! Backups that write to a storage location. A read-only location keeps new ones from starting;
//! those that have started still end.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::velero::{Backup, BackupPhase};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, Error};
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde_json::Value;

/// A server that started a backup before it saw that the location is read-only has written so after
/// this time.
pub const SETTLED: Duration = Duration::from_secs(1);

/// How many of these locations' backups have started and not ended. Reads only the fields that this
/// takes, so a Backup that is otherwise invalid counts, too.
pub async fn count_active(
    client: &Client,
    namespace: &str,
    locations: &BTreeSet<String>,
) -> Result<usize, Error> {
    let resource = ApiResource::erase::<Backup>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let all = api.list(&ListParams::default()).await?;
    let text = |backup: &DynamicObject, pointer| {
        backup.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let is_there = |backup: &&DynamicObject| {
        locations.contains(&text(backup, "/spec/storageLocation"))
            && is_running(&text(backup, "/status/phase"))
    };
    Ok(all.iter().filter(is_there).count())
}

/// A backup in an unknown phase may be writing.
fn is_running(phase: &str) -> bool {
    let waits = ["", BackupPhase::New.as_str(), BackupPhase::Queued.as_str()];
    let known = BackupPhase::deserialize(phase.into_deserializer()) as Result<_, serde::de::value::Error>;
    let is_over = known.is_ok_and(BackupPhase::is_final);
    !waits.contains(&phase) && !is_over
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_or_has_ended_does_not_write() {
        use BackupPhase::{
            Completed, Failed, FailedValidation, Finalizing, FinalizingPartiallyFailed, InProgress, New,
            PartiallyFailed, Queued, ReadyToStart, WaitingForPluginOperations,
            WaitingForPluginOperationsPartiallyFailed,
        };
        for phase in [
            ReadyToStart,
            InProgress,
            WaitingForPluginOperations,
            WaitingForPluginOperationsPartiallyFailed,
            Finalizing,
            FinalizingPartiallyFailed,
        ] {
            assert!(is_running(phase.as_str()), "{phase:?}");
        }
        for phase in [New, Queued, FailedValidation, Completed, PartiallyFailed, Failed] {
            assert!(!is_running(phase.as_str()), "{phase:?}");
        }
        assert!(is_running("of-a-later-version") && !is_running(""));
    }
}
