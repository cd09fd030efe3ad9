//! What would be taken of the volumes of a backup that is only rehearsed.

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::files::FilePod;
use super::{Jobs, PlannedClaim, RunVolumes, VolumeJob, VolumeWork};
use crate::backup::archive::Batch;

/// Volumes that are noted; the others are counted only.
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
    /// Namespace, slash, pod, and the name of the volume in it, where its files are taken.
    pub pod: Option<(String, String)>,
    pub driver: String,
    /// VolumeSnapshotClass.
    pub class: String,
}

/// All of them.
#[derive(Debug, Default)]
pub struct RehearsedVolumes {
    pub volumes: Vec<RehearsedVolume>,
    /// Those for which there was no room.
    pub more: u64,
}

impl RehearsedVolumes {
    fn add(&mut self, volume: RehearsedVolume) {
        if self.volumes.len() < MOST { self.volumes.push(volume) } else { self.more += 1 }
    }

    /// Notes a pod whose files would be taken.
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
    /// Notes the claim, and gives its object.
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
    /// In the place of [`RunVolumes::run`]: notes what is asked for, and takes nothing. Never ends.
    pub async fn rehearse(
        &self,
        mut jobs: Jobs,
        batches: mpsc::Sender<Batch>,
        noted: &Mutex<RehearsedVolumes>,
    ) {
        // What would be taken of frozen pods is noted with their blocks.
        while let Some(VolumeJob { work, _under_way }) = jobs.later.recv().await {
            match work {
                VolumeWork::Claim(planned) => {
                    // A closed channel means that the rehearsal ends early.
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
