//! Every phase that every data movement was in, in the order in which the API server wrote them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use berth_api::keys;
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{KINDS, Kind};
use crate::{ControlPlane, control_plane, wait_for};

/// What is written again and again to see how long that takes.
const PROBE: &str = "history-probe";
const PROBE_PAUSE: Duration = Duration::from_millis(200);

/// A change of one object, as it was written.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its resourceVersion: of all kinds together these are in the order of the writes.
    pub version: u64,
    pub kind: Kind,
    pub name: String,
    /// Empty for one that has none yet.
    pub phase: String,
    pub accepted_by: String,
    /// It carries berth's grant.
    pub is_granted: bool,
    /// When the API server created it, to the second.
    pub created: Option<Timestamp>,
    /// It is there no more.
    pub is_gone: bool,
    /// When we saw it.
    pub at: Instant,
}

impl Step {
    /// It counts for `prepareQueueLength`.
    pub fn is_preparing(&self) -> bool {
        !self.is_gone && ["Accepted", "Prepared"].contains(&self.phase.as_str())
    }

    pub fn has_ended(&self) -> bool {
        ["Completed", "Failed", "Canceled"].contains(&self.phase.as_str())
    }
}

type Key = (Kind, String);

#[derive(Default)]
struct Seen {
    steps: Vec<Step>,
    now: BTreeMap<Key, Step>,
    /// The longest time that one write took until its answer was here: the API server, or all of
    /// the machine, stood still.
    longest_stall: Duration,
    /// Why no more is seen.
    failed: Option<String>,
}

pub struct History {
    seen: Arc<Mutex<Seen>>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl History {
    /// From now on, and what there is now: all four kinds of a namespace. Their definitions must be
    /// there.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn start(plane: &ControlPlane, namespace: &str) -> anyhow::Result<Self> {
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), CancellationToken::new());
        let (ready, is_ready) = mpsc::channel();
        let follower = Follower {
            kubeconfig: plane.kubeconfig(),
            namespace: namespace.to_owned(),
            seen: Arc::clone(&seen),
            stop: stop.clone(),
        };
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let ended = runtime.map_err(anyhow::Error::from).and_then(|rt| rt.block_on(follower.run(&ready)));
            if let Err(error) = ended {
                lock(&follower.seen).failed = Some(format!("{error:#}"));
                let _ = ready.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name("history".to_owned()).spawn(run)?;
        let history = Self { seen, stop, thread: Some(thread) };
        is_ready.recv().map_err(|_| anyhow!("the watch's thread panicked"))??;
        Ok(history)
    }

    /// In the order of the writes.
    ///
    /// # Errors
    /// When the watch broke: then something may be missing.
    pub fn steps(&self) -> anyhow::Result<Vec<Step>> {
        let mut steps = self.whole()?.steps.clone();
        // Each kind is watched for itself.
        steps.sort_by_key(|step| step.version);
        Ok(steps)
    }

    /// The last that is known of each.
    ///
    /// # Errors
    /// When the watch broke.
    pub fn now(&self) -> anyhow::Result<BTreeMap<Key, Step>> {
        Ok(self.whole()?.now.clone())
    }

    /// Empty for one without a phase, and for one that is not there.
    ///
    /// # Errors
    /// When the watch broke.
    pub fn phase(&self, kind: Kind, name: &str) -> anyhow::Result<String> {
        let seen = self.whole()?;
        Ok(seen.now.get(&(kind, name.to_owned())).map(|step| step.phase.clone()).unwrap_or_default())
    }

    /// How many have each phase.
    ///
    /// # Errors
    /// When the watch broke.
    pub fn phases(&self) -> anyhow::Result<BTreeMap<String, usize>> {
        let mut phases = BTreeMap::new();
        for step in self.whole()?.now.values() {
            *phases.entry(step.phase.clone()).or_default() += 1;
        }
        Ok(phases)
    }

    /// Each that has not ended or did not end well, and its last step: for an error that says what
    /// was waited for.
    pub fn told(&self) -> String {
        let seen = lock(&self.seen);
        let open = seen.now.iter().filter(|(_, step)| step.phase != "Completed");
        open.map(|((kind, name), step)| {
            let granted = if step.is_granted { "granted" } else { "not granted" };
            format!("{kind:?} {name} is {:?}, {granted}, since {:?}", step.phase, step.at.elapsed())
        })
        .collect::<Vec<_>>()
        .join("; ")
    }

    /// Until as many have ended, one way or the other.
    ///
    /// # Errors
    /// When they have not after `patience`, with how many are where.
    pub fn wait_ended(&self, count: usize, patience: Duration) -> anyhow::Result<()> {
        let have_ended = || {
            let ended = self.whole()?.now.values().filter(|step| step.has_ended()).count();
            Ok((ended >= count).then_some(()))
        };
        let waited = wait_for(&format!("{count} data movements to end"), patience, have_ended);
        waited.with_context(|| self.told())
    }

    /// Largest number that were being prepared at any one time.
    ///
    /// # Errors
    /// When the watch broke.
    pub fn most_preparing(&self) -> anyhow::Result<usize> {
        self.most_preparing_from(0)
    }

    /// The same from this resourceVersion on.
    ///
    /// # Errors
    /// When the watch broke.
    pub fn most_preparing_from(&self, version: u64) -> anyhow::Result<usize> {
        let steps = self.steps()?;
        let counts = steps.iter().zip(counts(&steps)).filter(|(step, _)| step.version >= version);
        Ok(counts.map(|(_, (_, count))| count).max().unwrap_or_default())
    }

    /// The newest resourceVersion that was seen.
    ///
    /// # Errors
    /// When the watch broke.
    pub fn version(&self) -> anyhow::Result<u64> {
        Ok(self.steps()?.last().map(|step| step.version).unwrap_or_default())
    }

    /// From the first acceptance to the last end.
    ///
    /// # Errors
    /// When the watch broke.
    pub fn work(&self) -> anyhow::Result<Duration> {
        let steps = self.steps()?;
        let first = steps.iter().find(|step| step.is_preparing()).map(|step| step.at);
        let last = steps.iter().rev().find(|step| step.has_ended()).map(|step| step.at);
        Ok(first.zip(last).map(|(first, last)| last.saturating_duration_since(first)).unwrap_or_default())
    }

    /// For how long altogether more than `limit` were being prepared.
    ///
    /// # Errors
    /// When the watch broke.
    pub fn time_over(&self, limit: usize) -> anyhow::Result<Duration> {
        let counts = counts(&self.steps()?);
        let pairs = counts.iter().zip(counts.iter().skip(1));
        let over = pairs.filter(|((_, count), _)| *count > limit);
        Ok(over.map(|((from, _), (to, _))| to.saturating_duration_since(*from)).sum())
    }

    /// From the first to the last step.
    ///
    /// # Errors
    /// When the watch broke.
    pub fn length(&self) -> anyhow::Result<Duration> {
        let steps = self.steps()?;
        let (first, last) = (steps.first().map(|step| step.at), steps.last().map(|step| step.at));
        Ok(first.zip(last).map(|(first, last)| last.saturating_duration_since(first)).unwrap_or_default())
    }

    /// The longest time that the API server, or this process, stood still: anybody saw everything
    /// late by as much.
    ///
    /// # Errors
    /// When the watch broke.
    pub fn longest_stall(&self) -> anyhow::Result<Duration> {
        Ok(self.whole()?.longest_stall)
    }

    fn whole(&self) -> anyhow::Result<MutexGuard<'_, Seen>> {
        let seen = lock(&self.seen);
        if let Some(failed) = &seen.failed {
            bail!("the watch of data movements broke: {failed}");
        }
        Ok(seen)
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many were being prepared after each step.
fn counts(steps: &[Step]) -> Vec<(Instant, usize)> {
    let mut preparing = BTreeMap::new();
    let count = |step: &Step| {
        preparing.insert((step.kind, step.name.clone()), step.is_preparing());
        (step.at, preparing.values().filter(|is_preparing| **is_preparing).count())
    };
    steps.iter().map(count).collect()
}

struct Follower {
    kubeconfig: PathBuf,
    namespace: String,
    seen: Arc<Mutex<Seen>>,
    stop: CancellationToken,
}

impl Follower {
    async fn run(&self, ready: &mpsc::Sender<anyhow::Result<()>>) -> anyhow::Result<()> {
        let client = control_plane::client(Path::new(&self.kubeconfig)).await?;
        let mut since = Vec::new();
        for kind in KINDS {
            let list = kind.api(&client, &self.namespace).list(&ListParams::default()).await?;
            let version = list.metadata.resource_version.context("the list has no resourceVersion")?;
            list.items.iter().try_for_each(|object| self.note(kind, object, false))?;
            since.push((kind, version));
        }
        let _ = ready.send(Ok(()));
        let watches = since.into_iter().map(|(kind, version)| self.follow(&client, kind, version));
        tokio::select! {
            () = self.stop.cancelled() => Ok(()),
            ended = futures::future::try_join_all(watches) => ended.map(drop),
            never = self.measure_stalls(&client) => match never {},
        }
    }

    /// For ever.
    async fn measure_stalls(&self, client: &Client) -> Infallible {
        let probes: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let params = PatchParams::apply("history").force();
        loop {
            let before = Instant::now();
            let probe = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PROBE},
                "data": {"at": Timestamp::now().to_string()},
            });
            // One that fails took its time, too.
            let _ = probes.patch(PROBE, &params, &Patch::Apply(probe)).await;
            tokio::time::sleep(PROBE_PAUSE).await;
            let stall = before.elapsed().saturating_sub(PROBE_PAUSE);
            let mut seen = lock(&self.seen);
            seen.longest_stall = seen.longest_stall.max(stall);
        }
    }

    /// For ever. A watch that the API server ends continues where it was.
    async fn follow(&self, client: &Client, kind: Kind, mut version: String) -> anyhow::Result<()> {
        let api = kind.api(client, &self.namespace);
        loop {
            let params = WatchParams::default().timeout(290);
            let mut events = pin!(api.watch(&params, &version).await?.into_stream());
            while let Some(event) = events.next().await {
                let (object, is_gone) = match event {
                    Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, false),
                    Ok(WatchEvent::Deleted(object)) => (object, true),
                    Ok(WatchEvent::Bookmark(bookmark)) => {
                        version = bookmark.metadata.resource_version;
                        continue;
                    }
                    Ok(WatchEvent::Error(status)) => bail!("{status:?}"),
                    // The connection broke: nothing is lost before `version`.
                    Err(_) => break,
                };
                self.note(kind, &object, is_gone)?;
                version = object.metadata.resource_version.unwrap_or_default();
            }
        }
    }

    fn note(&self, kind: Kind, object: &DynamicObject, is_gone: bool) -> anyhow::Result<()> {
        let status = |field: &str| object.data["status"][field].as_str().unwrap_or_default().to_owned();
        let version = object.metadata.resource_version.as_deref().unwrap_or_default();
        let step = Step {
            version: version.parse().with_context(|| format!("resourceVersion {version:?} is no number"))?,
            kind,
            name: object.metadata.name.clone().unwrap_or_default(),
            phase: status("phase"),
            accepted_by: status("acceptedByNode"),
            is_granted: object.annotations().contains_key(keys::GRANTED),
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            is_gone,
            at: Instant::now(),
        };
        let mut seen = lock(&self.seen);
        let key = (kind, step.name.clone());
        if is_gone {
            seen.now.remove(&key);
        } else {
            seen.now.insert(key, step.clone());
        }
        seen.steps.push(step);
        Ok(())
    }
}
