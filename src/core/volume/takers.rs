//! Can anything in the cluster take the data that a Backup asks for? The webhook warns of what
//! nothing can take when the Backup is created. It says nothing where that is not known, because
//! the backup itself reports each volume whose data is missing.

use std::collections::BTreeSet;
use std::fmt;

use super::{VolumeOptions, is_asked_for};
use crate::mover::own::DATAMOVER;

/// The provisioner of StorageClasses whose volumes are created by hand, and can belong to any
/// driver.
const BY_HAND: &str = "kubernetes.io/no-provisioner";
/// How many StorageClasses a message names; the others are counted.
const NAMED: usize = 3;

/// What in the cluster could take the data of volumes, borrowed from the watch caches. `None`: not
/// known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takers<'a> {
    /// Does the cluster have a node-agent of Velero's, ready or not?
    pub agents: Option<bool>,
    /// Does the cluster have a node-agent of berth's, ready or not?
    pub own_agents: Option<bool>,
    /// The drivers of all VolumeSnapshotClasses.
    pub drivers: Option<&'a BTreeSet<String>>,
    /// Each StorageClass, with its provisioner.
    pub provisioners: Option<Vec<(&'a str, &'a str)>>,
}

/// The data mover that moves the data of snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MoverWish {
    /// Velero's node-agents, or berth's where berth runs the backup.
    #[default]
    Any,
    Velero,
    Berth,
    /// Another vendor's data mover, which is not checked.
    Foreign,
}

impl MoverWish {
    /// From `spec.datamover`.
    pub fn of(datamover: Option<&str>) -> Self {
        match datamover {
            None | Some("") => Self::Any,
            Some("velero") => Self::Velero,
            Some(DATAMOVER) => Self::Berth,
            Some(_) => Self::Foreign,
        }
    }
}

/// The data that a Backup asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeDataRequest {
    pub wish: VolumeOptions,
    /// The data mover (`spec.datamover`).
    pub mover: MoverWish,
    /// A resource policy decides for single volumes.
    pub has_policy: bool,
    pub takes_pods: bool,
    pub takes_claims: bool,
    /// berth takes the snapshots. Velero may also have plugins that take others.
    pub by_berth: bool,
}

/// Data that nothing in the cluster can take, and the field of the spec that asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub field: &'static str,
    pub lack: MissingComponent,
}

/// The component that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingComponent {
    /// No node-agent can read files.
    FileReader,
    /// No node-agent can move the data of snapshots.
    Mover,
    /// The data mover is berth, and berth's node-agents are not installed.
    OwnMover,
    /// The cluster has no VolumeSnapshotClass.
    Classes,
    /// No VolumeSnapshotClass has the drivers of these StorageClasses: the first few, with their
    /// provisioners, and the number of the others.
    ClassesOf(Vec<(String, String)>, usize),
}

impl fmt::Display for MissingComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileReader => f.write_str(
                "no node-agent runs in this namespace to read files of volumes: install berth's (berth install --pod-volumes) or Velero's, or leave the field out for CSI snapshots",
            ),
            Self::Mover => f.write_str(
                "no node-agent runs in this namespace to move the data of snapshots: install berth's (berth install --pod-volumes) or Velero's (velero install --use-node-agent), or name another spec.datamover",
            ),
            Self::OwnMover => f.write_str(
                "berth's node-agents, which spec.datamover asks for, are not installed: install them (berth install --pod-volumes), or leave spec.datamover out for Velero's",
            ),
            Self::Classes => f.write_str(
                "there is no VolumeSnapshotClass, so no snapshot can be taken: create one for each CSI driver, or set spec.defaultVolumesToFsBackup",
            ),
            Self::ClassesOf(named, more) => {
                let named = named.iter().map(|(class, driver)| format!("{class} ({driver})"));
                let named = named.collect::<Vec<_>>().join(", ");
                let more = match more {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                // The names are last, because the API server cuts a long warning at its end.
                write!(
                    f,
                    "some drivers have no VolumeSnapshotClass: if the backup has such volumes, create one, or have a policy take their files; StorageClass {named}{more}"
                )
            }
        }
    }
}

/// The data that a Backup asks for and nothing in the cluster can take.
pub fn gaps(asked: &VolumeDataRequest, takers: &Takers<'_>) -> Vec<Gap> {
    let mut gaps = Vec::new();
    // The policy is not read here, so it is not known how each volume is backed up.
    if asked.has_policy {
        return gaps;
    }
    let VolumeDataRequest { wish, .. } = asked;
    let no_agents = takers.agents == Some(false);
    // Velero does not use berth's node-agents.
    let no_readers = no_agents && (!asked.by_berth || takers.own_agents == Some(false));
    if wish.files && asked.takes_pods && no_readers {
        gaps.push(Gap { field: "defaultVolumesToFsBackup", lack: MissingComponent::FileReader });
    }
    if !asked.takes_claims || !is_asked_for(wish, None) {
        return gaps;
    }
    let lack = match asked.mover {
        MoverWish::Any => no_readers.then_some(("snapshotMoveData", MissingComponent::Mover)),
        MoverWish::Velero => no_agents.then_some(("snapshotMoveData", MissingComponent::Mover)),
        MoverWish::Berth if takers.own_agents == Some(false) => {
            Some(("datamover", MissingComponent::OwnMover))
        }
        MoverWish::Berth | MoverWish::Foreign => None,
    };
    gaps.extend(lack.filter(|_| wish.moves).map(|(field, lack)| Gap { field, lack }));
    // If files are read of all pods' volumes, it is not known whether any other claim remains for
    // snapshots.
    if asked.by_berth && !wish.files {
        let field = if wish.snapshots == Some(true) { "snapshotVolumes" } else { "snapshotMoveData" };
        gaps.extend(without_class(takers).map(|lack| Gap { field, lack }));
    }
    gaps
}

fn without_class(takers: &Takers<'_>) -> Option<MissingComponent> {
    let drivers = takers.drivers?;
    if drivers.is_empty() {
        return Some(MissingComponent::Classes);
    }
    let all = takers.provisioners.as_ref()?.iter();
    let mut bare = all.filter(|(_, driver)| *driver != BY_HAND && !drivers.contains(*driver));
    let named = bare.by_ref().take(NAMED).map(|(class, driver)| ((*class).to_owned(), (*driver).to_owned()));
    let named: Vec<_> = named.collect();
    (!named.is_empty()).then(|| MissingComponent::ClassesOf(named, bare.count()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: VolumeOptions = VolumeOptions { snapshots: Some(true), files: false, moves: false };
    const MOVES: VolumeOptions = VolumeOptions { snapshots: None, files: false, moves: true };
    const FILES: VolumeOptions = VolumeOptions { snapshots: None, files: true, moves: false };

    fn asked(wish: VolumeOptions) -> VolumeDataRequest {
        VolumeDataRequest {
            wish,
            takes_pods: true,
            takes_claims: true,
            by_berth: true,
            ..VolumeDataRequest::default()
        }
    }

    fn set(drivers: &[&str]) -> BTreeSet<String> {
        drivers.iter().map(|driver| (*driver).to_owned()).collect()
    }

    fn takers<'a>(
        agents: bool,
        drivers: &'a BTreeSet<String>,
        provisioners: &[(&'a str, &'a str)],
    ) -> Takers<'a> {
        let own_agents = Some(agents);
        let provisioners = Some(provisioners.to_vec());
        Takers { agents: Some(agents), own_agents, drivers: Some(drivers), provisioners }
    }

    #[test]
    fn each_backup_is_told_what_nothing_can_take_of_it() {
        let (nothing, ebs) = (set(&[]), set(&["ebs"]));
        let none = takers(false, &nothing, &[("gp3", "ebs")]);
        let classes = takers(false, &ebs, &[("gp3", "ebs"), ("local", BY_HAND)]);
        let agents = takers(true, &nothing, &[]);
        let both = takers(true, &ebs, &[("gp3", "ebs")]);
        let mixed = takers(true, &ebs, &[("gp3", "ebs"), ("nfs", "nfs"), ("old", "kubernetes.io/aws")]);
        let reader = ("defaultVolumesToFsBackup", MissingComponent::FileReader);
        let mover = ("snapshotMoveData", MissingComponent::Mover);
        let of = |field, all: &[(&str, &str)]| {
            let all = all.iter().map(|(class, driver)| ((*class).to_owned(), (*driver).to_owned()));
            (field, MissingComponent::ClassesOf(all.collect(), 0))
        };
        let bare = [("nfs", "nfs"), ("old", "kubernetes.io/aws")];
        let classes_of = |field| (field, MissingComponent::Classes);
        type Row<'a> = (VolumeDataRequest, &'a Takers<'a>, Vec<(&'a str, MissingComponent)>);
        let rows: Vec<Row<'_>> = vec![
            // Without a setting, berth takes what can be taken.
            (asked(VolumeOptions::default()), &none, vec![]),
            (asked(ALL), &none, vec![classes_of("snapshotVolumes")]),
            (asked(ALL), &classes, vec![]),
            (asked(ALL), &agents, vec![classes_of("snapshotVolumes")]),
            (asked(ALL), &mixed, vec![of("snapshotVolumes", &bare)]),
            (asked(MOVES), &none, vec![mover.clone(), classes_of("snapshotMoveData")]),
            (asked(MOVES), &classes, vec![mover.clone()]),
            (asked(MOVES), &agents, vec![classes_of("snapshotMoveData")]),
            (asked(MOVES), &both, vec![]),
            (asked(MOVES), &mixed, vec![of("snapshotMoveData", &bare)]),
            (asked(VolumeOptions { snapshots: Some(false), ..MOVES }), &none, vec![]),
            (asked(VolumeOptions { moves: true, ..ALL }), &agents, vec![classes_of("snapshotVolumes")]),
            (VolumeDataRequest { mover: MoverWish::Foreign, ..asked(MOVES) }, &classes, vec![]),
            (asked(FILES), &none, vec![reader.clone()]),
            (asked(FILES), &agents, vec![]),
            (asked(VolumeOptions { files: true, ..ALL }), &agents, vec![]),
            (asked(VolumeOptions { files: true, ..ALL }), &none, vec![reader.clone()]),
            (asked(VolumeOptions { files: true, ..MOVES }), &none, vec![reader.clone(), mover.clone()]),
            // Data that a backup does not ask for is no gap.
            (
                VolumeDataRequest { takes_claims: false, ..asked(VolumeOptions { moves: true, ..ALL }) },
                &none,
                vec![],
            ),
            (VolumeDataRequest { takes_pods: false, ..asked(FILES) }, &none, vec![]),
            (VolumeDataRequest { takes_claims: false, ..asked(FILES) }, &none, vec![reader]),
            // A policy may skip every volume, and Velero may have plugins.
            (
                VolumeDataRequest { has_policy: true, ..asked(VolumeOptions { files: true, ..MOVES }) },
                &none,
                vec![],
            ),
            (VolumeDataRequest { by_berth: false, ..asked(ALL) }, &none, vec![]),
            (VolumeDataRequest { by_berth: false, ..asked(MOVES) }, &none, vec![mover]),
        ];
        for (asked, takers, expected) in rows {
            let found: Vec<_> = gaps(&asked, takers).into_iter().map(|gap| (gap.field, gap.lack)).collect();
            assert_eq!(found, expected, "{asked:?} {takers:?}");
        }
    }

    #[test]
    fn berths_own_agents_take_the_data_of_backups_that_berth_runs() {
        let none = set(&[]);
        let found = |own_agents, asked: &VolumeDataRequest| {
            let found = gaps(asked, &Takers { own_agents, ..takers(false, &none, &[]) });
            found.into_iter().map(|gap| gap.lack).collect::<Vec<_>>()
        };
        let files = VolumeDataRequest { takes_claims: false, ..asked(FILES) };
        assert_eq!(found(Some(false), &files), [MissingComponent::FileReader]);
        assert_eq!(found(Some(true), &files), []);
        assert_eq!(found(None, &files), []);
        assert_eq!(
            found(Some(true), &VolumeDataRequest { by_berth: false, ..files }),
            [MissingComponent::FileReader]
        );
        let moves = VolumeDataRequest { by_berth: false, ..asked(MOVES) };
        assert_eq!(found(Some(true), &moves), [MissingComponent::Mover]);
        let moves = VolumeDataRequest { by_berth: true, ..moves };
        assert_eq!(found(Some(true), &moves), [MissingComponent::Classes]);
        assert_eq!(found(Some(false), &moves), [MissingComponent::Mover, MissingComponent::Classes]);
        let veleros = VolumeDataRequest { mover: MoverWish::Velero, ..moves };
        assert_eq!(found(Some(true), &veleros).first(), Some(&MissingComponent::Mover));
        for by_berth in [true, false] {
            let own = VolumeDataRequest { mover: MoverWish::Berth, by_berth, ..moves };
            assert_eq!(found(Some(false), &own).first(), Some(&MissingComponent::OwnMover));
            assert!(!found(Some(true), &own).contains(&MissingComponent::OwnMover));
        }
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let all = asked(VolumeOptions { snapshots: Some(true), files: false, moves: true });
        assert_eq!(gaps(&all, &Takers::default()), []);
        assert_eq!(gaps(&asked(FILES), &Takers::default()), []);
        let ebs = set(&["ebs"]);
        let no_provisioners = Takers { provisioners: None, ..takers(true, &ebs, &[]) };
        assert_eq!(gaps(&all, &no_provisioners), []);
    }

    #[test]
    fn a_message_is_short_however_many_classes_there_are() {
        let names: Vec<String> = (0..1000).map(|i| format!("class-{i:03}")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "driver")).collect();
        let told = without_class(&takers(true, &set(&["ebs"]), &many)).unwrap().to_string();
        assert!(
            told.contains("class-000 (driver), class-001 (driver), class-002 (driver) and 997 more"),
            "{told}"
        );
        for lack in [
            MissingComponent::FileReader,
            MissingComponent::Mover,
            MissingComponent::OwnMover,
            MissingComponent::Classes,
        ] {
            // The API server cuts a warning after 256 characters, and the name of the field comes
            // before it.
            assert!(lack.to_string().len() <= 200, "{lack}");
        }
    }

    proptest! {
        /// If every component is there, nothing is reported, whatever the Backup asks for.
        #[test]
        fn who_has_everything_is_told_nothing(
            snapshots in any::<Option<bool>>(), files in any::<bool>(), moves in any::<bool>(),
            takes_pods in any::<bool>(), takes_claims in any::<bool>(), by_berth in any::<bool>(),
        ) {
            let wish = VolumeOptions { snapshots, files, moves };
            let asked = VolumeDataRequest { wish, takes_pods, takes_claims, by_berth, ..VolumeDataRequest::default() };
            prop_assert_eq!(gaps(&asked, &takers(true, &set(&["ebs"]), &[("gp3", "ebs")])), []);
            // Otherwise at most one line for each of the three components that could be missing.
            prop_assert!(gaps(&asked, &takers(false, &set(&[]), &[])).len() <= 3);
        }
    }
}
