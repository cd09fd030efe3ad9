//! The volumes whose data a backup would take, for a dry run.

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::files::FilePod;
use super::{Jobs, PlannedClaim, RunVolumes, VolumeJob, VolumeWork};
use crate::backup::archive::Batch;

/// How many volumes are listed; the others are only counted.
const MOST: usize = 10_000;

/// How the data of a volume would be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeMethod {
    Snapshot,
    /// A snapshot whose data is moved into the storage location.
    Move,
    /// A node-agent reads its files.
    Files,
}

/// One volume whose data would be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RehearsedVolume {
    pub way: VolumeMethod,
    /// Key of the claim, if there is one.
    pub claim: Option<String>,
    /// If its files would be read: namespace, slash, pod, and the name of the volume in the pod.
    pub pod: Option<(String, String)>,
    pub driver: String,
    /// VolumeSnapshotClass.
    pub class: String,
}

/// All volumes whose data would be taken.
#[derive(Debug, Default)]
pub struct RehearsedVolumes {
    pub volumes: Vec<RehearsedVolume>,
    /// How many more volumes there are than are listed.
    pub more: u64,
}

impl RehearsedVolumes {
    fn add(&mut self, volume: RehearsedVolume) {
        if self.volumes.len() < MOST { self.volumes.push(volume) } else { self.more += 1 }
    }

    /// Records a pod whose files would be read.
    pub fn files(&mut self, pod: FilePod) {
        let key = format!("{}/{}", pod.namespace, pod.name);
        for volume in pod.volumes {
            self.add(RehearsedVolume {
                way: VolumeMethod::Files,
                claim: volume.claim.map(|claim| claim.key),
                pod: Some((key.clone(), volume.name)),
                driver: String::new(),
                class: String::new(),
            });
        }
    }
}

impl PlannedClaim {
    /// Records the claim, and returns its object.
    pub fn rehearsed(self, noted: &Mutex<RehearsedVolumes>) -> Batch {
        let Self { kind, page, item, ask, under_way: _ } = self;
        noted.lock().add(RehearsedVolume {
            way: if ask.moves { VolumeMethod::Move } else { VolumeMethod::Snapshot },
            claim: Some(ask.claim),
            pod: None,
            driver: ask.driver,
            class: ask.class,
        });
        Batch { kind, page, items: vec![item], packed: None }
    }
}

impl RunVolumes<'_> {
    /// Takes the place of [`RunVolumes::run`] in a dry run: records what is asked for, and takes
    /// nothing. Never returns.
    pub async fn rehearse(
        &self,
        mut jobs: Jobs,
        batches: mpsc::Sender<Batch>,
        noted: &Mutex<RehearsedVolumes>,
    ) {
        // The data of frozen pods is recorded with their blocks.
        while let Some(VolumeJob { work, _under_way }) = jobs.later.recv().await {
            match work {
                VolumeWork::Claim(planned) => {
                    // The channel is closed if the dry run ends early.
                    let _ = batches.send(planned.rehearsed(noted)).await;
                }
                VolumeWork::Group(claims) => {
                    for planned in claims {
                        let _ = batches.send(planned.rehearsed(noted)).await;
                    }
                }
                VolumeWork::Files(pod) => noted.lock().files(pod),
            }
        }
        std::future::pending::<()>().await;
    }
}
