//! The drivers of which CSI snapshots can be taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use berth_api::snapshot::VolumeSnapshotClass;
use kube::Client;
use kube::ResourceExt as _;
use kube::api::Api;
use kube::runtime::watcher;
use parking_lot::RwLock;

use crate::watch::{WatchEvent, reflect_by};

/// Most VolumeSnapshotClasses that are kept. Clusters have a few; nothing is said of one with more.
const MOST: usize = 1000;
/// Most bytes of a driver's name. CSI allows 63.
const LONGEST: usize = 253;

/// The driver of each VolumeSnapshotClass, from a watch. A process is ready without it, because it
/// only serves warnings.
#[derive(Default)]
pub struct SnapshotClasses(RwLock<KnownSnapshotClasses>);

#[derive(Debug, Default, PartialEq, Eq)]
enum KnownSnapshotClasses {
    #[default]
    NotListed,
    /// There are more than are kept. It stays so until they are listed again.
    TooMany,
    All {
        /// By name of the class.
        classes: BTreeMap<String, String>,
        drivers: BTreeSet<String>,
    },
}

impl KnownSnapshotClasses {
    fn apply(&mut self, event: WatchEvent<(String, String)>) {
        let mut all = match (std::mem::take(self), &event) {
            (_, WatchEvent::Replaced(all)) if all.len() > MOST => return *self = Self::TooMany,
            (_, WatchEvent::Replaced(_)) => BTreeMap::new(),
            (Self::All { classes, .. }, _) => classes,
            (before, _) => return *self = before,
        };
        event.apply_to(&mut all);
        *self = if all.len() > MOST {
            Self::TooMany
        } else {
            Self::All { drivers: all.values().cloned().collect(), classes: all }
        };
    }
}

/// What is kept of a class. A driver whose name is too long is none that exists, but its class is
/// one.
fn kept(class: VolumeSnapshotClass) -> (String, String) {
    let name = class.name_any();
    (name, if class.driver.len() > LONGEST { String::new() } else { class.driver })
}

impl SnapshotClasses {
    /// Lends them to `look`. `None`: not known.
    pub fn read<T>(&self, look: impl FnOnce(Option<&BTreeSet<String>>) -> T) -> T {
        match &*self.0.read() {
            KnownSnapshotClasses::All { drivers, .. } => look(Some(drivers)),
            KnownSnapshotClasses::NotListed | KnownSnapshotClasses::TooMany => look(None),
        }
    }

    /// Watches them. Never returns. Where the cluster has no such kind there are none.
    pub async fn follow(&self, client: &Client) {
        // A list is observed when it is whole: of those beyond the most, only their number is kept.
        let listed = AtomicUsize::new(0);
        let begin = || listed.store(0, Ordering::Relaxed);
        let keep = |class: VolumeSnapshotClass| match listed.fetch_add(1, Ordering::Relaxed) {
            0..MOST => kept(class),
            _ => Default::default(),
        };
        let observe = |event| {
            begin();
            self.0.write().apply(event);
        };
        let config = watcher::Config::default();
        reflect_by(Api::all(client.clone()), config, |class| class.name_any(), begin, keep, observe).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(name: &str, driver: &str) -> (String, String) {
        let class = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": name}, "driver": driver, "deletionPolicy": "Delete",
        });
        kept(serde_json::from_value(class).unwrap())
    }

    fn drivers(classes: &SnapshotClasses) -> Option<Vec<String>> {
        classes.read(|drivers| drivers.map(|all| all.iter().cloned().collect()))
    }

    fn many(count: usize) -> WatchEvent<(String, String)> {
        WatchEvent::Replaced((0..count).map(|i| class(&format!("c{i}"), "ebs")).collect())
    }

    #[test]
    fn the_drivers_are_those_of_the_classes_that_are_there() {
        let classes = SnapshotClasses::default();
        let observe = |event| classes.0.write().apply(event);
        observe(WatchEvent::Applied(class("early", "ebs")));
        assert_eq!(drivers(&classes), None, "they are not listed yet");
        observe(WatchEvent::Replaced(Vec::new()));
        assert_eq!(drivers(&classes), Some(vec![]));
        for (event, expected) in [
            (WatchEvent::Applied(class("a", "ebs")), &["ebs"][..]),
            (WatchEvent::Applied(class("b", "nfs")), &["ebs", "nfs"]),
            (WatchEvent::Applied(class("c", "nfs")), &["ebs", "nfs"]),
            (WatchEvent::Deleted("b".to_owned()), &["ebs", "nfs"]),
            (WatchEvent::Applied(class("c", "other")), &["ebs", "other"]),
            (WatchEvent::Deleted("a".to_owned()), &["other"]),
            (WatchEvent::Replaced(vec![class("d", "ebs")]), &["ebs"]),
        ] {
            observe(event);
            assert_eq!(drivers(&classes).unwrap(), expected);
        }
    }

    #[test]
    fn no_more_is_kept_than_a_cluster_has() {
        let classes = SnapshotClasses::default();
        let observe = |event| classes.0.write().apply(event);
        observe(many(MOST));
        assert_eq!(drivers(&classes), Some(vec!["ebs".to_owned()]));
        observe(WatchEvent::Applied(class("c0", "nfs")));
        assert_eq!(drivers(&classes), Some(vec!["ebs".to_owned(), "nfs".to_owned()]));
        for too_many in [WatchEvent::Applied(class("more", "ebs")), many(MOST + 1)] {
            observe(too_many);
            assert_eq!(*classes.0.read(), KnownSnapshotClasses::TooMany, "nothing of them is kept");
            observe(WatchEvent::Deleted("c0".to_owned()));
            observe(WatchEvent::Applied(class("c0", "ebs")));
            assert_eq!(drivers(&classes), None);
            observe(many(1));
            assert_eq!(drivers(&classes), Some(vec!["ebs".to_owned()]));
            observe(many(MOST));
        }
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(class("a", &long), ("a".to_owned(), String::new()), "there is a class");
        assert_eq!(class("a", &long[1..]).1, long[1..]);
    }
}
