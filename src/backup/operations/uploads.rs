//! DataUploads: how one is asked for, what one says, and how those of a Backup are found and
//! canceled.

use std::time::Duration;

use anyhow::Context as _;
use berth_api::GoDuration;
use berth_api::keys::{self, label_value};
use berth_api::velero::Backup;
use berth_core::mover::{MoverKind, own};
use berth_core::operation::{OperationObject, OperationProgress};
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::warn;

use crate::backup::movement::{Moved, Movement};
use crate::backup::volumes::objects::patch_own;
use crate::movers::objects;
use crate::patch::digest;

/// Time-out of one call, and of canceling all DataUploads of a Backup.
const CALL: Duration = Duration::from_secs(30);
const CANCELS: Duration = Duration::from_secs(120);
const CANCELS_AT_ONCE: usize = 8;
/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Most pages: many more DataUploads than a backup has.
const PAGES: usize = 40;
/// Most characters of a data mover's message that are kept.
const MESSAGE: usize = 300;
/// Most bytes of a name that becomes the value of a label.
const NAME: usize = 63;
/// Hexadecimal digits of a name that stand for the claim.
const DIGITS: usize = 12;
/// `spec.csiSnapshotTimeout` of a Backup that has none.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);

pub fn api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    objects::api(client, namespace, MoverKind::DataUpload)
}

/// What the spec of a Backup says of its movements.
pub struct MovementSettings {
    pub backup: String,
    pub uid: String,
    location: String,
    pub datamover: String,
    snapshot_timeout: String,
    parallel_files: Option<i64>,
}

impl MovementSettings {
    pub fn of(backup: &Backup) -> Self {
        let spec = &backup.spec;
        let snapshot_timeout =
            spec.csi_snapshot_timeout.as_ref().and_then(|timeout| timeout.get().ok().flatten());
        let snapshot_timeout = GoDuration::from_duration(snapshot_timeout.unwrap_or(SNAPSHOT_TIMEOUT));
        let parallel_files = spec.uploader_config.as_ref().and_then(|config| config.parallel_files_upload);
        Self {
            backup: backup.name_any(),
            uid: backup.uid().unwrap_or_default(),
            location: spec.storage_location.clone().unwrap_or_default(),
            datamover: spec.datamover.clone().unwrap_or_default(),
            snapshot_timeout: snapshot_timeout.0,
            parallel_files: parallel_files.filter(|count| *count > 0),
        }
    }
}

/// The name of the DataUpload of a claim. `try_count`: how many of its DataUploads were canceled.
pub fn name_of(backup: &str, uid: &str, claim_uid: &str, try_count: u32) -> String {
    let digits = digest(&format!("{uid}/{claim_uid}/{try_count}"));
    let digits = digits.get(..DIGITS).unwrap_or_default();
    let base: String = backup.chars().take(NAME - DIGITS - 1).collect();
    // A part of a name may end in a dot, which must not stand beside the hyphen.
    format!("{}-{digits}", base.trim_end_matches(['.', '-']))
}

/// The ID of the operation, as Velero forms it.
pub fn operation_id(uid: &str, claim_uid: &str) -> String {
    label_value(&format!("du-{uid}.{claim_uid}"), digest)
}

/// The DataUpload of a claim.
pub fn object(
    namespace: &str,
    name: &str,
    asked: &MovementSettings,
    datamover: &str,
    moved: &Moved,
) -> DynamicObject {
    let MovementSettings { backup, uid, location, snapshot_timeout, parallel_files, .. } = asked;
    let mut spec = json!({
        "snapshotType": "CSI",
        "csiSnapshot": {
            "volumeSnapshot": moved.snapshot, "storageClass": moved.storage_class,
            "snapshotClass": moved.snapshot_class, "driver": moved.driver,
        },
        "sourcePVC": moved.claim,
        "sourceNamespace": moved.namespace,
        "backupStorageLocation": location,
        "operationTimeout": snapshot_timeout,
    });
    if !datamover.is_empty() {
        spec["datamover"] = json!(datamover);
    }
    if let Some(count) = parallel_files {
        spec["dataMoverConfig"] = json!({"ParallelFilesUpload": count.to_string()});
    }
    let mut object = DynamicObject::new(name, &objects::resource(MoverKind::DataUpload))
        .within(namespace)
        .data(json!({"spec": spec}));
    object.metadata.labels = Some(
        [
            (keys::BACKUP_NAME.to_owned(), label_value(backup, digest)),
            (keys::BACKUP_UID.to_owned(), uid.clone()),
            (keys::PVC_UID.to_owned(), moved.claim_uid.clone()),
            (keys::OPERATION_ID.to_owned(), operation_id(uid, &moved.claim_uid)),
        ]
        .into(),
    );
    // Else the snapshot would stay if it were deleted with its Backup before anybody looks at it.
    object.metadata.finalizers = own::is_own(Some(datamover)).then(|| vec![keys::MOVER_FINALIZER.to_owned()]);
    object.metadata.owner_references =
        Some(vec![k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
            api_version: "velero.io/v1".to_owned(),
            kind: "Backup".to_owned(),
            name: backup.clone(),
            uid: uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }]);
    object
}

/// Whether an object is an operation of the Backup: by its label, which one that was given up has
/// lost, and by its owner.
pub fn is_of(object: &DynamicObject, uid: &str) -> bool {
    object.labels().get(keys::BACKUP_UID).is_some_and(|label| label == uid)
        && object.owner_references().iter().any(|owner| owner.kind == "Backup" && owner.uid == uid)
}

/// A DataUpload as it stands.
#[derive(Clone, Debug)]
pub struct DataUploadObject {
    pub name: String,
    pub created: Option<Timestamp>,
    pub phase: String,
    /// What the data mover says.
    pub message: String,
    is_canceled: bool,
    is_deleted: bool,
    pub object: DynamicObject,
}

impl DataUploadObject {
    pub fn read(object: DynamicObject) -> Self {
        let text = |at: &str| object.data.pointer(at).and_then(Value::as_str).unwrap_or_default();
        Self {
            name: object.name_any(),
            created: object.creation_timestamp().map(|time| time.0),
            phase: text("/status/phase").to_owned(),
            message: text("/status/message").chars().filter(|c| !c.is_control()).take(MESSAGE).collect(),
            is_canceled: object.data.pointer("/spec/cancel") == Some(&json!(true)),
            is_deleted: object.metadata.deletion_timestamp.is_some(),
            object,
        }
    }

    /// Whether somebody has asked for its end.
    pub fn is_given_up(&self) -> bool {
        let has_ended = matches!(self.phase.as_str(), "Completed" | "Failed");
        self.is_deleted || self.phase == "Canceled" || self.is_canceled && !has_ended
    }

    /// Whether its label and its owner name this Backup.
    pub fn is_of_backup(&self, name: &str) -> bool {
        self.object.labels().get(keys::BACKUP_NAME) == Some(&label_value(name, digest))
            && self.object.owner_references().iter().any(|owner| owner.kind == "Backup" && owner.name == name)
    }

    /// Whether a data mover of berth may still store something for it. Its pod goes before berth's
    /// finalizer does, because a pod that hangs does not write how it ends.
    pub fn may_store(&self) -> bool {
        let is_own = own::is_own(self.object.data.pointer("/spec/datamover").and_then(Value::as_str));
        let has_ended = matches!(self.phase.as_str(), "Completed" | "Failed" | "Canceled");
        is_own && (!has_ended || self.object.finalizers().iter().any(|one| one == keys::MOVER_FINALIZER))
    }

    pub fn standing(&self, timeout: Duration, now: Timestamp) -> OperationProgress {
        let created = self.created.unwrap_or(now);
        OperationProgress::of(Some(&OperationObject { phase: &self.phase, created }), timeout, now)
    }

    /// How many bytes are moved, of how many, as far as the data mover says.
    pub fn progress(&self) -> (u64, u64) {
        let number = |at: &str| self.object.data.pointer(at).and_then(Value::as_u64).unwrap_or(0);
        (number("/status/progress/bytesDone"), number("/status/progress/totalBytes"))
    }

    fn text(&self, at: &str) -> String {
        self.object.data.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// The movement, as far as its object shows it.
    pub fn movement(&self) -> Movement {
        Movement {
            upload: self.name.clone(),
            namespace: self.text("/spec/sourceNamespace"),
            claim: self.text("/spec/sourcePVC"),
            claim_uid: self.object.labels().get(keys::PVC_UID).cloned().unwrap_or_default(),
            volume: String::new(),
            snapshot: self.text("/spec/csiSnapshot/volumeSnapshot"),
            driver: self.text("/spec/csiSnapshot/driver"),
            created: self.created.map(|created| created.to_string()).unwrap_or_default(),
        }
    }
}

/// The DataUploads of a Backup, as they are now.
///
/// # Errors
/// When they cannot be listed.
pub async fn of_backup(client: &Client, namespace: &str, uid: &str) -> anyhow::Result<Vec<DataUploadObject>> {
    let mut found = Vec::new();
    each_of_backup(client, namespace, uid, |upload| found.push(upload)).await?;
    Ok(found)
}

/// Reads the DataUploads of a Backup one after the other.
///
/// # Errors
/// When they cannot be listed.
pub async fn each_of_backup(
    client: &Client,
    namespace: &str,
    uid: &str,
    mut take: impl FnMut(DataUploadObject),
) -> anyhow::Result<()> {
    let api = api(client, namespace);
    let mut params = ListParams::default().labels(&format!("{}={uid}", keys::BACKUP_UID)).limit(PAGE);
    for _ in 0..PAGES {
        let page = match timeout(CALL, api.list(&params)).await {
            Ok(Ok(page)) => page,
            Ok(Err(error)) if crate::client::is_not_found(&error) => return Ok(()),
            Ok(Err(error)) => return Err(error).context("failed to list the DataUploads of the backup"),
            Err(_) => anyhow::bail!("the API server did not list the DataUploads of the backup in time"),
        };
        page.items
            .into_iter()
            .filter(|object| is_of(object, uid))
            .map(DataUploadObject::read)
            .for_each(&mut take);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
    anyhow::bail!("there are more than {} DataUploads of the backup", PAGES * PAGE as usize)
}

/// Cancels these DataUploads, as far as they have not ended. Their data movers do the rest, and
/// write to them meanwhile: what meets such a write is repeated, because one that is not canceled
/// goes on.
/// `forgets`: the backup begins again, so none of them is an operation of it any more.
pub async fn cancel(client: &Client, namespace: &str, uploads: &[DataUploadObject], forgets: bool) {
    let api = api(client, namespace);
    let is_going = |upload: &&DataUploadObject| {
        let has_ended = matches!(upload.phase.as_str(), "Completed" | "Failed" | "Canceled");
        forgets || !(upload.is_given_up() || has_ended)
    };
    let mut change = json!({"spec": {"cancel": true}});
    if forgets {
        change["metadata"] = json!({"labels": {keys::BACKUP_UID: null}});
    }
    let canceled =
        futures::stream::iter(uploads.iter().filter(is_going)).for_each_concurrent(CANCELS_AT_ONCE, |one| {
            let (api, change) = (&api, change.clone());
            async move {
                let that_one = (one.name.as_str(), one.object.metadata.uid.as_deref());
                if let Err(error) = patch_own(api, that_one, change).await {
                    warn!(name = %one.name, error, "could not cancel a DataUpload: it may go on");
                }
            }
        });
    if timeout(CANCELS, canceled).await.is_err() {
        warn!(
            "could not cancel all DataUploads of a backup in time: those that are left go on, and can be canceled by spec.cancel"
        );
    }
}

/// Cancels all DataUploads of a Backup (its name, and its UID) that have not ended. They must have
/// its name as well, because the UID may be from a claim that somebody has forged to name another
/// Backup, which runs.
pub async fn cancel_all(client: &Client, namespace: &str, (name, uid): (&str, &str), forgets: bool) {
    match of_backup(client, namespace, uid).await {
        Ok(mut uploads) => {
            uploads.retain(|upload| upload.is_of_backup(name));
            cancel(client, namespace, &uploads, forgets).await;
        }
        Err(error) => {
            warn!(
                error = format!("{error:#}"),
                "could not find the DataUploads of a backup that ended: they may go on"
            );
        }
    }
}
