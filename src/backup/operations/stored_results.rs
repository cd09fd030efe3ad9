//! What a stored backup says of its operations: the file of item operations, and the volume infos
//! of moved data.

use berth_core::mover::own::is_own;
use berth_core::operation::OperationProgress;
use berth_core::pod_volume::UPLOADER;
use berth_core::volume::node_agents::KOPIA;
use serde_json::{Value, json};

use super::uploads::{DataUploadObject, operation_id};
use crate::backup::movement::Movement;

/// The action by which Velero moves the data of claims.
const ACTION: &str = "velero.io/csi-pvc-backupper";

/// A movement, and what has become of it.
pub struct EndedMovement {
    pub movement: Movement,
    /// `None`: there is no such object any more.
    pub upload: Option<DataUploadObject>,
    pub standing: OperationProgress,
}

impl EndedMovement {
    fn status(&self, at: &str) -> Value {
        let upload = self.upload.as_ref();
        upload
            .and_then(|upload| upload.object.data.pointer(&format!("/status/{at}")))
            .cloned()
            .unwrap_or_default()
    }

    /// Why it failed.
    pub fn fault(&self) -> Option<String> {
        let OperationProgress::Failed(fault) = self.standing else { return None };
        let said = self.upload.as_ref().map(|upload| upload.message.as_str()).filter(|said| !said.is_empty());
        Some(match said {
            Some(said) => format!("{}: {said}", fault.as_str()),
            None => fault.as_str().to_owned(),
        })
    }

    fn phase(&self) -> &str {
        self.upload.as_ref().map_or("", |upload| &upload.phase)
    }

    /// Its entry of the file of item operations. `namespace`: of the Backup.
    pub fn operation(&self, namespace: &str, backup: &str, uid: &str) -> Value {
        let Movement { upload, namespace: of_claim, claim, claim_uid, created, .. } = &self.movement;
        let is_completed = self.standing == OperationProgress::Completed;
        let mut status = json!({
            "phase": if is_completed { "Completed" } else { "Failed" },
            "operationUnits": "Byte", "description": self.phase(), "created": created,
        });
        for (key, value) in [
            ("nCompleted", self.status("progress/bytesDone")),
            ("nTotal", self.status("progress/totalBytes")),
            ("started", self.status("startTimestamp")),
            ("updated", self.status("completionTimestamp")),
        ] {
            if !value.is_null() {
                status[key] = value;
            }
        }
        if let Some(fault) = self.fault() {
            status["error"] = json!(fault);
        }
        json!({
            "spec": {
                "backupName": backup, "backupUID": uid, "backupItemAction": ACTION,
                "resourceIdentifier": {
                    "Group": "", "Resource": "persistentvolumeclaims", "Namespace": of_claim, "Name": claim,
                },
                "operationID": operation_id(uid, claim_uid),
                "postOperationItems": [{
                    "Group": "velero.io", "Resource": "datauploads", "Namespace": namespace, "Name": upload,
                }],
            },
            "status": status,
        })
    }

    /// Its volume info, by which a restore knows how to bring the volume back. `datamover`: what
    /// the Backup says, for a DataUpload that is gone. `None`: the volume is not known.
    pub fn volume_info(&self, uid: &str, datamover: &str) -> Option<Value> {
        let Movement { namespace, claim, claim_uid, volume, snapshot, driver, created, .. } = &self.movement;
        if volume.is_empty() {
            return None;
        }
        let is_completed = self.standing == OperationProgress::Completed;
        let said = self.upload.as_ref().and_then(|upload| upload.object.data.pointer("/spec/datamover"));
        let datamover = said.and_then(Value::as_str).unwrap_or(datamover);
        let number = |at: &str| self.status(at).as_u64().unwrap_or(0);
        let size = number("progress/totalBytes");
        let mut info = json!({
            "pvcName": claim, "pvcNamespace": namespace, "pvName": volume,
            "backupMethod": "CSISnapshot", "snapshotDataMoved": true, "preserveLocalSnapshot": false,
            "skipped": false, "result": if is_completed { "succeeded" } else { "failed" },
            "startTimestamp": created,
            // Velero writes this text for a snapshot that goes when its data is moved.
            "csiSnapshotInfo": {
                "snapshotHandle": "unknown", "size": size, "driver": driver, "vscName": "unknown",
                "operationID": "unknown", "ReadyToUse": null,
            },
            "snapshotDataMovementInfo": {
                "dataMover": if datamover.is_empty() { "velero" } else { datamover },
                "uploaderType": if is_own(Some(datamover)) { UPLOADER } else { KOPIA },
                "snapshotHandle": self.status("snapshotID").as_str().unwrap_or_default(),
                "operationID": operation_id(uid, claim_uid),
                "size": size, "Phase": self.phase(),
            },
        });
        if !snapshot.is_empty() {
            info["snapshotDataMovementInfo"]["retainedSnapshot"] = json!(snapshot);
        }
        let incremental = number("incrementalBytes");
        if incremental > 0 {
            info["snapshotDataMovementInfo"]["incrementalSize"] = json!(incremental);
        }
        let ended = self.status("completionTimestamp");
        if !ended.is_null() {
            info["completionTimestamp"] = ended;
        }
        Some(info)
    }
}

#[cfg(test)]
mod tests {
    use berth_core::operation::OperationFault;

    use super::*;

    fn movement() -> Movement {
        let [upload, namespace, claim, claim_uid, volume, snapshot, driver, created] =
            ["up", "app", "data", "c", "pv", "s", "d", "t"].map(str::to_owned);
        Movement { upload, namespace, claim, claim_uid, volume, snapshot, driver, created }
    }

    fn upload(datamover: Value, status: Value) -> DataUploadObject {
        let object = json!({
            "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "metadata": {"name": "up"},
            "spec": {"datamover": datamover}, "status": status,
        });
        DataUploadObject::read(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_moved_volume_has_the_info_that_a_restore_needs() {
        let status = json!({
            "phase": "Completed", "snapshotID": "k", "progress": {"totalBytes": 7, "bytesDone": 7},
            "incrementalBytes": 3, "startTimestamp": "s", "completionTimestamp": "e",
        });
        for (datamover, wanted, uploader) in [
            (Value::Null, "velero", "kopia"),
            (json!("berth"), "berth", "restic"),
            (json!("vendor"), "vendor", "kopia"),
        ] {
            let upload = Some(upload(datamover, status.clone()));
            let moved =
                EndedMovement { movement: movement(), upload, standing: OperationProgress::Completed };
            let info = moved.volume_info("u", "").unwrap();
            let fields =
                ["pvcName", "pvcNamespace", "pvName", "backupMethod", "result", "completionTimestamp"];
            let said = fields.map(|field| info[field].as_str().unwrap_or_default());
            assert_eq!(said, ["data", "app", "pv", "CSISnapshot", "succeeded", "e"]);
            assert_eq!((&info["snapshotDataMoved"], &info["skipped"]), (&json!(true), &json!(false)));
            let of_data = json!({
                "dataMover": wanted, "uploaderType": uploader, "snapshotHandle": "k", "operationID": "du-u.c",
                "size": 7, "incrementalSize": 3, "Phase": "Completed", "retainedSnapshot": "s",
            });
            assert_eq!(info["snapshotDataMovementInfo"], of_data);
            let unknown = ["snapshotHandle", "vscName", "operationID"];
            let said = unknown.map(|field| info["csiSnapshotInfo"][field].as_str().unwrap_or_default());
            assert_eq!(said, ["unknown"; 3]);
        }
    }

    #[test]
    fn what_was_not_moved_says_why_and_what_is_not_known_has_no_info() {
        let full = json!({"phase": "Failed", "message": "the disk is full"});
        let standing = OperationProgress::Failed(OperationFault::Reported);
        let failed =
            EndedMovement { movement: movement(), upload: Some(upload(Value::Null, full)), standing };
        assert_eq!(failed.volume_info("u", "").unwrap()["result"], "failed");
        let told = failed.operation("velero", "b", "u");
        assert_eq!(
            (&told["status"]["phase"], &told["status"]["error"]),
            (&json!("Failed"), &json!("its data mover failed: the disk is full"))
        );
        // Its DataUpload is gone, so the Backup says who was to move it.
        let standing = OperationProgress::Failed(OperationFault::Gone);
        let gone = EndedMovement { movement: movement(), upload: None, standing };
        assert_eq!(
            gone.volume_info("u", "vendor").unwrap()["snapshotDataMovementInfo"]["dataMover"],
            "vendor"
        );
        let nameless = Movement { volume: String::new(), ..movement() };
        let gone = EndedMovement { movement: nameless, upload: None, standing };
        assert!(gone.volume_info("u", "").is_none());
    }
}
