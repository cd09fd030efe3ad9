//! What a node agent does next with a PodVolumeBackup or a PodVolumeRestore, and in which folder
//! the files of a pod's volume are.

pub mod maintenance;
pub mod others;
pub mod progress;
pub mod target;

use jiff::Timestamp;

/// The uploader type of objects that berth's node agents act on. All others are for Velero's
/// node-agents.
pub const UPLOADER: &str = "restic";

/// Is an object with this uploader type berth's? Such an object takes no place among data movers,
/// unless it is carried by a data mover pod.
pub fn is_own(uploader: Option<&str>) -> bool {
    uploader == Some(UPLOADER)
}

/// The longest name of an object.
const LONGEST: usize = 253;

/// The names that the BackupRepository of a location and a namespace may have, the preferred one
/// first. The first name may be that of two pairs (`a-b` and `c`, `a` and `b-c`); the second is
/// that of one pair only.
pub fn repository_names(location: &str, namespace: &str, digest: impl Fn(&str) -> String) -> Vec<String> {
    let plain = format!("{namespace}-{location}-{UPLOADER}");
    let unique = format!("{}-{UPLOADER}", digest(&format!("{namespace}/{location}")));
    [plain, unique].into_iter().filter(|name| name.len() <= LONGEST).collect()
}

/// The name of the Secret with the password of a repository.
pub fn secret_name(location: &str, namespace: &str, digest: impl Fn(&str) -> String) -> String {
    let name = format!("berth-repository-{location}.{namespace}");
    if name.len() <= LONGEST { name } else { format!("berth-repository-{}", digest(&name)) }
}

/// What the agent sees of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedPodVolume<'a> {
    /// `status.phase`; empty if there is none.
    pub phase: &'a str,
    /// `spec.cancel`, or the object is being deleted.
    pub is_canceled: bool,
    /// Does a job of this process work on it?
    pub is_running: bool,
    /// May the job start? A restore only when the pod waits for it.
    pub is_ready: bool,
    /// Does another process carry it that is seen to live ([`others::Others`])?
    pub is_left: bool,
}

/// Where the files of a node's volumes are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// In the agent itself, which sees the folder of the node.
    Agent,
    /// In data mover pods, one for each object. The agent sees nothing of its node.
    DataMovers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, or another process has to act.
    Nothing,
    /// Start a job as soon as there is a place. This also applies to an object in progress that no
    /// process works on: what the earlier job stored is still in the repository.
    Start,
    /// The object is in progress, but its work must not continue: it is a restore whose pod no
    /// longer waits. If the work is done, only its end is written.
    Finish,
    /// Hand it over to the leader, which has it carried by a data mover pod, instead of starting a
    /// job.
    HandOver,
    /// Cancel the running job.
    Stop,
    /// Write that the object is canceled, because it was never started, or its process is gone.
    EndCanceled,
}

pub fn step(seen: ObservedPodVolume<'_>, access: FileAccess) -> Step {
    match (work(seen), access) {
        (Step::Start | Step::Finish, FileAccess::DataMovers) => Step::HandOver,
        (step, _) => step,
    }
}

/// The step of an agent that sees the folder of its node.
fn work(seen: ObservedPodVolume<'_>) -> Step {
    let is_begun = match seen.phase {
        "" | "New" | "Accepted" | "Prepared" => false,
        "InProgress" | "Canceling" => true,
        // The object has ended, or has a phase of a newer version.
        _ => return if seen.is_running { Step::Stop } else { Step::Nothing },
    };
    match (seen.is_running, seen.is_canceled || seen.phase == "Canceling") {
        // That one also ends it when it is canceled.
        (false, _) if is_begun && seen.is_left => Step::Nothing,
        (true, true) => Step::Stop,
        (true, false) => Step::Nothing,
        (false, true) => Step::EndCanceled,
        (false, false) if seen.is_ready => Step::Start,
        (false, false) if is_begun => Step::Finish,
        (false, false) => Step::Nothing,
    }
}

/// The source of a volume, according to its pod and its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing<'a> {
    /// The volume is defined in the pod.
    Inline { name: &'a str, is_csi: bool },
    /// A PersistentVolume. `is_csi`: a CSI driver serves it, perhaps in place of an in-tree plugin.
    Persistent { volume: &'a str, is_csi: bool },
}

/// The path of a volume below the folder of the plugin that mounted it. Volumes of CSI have one
/// more folder.
pub fn folder(backing: Backing<'_>) -> Vec<&str> {
    let (Backing::Inline { name, is_csi } | Backing::Persistent { volume: name, is_csi }) = backing;
    if is_csi { vec![name, "mount"] } else { vec![name] }
}

/// Why the files of a volume cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFolder {
    #[error("no plugin of the kubelet has mounted it")]
    Nowhere,
    #[error("several plugins of the kubelet have mounted something of its name")]
    Several,
}

/// The plugin that mounted a volume: the one that has a folder for it.
///
/// # Errors
/// When no plugin has one, or several have.
pub fn plugin<T>(mut having: impl Iterator<Item = T>) -> Result<T, NoFolder> {
    let first = having.next().ok_or(NoFolder::Nowhere)?;
    if having.next().is_some() { Err(NoFolder::Several) } else { Ok(first) }
}

/// A tag that would make a snapshot count as one of another volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tag {0} in spec.tags is one that only the agent may give")]
pub struct ReservedTag(String);

/// Tags of a snapshot, from the tags of the object, as restic shows them.
///
/// # Errors
/// When one of them has the form of [`same`].
pub fn tags<'a>(tags: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Vec<String>, ReservedTag> {
    let tags = tags.map(|(key, value)| format!("{key}={value}"));
    tags.map(|tag| if tag.starts_with("same=") { Err(ReservedTag(tag)) } else { Ok(tag) }).collect()
}

/// The tag that all snapshots of one volume share. It is the UID of the claim or, if there is none,
/// the name of the volume in pods of this name.
pub fn same(claim_uid: Option<&str>, namespace: &str, pod: &str, volume: &str) -> String {
    match claim_uid.filter(|uid| !uid.is_empty()) {
        Some(uid) => format!("same=claim/{uid}"),
        None => format!("same=pod/{namespace}/{pod}/{volume}"),
    }
}

/// The time in whole seconds, as objects store it.
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or_default()
}

/// The largest whole number that a status can hold.
pub fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_has_its_step() {
        use Step::{EndCanceled, HandOver, Nothing, Start, Stop};
        for (phase, ready, canceled, running_canceled, running) in [
            ("", Start, EndCanceled, Stop, Nothing),
            ("New", Start, EndCanceled, Stop, Nothing),
            ("Accepted", Start, EndCanceled, Stop, Nothing),
            ("Prepared", Start, EndCanceled, Stop, Nothing),
            ("InProgress", Start, EndCanceled, Stop, Nothing),
            ("Canceling", EndCanceled, EndCanceled, Stop, Stop),
            ("Completed", Nothing, Nothing, Stop, Stop),
            ("Failed", Nothing, Nothing, Stop, Stop),
            ("Canceled", Nothing, Nothing, Stop, Stop),
            ("Unheard", Nothing, Nothing, Stop, Stop),
        ] {
            let seen = |is_canceled, is_running| ObservedPodVolume {
                phase,
                is_canceled,
                is_running,
                is_ready: true,
                is_left: false,
            };
            let all = [seen(false, false), seen(true, false), seen(true, true), seen(false, true)];
            let steps = all.map(|seen| step(seen, FileAccess::Agent));
            assert_eq!(steps, [ready, canceled, running_canceled, running], "{phase}");
            let ready = if ready == Start { HandOver } else { ready };
            let steps = all.map(|seen| step(seen, FileAccess::DataMovers));
            assert_eq!(steps, [ready, canceled, running_canceled, running], "{phase}, by data movers");
        }
    }

    #[test]
    fn what_is_not_ready_does_not_begin_again() {
        for (phase, wanted, by_movers) in
            [("New", Step::Nothing, Step::Nothing), ("InProgress", Step::Finish, Step::HandOver)]
        {
            let seen = ObservedPodVolume {
                phase,
                is_canceled: false,
                is_running: false,
                is_ready: false,
                is_left: false,
            };
            assert_eq!(step(seen, FileAccess::Agent), wanted);
            assert_eq!(step(seen, FileAccess::DataMovers), by_movers);
        }
    }

    #[test]
    fn what_another_process_carries_is_neither_begun_nor_ended() {
        for (is_canceled, is_ready) in [(false, false), (false, true), (true, false), (true, true)] {
            let seen = |phase, is_running| ObservedPodVolume {
                phase,
                is_canceled,
                is_running,
                is_ready,
                is_left: true,
            };
            for access in [FileAccess::Agent, FileAccess::DataMovers] {
                assert_eq!(step(seen("InProgress", false), access), Step::Nothing);
                let own = if is_canceled { Step::Stop } else { Step::Nothing };
                assert_eq!(step(seen("InProgress", true), access), own, "a job that runs here is told");
            }
        }
        let seen = ObservedPodVolume {
            phase: "New",
            is_canceled: false,
            is_running: false,
            is_ready: true,
            is_left: true,
        };
        assert_eq!(step(seen, FileAccess::Agent), Step::Start, "nobody has begun it");
    }

    #[test]
    fn every_repository_has_a_secret_and_an_object_of_its_own() {
        let digest = |text: &str| format!("{:064x}", text.len() * 256 + usize::from(text.as_bytes()[17]));
        assert_eq!(secret_name("default", "shop", digest), "berth-repository-default.shop");
        let names = repository_names("default", "shop", str::to_owned);
        assert_eq!((names.len(), names[0].as_str()), (2, "shop-default-restic"));
        let [one, other] = [("b-c", "a"), ("c", "a-b")]
            .map(|(location, namespace)| repository_names(location, namespace, str::to_owned));
        assert!(one[0] == other[0] && one[1] != other[1], "{one:?} {other:?}");
        let names = |letter: &str| {
            let location = letter.repeat(LONGEST);
            let names = repository_names(&location, "n", digest);
            assert_eq!(names.len(), 1, "the other one is too long");
            [secret_name(&location, "n", digest), names[0].clone()]
        };
        for (one, other) in names("a").into_iter().zip(names("b")) {
            assert!(one.len() <= LONGEST && one != other, "{one} {other}");
        }
    }

    #[test]
    fn csi_has_one_folder_more() {
        assert_eq!(folder(Backing::Inline { name: "v", is_csi: false }), ["v"]);
        assert_eq!(folder(Backing::Persistent { volume: "pv", is_csi: true }), ["pv", "mount"]);
        assert_eq!(plugin(["a"].iter()), Ok(&"a"));
        assert_eq!(plugin::<()>(std::iter::empty()), Err(NoFolder::Nowhere));
        assert_eq!(plugin(["a", "b"].iter()), Err(NoFolder::Several));
    }

    #[test]
    fn a_volume_is_the_same_as_its_claim() {
        assert_eq!(same(Some("u"), "n", "p", "v"), "same=claim/u");
        assert_eq!(same(Some(""), "n", "p", "v"), same(None, "n", "p", "v"));
        assert_eq!(tags([("backup", "b")].into_iter()), Ok(vec!["backup=b".to_owned()]));
        for key in ["same", "same=claim/u"] {
            assert!(tags([("backup", "b"), (key, "claim/u")].into_iter()).is_err(), "{key}");
        }
    }
}
