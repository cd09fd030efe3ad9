//! Whether anything in the cluster could take the data that a Backup asks for, for a warning when
//! it is created. Nothing is said where that is not known, because the backup itself tells of each
//! volume whose data is missing.

use std::collections::BTreeSet;
use std::fmt;

use super::{VolumeOptions, is_asked_for};
use crate::mover::own::DATAMOVER;

/// Volumes of a StorageClass with this provisioner are made by hand, and can belong to any driver.
const BY_HAND: &str = "kubernetes.io/no-provisioner";
/// StorageClasses that a message names; the rest is counted.
const NAMED: usize = 3;

/// Who could take the data of volumes, lent by the caches that know it. `None`: not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takers<'a> {
    /// Is there a node-agent of Velero's, ready or not?
    pub agents: Option<bool>,
    /// Is there a node agent of berth's, ready or not?
    pub own_agents: Option<bool>,
    /// The drivers of all VolumeSnapshotClasses.
    pub drivers: Option<&'a BTreeSet<String>>,
    /// Each StorageClass, with its provisioner.
    pub provisioners: Option<Vec<(&'a str, &'a str)>>,
}

/// Who is to move the data of snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MoverWish {
    /// Whoever can: Velero's node-agents, or berth where berth runs the backup.
    #[default]
    Any,
    Velero,
    Berth,
    /// Another vendor's data mover, of which nothing is known.
    Foreign,
}

impl MoverWish {
    /// By `spec.datamover`.
    pub fn of(datamover: Option<&str>) -> Self {
        match datamover {
            None | Some("") => Self::Any,
            Some("velero") => Self::Velero,
            Some(DATAMOVER) => Self::Berth,
            Some(_) => Self::Foreign,
        }
    }
}

/// What a Backup asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeDataRequest {
    pub wish: VolumeOptions,
    /// Who is to move the data (`spec.datamover`).
    pub mover: MoverWish,
    /// A resource policy decides on single volumes.
    pub has_policy: bool,
    pub takes_pods: bool,
    pub takes_claims: bool,
    /// berth takes the snapshots. Velero may have plugins that take others.
    pub by_berth: bool,
}

/// Data that nothing can take, and the field of the spec that asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub field: &'static str,
    pub lack: MissingComponent,
}

/// Who is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingComponent {
    /// No node-agent reads files.
    FileReader,
    /// No node-agent moves the data of snapshots.
    Mover,
    /// berth is to move it, and its node-agents are not there.
    OwnMover,
    /// There is no VolumeSnapshotClass at all.
    Classes,
    /// The first few StorageClasses, with their provisioners, for whose volumes there is none, and
    /// how many more there are.
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
                // The names come last, because what is long is cut at its end.
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
    // Which volumes it leaves to whom is not known here.
    if asked.has_policy {
        return gaps;
    }
    let VolumeDataRequest { wish, .. } = asked;
    let no_agents = takers.agents == Some(false);
    // Velero gives berth's agents no work.
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
    // Where files are read of all volumes of pods, it is not known whether any other claim is left.
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
            // It takes what can be taken.
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
            // What it does not take has no data.
            (
                VolumeDataRequest { takes_claims: false, ..asked(VolumeOptions { moves: true, ..ALL }) },
                &none,
                vec![],
            ),
            (VolumeDataRequest { takes_pods: false, ..asked(FILES) }, &none, vec![]),
            (VolumeDataRequest { takes_claims: false, ..asked(FILES) }, &none, vec![reader]),
            // A policy may leave everything to somebody else, and Velero may have plugins.
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
            // The API server cuts a warning behind 256 characters, and the field stands before it.
            assert!(lack.to_string().len() <= 200, "{lack}");
        }
    }

    proptest! {
        /// With somebody for everything nothing is told, whatever is asked for.
        #[test]
        fn who_has_everything_is_told_nothing(
            snapshots in any::<Option<bool>>(), files in any::<bool>(), moves in any::<bool>(),
            takes_pods in any::<bool>(), takes_claims in any::<bool>(), by_berth in any::<bool>(),
        ) {
            let wish = VolumeOptions { snapshots, files, moves };
            let asked = VolumeDataRequest { wish, takes_pods, takes_claims, by_berth, ..VolumeDataRequest::default() };
            prop_assert_eq!(gaps(&asked, &takers(true, &set(&["ebs"]), &[("gp3", "ebs")])), []);
            // And of the rest at most one line for each of the three who could be missing.
            prop_assert!(gaps(&asked, &takers(false, &set(&[]), &[])).len() <= 3);
        }
    }
}
