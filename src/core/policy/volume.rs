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
pub enum VolumeAction {
    Skip,
    FsBackup,
    Snapshot,
    /// A plugin backs it up.
    Custom,
}

impl VolumeAction {
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
pub struct NfsSource {
    pub server: String,
    pub path: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiSource {
    pub driver: String,
    pub attributes: BTreeMap<String, String>,
}

/// All conditions must hold; an empty one always does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeConditions {
    /// Billionths of a byte. 0: no lower bound.
    pub at_least: i128,
    /// Billionths of a byte. 0: no upper bound.
    pub at_most: i128,
    pub storage_classes: Vec<String>,
    pub nfs: Option<NfsSource>,
    pub csi: Option<CsiSource>,
    pub kinds: Vec<String>,
    /// Labels of the claim.
    pub labels: BTreeMap<String, String>,
    /// Phases of the claim.
    pub phases: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePolicy {
    pub conditions: VolumeConditions,
    pub action: VolumeAction,
}

/// The properties of a volume and of the claim that is bound to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeProperties {
    /// Billionths of a byte.
    pub capacity: i128,
    pub storage_class: String,
    pub nfs: Option<NfsSource>,
    pub csi: Option<CsiSource>,
    /// One of [`KINDS`], or empty.
    pub kind: String,
    pub labels: BTreeMap<String, String>,
    pub phase: String,
}

impl VolumeConditions {
    fn hold(&self, volume: &VolumeProperties) -> bool {
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
            let has = |csi: &CsiSource| {
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
pub fn action(policies: &[VolumePolicy], volume: &VolumeProperties) -> Option<VolumeAction> {
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

    fn nfs(server: &str, path: &str) -> Option<NfsSource> {
        Some(NfsSource { server: server.to_owned(), path: path.to_owned() })
    }

    fn csi(driver: &str, attributes: BTreeMap<String, String>) -> Option<CsiSource> {
        Some(CsiSource { driver: driver.to_owned(), attributes })
    }

    fn disk() -> VolumeProperties {
        VolumeProperties {
            capacity: 10 * GIB,
            storage_class: "gp2".to_owned(),
            csi: csi("ebs", map("kind", "ssd")),
            kind: "csi".to_owned(),
            labels: map("app", "db"),
            phase: "Bound".to_owned(),
            ..VolumeProperties::default()
        }
    }

    fn share() -> VolumeProperties {
        VolumeProperties {
            capacity: GIB,
            nfs: nfs("filer", "/a"),
            kind: "nfs".to_owned(),
            phase: "Bound".to_owned(),
            ..VolumeProperties::default()
        }
    }

    #[test]
    fn each_condition_holds_as_velero_has_it() {
        let none = VolumeConditions::default;
        for (conditions, of_disk, of_share) in [
            (none(), true, true),
            (VolumeConditions { at_least: 10 * GIB, ..none() }, true, false),
            (VolumeConditions { at_least: 10 * GIB, at_most: 100 * GIB, ..none() }, true, false),
            (VolumeConditions { at_most: 10 * GIB, ..none() }, true, true),
            (VolumeConditions { at_most: GIB, ..none() }, false, true),
            (VolumeConditions { at_least: 11 * GIB, ..none() }, false, false),
            (VolumeConditions { storage_classes: list(&["gp2", "gp3"]), ..none() }, true, false),
            (VolumeConditions { storage_classes: list(&["gp3", ""]), ..none() }, false, false),
            (VolumeConditions { nfs: nfs("", ""), ..none() }, false, true),
            (VolumeConditions { nfs: nfs("filer", ""), ..none() }, false, true),
            (VolumeConditions { nfs: nfs("", "/a"), ..none() }, false, true),
            (VolumeConditions { nfs: nfs("filer", "/b"), ..none() }, false, false),
            (VolumeConditions { nfs: nfs("other", "/a"), ..none() }, false, false),
            (VolumeConditions { csi: csi("", BTreeMap::new()), ..none() }, true, false),
            (VolumeConditions { csi: csi("ebs", BTreeMap::new()), ..none() }, true, false),
            (VolumeConditions { csi: csi("ebs", map("kind", "ssd")), ..none() }, true, false),
            (VolumeConditions { csi: csi("ebs", map("kind", "hdd")), ..none() }, false, false),
            (VolumeConditions { csi: csi("efs", BTreeMap::new()), ..none() }, false, false),
            (VolumeConditions { kinds: list(&["nfs", "hostPath"]), ..none() }, false, true),
            (VolumeConditions { labels: map("app", "db"), ..none() }, true, false),
            (VolumeConditions { labels: map("app", "web"), ..none() }, false, false),
            (VolumeConditions { phases: list(&["Bound"]), ..none() }, true, true),
            (VolumeConditions { phases: list(&["Pending", "Lost"]), ..none() }, false, false),
            (VolumeConditions { labels: map("app", "db"), kinds: list(&["nfs"]), ..none() }, false, false),
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
        let policy = |conditions: VolumeConditions, action| VolumePolicy { conditions, action };
        let policies = [
            policy(VolumeConditions { nfs: nfs("", ""), ..VolumeConditions::default() }, VolumeAction::Skip),
            policy(VolumeConditions { at_least: GIB, ..VolumeConditions::default() }, VolumeAction::Snapshot),
            policy(VolumeConditions::default(), VolumeAction::FsBackup),
        ];
        assert_eq!(action(&policies, &share()), Some(VolumeAction::Skip));
        assert_eq!(action(&policies, &disk()), Some(VolumeAction::Snapshot));
        assert_eq!(action(&policies, &VolumeProperties::default()), Some(VolumeAction::FsBackup));
        assert_eq!(action(&policies[..1], &disk()), None);
    }
}
