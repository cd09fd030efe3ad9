//! A deletion of an earlier Backup of this name may still remove files of the folder. No store
//! removes on a condition, so a run that took the folder over meanwhile could lose its own files to
//! that deletion: it waits until the deletion's request is done or gone.

use std::time::Duration;

use berth_api::keys::BACKUP_UID;
use berth_api::velero::{DeleteBackupRequest, DeleteBackupRequestPhase as Phase};
use berth_core::claim::FolderClaim;
use berth_core::deletion::DELETION;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use tokio::time::{Instant, sleep};
use tracing::info;

use super::engine::{Engine, RunFailure};

/// Longer than the longest rest of a deletion that fails and one step of it, after which it sees
/// that there is another Backup.
const PATIENCE: Duration = Duration::from_secs(480);
const PAUSE: Duration = Duration::from_secs(1);
/// The longest value of a label.
const LABEL: usize = 63;

/// What became of a deletion whose claim stands in the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EarlierDeletion {
    /// There is none, or nobody here carries it out.
    None,
    /// It is not under way: it has ended, in whatever way.
    Over,
    /// It was under way, and its request is gone now: it has done all, or has left the rest of the
    /// folder to the Backup that took the name.
    Yielded,
}

impl Engine {
    /// Waits while a deletion is carried out that has claimed the folder for another Backup. Unless
    /// there is none, the folder may have changed since its claim was read.
    pub(super) async fn await_deletion(
        &self,
        ours: &FolderClaim,
        standing: &FolderClaim,
    ) -> Result<EarlierDeletion, RunFailure> {
        if !is_of_earlier(ours, standing) {
            return Ok(EarlierDeletion::None);
        }
        let api: Api<DeleteBackupRequest> = Api::namespaced(self.client.clone(), &self.namespace);
        let of_it = ListParams::default().labels(&format!("{BACKUP_UID}={}", standing.backup));
        let begun = Instant::now();
        let mut is_told = false;
        loop {
            let listed = self.lister().patiently("DeleteBackupRequests", || api.list(&of_it)).await;
            let requests = match listed {
                Ok(requests) => requests,
                // A cluster without them, or one where berth carries out none.
                Err(error) if matches!(error.code(), Some(403 | 404)) => return Ok(EarlierDeletion::None),
                Err(error) => return Err(RunFailure::Cluster(error.into())),
            };
            let request = requests.iter().find(|request| request.phase() == Phase::InProgress);
            let Some(request) = request.map(ResourceExt::name_any) else {
                let is_gone = is_told && requests.items.is_empty();
                return Ok(if is_gone { EarlierDeletion::Yielded } else { EarlierDeletion::Over });
            };
            if begun.elapsed() >= PATIENCE {
                return Err(RunFailure::BeingDeleted(request));
            }
            if !std::mem::replace(&mut is_told, true) {
                info!(
                    uid = ours.backup,
                    request, "waiting for the deletion of an earlier backup of this name"
                );
            }
            sleep(PAUSE).await;
        }
    }
}

/// Is the claim that of a deletion, here, for another Backup? Anybody may have written it, and its
/// UID becomes part of a URL.
fn is_of_earlier(ours: &FolderClaim, standing: &FolderClaim) -> bool {
    let is_label = |c: char| c.is_ascii_alphanumeric() || c == '-';
    standing.run.starts_with(DELETION)
        && standing.cluster == ours.cluster
        && standing.namespace == ours.namespace
        && standing.backup != ours.backup
        && !standing.backup.is_empty()
        && standing.backup.len() <= LABEL
        && standing.backup.chars().all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_deletion_here_of_another_backup_is_waited_for() {
        let claim = |namespace: &str, backup: &str, run: &str| {
            let [cluster, namespace, backup, run] = ["c", namespace, backup, run].map(str::to_owned);
            FolderClaim { cluster, namespace, backup, run, before: None }
        };
        let ours = claim("velero", "new", "r");
        assert!(is_of_earlier(&ours, &claim("velero", "old", "deletion-1")));
        for standing in [
            claim("velero", "old", "r"),
            claim("velero", "new", "deletion-1"),
            claim("elsewhere", "old", "deletion-1"),
            claim("velero", "", "deletion-1"),
            claim("velero", "a,b=c", "deletion-1"),
            claim("velero", &"x".repeat(64), "deletion-1"),
            FolderClaim { cluster: "away".into(), ..claim("velero", "old", "deletion-1") },
        ] {
            assert!(!is_of_earlier(&ours, &standing), "{standing:?}");
        }
    }
}
