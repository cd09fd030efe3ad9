//! What becomes of a backup that no process runs any more, because its leader is gone or was
//! stopped, or its store failed. `berth_core::run` decides.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{anyhow, bail};
use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase, BackupStatus};
use berth_core::claim::FolderClaim;
use berth_core::policy::filters::Filters;
use berth_core::run::{Recovery, Why};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::begun::{EarlierProgress, RunSite};
use super::checkpoint::Packed;
use super::conduct::forget_checkpoint;
use super::engine::{Engine, LAST_PART, OPENING, RunFailure, Signals};
use super::hooks::Tally;
use super::inputs::ClusterInputs;
use super::log::BackupLog;
use super::movement::Movements;
use super::operations::uploads::cancel_all;
use super::prepare::Prepared;
use super::publication::{PublicationState, unsettled};
use super::scene::Scene;
use super::status::{BackupWriter, WriteError, run_id};
use super::turns::LocationTurn;
use super::volumes::outcomes::Outcomes;
use crate::queue::cycle::CANCELED;
use crate::storage::{BackupLayout, Opened, is_refused};
use crate::text::chain;

/// How long a location that cannot be read is tried again, because what is stored there may be
/// complete, or be continued. As long as a run waits for its store; attempts and the pauses between
/// them count, turns of other backups do not.
const LOCATION: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_secs(5);
/// Least time of the last attempt, because the location may have come back in the middle of it.
const LAST_TRY: Duration = Duration::from_secs(60);

/// Results of the hooks that were run for a dead run.
struct Thawed {
    log: BackupLog,
    tally: Tally,
    /// UIDs of pods whose PodVolumeBackups may go on though they are thawed.
    spoiled: BTreeSet<String>,
}

/// What comes next.
enum RecoveryStep {
    Nothing,
    /// The Backup ends with this status.
    End(Value),
    /// The Backup is run again in this location.
    Run(Box<Scene>, Opened),
}

impl Engine {
    /// Takes up a backup that another process was running and that no process runs now. First it
    /// takes the Backup over, so that a leader which is not as dead as it seems can neither publish
    /// nor end it. Then it runs the hooks that are still due in pods, whatever becomes of the
    /// backup, because users wait for what is frozen. If the run had the permission to publish, the
    /// backup ended well, and what is missing is written; otherwise it is run to its end, continued
    /// or restarted as the setting says, unless it was run too often. If `signals.stop` comes
    /// first, it is left to the next leader. `tell` is called when the backup runs again.
    ///
    /// # Errors
    /// When the Backup could not be written.
    pub async fn recover(
        &self,
        name: &str,
        uid: &str,
        signals: Signals,
        tell: impl FnOnce(&str) + Send,
    ) -> Result<Option<Backup>, WriteError> {
        let mut record = BackupWriter::read(self.client.clone(), &self.namespace, name, uid).await?;
        if record.phase() != record.held_in().as_str() {
            return Ok(None);
        }
        let (run, is_begun) = (run_id(), record.is_begun());
        let is_held = match record.take_over(&run, OPENING).await {
            Ok(()) => true,
            // The Backup has no room for the annotation. Its end needs less room and keeps every
            // other process from writing it as well; but until then its files may be in use.
            Err(WriteError::Refused(_)) => false,
            Err(error) => return Err(error),
        };
        let log = BackupLog::new(format!("{}/{name}", self.namespace));
        let mut thawed = Thawed { log, tally: Tally::default(), spoiled: BTreeSet::new() };
        thawed.spoiled = self.thaw(&mut record, &thawed.log, &thawed.tally, &signals.stop).await?;
        let at = record.backup().ok().and_then(|backup| backup.spec.storage_location).unwrap_or_default();
        // A stored backup is published even if it is canceled.
        let is_publishing = record.is_publishing();
        let mut spent = Duration::ZERO;
        loop {
            let turn = tokio::select! {
                biased;
                turn = self.turns.inspect(&at) => Some(turn),
                () = signals.deleted.cancelled() => return Err(WriteError::Gone),
                // Ending a canceled backup reads no more of a checkpoint than its first line.
                () = signals.canceled.cancelled(), if !is_publishing => None,
                () = signals.stop.cancelled() => return Ok(None),
            };
            let begun = Instant::now();
            let hurry = async {
                signals.canceled.cancelled().await;
                sleep(LAST_PART).await;
            };
            let work = async {
                let scene = self.scene(&record, name, &run, is_held, is_begun, &signals);
                let scene = tokio::select! {
                    biased;
                    scene = scene => scene?,
                    () = hurry, if !is_publishing => bail!("it did not answer before the cancel"),
                };
                // What is stored of a canceled backup is removed within that time.
                self.next(&record, scene, &thawed.log).await
            };
            let work = async {
                match turn {
                    Some(turn) => turn.spend(work).await,
                    None => work.await,
                }
            };
            let left = LOCATION.saturating_sub(spent).max(LAST_TRY);
            let next =
                timeout(left, work).await.unwrap_or_else(|_| Err(anyhow!("it did not answer in time")));
            spent += begun.elapsed();
            let is_canceled = signals.canceled.is_cancelled() && !is_publishing;
            let is_unread = next.is_err();
            let status = match next {
                Ok(RecoveryStep::Nothing) => return Ok(None),
                Ok(RecoveryStep::Run(scene, opened)) if record.is_after() => {
                    self.finalize(&mut record, *scene, opened, &thawed.log, &signals).await?;
                    break;
                }
                Ok(RecoveryStep::Run(scene, opened)) => {
                    Box::pin(self.run_again(&mut record, *scene, opened, thawed, &signals, tell)).await?;
                    break;
                }
                Ok(RecoveryStep::End(status)) => status,
                Err(error) if spent < LOCATION && !is_canceled => {
                    warn!(%name, error = format!("{error:#}"), "could not read the location of a backup that no controller is running: trying again");
                    tokio::select! {
                        () = sleep(PAUSE) => spent += PAUSE,
                        () = signals.canceled.cancelled(), if !is_publishing => {}
                        () = signals.deleted.cancelled() => return Err(WriteError::Gone),
                        () = signals.stop.cancelled() => return Ok(None),
                    }
                    continue;
                }
                // The backup is stored and must be published, however long its location is away;
                // users may cancel or delete it.
                Err(error) if is_publishing && !record.is_canceled() => {
                    warn!(%name, error = format!("{error:#}"), "a backup is stored, and its last file cannot be written: it is tried again until its location is back, or the Backup is canceled or deleted");
                    return Ok(None);
                }
                // Its data is moved, and it takes no slot.
                Err(error) if record.is_after() && !is_canceled && !record.is_expired(Timestamp::now()) => {
                    warn!(%name, error = format!("{error:#}"), "could not read the location of a backup that only has to be completed: it is tried again until the backup expires, or is canceled or deleted");
                    return Ok(None);
                }
                Err(error) if is_canceled => {
                    warn!(%name, error = format!("{error:#}"), "could not remove the files of a canceled backup");
                    BackupStatus::failed(CANCELED, Timestamp::now())
                }
                Err(error) => {
                    let reason = format!("{}, and its location cannot be read: {error:#}", Why::Ended);
                    BackupStatus::failed(&reason, Timestamp::now())
                }
            };
            if is_unread && !is_publishing {
                Box::pin(self.remove_snapshots(name, &record)).await;
            }
            warn!(%name, phase = %status["phase"], "no controller was running the backup: ended");
            let has_failed = status["phase"] == BackupPhase::Failed.as_str();
            if has_failed && (record.moves_data() || record.is_after()) && record.is_still_ours().await {
                cancel_all(&self.client, &self.namespace, (name, uid), false).await;
            }
            record.end(&json!({"status": status}), record.held_in(), OPENING).await?;
            break;
        }
        let backup = record.backup().ok();
        if let Some(ended) = &backup {
            self.metrics.ended(ended, Timestamp::now());
        }
        Ok(backup)
    }

    /// Does everything that needs no run, and opens the location for one that is needed.
    async fn next(
        &self,
        record: &BackupWriter,
        scene: Scene,
        thawed: &BackupLog,
    ) -> anyhow::Result<RecoveryStep> {
        Ok(match scene.recovery {
            Recovery::Resume | Recovery::Restart => {
                // The run waits longer for its store than whoever looks at it. It is opened here,
                // because a location that is away again by now is tried as one that was away
                // before.
                let opened = self.opener.patient().open_with_parts(&scene.location).await?;
                RecoveryStep::Run(Box::new(scene), opened)
            }
            Recovery::Adopt | Recovery::Publish => {
                if scene.recovery == Recovery::Publish {
                    self.publish_again(record, &scene).await?;
                }
                let status = self.ended_as(&scene.layout, record).await?;
                if scene.found.has_checkpoint() && status.is_some() {
                    forget_checkpoint(&scene.layout).await;
                }
                if status.is_some() {
                    Box::pin(self.let_go_of_snapshots(scene.layout.backup(), record.uid())).await;
                }
                RecoveryStep::End(status.unwrap_or_else(|| {
                    let reason = Why::Strange.to_string();
                    BackupStatus::expiring_never(BackupStatus::failed(&reason, Timestamp::now()))
                }))
            }
            Recovery::Fail(why) => {
                let reason = if why == Why::Canceled { CANCELED.to_owned() } else { why.to_string() };
                if let Some(claim) = scene.earlier().filter(|_| !matches!(why, Why::Strange | Why::NoArchive))
                {
                    let is_canceled = why == Why::Canceled;
                    let log = if is_canceled { None } else { Some(scene.log(thawed).await?) };
                    self.clear(scene.place(), claim, None).await;
                    if scene.layout.remove(claim, is_canceled).await?
                        && let Some(log) = log
                    {
                        self.keep_log(&scene.layout, &log, &reason).await?;
                    }
                }
                if (record.moves_data() || record.is_after()) && record.is_still_ours().await {
                    let of = (scene.layout.backup(), record.uid());
                    cancel_all(&self.client, &self.namespace, of, false).await;
                }
                Box::pin(self.remove_snapshots(scene.layout.backup(), record)).await;
                let status = BackupStatus::failed(&reason, Timestamp::now());
                RecoveryStep::End(match scene.is_of_others() {
                    true => BackupStatus::expiring_never(status),
                    false => status,
                })
            }
            Recovery::NotOurs => RecoveryStep::Nothing,
        })
    }

    /// `None`: what is stored there belongs to another Backup.
    async fn ended_as(&self, layout: &BackupLayout, record: &BackupWriter) -> anyhow::Result<Option<Value>> {
        match self.shown(layout, record.uid()).await? {
            PublicationState::Ours(status) => Ok(Some(status)),
            PublicationState::Strange => Ok(None),
            PublicationState::Nothing => Err(unsettled().into()),
        }
    }

    /// Writes the file that makes the backup visible.
    async fn publish_again(&self, record: &BackupWriter, scene: &Scene) -> anyhow::Result<()> {
        let completion_timestamp = Some(Time(Timestamp::now()));
        let mut status = json!(BackupStatus { completion_timestamp, ..BackupStatus::default() });
        if let (Some(status), Some(known)) =
            (status.as_object_mut(), record.object().data["status"].as_object())
        {
            status
                .extend(known.iter().filter(|(key, _)| *key != "phase").map(|(k, v)| (k.clone(), v.clone())));
        }
        if let Some(claim) = &scene.found.folder.claim {
            scene.layout.confirm(claim).await?;
        }
        self.show(record, &scene.layout, &status).await?;
        Ok(())
    }

    /// Runs the backup to its end, continued or restarted.
    async fn run_again(
        &self,
        record: &mut BackupWriter,
        scene: Scene,
        opened: Opened,
        thawed: Thawed,
        signals: &Signals,
        tell: impl FnOnce(&str) + Send,
    ) -> Result<(), WriteError> {
        let name = scene.layout.backup().to_owned();
        let Thawed { log: thawed, tally, spoiled } = thawed;
        let mut site = RunSite { tally, ..scene.site(opened) };
        let heard = thawed.behind(Vec::new(), Vec::new());
        let lister = self.lister();
        let served = self.served(&lister, &heard);
        let gathered = tokio::select! {
            gathered = self.gather_inputs(record, &lister, served, &heard) => gathered,
            ended = signals.raise() => Err(ended),
        };
        let (mut cluster, mut prepared) = match gathered.and_then(|known| known.map_err(RunFailure::Invalid))
        {
            Ok(known) => known,
            // The next leader runs it, or this process when the API server is back.
            Err(RunFailure::Stopped) => return Ok(()),
            Err(failure) if failure.is_of_the_api_server() => {
                warn!(%name, reason = chain(&failure), "the backup cannot be run again yet");
                return Ok(());
            }
            Err(failure) => return self.conclude(record, &site, &heard, failure).await,
        };
        let at = scene.location.name_any();
        let turn = tokio::select! {
            biased;
            turn = self.turns.read(&at) => Ok(turn),
            ended = signals.raise() => Err(ended),
        };
        let turn = match turn {
            Ok(turn) => turn,
            Err(RunFailure::Stopped) => return Ok(()),
            Err(failure) => return self.conclude(record, &site, &heard, failure).await,
        };
        let known = (&thawed, prepared.policy.as_str());
        let entered = self.count_and_enter(turn, record, &scene, &mut site, known, signals);
        let log = match entered.await {
            Ok(log) => log.unwrap_or(heard),
            Err(Err(error)) => return Err(error),
            Err(Ok(failure)) => return self.conclude(record, &site, &heard, failure).await,
        };
        spoiled.iter().for_each(|pod| site.outcomes.spoil(pod));
        if let Err(failure) = limit(record, &site, &mut cluster, &mut prepared) {
            return self.conclude(record, &site, &log, failure).await;
        }
        if site.begun.is_none() {
            if record.moves_data() {
                cancel_all(&self.client, &self.namespace, (&name, record.uid()), true).await;
            }
            match self.freeze(record, &cluster, &prepared).await {
                Ok(scope) => site.scope = scope,
                Err(error) => return self.conclude(record, &site, &log, RunFailure::Write(error)).await,
            }
        }
        let how = match &site.begun {
            Some(begun) => {
                format!("it goes on from a checkpoint, with {} objects stored already", begun.ledger.count())
            }
            None => "it begins anew".to_owned(),
        };
        let runs = record.runs();
        let note = format!("the run before it ended early: {how} (run {})", runs.told());
        info!(%name, runs = runs.all, is_resumed = site.begun.is_some(), "running again");
        log.info(&note);
        tell(&note);
        Box::pin(self.conduct(record, site, &cluster, &prepared, &log, signals)).await
    }

    /// Records the scope of a backup that restarts, for its checkpoints. If that is refused the run
    /// has no checkpoints.
    async fn freeze(
        &self,
        record: &mut BackupWriter,
        cluster: &ClusterInputs,
        prepared: &Prepared,
    ) -> Result<Option<Packed>, WriteError> {
        let Some(scope) = self.scope_of(cluster, prepared) else { return Ok(None) };
        match record.freeze(&scope.digest(), OPENING).await {
            Ok(()) => Ok(Some(scope)),
            Err(WriteError::Refused(error)) => {
                let name = record.object().name_any();
                warn!(%name, error = chain(&error), "what the backup takes cannot be written down: it has no checkpoints");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Counts the run and, right after that and in the same turn, enters the folder, so that no run
    /// is counted for another backup's checkpoint. `Err(Err(_))`: nothing else can be written.
    pub(super) async fn count_and_enter(
        &self,
        turn: LocationTurn,
        record: &mut BackupWriter,
        scene: &Scene,
        site: &mut RunSite,
        (thawed, policy): (&BackupLog, &str),
        signals: &Signals,
    ) -> Result<Option<BackupLog>, Result<RunFailure, WriteError>> {
        let entered = turn.spend(async {
            match record.run_again(OPENING).await {
                Ok(()) => {}
                Err(WriteError::Refused(error)) => return Err(Ok(RunFailure::Refused(error))),
                Err(error) => return Err(Err(error)),
            }
            let entered = self.enter(record, scene, site, thawed, policy);
            signals.bound(entered).await.map_err(Ok)
        });
        entered.await
    }

    /// Claims the folder for this run, keeping what it continues from and removing the rest.
    /// Returns the log of the earlier run with what was logged since. `policy`: digest of the
    /// resource policy.
    async fn enter(
        &self,
        record: &BackupWriter,
        scene: &Scene,
        site: &mut RunSite,
        thawed: &BackupLog,
        policy: &str,
    ) -> Result<Option<BackupLog>, RunFailure> {
        let (mut log, mut before) = (None, None);
        let checkpoint = match scene.recovery {
            Recovery::Resume => scene.believed(record).await.map_err(RunFailure::Store)?,
            _ => None,
        };
        site.is_resumable = checkpoint.is_some();
        if let Some((checkpoint, version)) = checkpoint {
            let run = checkpoint.run.clone();
            match EarlierProgress::open(&site.layout, &site.parts, checkpoint, version, thawed, policy).await
            {
                Ok((mut begun, known)) => {
                    site.tally.add(std::mem::take(&mut begun.tried));
                    site.operations = Movements::of(std::mem::take(&mut begun.operations));
                    site.outcomes = Outcomes::of(std::mem::take(&mut begun.volumes));
                    site.staged = Some(begun.staged.clone());
                    (site.begun, log, before) = (Some(begun), Some(known), Some(run));
                }
                // What is stored stays, and is tried again.
                Err(error) if record.is_after() && may_pass(&error) => {
                    return Err(RunFailure::Store(object_store::Error::Generic {
                        store: "checkpoint",
                        source: error.into(),
                    }));
                }
                Err(error) => {
                    let name = site.layout.backup();
                    warn!(%name, error = format!("{error:#}"), "could not continue from the checkpoint of a dead run: restarting the backup");
                }
            }
            site.is_resumable = site.begun.is_some();
        }
        if scene.earlier().is_none() {
            let RunSite { location, layout, parts, .. } = &*site;
            let found = layout.look().await?;
            site.claim = self.claim(record, location, layout, parts, &scene.ours.run, found).await?;
            return Ok(log);
        }
        let ours = FolderClaim { before, ..scene.ours.clone() };
        self.claim_over(&site.layout, &ours, scene.found.version.clone()).await?;
        site.claim = ours;
        if site.begun.is_none() {
            self.clear(site.place(), &site.claim, None).await;
            site.layout.remove(&site.claim, false).await?;
        }
        Ok(log)
    }
}

/// Whether a checkpoint that could not be continued from may be continued from later: its store
/// failed, and does not say that the upload is gone.
fn may_pass(error: &anyhow::Error) -> bool {
    let failure = error.chain().find_map(|cause| cause.downcast_ref::<object_store::Error>());
    failure.is_some_and(|failure| match failure {
        // Anything else is about what the checkpoint says.
        object_store::Error::Generic { source, .. } => source.is::<std::io::Error>() && !is_refused(failure),
        _ => false,
    })
}

/// Limits a backup that continues to its scope, as the Backup records it, and a backup that
/// restarts to the namespaces pinned for it, because others may run on the rest.
fn limit(
    record: &BackupWriter,
    site: &RunSite,
    cluster: &mut ClusterInputs,
    prepared: &mut Prepared,
) -> Result<(), RunFailure> {
    if let Some(begun) = &site.begun {
        let scope = begun.scope.open().map_err(|error| RunFailure::Cluster(error.into()))?;
        cluster.types = scope.types();
        prepared.selection = scope.selection();
        prepared.resolved = scope.resolved();
        // The policy's rules must resolve among the recorded types and namespaces, not among those
        // of now.
        let namespaces = prepared.resolved.iter().map(String::as_str);
        prepared.filters = Filters::resolve(&prepared.policies, &cluster.types, namespaces);
        // The first run has logged the missing namespaces.
        prepared.missing.clear();
    } else if let Some(pinned) = record.object().annotations().get(keys::RESOLVED_NAMESPACES) {
        // Other backups were admitted beside this one because of this list.
        prepared.resolved.retain(|name| pinned.split(',').any(|pinned| pinned == name));
    }
    Ok(())
}
