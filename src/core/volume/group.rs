//! Of which claims one group snapshot is taken, instead of a snapshot of each.

use std::collections::BTreeSet;
use std::fmt;

use super::ClaimDecision;
use super::class::{Choice, SnapshotClass, choose};
use crate::limits;

/// Most claims of one group, because all of them are taken while the same pods are frozen.
pub const MOST: usize = limits::BLOCK_CLAIMS;
/// Most groups of one run, because of each of them its claims are listed, and kept.
pub const MOST_GROUPS: usize = 1000;
/// Most characters of a class that is named and is not there. Whoever annotates claims chooses its
/// length, and it is kept for each group.
const OF_CLASS: usize = 63;

/// A claim of the cluster that has the label of the group. The storage cuts all of these together,
/// also those that the backup does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    pub name: String,
    /// What becomes of its data. `None`: the backup does not take the claim.
    pub decision: Option<ClaimDecision>,
    pub driver: String,
    /// The VolumeGroupSnapshotClass that its annotation names.
    pub class: Option<String>,
}

/// Why there is no group snapshot, and each claim gets a snapshot of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupRefusal {
    /// The claims of the group could not be listed.
    Unlisted,
    TooMany,
    TooManyGroups,
    /// There is no class at all.
    NoClasses,
    /// The data of the snapshots is moved.
    Moved,
    /// This claim gets no snapshot.
    Untaken(String),
    Drivers,
    /// The claims name several classes.
    Classes,
    /// The driver has no class of this name.
    NoSuchClass(String),
    /// This driver has no class.
    NoClass(String),
    /// The claims are not taken at one time.
    Apart,
    /// Other claims have the label than when the group was planned, or one is not bound now.
    Changed,
    /// The API server takes no VolumeGroupSnapshot, for this reason.
    Refused(String),
}

impl fmt::Display for GroupRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlisted => f.write_str("the claims of the group cannot be listed"),
            Self::TooMany => write!(f, "the group has more than {MOST} claims"),
            Self::TooManyGroups => write!(f, "the backup has more than {MOST_GROUPS} groups"),
            Self::NoClasses => f.write_str("there is no VolumeGroupSnapshotClass"),
            Self::Moved => f.write_str(
                "the data of its snapshots is moved (snapshotMoveData), and berth moves none of group snapshots",
            ),
            Self::Untaken(claim) => {
                write!(f, "claim {claim} belongs to the group, and the backup takes no snapshot of it")
            }
            Self::Drivers => f.write_str("the volumes of the group belong to several CSI drivers"),
            Self::Classes => f.write_str("the claims of the group name several VolumeGroupSnapshotClasses"),
            Self::NoSuchClass(class) => {
                write!(f, "there is no VolumeGroupSnapshotClass {class} of the driver of the group")
            }
            Self::NoClass(driver) => write!(f, "CSI driver {driver} has no VolumeGroupSnapshotClass"),
            Self::Apart => f.write_str(
                "the claims of the group are not taken at one time, because some of them are used by pods with hooks of another block, because another run has taken some of them, or because too many claims waited for others of their groups",
            ),
            Self::Changed => f.write_str("the claims of the group have changed during the backup"),
            Self::Refused(why) => write!(f, "the VolumeGroupSnapshot could not be created: {why}"),
        }
    }
}

/// The other claims of groups that come along with the claims that a pod uses, so that all of a
/// group is cut while the pod is frozen: whole groups, as long as all of it stays within
/// [`limits::BLOCK_CLAIMS`]. None for a pod that goes through its hooks alone, because others that
/// use them are not frozen then.
pub fn along<'g>(
    used: &[String],
    groups: impl IntoIterator<Item = &'g BTreeSet<String>>,
    is_alone: bool,
) -> BTreeSet<String> {
    let mut others: BTreeSet<String> = BTreeSet::new();
    for group in groups.into_iter().filter(|_| !is_alone) {
        let new: Vec<&String> =
            group.iter().filter(|name| !used.contains(*name) && !others.contains(*name)).collect();
        if used.len() + others.len() + new.len() <= limits::BLOCK_CLAIMS {
            others.extend(new.into_iter().cloned());
        }
    }
    others
}

/// The VolumeGroupSnapshotClass by which the group is taken: as [`choose`] chooses, except that a
/// class which is named and is not there is not replaced. `by_backup`: the class that the Backup
/// names for a driver.
///
/// # Errors
/// When no group snapshot is to be taken.
pub fn form<'a>(
    members: &[GroupMember],
    classes: &'a [SnapshotClass],
    by_backup: impl Fn(&str) -> Option<String>,
) -> Result<&'a SnapshotClass, GroupRefusal> {
    if members.len() > MOST {
        return Err(GroupRefusal::TooMany);
    }
    for member in members {
        match member.decision {
            Some(ClaimDecision::Snapshot) => {}
            Some(ClaimDecision::Move) => return Err(GroupRefusal::Moved),
            _ => return Err(GroupRefusal::Untaken(member.name.clone())),
        }
    }
    let mut drivers = members.iter().map(|member| member.driver.as_str());
    let driver = drivers.next().unwrap_or_default();
    if drivers.any(|other| other != driver) {
        return Err(GroupRefusal::Drivers);
    }
    let named: BTreeSet<&str> = members.iter().filter_map(|member| member.class.as_deref()).collect();
    if named.len() > 1 {
        return Err(GroupRefusal::Classes);
    }
    let by_backup = by_backup(driver);
    match choose(classes, driver, named.first().copied(), by_backup.as_deref()) {
        Choice { ignored: Some(name), .. } => {
            Err(GroupRefusal::NoSuchClass(name.chars().take(OF_CLASS).collect()))
        }
        Choice { class: Some(class), .. } => Ok(class),
        Choice { class: None, .. } => Err(GroupRefusal::NoClass(driver.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{UnstorableReason, VolumeSkipReason};

    fn class(name: &str, driver: &str) -> SnapshotClass {
        SnapshotClass { name: name.to_owned(), driver: driver.to_owned(), ..SnapshotClass::default() }
    }

    /// Claims `0`, `1` and so on.
    fn members(all: &[(ClaimDecision, &str, Option<&str>)]) -> Vec<GroupMember> {
        let each = all.iter().enumerate().map(|(at, (decision, driver, class))| GroupMember {
            name: at.to_string(),
            decision: Some(*decision),
            driver: (*driver).to_owned(),
            class: class.map(str::to_owned),
        });
        each.collect()
    }

    #[test]
    fn whole_groups_come_along_with_a_pod_as_long_as_there_is_room() {
        let names = |from: usize, to: usize| (from..to).map(|at| at.to_string());
        let most = limits::BLOCK_CLAIMS;
        for (used, groups, is_alone, (from, to)) in [
            (1, vec![(0, 3)], false, (1, 3)),
            (1, vec![(0, 3)], true, (0, 0)),
            (2, vec![(0, 3), (0, 3), (1, 5)], false, (2, 5)),
            (1, vec![(0, most)], false, (1, most)),
            (1, vec![(1, most + 1)], false, (0, 0)),
            // One that has no room keeps out no other.
            (1, vec![(1, most), (1, most + 1), (1, 3)], false, (1, most)),
            (2, vec![(1, most + 1), (1, 3)], false, (2, 3)),
            (most, vec![(0, most), (1, most + 1)], false, (0, 0)),
        ] {
            let all: Vec<BTreeSet<String>> =
                groups.iter().map(|(from, to)| names(*from, *to).collect()).collect();
            let of_pod: Vec<String> = names(0, used).collect();
            let expected: BTreeSet<String> = names(from, to).collect();
            assert_eq!(along(&of_pod, &all, is_alone), expected, "{used} {groups:?} {is_alone}");
        }
    }

    #[test]
    fn a_group_is_formed_only_of_claims_that_all_get_a_snapshot_by_one_class() {
        use ClaimDecision::{Files, Move, Nothing, Skip, Snapshot};
        let classes =
            [class("a", "ebs"), SnapshotClass { is_labelled: true, ..class("b", "ebs") }, class("c", "efs")];
        let untaken = || Err(GroupRefusal::Untaken("1".to_owned()));
        let two = |first: Option<&'static str>, second: Option<&'static str>| {
            vec![(Snapshot, "ebs", first), (Snapshot, "ebs", second)]
        };
        for (all, by_backup, expected) in [
            (two(None, None), None, Ok("b")),
            (two(Some("a"), None), None, Ok("a")),
            (two(Some("a"), Some("a")), Some("b"), Ok("a")),
            (two(None, None), Some("a"), Ok("a")),
            (two(Some("a"), Some("b")), None, Err(GroupRefusal::Classes)),
            // A class of another driver.
            (two(Some("c"), None), None, Err(GroupRefusal::NoSuchClass("c".to_owned()))),
            (two(None, None), Some("gone"), Err(GroupRefusal::NoSuchClass("gone".to_owned()))),
            (vec![(Snapshot, "ebs", None), (Snapshot, "efs", None)], None, Err(GroupRefusal::Drivers)),
            (vec![(Snapshot, "nfs", None); 2], None, Err(GroupRefusal::NoClass("nfs".to_owned()))),
            (vec![(Move, "ebs", None); 2], None, Err(GroupRefusal::Moved)),
            (vec![(Snapshot, "ebs", None), (Files, "ebs", None)], None, untaken()),
            (vec![(Snapshot, "ebs", None), (Skip(VolumeSkipReason::Policy), "ebs", None)], None, untaken()),
            (vec![(Snapshot, "ebs", None), (Nothing(UnstorableReason::Driver), "", None)], None, untaken()),
            (vec![(Snapshot, "ebs", None); MOST], None, Ok("b")),
            (vec![(Snapshot, "ebs", None); MOST + 1], None, Err(GroupRefusal::TooMany)),
        ] {
            let by_backup = |driver: &str| by_backup.filter(|_| driver == "ebs").map(str::to_owned);
            let found = form(&members(&all), &classes, by_backup).map(|class| class.name.as_str());
            assert_eq!(found, expected, "{all:?}");
        }
        let long = "x".repeat(200 << 10);
        let mut annotated = members(&[(Snapshot, "ebs", None), (Snapshot, "ebs", None)]);
        annotated[0].class = Some(long.clone());
        let plain = members(&[(Snapshot, "ebs", None), (Snapshot, "ebs", None)]);
        for (all, by_backup) in [(annotated, None), (plain, Some(long))] {
            let Err(GroupRefusal::NoSuchClass(name)) = form(&all, &classes, |_| by_backup.clone()) else {
                panic!("there is such a class");
            };
            assert_eq!(name.len(), OF_CLASS);
        }
        let mut excluded = members(&[(Snapshot, "ebs", None), (Snapshot, "ebs", None)]);
        excluded[1].decision = None;
        let found = form(&excluded, &classes, |_| None);
        assert_eq!(found, Err(GroupRefusal::Untaken("1".to_owned())), "the storage would cut it, too");
    }
}
