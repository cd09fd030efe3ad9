//! Carries out one DeleteBackupRequest, step by step.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use berth_api::keys;
use berth_api::velero::delete_backup_request::DeleteBackupRequestStatus;
use berth_api::velero::{BackupPhase, DeleteBackupRequest, DeleteBackupRequestPhase as Phase};
use berth_core::deletion::{
    DeletionBackup, DeletionRequest, DeletionState, DeletionStep, FolderOwner, RemainingVolumeData, Restores,
    StoreLock, locked, next,
};
use berth_core::limits;
use berth_core::sync::is_name;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::json;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::calls::written;
use super::carrying::{Carrying, DeletionFindings, Files, VolumeData};
use super::others;
use super::seen::{seen_backup, seen_location, wanted_location};
use super::volumes::own_files;
use crate::backup::removals::data_in;
use crate::events::EventReason;
use crate::text::chain;
use crate::write::{Pauses, Write, delete, patch};

/// How long a failing deletion is tried before its request ends with the reason.
const PATIENCE: Duration = Duration::from_secs(600);
/// The same if the Backup is gone, because nobody can request its deletion again.
const GONE: Duration = Duration::from_secs(3600);
/// How long a deletion that fails keeps its place, because deletions of other Backups wait for one.
const TURN: Duration = Duration::from_secs(30);
/// Time-out of one step. Removing many files takes a while.
const STEP: Duration = Duration::from_secs(300);
/// How many steps of one deletion may follow each other without a pause.
const STEPS: usize = 1000;
/// The note of a deletion that has succeeded.
const DELETED: &str = "deleted, with all that was stored of it";
/// Why the data of a Backup that is gone is not forgotten yet.
const STORING: &str = "a data mover or an agent of berth may still store data for it";
/// Errors of a request.
const ERRORS: usize = 20;

/// Has the request ended?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeletionEnd {
    Yes,
    /// It waits for something.
    Not,
    /// It fails.
    Failed,
}

/// The result of a step.
enum StepResult {
    Next,
    Ended,
    Later(String),
}

impl Carrying<'_> {
    /// Carries out the request until it has ended or has failed for too long. `since`: when this
    /// process started with it. A request that can only wait, or that fails for longer than
    /// [`TURN`], gives up its place.
    pub(super) async fn run(mut self, since: Instant) -> DeletionEnd {
        let mut pauses = Pauses::default();
        let mut steps = 0;
        loop {
            let stepped = timeout(STEP, self.step()).await;
            let patience = if self.is_backup_gone { GONE } else { PATIENCE };
            let why = match stepped.unwrap_or_else(|_| Err(anyhow!("it took too long"))) {
                Ok(StepResult::Next) if steps < STEPS => {
                    steps += 1;
                    pauses = Pauses::default();
                    continue;
                }
                Ok(StepResult::Next) => "it takes more steps than a deletion can have".to_owned(),
                Ok(StepResult::Ended) => return DeletionEnd::Yes,
                Ok(StepResult::Later(_)) if since.elapsed() < patience => return DeletionEnd::Not,
                Ok(StepResult::Later(why)) => why,
                Err(error) => {
                    // With the keys that its Secret has by then.
                    self.opened = None;
                    let why = format!("{error:#}");
                    warn!(backup = self.backup_name(), error = %why, "a step of a deletion failed: trying again");
                    if since.elapsed() < TURN {
                        pauses.wait().await;
                        continue;
                    }
                    why
                }
            };
            if since.elapsed() < patience {
                return DeletionEnd::Failed;
            }
            let ended = match self.read().await {
                Ok(Some(request)) => {
                    let backup: Option<DynamicObject> =
                        self.get(&self.backups(), self.backup_name()).await.ok().flatten();
                    // Another one may have its name.
                    let asked = request.labels().get(keys::BACKUP_UID);
                    let backup = backup.filter(|found| !self.is_backup_gone || found.uid().as_ref() == asked);
                    let deleting = BackupPhase::Deleting.as_str();
                    let left = if self.is_backup_gone && backup.is_none() {
                        "the Backup is gone, its folder stays in the store, and so may its snapshots in restic repositories, which have its UID in the tag backup-uid"
                    } else if backup.as_ref().is_some_and(|one| seen_backup(one).phase != deleting) {
                        // The start of a deletion is counted when the Backup becomes Deleting.
                        self.count_begun();
                        "the backup is as it was"
                    } else {
                        "what is left of the backup is removed by the next request"
                    };
                    let why = format!("given up after {} minutes: {why}: {left}", patience.as_secs() / 60);
                    self.end(&request, backup.as_ref(), vec![why], None).await.is_ok()
                }
                Ok(None) => true,
                Err(_) => false,
            };
            return if ended { DeletionEnd::Yes } else { DeletionEnd::Not };
        }
    }

    /// The request as it is now. `None`: it is gone, or has ended.
    async fn read(&self) -> anyhow::Result<Option<DeleteBackupRequest>> {
        let found = self.get(&self.api(), &self.request.name_any()).await?;
        let is_same = |found: &DeleteBackupRequest| {
            found.metadata.uid == self.request.metadata.uid && found.phase() != Phase::Processed
        };
        Ok(found.filter(is_same))
    }

    async fn step(&mut self) -> anyhow::Result<StepResult> {
        let Some(request) = self.read().await? else { return Ok(StepResult::Ended) };
        let name = request.spec.backup_name.clone();
        let backup = match name.as_str() {
            name if !is_name(name) => None,
            name => self.get(&self.backups(), name).await?,
        };
        let asked = |request: &DeleteBackupRequest| request.labels().get(keys::BACKUP_UID).cloned();
        let has_begun = request.phase() == Phase::InProgress;
        // One that was created since under its name is another Backup.
        let is_later =
            |found: &DynamicObject| has_begun && asked(&request).is_some_and(|uid| found.uid() != Some(uid));
        let (backup, later) = match backup {
            Some(found) if is_later(&found) => (None, Some(found)),
            found => (found, None),
        };
        if let Some(backup) = &backup {
            self.schedule = backup.labels().get(keys::SCHEDULE).cloned();
        }
        self.is_backup_gone = backup.is_none() && has_begun;
        let uid = asked(&request).or_else(|| backup.as_ref().and_then(|backup| backup.uid()));
        let mut others = others(self.requests, &request, uid.as_deref());
        others.retain(|other| other.uid().is_none_or(|uid| !self.removed.contains(&uid)));
        let wanted = wanted_location(&request, backup.as_ref());
        let location = self.location(&wanted).await?;
        let shown = location.as_ref().map_or(wanted.clone(), |location| location.name_any());
        let is_elsewhere = match &later {
            Some(later) => self.is_elsewhere(later, location.as_ref()).await?,
            None => false,
        };
        let mut found = DeletionFindings {
            request,
            backup,
            location,
            layout: None,
            survey: None,
            volumes: VolumeData::default(),
            restores: Vec::new(),
        };
        let (mut folder, mut lock, mut volumes, mut restores) = (None, None, None, None);
        let mut recorded = Vec::new();
        loop {
            let asked = asked(&found.request);
            let step = next(&DeletionState {
                now: Timestamp::now(),
                request: DeletionRequest {
                    backup: &name,
                    uid: asked.as_deref(),
                    created: found.request.metadata.creation_timestamp.as_ref().map(|time| time.0),
                    has_begun: found.request.phase() == Phase::InProgress,
                    has_others: !others.is_empty(),
                    // What this deletion has forgotten is not looked for again.
                    has_data: !self.are_snapshots_gone && !data_in(&found.request).is_empty(),
                },
                backup: found
                    .backup
                    .as_ref()
                    .or(later.as_ref())
                    .map(|backup| DeletionBackup { is_elsewhere, ..seen_backup(backup) }),
                location: seen_location(found.location.as_ref(), &shown),
                folder: folder.clone(),
                is_visible: found.survey.as_ref().is_none_or(|survey| survey.is_published),
                is_shown: found.survey.as_ref().is_some_and(|survey| {
                    survey.stored.metadata.as_ref().is_some_and(|stored| Some(&stored.uid) == asked.as_ref())
                }),
                lock,
                volumes: volumes.clone(),
                restores: restores.clone(),
            });
            match step {
                DeletionStep::LookAtFolder => {
                    folder = Some(self.look_at_folder(&mut found, asked.as_deref()).await?)
                }
                DeletionStep::LookAtLock => {
                    let layout = found.layout.as_ref().context("the folder was not read")?;
                    let archive = layout.archive_locked_until().await;
                    let archive = archive.map_err(|error| anyhow!(chain(&error)))?;
                    let until = archive.max(found.survey.as_ref().and_then(|survey| survey.locked_until));
                    lock = Some(until.map_or(StoreLock::None, StoreLock::Until));
                }
                DeletionStep::LookAtVolumes => {
                    // An empty folder has no files that could name volumes.
                    let has_files = matches!(folder, Some(FolderOwner::Ours | FolderOwner::Claimed));
                    let layout = found.layout.as_ref().filter(|_| has_files);
                    let of = found.backup.as_ref().and_then(|backup| backup.uid()).or(asked);
                    let uid = of.unwrap_or_default();
                    if self.is_backup_gone && self.may_store(&uid).await? {
                        return Ok(StepResult::Later(STORING.to_owned()));
                    }
                    let (survey, data_in) = (found.survey.as_ref(), data_in(&found.request));
                    found.volumes = self.look_at_volumes_again(layout, survey, &uid, &data_in).await?;
                    volumes = Some(RemainingVolumeData {
                        out_of_reach: found.volumes.out_of_reach.clone(),
                        snapshots: found.volumes.snapshots.len() + found.volumes.files.len(),
                    });
                }
                DeletionStep::LookAtRestores => {
                    let (ended, running) = self.look_at_restores().await?;
                    let running = running.iter().map(|restore| restore.name_any()).collect();
                    restores = Some(Restores { running, ended: ended.len() });
                    found.restores = ended;
                }
                DeletionStep::RemoveOthers => {
                    for other in &others {
                        self.remove_request(other).await?;
                    }
                    return Ok(StepResult::Next);
                }
                // At most once in each pass, because what was written may not have been stored.
                step if step.removes_nothing() && !recorded.contains(&step) => {
                    if !self.record(&step, &mut found).await? {
                        return Ok(StepResult::Next);
                    }
                    if step == DeletionStep::Claim {
                        folder = Some(FolderOwner::Claimed);
                    }
                    recorded.push(step);
                }
                // A step that removes something, or ends the request, is decided in a pass of its
                // own.
                _ if !recorded.is_empty() => return Ok(StepResult::Next),
                // The Backup follows its files in the same pass, because it is removed only in the
                // version that was looked at. Restores of it may have come since.
                DeletionStep::RemoveFiles => {
                    if !self.remove_files(&found).await? || found.backup.is_none() {
                        return Ok(StepResult::Next);
                    }
                    (folder, restores) = (Some(FolderOwner::Nobody), None);
                }
                step => return self.act(step, &found).await,
            }
        }
    }

    async fn act(&mut self, step: DeletionStep, found: &DeletionFindings) -> anyhow::Result<StepResult> {
        let request = &found.request;
        match step {
            DeletionStep::TakeOut | DeletionStep::RemoveBackup => {
                let backup = found.backup.as_ref().context("the Backup is gone")?;
                // On the version that was read, because a Backup that waits may start meanwhile.
                written(delete(&self.backups(), Write::on(backup)).await)
                    .context("failed to remove the Backup")?;
                let note = if step == DeletionStep::TakeOut {
                    self.count_begun();
                    "taken out of the queue"
                } else {
                    DELETED
                };
                self.done(request, &backup.uid().unwrap_or_default(), note).await?;
                return Ok(StepResult::Ended);
            }
            DeletionStep::RemoveSnapshots => {
                let removed = async {
                    if !found.volumes.snapshots.is_empty() {
                        let is_published = found.survey.as_ref().is_some_and(|survey| survey.is_published);
                        let was_visible = found.backup.is_some() || is_published;
                        self.remove_snapshots(&found.volumes.snapshots, was_visible).await?;
                    }
                    let is_noted = self.is_backup_gone;
                    self.forget_files(found.location.as_ref(), &found.volumes.files, is_noted).await
                };
                let removed = removed.await;
                let is_left = found.backup.as_ref().is_some_and(|backup| seen_backup(backup).leaves_volumes);
                match removed {
                    Err(error) if is_left => {
                        warn!(
                            backup = self.backup_name(),
                            error = format!("{error:#}"),
                            "leaving snapshots where they are, as an annotation asks"
                        );
                    }
                    removed => removed?,
                }
                self.are_snapshots_gone = true;
            }
            DeletionStep::RemoveRestores => {
                self.remove_restores(found.layout.as_ref(), &found.restores).await?
            }
            DeletionStep::Done => {
                let uid = request.labels().get(keys::BACKUP_UID).cloned().unwrap_or_default();
                self.done(request, &uid, DELETED).await?;
                return Ok(StepResult::Ended);
            }
            DeletionStep::ForgetData { once } => {
                let uid = request.labels().get(keys::BACKUP_UID).map(String::as_str).unwrap_or_default();
                if !once && self.may_store(uid).await? {
                    return Ok(StepResult::Later(STORING.to_owned()));
                }
                let data: BTreeSet<Files> = data_in(request)
                    .iter()
                    .filter_map(|namespace| own_files(namespace, None, Some(uid)))
                    .collect();
                match self.forget_files(found.location.as_ref(), &data, true).await {
                    Err(error) if once => {
                        let error = format!("{error:#}");
                        warn!(backup = self.backup_name(), %uid, error, "could not forget the data of a deleted Backup: its snapshots in repositories have the tag backup-uid");
                    }
                    forgotten => forgotten?,
                }
                self.remove_request(request).await?;
                return Ok(StepResult::Ended);
            }
            DeletionStep::Forget => {
                self.remove_request(request).await?;
                info!(
                    backup = self.backup_name(),
                    request = request.name_any(),
                    "ended the deletion of a Backup that is gone: one of the same name has been created since"
                );
                return Ok(StepResult::Ended);
            }
            DeletionStep::Wait(why) => return Ok(StepResult::Later(why)),
            DeletionStep::End(errors) => {
                self.count_begun();
                self.end(request, found.backup.as_ref(), errors, None).await?;
                return Ok(StepResult::Ended);
            }
            DeletionStep::EndLocked(until) => {
                self.count_begun();
                self.end(request, found.backup.as_ref(), vec![locked(until)], Some(until)).await?;
                return Ok(StepResult::Ended);
            }
            DeletionStep::RemoveOthers
            | DeletionStep::Begin
            | DeletionStep::Claim
            | DeletionStep::Mark { .. }
            | DeletionStep::Record
            | DeletionStep::RemoveFiles
            | DeletionStep::LookAtFolder
            | DeletionStep::LookAtLock
            | DeletionStep::LookAtVolumes
            | DeletionStep::LookAtRestores => {}
        }
        Ok(StepResult::Next)
    }

    pub(super) fn count_begun(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            self.lifecycle.metrics.deletion_begun(self.schedule.as_deref());
        }
    }

    async fn remove_request(&mut self, request: &DeleteBackupRequest) -> anyhow::Result<()> {
        let name = request.name_any();
        written(delete(&self.api(), Write::to(&name).uid(request.metadata.uid.as_deref())).await)
            .with_context(|| format!("failed to remove DeleteBackupRequest {name}"))?;
        self.removed.extend(request.uid());
        Ok(())
    }

    /// Removes the requests of a Backup that is gone.
    async fn done(&mut self, request: &DeleteBackupRequest, uid: &str, note: &str) -> anyhow::Result<()> {
        for other in others(self.requests, request, Some(uid)) {
            self.remove_request(&other).await?;
        }
        self.remove_request(request).await?;
        info!(backup = self.backup_name(), %uid, "a backup is {note}");
        self.lifecycle.events.tell(EventReason::Deleted, self.backup_name(), uid, note);
        self.lifecycle.metrics.deletion_ended(self.schedule.as_deref(), true);
        Ok(())
    }

    /// Ends the request with errors. `locked_until`: the expiry need not ask again before that
    /// time.
    async fn end(
        &self,
        request: &DeleteBackupRequest,
        backup: Option<&DynamicObject>,
        errors: Vec<String>,
        locked_until: Option<Timestamp>,
    ) -> anyhow::Result<()> {
        let errors: Vec<String> = errors
            .into_iter()
            .take(ERRORS)
            .map(|error| error.chars().take(limits::STATUS_MESSAGE).collect())
            .collect();
        let change = json!({
            // Set in any case, so that a value from the request's creator does not stay.
            "metadata": {"annotations": {keys::LOCKED_UNTIL: locked_until.map(|until| until.to_string())}},
            "status": DeleteBackupRequestStatus::processed(&errors),
        });
        written(patch(&self.api(), Write::on(request), change).await).context("failed to end the request")?;
        let why = errors.join("; ");
        warn!(backup = self.backup_name(), request = request.name_any(), %why, "could not delete a backup");
        let asked = || request.labels().get(keys::BACKUP_UID).cloned().filter(|_| self.is_backup_gone);
        if let Some(uid) = backup.and_then(|backup| backup.uid()).or_else(asked) {
            self.lifecycle.events.tell(EventReason::DeletionFailed, self.backup_name(), &uid, why);
        }
        self.lifecycle.metrics.deletion_ended(self.schedule.as_deref(), false);
        Ok(())
    }
}
