//! What a stored backup says of the data of its volumes.

use std::collections::BTreeMap;

use super::cancel::volume_backups;
use super::objects::{OWN, list_all};
use super::outcomes::{Outcomes, StoredVolumeData, standing};
use super::read::VolumeTraits;
use crate::backup::engine::{Engine, RunFailure};
use crate::backup::list::ListError;
use crate::backup::log::{BackupLog, ResultsHeading};
use crate::backup::status::BackupWriter;
use crate::text::chain;

impl Engine {
    /// What the stored backup says of the data of its volumes, when all data is taken. Missing data
    /// that was not reported yet becomes an error of the backup.
    pub(in crate::backup) async fn data(
        &self,
        record: &BackupWriter,
        outcomes: &Outcomes,
        traits: &BTreeMap<String, VolumeTraits>,
        log: &BackupLog,
    ) -> Result<StoredVolumeData, RunFailure> {
        let mut files = Vec::new();
        if outcomes.has_files() {
            let api = volume_backups(&self.client, &self.namespace);
            let all = list_all(&api, record.uid(), &OWN, |_| true).await;
            let all = all.map_err(|error| {
                let error = format!("failed to list the backup's PodVolumeBackups: {}", chain(&error));
                // Another run finds all data stored, and tries this again.
                RunFailure::List(ListError::Gone(Box::new(ListError::Unreachable(error.into()))))
            })?;
            files.extend(all.into_iter().filter_map(|one| serde_json::to_value(one).ok()));
        }
        let (files, doubtful) = standing(files);
        for (namespace, message) in doubtful {
            log.error(&ResultsHeading::Namespace(&namespace), "pods", &message);
        }
        for (namespace, message) in outcomes.unfinished(&files) {
            log.error(&ResultsHeading::Namespace(&namespace), "persistentvolumeclaims", &message);
        }
        Ok(StoredVolumeData { infos: outcomes.infos(&files, traits), snapshots: outcomes.counts(), files })
    }
}
