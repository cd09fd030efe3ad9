//! Actions for volumes: `volumePolicies`.

use std::collections::BTreeMap;

/// The types of volumes: keys of a PersistentVolume's spec and of a pod's volumes.
pub const KINDS: [&str; 31] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "image",
    "iscsi",
    "local",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "projected",
    "quobyte",
    "rbd",
    "scaleIO",
    "secret",
    "storageos",
    "vsphereVolume",
    "persistentVolumeClaim",
];

/// How the data of a volume is backed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Skip,
    FsBackup,
    Snapshot,
    /// A plugin backs it up.
    Custom,
}

impl Action {
    pub const ALL: [Self; 4] = [Self::Skip, Self::FsBackup, Self::Snapshot, Self::Custom];

    /// The value in a policy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::FsBackup => "fs-backup",
            Self::Snapshot => "snapshot",
            Self::Custom => "custom",
        }
    }
}

/// An NFS volume; an empty server or path matches any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nfs {
    pub server: String,
    pub path: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csi {
    pub driver: String,
    pub attributes: BTreeMap<String, String>,
}

/// All conditions must hold; an empty one always does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Billionths of a byte. 0: no lower bound.
    pub at_least: i128,
    /// Billionths of a byte. 0: no upper bound.
    pub at_most: i128,
    pub storage_classes: Vec<String>,
    pub nfs: Option<Nfs>,
    pub csi: Option<Csi>,
    pub kinds: Vec<String>,
    /// Labels of the claim.
    pub labels: BTreeMap<String, String>,
    /// Phases of the claim.
    pub phases: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePolicy {
    pub conditions: Conditions,
    pub action: Action,
}

/// The properties of a volume and of the claim that is bound to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Billionths of a byte.
    pub capacity: i128,
    pub storage_class: String,
    pub nfs: Option<Nfs>,
    pub csi: Option<Csi>,
    /// One of [`KINDS`], or empty.
    pub kind: String,
    pub labels: BTreeMap<String, String>,
    pub phase: String,
}

impl Conditions {
    fn hold(&self, volume: &Volume) -> bool {
        let any_of =
            |list: &[String], one: &String| list.is_empty() || (!one.is_empty() && list.contains(one));
        let is_within =
            self.at_least <= volume.capacity && (self.at_most == 0 || volume.capacity <= self.at_most);
        let is_nfs = self.nfs.as_ref().is_none_or(|wanted| {
            let fits = |wanted: &String, is: &String| wanted.is_empty() || wanted == is;
            let there = volume.nfs.as_ref();
            there.is_some_and(|nfs| fits(&wanted.server, &nfs.server) && fits(&wanted.path, &nfs.path))
        });
        let is_csi = self.csi.as_ref().is_none_or(|wanted| {
            let has = |csi: &Csi| {
                let same = |(key, value): (&String, &String)| csi.attributes.get(key) == Some(value);
                wanted.driver.is_empty()
                    || (wanted.driver == csi.driver && wanted.attributes.iter().all(same))
            };
            volume.csi.as_ref().is_some_and(has)
        });
        let is_labelled = self.labels.iter().all(|(key, value)| volume.labels.get(key) == Some(value));
        is_within
            && is_nfs
            && is_csi
            && is_labelled
            && any_of(&self.storage_classes, &volume.storage_class)
            && any_of(&self.kinds, &volume.kind)
            && any_of(&self.phases, &volume.phase)
    }
}

/// The action of the first policy that matches; `None` if none does.
pub fn action(policies: &[VolumePolicy], volume: &Volume) -> Option<Action> {
    policies.iter().find(|policy| policy.conditions.hold(volume)).map(|policy| policy.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: i128 = 1_073_741_824_000_000_000;

    fn list(entries: &[&str]) -> Vec<String> {
        entries.iter().map(|entry| (*entry).to_owned()).collect()
    }

    fn map(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    fn nfs(server: &str, path: &str) -> Option<Nfs> {
        Some(Nfs { server: server.to_owned(), path: path.to_owned() })
    }

    fn csi(driver: &str, attributes: BTreeMap<String, String>) -> Option<Csi> {
        Some(Csi { driver: driver.to_owned(), attributes })
    }

    fn disk() -> Volume {
        Volume {
            capacity: 10 * GIB,
            storage_class: "gp2".to_owned(),
            csi: csi("ebs", map("kind", "ssd")),
            kind: "csi".to_owned(),
            labels: map("app", "db"),
            phase: "Bound".to_owned(),
            ..Volume::default()
        }
    }

    fn share() -> Volume {
        Volume {
            capacity: GIB,
            nfs: nfs("filer", "/a"),
            kind: "nfs".to_owned(),
            phase: "Bound".to_owned(),
            ..Volume::default()
        }
    }

    #[test]
    fn each_condition_holds_as_velero_has_it() {
        let none = Conditions::default;
        for (conditions, of_disk, of_share) in [
            (none(), true, true),
            (Conditions { at_least: 10 * GIB, ..none() }, true, false),
            (Conditions { at_least: 10 * GIB, at_most: 100 * GIB, ..none() }, true, false),
            (Conditions { at_most: 10 * GIB, ..none() }, true, true),
            (Conditions { at_most: GIB, ..none() }, false, true),
            (Conditions { at_least: 11 * GIB, ..none() }, false, false),
            (Conditions { storage_classes: list(&["gp2", "gp3"]), ..none() }, true, false),
            (Conditions { storage_classes: list(&["gp3", ""]), ..none() }, false, false),
            (Conditions { nfs: nfs("", ""), ..none() }, false, true),
            (Conditions { nfs: nfs("filer", ""), ..none() }, false, true),
            (Conditions { nfs: nfs("", "/a"), ..none() }, false, true),
            (Conditions { nfs: nfs("filer", "/b"), ..none() }, false, false),
            (Conditions { nfs: nfs("other", "/a"), ..none() }, false, false),
            (Conditions { csi: csi("", BTreeMap::new()), ..none() }, true, false),
            (Conditions { csi: csi("ebs", BTreeMap::new()), ..none() }, true, false),
            (Conditions { csi: csi("ebs", map("kind", "ssd")), ..none() }, true, false),
            (Conditions { csi: csi("ebs", map("kind", "hdd")), ..none() }, false, false),
            (Conditions { csi: csi("efs", BTreeMap::new()), ..none() }, false, false),
            (Conditions { kinds: list(&["nfs", "hostPath"]), ..none() }, false, true),
            (Conditions { labels: map("app", "db"), ..none() }, true, false),
            (Conditions { labels: map("app", "web"), ..none() }, false, false),
            (Conditions { phases: list(&["Bound"]), ..none() }, true, true),
            (Conditions { phases: list(&["Pending", "Lost"]), ..none() }, false, false),
            (Conditions { labels: map("app", "db"), kinds: list(&["nfs"]), ..none() }, false, false),
        ] {
            assert_eq!(
                (conditions.hold(&disk()), conditions.hold(&share())),
                (of_disk, of_share),
                "{conditions:?}"
            );
        }
    }

    #[test]
    fn the_first_policy_that_fits_counts() {
        let policy = |conditions: Conditions, action| VolumePolicy { conditions, action };
        let policies = [
            policy(Conditions { nfs: nfs("", ""), ..Conditions::default() }, Action::Skip),
            policy(Conditions { at_least: GIB, ..Conditions::default() }, Action::Snapshot),
            policy(Conditions::default(), Action::FsBackup),
        ];
        assert_eq!(action(&policies, &share()), Some(Action::Skip));
        assert_eq!(action(&policies, &disk()), Some(Action::Snapshot));
        assert_eq!(action(&policies, &Volume::default()), Some(Action::FsBackup));
        assert_eq!(action(&policies[..1], &disk()), None);
    }
}
