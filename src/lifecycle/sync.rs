//! Backup sync: creates Backups that a store has and the cluster lacks, and removes those whose
//! files are gone. Each location has a round whenever its period has passed; [`berth_core::sync`]
//! decides what a round does.

pub mod metrics;
mod object;
mod orphans;
mod round;
mod take;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::velero::{BackupStorageLocation, BackupStorageLocationPhase as Phase};
use berth_core::sync::{Memory, is_due};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt};
use tokio::time::sleep;

use super::Lifecycle;

/// How often it is checked which locations are due.
const TICK: Duration = Duration::from_secs(1);
/// Rounds that run at the same time, each of another location.
const ROUNDS_AT_ONCE: usize = 8;
/// Requests of one round that run at the same time.
const READS_AT_ONCE: usize = 16;

/// What is remembered between the rounds of one location.
#[derive(Default)]
struct Past {
    memory: Memory,
    /// The spec of the last round. When it changes, what was remembered does not apply.
    spec: serde_json::Value,
    /// When the last round began; the location may not show it yet.
    begun: Option<Timestamp>,
    /// The last message about a failed round, so that it is logged once.
    said: String,
    /// Other clusters that were reported to write here.
    others: BTreeSet<String>,
    /// The last reported number of Backups that stay although the store's list lacks them.
    spared: usize,
    /// Backups for which it was reported that their PodVolumeBackups could not be read or created.
    volumes: BTreeSet<String>,
    /// Bytes of the PodVolumeBackups that these rounds have created, by Backup.
    brought: BTreeMap<String, usize>,
    /// The last Backup whose missing PodVolumeBackups the round before created, or tried to.
    repaired: String,
    /// The last folder without metadata that was looked at for what a Backup has left.
    looked: String,
    /// Folders of finished backups of which it was logged that they have lost their metadata.
    finished: BTreeSet<String>,
}

/// What all rounds share.
struct Sync<'l> {
    lifecycle: &'l Lifecycle,
}

/// Never returns.
pub async fn run(lifecycle: &Lifecycle) {
    let sync = Sync { lifecycle };
    let mut pasts: BTreeMap<String, Past> = BTreeMap::new();
    let mut running: BTreeSet<String> = BTreeSet::new();
    let mut rounds = FuturesUnordered::new();
    loop {
        if lifecycle.known.is_synced() {
            let locations = lifecycle.known.locations();
            lifecycle.sync_metrics.show_phases(&locations);
            let is_here = |name: &String| locations.iter().any(|location| location.name_any() == *name);
            pasts.retain(|name, _| {
                is_here(name) || running.contains(name) || {
                    lifecycle.sync_metrics.forget_location(name);
                    false
                }
            });
            for location in sync.due(locations, &pasts, Timestamp::now()) {
                let name = location.name_any();
                if rounds.len() >= ROUNDS_AT_ONCE || !running.insert(name.clone()) {
                    continue;
                }
                let mut past = pasts.remove(&name).unwrap_or_default();
                let sync = &sync;
                rounds.push(async move {
                    sync.round(&location, &mut past).await;
                    (name, past)
                });
            }
        }
        tokio::select! {
            () = sleep(TICK) => {}
            Some((name, past)) = rounds.next() => {
                running.remove(&name);
                pasts.insert(name, past);
            }
        }
    }
}

impl Sync<'_> {
    /// The locations whose period has passed, the default one first.
    fn due(
        &self,
        mut locations: Vec<BackupStorageLocation>,
        pasts: &BTreeMap<String, Past>,
        now: Timestamp,
    ) -> Vec<BackupStorageLocation> {
        locations.retain(|location| {
            let status = location.status.as_ref();
            let shown = status.and_then(|s| s.last_synced_time.as_ref()).map(|time| time.0);
            let begun = pasts.get(&location.name_any()).and_then(|past| past.begun);
            let is_available = status.and_then(|s| s.phase) == Some(Phase::Available);
            is_available
                && location.metadata.deletion_timestamp.is_none()
                && is_due(shown.max(begun), self.period(location), now)
        });
        locations.sort_by_key(|location| (location.spec.default != Some(true), location.name_any()));
        locations
    }

    /// The time between two rounds. `None`: no rounds.
    fn period(&self, location: &BackupStorageLocation) -> Option<SignedDuration> {
        let usual = Some(self.lifecycle.sync_period).filter(|period| !period.is_zero());
        let period = match &location.spec.backup_sync_period {
            None => usual,
            // 0 means never. An unreadable or negative value means the default.
            Some(text) => text.get().unwrap_or(usual),
        };
        period.map(|period| SignedDuration::try_from(period).unwrap_or(SignedDuration::MAX))
    }
}

fn reference(location: &BackupStorageLocation) -> ObjectReference {
    location.object_ref(&())
}

#[cfg(test)]
mod tests;
