//! Movements of snapshot data, which go on after a backup has stored its objects.
//!
//! A movement is a DataUpload, run by Velero's node-agents, by berth itself
//! ([`crate::data_movement`]) or by another data mover. The run creates it ([`DataUploadCreator`])
//! and remembers it in its checkpoint. When all objects are stored and movements are under way, the
//! run lets everything go: its last checkpoint holds what is needed to complete the archive, and
//! the Backup moves on to WaitingForPluginOperations, in which it holds no slot. `waiting` follows
//! the DataUploads by one watch (`shown`), and `finalize` completes the archive when all of them
//! have ended. Both begin from the API objects and the checkpoint, whichever process stored the
//! objects.

mod finalize;
mod forget;
mod on_record;
pub mod shown;
pub mod stored_results;
pub mod uploads;
mod waiting;

use berth_api::velero::{Backup, BackupSpec};
use berth_core::mover::own;
use berth_core::volume::node_agents::NodeAgent;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::OnceCell;
use tokio::time::Instant;

pub use forget::{data_namespaces, may_store};
pub use waiting::Attended;

use super::agent_pods::node_agents;
use super::log::BackupLog;
use super::movement::{MOST_MOVEMENTS, MoveData, Moved, Movement, Movements};
use crate::text::chain;
use crate::write::{Pauses, WriteResult, create};
use uploads::{DataUploadObject, MovementSettings, api, name_of, object};

/// How long the creation of one DataUpload is tried.
const INSISTS: std::time::Duration = std::time::Duration::from_secs(60);
/// How often the data of one claim is begun to be moved, each time because an earlier run has
/// canceled its DataUpload.
const MOST_TRIES: u32 = 16;

impl Movements {
    /// Adds what stands in the cluster and is not known, because the run that created it ended
    /// before its next checkpoint.
    pub fn adopt(&self, found: &[DataUploadObject]) {
        for upload in found.iter().filter(|upload| !upload.is_given_up()) {
            self.add(upload.movement());
        }
    }
}

/// Creates the DataUploads of one run.
pub struct DataUploadCreator<'a> {
    client: Client,
    namespace: String,
    asked: MovementSettings,
    movements: &'a Movements,
    log: &'a BackupLog,
    /// The data mover, where the Backup names none.
    chosen: OnceCell<&'static str>,
}

impl<'a> DataUploadCreator<'a> {
    pub fn new(
        client: &Client,
        namespace: &str,
        backup: &Backup,
        movements: &'a Movements,
        log: &'a BackupLog,
    ) -> Self {
        let asked = MovementSettings::of(backup);
        let (client, namespace) = (client.clone(), namespace.to_owned());
        Self { client, namespace, asked, movements, log, chosen: OnceCell::new() }
    }

    /// What the Backup says or, if it says nothing, berth where only its own agents run.
    async fn datamover(&self) -> Result<&str, String> {
        let asked = self.asked.datamover.as_str();
        if !asked.is_empty() {
            return Ok(asked);
        }
        let choose = || async {
            let agents = node_agents(&self.client, &self.namespace).await?;
            Ok(if agents.mover() == Some(NodeAgent::Berth) { own::DATAMOVER } else { "" })
        };
        self.chosen.get_or_try_init(choose).await.copied()
    }

    /// Creates the DataUpload, or finds the one that an earlier run has created: its name follows
    /// from the Backup and the claim, so no crash leads to two of them.
    async fn begin(&self, moved: &Moved) -> Result<DataUploadObject, String> {
        let api = api(&self.client, &self.namespace);
        let datamover = self.datamover().await?;
        let (begun, mut pauses) = (Instant::now(), Pauses::default());
        let mut try_count = 0;
        loop {
            let name = name_of(&self.asked.backup, &self.asked.uid, &moved.claim_uid, try_count);
            let upload = object(&self.namespace, &name, &self.asked, datamover, moved);
            let error = match create(&api, &upload).await {
                WriteResult::Written(created) => return Ok(DataUploadObject::read(created)),
                WriteResult::Conflict(_) => match api.get_opt(&name).await {
                    Ok(Some(found)) => {
                        let is_ours = uploads::is_of(&found, &self.asked.uid);
                        let found = DataUploadObject::read(found);
                        if is_ours && !found.is_given_up() {
                            return Ok(found);
                        }
                        try_count += 1;
                        if try_count >= MOST_TRIES {
                            return Err(format!("DataUploads from {name} back stand in its way"));
                        }
                        continue;
                    }
                    Ok(None) => None,
                    Err(error) => Some(error),
                },
                WriteResult::Gone(_) => {
                    return Err(
                        "the cluster has no DataUploads: install what moves them (berth install --pod-volumes, or Velero's definitions and node-agents)"
                            .to_owned(),
                    );
                }
                WriteResult::Refused(error) if crate::queue::refusals::is_lasting(&error) => {
                    return Err(format!("its DataUpload was refused: {}", chain(&error)));
                }
                WriteResult::Refused(error) => Some(error),
                WriteResult::TimedOut => None,
            };
            if begun.elapsed() >= INSISTS {
                let why =
                    error.map_or_else(|| "the API server did not answer in time".to_owned(), |e| chain(&e));
                return Err(format!("its DataUpload could not be created: {why}"));
            }
            pauses.wait().await;
        }
    }
}

impl MoveData for DataUploadCreator<'_> {
    async fn move_data(&self, moved: Moved) -> Result<String, String> {
        if self.movements.len() >= MOST_MOVEMENTS {
            return Err(format!("a backup moves the data of {MOST_MOVEMENTS} claims at most"));
        }
        let upload = self.begin(&moved).await?;
        let name = &upload.name;
        self.log
            .info(&format!("DataUpload {name} moves the data of claim {}/{}", moved.namespace, moved.claim));
        let (created, uid) = (upload.created.unwrap_or_else(Timestamp::now), upload.object.metadata.uid);
        self.movements.note(Movement {
            upload: upload.name,
            namespace: moved.namespace,
            claim: moved.claim,
            claim_uid: moved.claim_uid,
            volume: moved.volume,
            snapshot: moved.snapshot,
            driver: moved.driver,
            created: created.to_string(),
        });
        Ok(uid.unwrap_or_default())
    }

    fn upload_of(&self, claim_uid: &str) -> Option<String> {
        self.movements.of_claim(claim_uid).map(|name| format!("{}/{name}", self.namespace))
    }
}

/// Whether a backup may have movements.
pub fn moves_data(spec: &BackupSpec) -> bool {
    spec.snapshot_move_data == Some(true)
}

#[cfg(test)]
mod tests;
