//! The drivers of which CSI snapshots can be taken.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::snapshot::VolumeSnapshotClass;
use kube::Client;
use kube::ResourceExt as _;
use kube::api::Api;
use kube::runtime::watcher;
use parking_lot::RwLock;

use crate::watch::{WatchEvent, reflect};

/// Most VolumeSnapshotClasses that are kept. Clusters have a few; nothing is said of one with more.
const MOST: usize = 1000;

/// The driver of each VolumeSnapshotClass, from a watch. A process is ready without it, because it
/// only serves warnings.
#[derive(Default)]
pub struct SnapshotClasses {
    /// `None`: not listed yet.
    drivers: RwLock<Option<BTreeMap<String, String>>>,
}

impl SnapshotClasses {
    /// `None`: not known.
    pub fn drivers(&self) -> Option<BTreeSet<String>> {
        let drivers = self.drivers.read();
        drivers.as_ref().filter(|all| all.len() <= MOST).map(|all| all.values().cloned().collect())
    }

    /// Watches them. Never returns. Where the cluster has no such kind there are none.
    pub async fn follow(&self, client: &Client) {
        let keep = |class: VolumeSnapshotClass| (class.name_any(), class.driver);
        reflect(Api::all(client.clone()), watcher::Config::default(), keep, |event| {
            let mut drivers = self.drivers.write();
            if drivers.is_some() || matches!(event, WatchEvent::Replaced(_)) {
                event.apply_to(drivers.get_or_insert_default());
            }
        })
        .await;
    }
}
