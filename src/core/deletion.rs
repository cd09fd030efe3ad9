//! What the deletion of a Backup does next.
//!
//! A DeleteBackupRequest is carried out in steps. Each step can be done twice without harm, and
//! [`next`] decides from what is in the cluster and in the store, and from nothing else: whoever
//! takes the deletion up after a crash continues where it stopped.
//!
//! 1. Everything that could stand in the way is checked before anything is removed, so a deletion
//!    that cannot be done leaves the backup as it is. The store's own lock on the files is checked,
//!    too, because a bucket that keeps versions would only hide them, and no other bucket lets them
//!    go.
//! 2. The request becomes InProgress and records which Backup it is about. The deletion claims the
//!    folder in the store ([`owner`] says whether it may). From then on the claim proves whose the
//!    folder is, also when the file is gone that names the Backup.
//! 3. The Backup becomes Deleting, after that, because a store that keeps everything until a date,
//!    and does not say so, refuses the claim, and then the backup is whole.
//! 4. Snapshots go while the files are still there that name them.
//! 5. The Backup records that its files go: by the write that makes it Deleting, where there are no
//!    snapshots. The file that makes the backup visible goes, then the other files, and the claim
//!    last. Where nothing is found without that record, a location that has no other backup is not
//!    believed: a volume that is not mounted looks the same.
//! 6. Restores of the backup go, then the Backup, then its requests.

mod owner;
mod requests;
mod restore;

use jiff::Timestamp;

use crate::sync::is_name;

pub use owner::{
    BackupIdentity, DELETION, FolderOwner, ForeignFolderReason, Inherited, StoredFolder, StoredMetadata,
    owner,
};
pub use requests::{AGE, PendingDeletionRequest, RequestTask, plan};
pub use restore::RestoreTimes;

/// The request and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletionRequest<'a> {
    /// Name of the Backup.
    pub backup: &'a str,
    /// UID of the Backup that is meant, if the request says so. One that has begun does.
    pub uid: Option<&'a str>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Is it InProgress?
    pub has_begun: bool,
    /// Are there other requests for this Backup?
    pub has_others: bool,
    /// Does it record in which repositories the Backup may have data?
    pub has_data: bool,
}

/// The Backup, as far as its deletion depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletionBackup<'a> {
    pub uid: &'a str,
    pub created: Option<Timestamp>,
    pub phase: &'a str,
    /// The value of the annotation `berth.dev/keep`, if it is set.
    pub kept: Option<&'a str>,
    /// Volume data that cannot be removed is to be left behind.
    pub leaves_volumes: bool,
    /// A deletion has begun to remove its files.
    pub files_go: bool,
    /// It has been removed, and is there until somebody has taken its finalizers off.
    pub is_going: bool,
    /// It stores in another place than the one that the request records.
    pub is_elsewhere: bool,
}

impl DeletionBackup<'_> {
    /// Has a deletion emptied its folder, if that is empty? Then nothing depends on whether the
    /// location has other backups.
    pub fn is_emptied(&self) -> bool {
        self.files_go && self.phase == "Deleting"
    }
}

/// The location of the Backup. Of a Backup that is not the request's: that which the request
/// records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionLocation<'a> {
    Usable,
    Missing(&'a str),
    ReadOnly(&'a str),
    Unavailable(&'a str),
}

/// What is left of the data of volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemainingVolumeData {
    /// What nobody here can remove, in words.
    pub out_of_reach: Vec<String>,
    /// How many snapshots can be removed.
    pub snapshots: usize,
}

/// The Restores of the backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restores {
    /// Names of those that have not ended.
    pub running: Vec<String>,
    /// How many have ended.
    pub ended: usize,
}

/// Whether the store keeps files of the backup, whoever deletes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLock {
    /// It does not, or does not say so.
    None,
    Until(Timestamp),
}

/// Everything that [`next`] decides on. `None`: nobody has looked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionState<'a> {
    pub now: Timestamp,
    pub request: DeletionRequest<'a>,
    pub backup: Option<DeletionBackup<'a>>,
    pub location: DeletionLocation<'a>,
    /// Whose the folder of the backup is.
    pub folder: Option<FolderOwner>,
    /// The folder has the file that makes the backup visible, as far as somebody has looked.
    pub is_visible: bool,
    /// That file is of the Backup of the request, as far as somebody has looked.
    pub is_shown: bool,
    pub lock: Option<StoreLock>,
    pub volumes: Option<RemainingVolumeData>,
    pub restores: Option<Restores>,
}

/// The next step of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionStep {
    /// Remove the other requests for this Backup.
    RemoveOthers,
    LookAtFolder,
    LookAtLock,
    LookAtVolumes,
    LookAtRestores,
    /// Remove a Backup that has not begun: nothing of it is stored.
    TakeOut,
    /// Make the request InProgress, and record the UID and the location of the Backup.
    Begin,
    /// Claim the folder for the deletion.
    Claim,
    /// Make the Backup Deleting. `files_go`: and write to it in the same go that its files go from
    /// now on, because nothing else goes before them.
    Mark {
        files_go: bool,
    },
    RemoveSnapshots,
    /// Write to the Backup that its files go from now on.
    Record,
    /// Remove the file that makes the backup visible, all other files, and the claim.
    RemoveFiles,
    RemoveRestores,
    RemoveBackup,
    /// Everything is gone: remove the requests for this Backup.
    Done,
    /// Forget the data in the repositories that the request records, and remove this request alone.
    /// `once`: also where that fails, because the Backup of the same name waits for it.
    ForgetData {
        once: bool,
    },
    /// Remove this request alone.
    Forget,
    /// Try again later: the store cannot be used now, or a Restore reads the backup.
    Wait(String),
    /// The request becomes Processed, with these errors.
    End(Vec<String>),
    /// The request becomes Processed, and records until when the store keeps the files.
    EndLocked(Timestamp),
}

impl DeletionStep {
    /// Does the step only write down how far the deletion is? Another step may follow it without a
    /// new look, if what was written is taken in. Whatever removes something begins with a look,
    /// but the removal of the Backup may follow that of its files: it is one of the version that
    /// was looked at.
    pub fn removes_nothing(&self) -> bool {
        matches!(self, Self::Begin | Self::Claim | Self::Mark { .. } | Self::Record)
    }
}

/// The error of a request whose files the store keeps until then.
pub fn locked(until: Timestamp) -> String {
    format!(
        "the store keeps the files of this backup until {until}, whoever deletes them, so nothing was removed: create another request after that time"
    )
}

/// Has a backup of this phase not begun?
fn waits(phase: &str) -> bool {
    matches!(phase, "" | "New" | "Queued")
}

/// Can it be deleted?
fn is_over(phase: &str) -> bool {
    matches!(phase, "Completed" | "PartiallyFailed" | "Failed" | "FailedValidation" | "Deleting")
}

/// Can nothing of a Backup in this phase be in the store where somebody else has its folder?
fn stored_nothing(phase: &str) -> bool {
    matches!(phase, "Failed" | "FailedValidation")
}

fn end(why: impl Into<String>) -> DeletionStep {
    DeletionStep::End(vec![why.into()])
}

/// Decides what to do next.
pub fn next(seen: &DeletionState<'_>) -> DeletionStep {
    let DeletionRequest { backup: name, uid: asked, created, has_begun, has_others, has_data: _ } =
        seen.request;
    if name.is_empty() {
        return end("spec.backupName: required");
    }
    // What no object can be called would become part of a request's address, and of a path in a
    // store.
    if !is_name(name) {
        return end("spec.backupName: no Backup has such a name");
    }
    // Others may be for the present Backup of that name, which is another one.
    let is_earlier = |uid: &str| asked.is_some_and(|asked| asked != uid);
    if has_others && !seen.backup.as_ref().is_some_and(|backup| is_earlier(backup.uid)) {
        return DeletionStep::RemoveOthers;
    }
    let Some(backup) = &seen.backup else {
        return if has_begun { after_backup(seen) } else { end("backup not found") };
    };
    if is_earlier(backup.uid) {
        if has_begun {
            return beside_later(seen, backup);
        }
        return end(format!(
            "this request is for an earlier Backup {name}, and that one is gone: create another request for the present one"
        ));
    }
    // A request that names no UID means the Backup that was there when it was created.
    if asked.is_none() && backup.created.zip(created).is_some_and(|(backup, request)| backup > request) {
        return end(format!(
            "this request is older than Backup {name}, so it is for an earlier one: create another request for the present one"
        ));
    }
    let is_marked = backup.phase == "Deleting";
    if let Some(why) = backup.kept.filter(|_| !is_marked) {
        return end(format!(
            "the annotation berth.dev/keep keeps this Backup ({why}): remove the annotation first"
        ));
    }
    if waits(backup.phase) {
        return DeletionStep::TakeOut;
    }
    if !is_over(backup.phase) {
        return end(format!(
            "backup is still in progress (phase {}): cancel it by `berth queue cancel`, or wait until it has ended",
            backup.phase
        ));
    }
    match seen.location {
        DeletionLocation::Missing(location) => {
            return end(format!(
                "backup storage location {location} is not found: create it again, or remove the Backup by kubectl, which leaves its files where they are"
            ));
        }
        DeletionLocation::ReadOnly(location) => {
            return end(format!("backup storage location {location} is read-only: make it ReadWrite first"));
        }
        DeletionLocation::Unavailable(location) => {
            let why = format!("backup storage location {location} is currently unavailable");
            return if has_begun { DeletionStep::Wait(why) } else { end(why) };
        }
        DeletionLocation::Usable => {}
    }
    let Some(folder) = &seen.folder else { return DeletionStep::LookAtFolder };
    let stranger = match folder {
        FolderOwner::Stranger(stranger) => Some(stranger),
        _ => None,
    };
    if let Some(stranger) = stranger
        && (stranger.is_copied() || !stored_nothing(backup.phase))
    {
        return end(stranger.to_string());
    }
    if *folder == FolderOwner::NobodyInEmpty && !backup.files_go && !stored_nothing(backup.phase) {
        let why = "the storage location has neither this backup nor any other, so it may not be the bucket or the volume that has it: bring that back or, if the files are gone for good, remove the Backup by kubectl";
        return if has_begun { DeletionStep::Wait(why.to_owned()) } else { end(why) };
    }
    // A deletion that has begun is not stopped any more: its own claim may be locked for longer
    // than the backup was.
    if !has_begun && !is_marked && *folder == FolderOwner::Ours {
        match seen.lock {
            None => return DeletionStep::LookAtLock,
            Some(StoreLock::Until(until)) if until > seen.now => return DeletionStep::EndLocked(until),
            Some(_) => {}
        }
    }
    // Before all that could make it wait or end: no cluster brings back a backup whose folder a
    // deletion has claimed, so it must not look whole.
    if has_begun && !is_marked && *folder == FolderOwner::Claimed {
        return mark(seen, backup);
    }
    let Some(volumes) = &seen.volumes else { return DeletionStep::LookAtVolumes };
    if !volumes.out_of_reach.is_empty() && !backup.leaves_volumes {
        return DeletionStep::End(volumes.out_of_reach.clone());
    }
    // Restores of a folder that is somebody else's are not of this Backup.
    let restores = match &seen.restores {
        _ if stranger.is_some() => &Restores::default(),
        Some(restores) => restores,
        None => return DeletionStep::LookAtRestores,
    };
    if !restores.running.is_empty() {
        let why = format!("these Restores of the backup have not ended: {}", restores.running.join(", "));
        // One that begins meanwhile will end, and only this request takes up what has begun.
        return if has_begun { DeletionStep::Wait(why) } else { end(why) };
    }
    if !has_begun {
        return DeletionStep::Begin;
    }
    if *folder == FolderOwner::Ours {
        return DeletionStep::Claim;
    }
    // A Backup that failed keeps its phase where its folder is somebody else's, or nothing is there
    // at all, because its phase is what says that it has stored nothing.
    if !is_marked && stranger.is_none() && *folder != FolderOwner::NobodyInEmpty {
        return mark(seen, backup);
    }
    if volumes.snapshots > 0 {
        return DeletionStep::RemoveSnapshots;
    }
    if *folder == FolderOwner::Claimed {
        return if backup.files_go { DeletionStep::RemoveFiles } else { DeletionStep::Record };
    }
    if restores.ended > 0 {
        return DeletionStep::RemoveRestores;
    }
    // What is left to others is no deletion's to wait for.
    if backup.is_going { DeletionStep::Done } else { DeletionStep::RemoveBackup }
}

/// Makes the Backup Deleting, and records that its files go where that is what would be done next.
fn mark(seen: &DeletionState<'_>, backup: &DeletionBackup<'_>) -> DeletionStep {
    let marked = DeletionBackup { phase: "Deleting", ..*backup };
    let then = next(&DeletionState { backup: Some(marked), ..seen.clone() });
    DeletionStep::Mark { files_go: then == DeletionStep::Record }
}

/// A Backup of the same name has been created since, which has nothing to do with this deletion.
/// Its run takes over what is left in the folder, if it stores in the same place, but nobody would
/// look for the data in repositories any more.
fn beside_later(seen: &DeletionState<'_>, later: &DeletionBackup<'_>) -> DeletionStep {
    if later.is_elsewhere {
        return match after_backup(seen) {
            // Other requests may be for the later Backup.
            DeletionStep::Done => DeletionStep::Forget,
            step => step,
        };
    }
    match seen.location {
        _ if !seen.request.has_data => return DeletionStep::Forget,
        DeletionLocation::Missing(_) => return DeletionStep::Forget,
        DeletionLocation::ReadOnly(location) | DeletionLocation::Unavailable(location) => {
            return DeletionStep::Wait(format!("backup storage location {location} cannot be written now"));
        }
        DeletionLocation::Usable => {}
    }
    match &seen.folder {
        None => DeletionStep::LookAtFolder,
        // A visible backup would be one without its data.
        Some(_) if seen.is_shown => DeletionStep::Forget,
        // Its own runs may still publish it. No run waits for a deletion that has not claimed.
        Some(FolderOwner::Ours) => {
            DeletionStep::Wait("the later Backup of this name has not taken the folder over yet".to_owned())
        }
        Some(FolderOwner::NobodyInEmpty) => wait_for_data(),
        Some(folder) => DeletionStep::ForgetData { once: *folder == FolderOwner::Claimed },
    }
}

/// The Backup is gone. Usually this deletion has removed it, after everything else. If somebody
/// else has, what this deletion has claimed is still its own to remove. So is what a run has left
/// that never made its backup visible: whoever saw that its Backup was deleted asks for that.
fn after_backup(seen: &DeletionState<'_>) -> DeletionStep {
    match seen.location {
        DeletionLocation::Missing(_) => return DeletionStep::Done,
        DeletionLocation::ReadOnly(location) | DeletionLocation::Unavailable(location) => {
            return DeletionStep::Wait(format!("backup storage location {location} cannot be written now"));
        }
        DeletionLocation::Usable => {}
    }
    match (&seen.folder, &seen.volumes) {
        (None, _) => DeletionStep::LookAtFolder,
        (Some(FolderOwner::Ours), _) if !seen.is_visible => DeletionStep::Claim,
        // Snapshots go while the files are still there that name them, here as well.
        (Some(FolderOwner::Claimed), None) => DeletionStep::LookAtVolumes,
        (Some(FolderOwner::Claimed), Some(volumes)) if volumes.snapshots > 0 => DeletionStep::RemoveSnapshots,
        (Some(FolderOwner::Claimed), Some(_)) => DeletionStep::RemoveFiles,
        (Some(FolderOwner::Ours), _) => DeletionStep::Done,
        // No file of the folder tells where its data in repositories is, so nobody else would look
        // for that. A visible backup would be one without its data.
        (Some(folder), _) if seen.request.has_data && !seen.is_shown => match folder {
            FolderOwner::NobodyInEmpty => wait_for_data(),
            _ => DeletionStep::ForgetData { once: false },
        },
        (Some(_), _) => DeletionStep::Done,
    }
}

/// A volume that is not mounted looks empty, and then its repositories seem to be gone, too.
fn wait_for_data() -> DeletionStep {
    let why = "the storage location has no backup at all, so it may not be the bucket or the volume that has the data of this one: bring that back or, if the data is gone for good, remove this request by kubectl";
    DeletionStep::Wait(why.to_owned())
}

#[cfg(test)]
mod tests;
