//! The DeleteBackupRequest for what a deleted Backup has left: it outlives the process that removes
//! that, and says where there may be data that no file tells of any more.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::{Backup, BackupStorageLocation, DeleteBackupRequest};
use berth_core::claim::FolderClaim;
use berth_core::sync::is_name;
use kube::ResourceExt as _;
use kube::api::Api;
use serde_json::json;
use tokio::time::timeout;
use tracing::warn;

use super::forget::named_namespaces;
use crate::backup::engine::Engine;
use crate::backup::removals::{RemovalGuard, as_text, data_in, is_for_the_same, request as removal};
use crate::backup::status::run_id;
use crate::storage::BackupLayout;
use crate::text::chain;
use crate::write::{Write, WriteResult, create, delete, patch};

/// Time-out of one look, at the Backup or at its checkpoint.
const CALL: Duration = Duration::from_secs(10);
/// The longest value of a label.
const LABEL: usize = 63;

impl Engine {
    /// Puts on record what a Backup has left whose run finds it deleted, because this process may
    /// end before [`Engine::forget`] begins. `data_in`: namespaces in whose repositories it may
    /// have data. While the guard is there, and for a while after that, the removal is left to the
    /// engine.
    pub(in crate::backup) async fn note_deleted(
        &self,
        name: &str,
        uid: &str,
        location: &str,
        data_in: BTreeSet<String>,
    ) -> Option<RemovalGuard> {
        let mut held = None;
        // The run may only have lost sight of a Backup that somebody else has ended.
        if self.removals.are_carried_out() && self.is_backup_gone(name, uid).await {
            held = Some(self.removals.hold(uid));
            self.ask_for_removal(name, uid, location, &data_in).await;
        }
        self.data_of_deleted.lock().insert(uid.to_owned(), data_in);
        held
    }

    /// Puts on record where a Backup that is gone may have data, of which only the checkpoint in
    /// its folder tells, before a run of another one removes that. The claim of the folder is that
    /// run's already: until then whoever carries the record out could take the folder for forsaken.
    pub(in crate::backup) async fn note_earlier(
        &self,
        location: &BackupStorageLocation,
        layout: &BackupLayout,
        earlier: &FolderClaim,
    ) {
        let (name, uid) = (layout.backup(), earlier.backup.as_str());
        // Anybody may have written the claim.
        if earlier.namespace != self.namespace || uid.len() > LABEL || !is_name(uid) {
            return;
        }
        let error = match timeout(CALL, named_namespaces(layout)).await {
            Ok(Ok(data_in)) if data_in.is_empty() => return,
            Ok(Ok(data_in)) => {
                if self.ask_for_removal(name, uid, &location.name_any(), &data_in).await.is_some() {
                    return;
                }
                "there is no DeleteBackupRequest for it".to_owned()
            }
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "the store did not answer in time".to_owned(),
        };
        warn!(%name, %uid, error, "an earlier Backup of this name may have left snapshots in repositories: they have its UID in the tag backup-uid");
    }

    /// Is there positively no such Backup?
    async fn is_backup_gone(&self, name: &str, uid: &str) -> bool {
        let api: Api<Backup> = Api::namespaced(self.client.clone(), &self.namespace);
        match timeout(CALL, api.get_metadata_opt(name)).await {
            Ok(Ok(found)) => found.is_none_or(|found| found.metadata.uid.as_deref() != Some(uid)),
            Ok(Err(_)) | Err(_) => false,
        }
    }

    /// Creates the request by which this is tried again, by whoever leads, or finds the one that an
    /// earlier leader has created. `None`: nobody here would carry it out, or it cannot be created.
    pub(super) async fn ask_for_removal(
        &self,
        name: &str,
        uid: &str,
        location: &str,
        data: &BTreeSet<String>,
    ) -> Option<DeleteBackupRequest> {
        if !self.removals.are_carried_out() {
            return None;
        }
        let mut request = removal(name, uid, location, data);
        let api: Api<DeleteBackupRequest> = Api::namespaced(self.client.clone(), &self.namespace);
        match create(&api, &request).await {
            WriteResult::Written(request) => return Some(request),
            // An earlier leader has asked, unless somebody else has taken the name.
            WriteResult::Conflict(_) => {
                let found = api.get_opt(&request.name_any()).await.ok().flatten();
                if let Some(found) = found.filter(|found| asks_the_same(found, &request)) {
                    return Some(self.record(&api, found, data).await);
                }
                request.metadata.name = Some(format!("{}-{}", request.name_any(), run_id()));
                if let WriteResult::Written(request) = create(&api, &request).await {
                    return Some(request);
                }
                warn!(%name, %uid, "could not ask for the removal of what a deleted Backup has stored: delete the DeleteBackupRequest that has the name of the one for it");
            }
            WriteResult::Gone(error) | WriteResult::Refused(error) => {
                warn!(%name, %uid, error = chain(&error), "could not ask for the removal of what a deleted Backup has stored, by a DeleteBackupRequest");
            }
            WriteResult::TimedOut => {
                warn!(%name, %uid, "could not ask for the removal of what a deleted Backup has stored, by a DeleteBackupRequest, in time");
            }
        }
        None
    }

    /// Has the request record these namespaces, too.
    async fn record(
        &self,
        api: &Api<DeleteBackupRequest>,
        request: DeleteBackupRequest,
        data: &BTreeSet<String>,
    ) -> DeleteBackupRequest {
        let mut all = data_in(&request);
        if data.is_subset(&all) {
            return request;
        }
        all.extend(data.iter().cloned());
        let change = json!({"metadata": {"annotations": {keys::DATA_IN: as_text(&all)}}});
        if let WriteResult::Written(now) = patch(api, Write::on(&request), change).await {
            return now;
        }
        let request_name = request.name_any();
        warn!(
            request = request_name,
            ?data,
            "could not record in a DeleteBackupRequest in which namespaces a deleted Backup may have data: its snapshots in the repositories of these have its UID in the tag backup-uid"
        );
        request
    }

    /// Removes the request: nothing is left.
    pub(super) async fn withdraw(&self, request: &DeleteBackupRequest) {
        let api: Api<DeleteBackupRequest> = Api::namespaced(self.client.clone(), &self.namespace);
        match delete(&api, Write::to(&request.name_any()).uid(request.metadata.uid.as_deref())).await {
            WriteResult::Written(()) | WriteResult::Gone(_) => {}
            // The deletion that it asks for finds nothing, and ends.
            _ => warn!(
                request = request.name_any(),
                "could not remove a DeleteBackupRequest that is done: the deletion that it asks for finds nothing, and ends"
            ),
        }
    }
}

/// Does a request that is there go on with what `wanted` would?
fn asks_the_same(found: &DeleteBackupRequest, wanted: &DeleteBackupRequest) -> bool {
    let phase = |request: &DeleteBackupRequest| request.status.as_ref().and_then(|status| status.phase);
    is_for_the_same(found, wanted) && phase(found) == phase(wanted)
}
