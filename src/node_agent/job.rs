//! One object, from its start to its end: what is written of it, and the work on its repository.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use berth_api::keys::RUNS;
use berth_api::velero::{DataMover, PodVolumeBackup, PodVolumeRestore};
use berth_core::mover::MoverKind;
use berth_core::pod_volume::number;
use berth_pod_volumes::{Fault, Folder, Progress, Restored, Saved, Source, Watched};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Context;
use crate::patch::merge_into;
use crate::text::chain;
use crate::write::{Pauses, Write, WriteResult, patch};

/// Between two writes of the progress.
const PROGRESS: Duration = Duration::from_secs(1);
/// How long the end of a job is tried to be written.
const END: Duration = Duration::from_secs(600);
/// The longest message of a status.
const MESSAGE: usize = 4000;
/// A job that reads and writes nothing for so long is ended.
const SILENCE: Duration = Duration::from_secs(3600);
/// How the wait for the locks of others is told.
const LOCKED: Duration = Duration::from_secs(10);
/// How long a job waits until nobody holds the exclusive lock.
const PATIENT: Duration = Duration::from_secs(300);
/// And until another agent has maintained the repository, which does not take longer.
const MAINTENANCE: Duration = Duration::from_secs(9000);

#[derive(Clone, Debug)]
pub enum Kind {
    Backup(Arc<PodVolumeBackup>),
    Restore(Arc<PodVolumeRestore>),
}

impl Kind {
    /// Sorts by age.
    pub fn age(&self) -> (Option<Time>, String) {
        match self {
            Self::Backup(object) => (object.metadata.creation_timestamp.clone(), object.name_any()),
            Self::Restore(object) => (object.metadata.creation_timestamp.clone(), object.name_any()),
        }
    }
}

pub struct Job {
    pub context: Arc<Context>,
    pub watched: Watched,
    pub stop: CancellationToken,
    /// Is it a try at the work, of which there are few? Else only its end is to be written.
    pub is_try: bool,
}

/// A volume that ended the agent so often is not tried again.
const TRIES: u32 = 3;

/// How often processes began an object that is in progress, and did not end it.
pub(super) fn runs<K: DataMover>(object: &K) -> u32 {
    let runs = object.annotations().get(RUNS).and_then(|runs| runs.parse().ok());
    runs.filter(|_| object.phase_text() == "InProgress").unwrap_or(0)
}

pub(super) fn ensure_few(runs: u32) -> anyhow::Result<()> {
    ensure!(runs < TRIES, "{runs} processes of the node agent ended while they worked on it");
    Ok(())
}

/// A restore was begun whose pod does not wait for it: by another process, or before the pod was
/// stopped.
#[derive(Debug, thiserror::Error)]
#[error("the pod does not wait for the restore of its volume")]
pub(super) struct NotYet;

/// What a job ends with, besides its phase: Failed where there is a message, else Completed.
pub(super) struct End {
    /// A part of the patch, which counts more than what is written of every end.
    pub change: Value,
    pub message: Option<String>,
}

impl End {
    pub fn completed(status: &Value) -> Self {
        Self { change: json!({"status": status}), message: None }
    }

    pub fn failed(status: &Value, why: String) -> Self {
        Self { message: Some(why), ..Self::completed(status) }
    }
}

impl Job {
    /// `false`: something could not be written, and it is to be tried again.
    pub async fn run(&self, kind: Kind) -> bool {
        match kind {
            Kind::Backup(object) => {
                let work = self.backup(Arc::clone(&object));
                self.carry(&*object, work).await
            }
            Kind::Restore(object) => {
                let work = self.restore(Arc::clone(&object));
                self.carry(&*object, work).await
            }
        }
    }

    /// `false`: as for [`Job::run`].
    pub(super) async fn carry<K>(&self, object: &K, work: impl Future<Output = anyhow::Result<End>>) -> bool
    where
        K: DataMover + kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned,
    {
        let name = object.name_any();
        let api: Api<K> =
            Api::namespaced(self.context.clients.call.clone(), &self.context.settings.namespace);
        let mut status = json!({"phase": "InProgress"});
        if object.phase_text() != "InProgress" {
            status["startTimestamp"] = json!(Time(Timestamp::now()));
        }
        if K::KIND != MoverKind::PodVolumeBackup {
            status["node"] = json!(self.context.settings.node);
        }
        let uid = object.uid();
        let runs_before = runs(object);
        let mut change = json!({"status": status});
        if self.is_try {
            change["metadata"] = json!({"annotations": {RUNS: (runs_before.saturating_add(1)).to_string()}});
        }
        match patch(&api, Write::on(object), change).await {
            WriteResult::Written(_) => {}
            WriteResult::Conflict(_) | WriteResult::Gone(_) => return false,
            answer => {
                let error = answer.written().err().map(|error| chain(&error)).unwrap_or_default();
                warn!(kind = K::KIND.as_str(), name, error, "it could not be begun");
                return false;
            }
        }
        info!(kind = K::KIND.as_str(), name, "begun");
        let mut is_silent = false;
        let result = {
            let mut work = std::pin::pin!(work);
            let (mut signs, mut sign) = (0, Instant::now());
            let mut ticks = interval(PROGRESS);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut shown = Progress::default();
            loop {
                tokio::select! {
                    result = &mut work => break result,
                    _ = ticks.tick() => {
                        let now = self.watched.progress();
                        if signs != self.watched.signs() {
                            (signs, sign) = (self.watched.signs(), Instant::now());
                        } else if sign.elapsed() > SILENCE && !self.watched.is_canceled() {
                            is_silent = true;
                            self.watched.cancel();
                        }
                        if now != shown {
                            // The next one tells more than a second try of this one.
                            let to = Write::to(&name).uid(uid.as_deref());
                            drop(patch(&api, to, json!({"status": {"progress": progress(now)}})).await);
                            shown = now;
                        }
                    }
                }
            }
        };
        if self.stop.is_cancelled() && result.is_err() {
            // This process did not end because of the volume.
            let change = json!({"metadata": {"annotations": {RUNS: runs_before.to_string()}}});
            drop(patch(&api, Write::to(&name).uid(uid.as_deref()), change).await);
            info!(kind = K::KIND.as_str(), name, "handed over to the next process");
            return true;
        }
        if let Err(error) = &result
            && error.is::<NotYet>()
        {
            info!(kind = K::KIND.as_str(), name, %error, "not begun again");
            return false;
        }
        let mut status = json!({"completionTimestamp": Time(Timestamp::now())});
        let shown = self.watched.progress();
        if shown != Progress::default() {
            status["progress"] = progress(shown);
        }
        let mut more = Value::Null;
        match result {
            Ok(end) => {
                status["phase"] = json!(if end.message.is_some() { "Failed" } else { "Completed" });
                status["message"] = json!(end.message.unwrap_or_else(|| self.watched.notes()));
                more = end.change;
            }
            Err(error) if is_canceled(&error) && is_silent => {
                status["phase"] = json!("Failed");
                let minutes = SILENCE.as_secs() / 60;
                status["message"] = json!(format!("nothing was read or written for {minutes} minutes"));
            }
            Err(error) if is_canceled(&error) => {
                status["phase"] = json!("Canceled");
                status["message"] = json!("canceled");
            }
            Err(error) => {
                status["phase"] = json!("Failed");
                status["message"] = json!(chain(error.as_ref()));
            }
        }
        cut(&mut status["message"]);
        let mut change = json!({"status": status});
        if !more.is_null() {
            merge_into(&mut change, more);
        }
        let (phase, message) = (&change["status"]["phase"], &change["status"]["message"]);
        info!(kind = K::KIND.as_str(), name, %phase, %message, "ended");
        end(&api, &name, uid.as_deref(), &change).await
    }

    /// Stores a folder. The inner error says why there is no snapshot to go by, though there may be
    /// one.
    pub(super) async fn store(
        &self,
        location: &str,
        namespace: &str,
        source: &Source,
    ) -> anyhow::Result<Result<Saved, String>> {
        let repositories = &self.context.repositories;
        // Before it is opened, so that no change in between is missed.
        let place = repositories.place(location).await;
        let repository = repositories.get(location, namespace, true).await?;
        let place = place?;
        match self.unlocked(|| repository.backup(source.clone(), &self.watched)).await {
            Ok(saved) => match repositories.ensure_kept(location, &place).await {
                Ok(()) => Ok(Ok(saved)),
                Err(error) => {
                    let why = chain(error.as_ref());
                    Ok(Err(format!("{why}, so snapshot {} may not be where it belongs", saved.snapshot)))
                }
            },
            Err(Fault::Unfinished(unfinished)) => Ok(Err(unfinished.to_string())),
            Err(fault) => {
                self.doubt(&fault, location, namespace);
                Err(fault.into())
            }
        }
    }

    /// Brings a snapshot back into a folder. The inner error says which files are missing.
    pub(super) async fn bring(
        &self,
        location: &str,
        namespace: &str,
        snapshot: &str,
        folder: &Folder,
    ) -> anyhow::Result<Result<Restored, String>> {
        let Context { settings, repositories, .. } = &*self.context;
        let repository = repositories.get(location, namespace, false).await?;
        let (reader, watched) = (settings.node.as_str(), &self.watched);
        match self.unlocked(|| repository.restore(snapshot, folder.clone(), reader, watched)).await {
            Ok(restored) => Ok(Ok(restored)),
            Err(Fault::Unfinished(unfinished)) => Ok(Err(unfinished.to_string())),
            Err(fault) => {
                self.doubt(&fault, location, namespace);
                Err(fault.into())
            }
        }
    }

    /// Waits for a while where the repository is locked.
    async fn unlocked<T, F>(&self, work: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let begun = Instant::now();
        loop {
            let done = work().await;
            let patience = match &done {
                Err(Fault::Locked { is_own: true, .. }) => MAINTENANCE,
                Err(Fault::Locked { .. }) => PATIENT,
                _ => return done,
            };
            if self.watched.is_canceled() {
                return Err(Fault::Canceled);
            }
            match done {
                Err(fault) if begun.elapsed() < patience => info!(%fault, "waiting"),
                done => return done,
            }
            self.watched.waits();
            sleep(crate::pace::paced(LOCKED)).await;
        }
    }

    /// The repository may be another one by now.
    fn doubt(&self, fault: &Fault, location: &str, namespace: &str) {
        if matches!(fault, Fault::Store(_) | Fault::Repository(_) | Fault::Lock(_) | Fault::Missing(_)) {
            self.context.repositories.forget(location, namespace);
        }
    }
}

fn is_canceled(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<Fault>(), Some(Fault::Canceled))
}

pub(super) fn progress(progress: Progress) -> Value {
    json!({"bytesDone": number(progress.done), "totalBytes": number(progress.total)})
}

fn cut(message: &mut Value) {
    if let Some(text) = message.as_str().filter(|text| text.len() > MESSAGE) {
        let short: String = text.chars().take(MESSAGE).collect();
        *message = json!(short);
    }
}

/// Writes the end. Each try is on the object as it is then, if it has not ended otherwise.
async fn end<K>(api: &Api<K>, name: &str, uid: Option<&str>, change: &Value) -> bool
where
    K: DataMover + kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let (begun, mut pauses) = (Instant::now(), Pauses::default());
    loop {
        let object = match api.get_opt(name).await {
            Ok(Some(object)) if object.meta().uid.as_deref() == uid => Some(object),
            Ok(_) => return true,
            Err(_) => None,
        };
        if let Some(object) = object {
            if matches!(object.phase_text(), "Completed" | "Failed" | "Canceled") {
                return true;
            }
            match patch(api, Write::on(&object), change.clone()).await {
                WriteResult::Written(_) | WriteResult::Gone(_) => return true,
                WriteResult::Conflict(_) => {}
                answer => {
                    let error = answer.written().err().map(|error| chain(&error)).unwrap_or_default();
                    warn!(name, error, "the end could not be written");
                }
            }
        }
        if begun.elapsed() > END {
            return false;
        }
        pauses.wait().await;
    }
}

/// Writes that an object is canceled that no job works on.
pub(super) async fn end_canceled(context: &Context, kind: &Kind) -> bool {
    let status = json!({
        "phase": "Canceled", "message": "canceled before it began", "completionTimestamp": Time(Timestamp::now()),
    });
    let client = || context.clients.call.clone();
    let namespace = &context.settings.namespace;
    let change = json!({"status": status});
    let answer = match kind {
        Kind::Backup(object) => {
            patch(&Api::<PodVolumeBackup>::namespaced(client(), namespace), Write::on(&**object), change)
                .await
                .written()
                .map(drop)
        }
        Kind::Restore(object) => {
            patch(&Api::<PodVolumeRestore>::namespaced(client(), namespace), Write::on(&**object), change)
                .await
                .written()
                .map(drop)
        }
    };
    answer.is_ok()
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::Scripted;

    use super::super::Settings;
    use super::super::repositories::Repositories;
    use super::*;
    use crate::client::Clients;
    use crate::storage::Opener;

    fn job(api: &Scripted) -> Job {
        let client = api.client("velero");
        let settings = Settings {
            namespace: "velero".to_owned(),
            node: "n1".to_owned(),
            pods: "/pods".into(),
            allows_unmounted: false,
            concurrency: 1,
            configmap: None,
            secret: None,
        };
        let opener = Opener::new(client.clone(), "velero", Vec::new().into());
        let repositories = Repositories::new(client.clone(), "velero", None, opener);
        let clients = Clients { watch: client.clone(), call: client };
        let context = Arc::new(Context { clients, settings, repositories });
        Job { context, watched: Watched::default(), stop: CancellationToken::new(), is_try: true }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_until_a_maintenance_has_ended_is_not_taken_for_hung() {
        let (job, begun) = (job(&Scripted::new()), Instant::now());
        let work = || async {
            if begun.elapsed() > 2 * SILENCE {
                return Ok(());
            }
            let text = || "x".to_owned();
            Err(Fault::Locked { place: text(), who: text(), since: text(), is_own: true })
        };
        let silence = async {
            let mut signs = None;
            while signs != Some(job.watched.signs()) {
                signs = Some(job.watched.signs());
                sleep(SILENCE).await;
            }
        };
        tokio::select! {
            done = job.unlocked(work) => assert!(done.is_ok()),
            () = silence => unreachable!("nothing shows that it waits"),
        }
    }

    #[test]
    fn only_processes_that_did_not_end_an_object_are_counted() {
        for (phase, runs_then, wanted) in
            [("InProgress", "2", 2), ("InProgress", "", 0), ("InProgress", "many", 0), ("New", "7", 0)]
        {
            let object: PodVolumeBackup = serde_json::from_value(json!({
                "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
                "metadata": {"name": "b", "annotations": {RUNS: runs_then}},
                "spec": {}, "status": {"phase": phase},
            }))
            .unwrap();
            assert_eq!(runs(&object), wanted, "{phase} {runs_then}");
        }
        assert!(ensure_few(2).is_ok() && ensure_few(3).is_err());
    }
}
