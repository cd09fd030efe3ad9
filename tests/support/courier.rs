//! The couriers of seeds, played: they report, and say of what the hub tells them that it is done.
//! No store is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use berth_garden_api::{BackupBucket, BackupEntry, Seed};
use futures::{Stream, StreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};

use super::control_plane::client;

const REPORT: Duration = Duration::from_secs(1);
/// How long a seed that comes back may take to notice what waits for it.
const LOOK: Duration = Duration::from_millis(500);
const AT_ONCE: usize = 16;

/// What couriers saw and must do.
#[derive(Default)]
struct Script {
    /// Each with how far its clock is ahead.
    alive: BTreeMap<String, SignedDuration>,
    /// Entries of which backups run for as long as this says so.
    busy: BTreeSet<String>,
    /// Buckets that are not made, and what the store says instead.
    refused: BTreeMap<String, Value>,
    buckets: BTreeMap<String, BackupBucket>,
    entries: BTreeMap<(String, String), BackupEntry>,
    /// Most entries that a bucket ever had, by its name: every version of it was looked at.
    most: BTreeMap<String, usize>,
    /// Buckets that an entry was ever in, by its UID.
    homes: BTreeMap<String, BTreeSet<String>>,
    faults: Vec<String>,
}

/// Couriers of any number of seeds. They end with this value.
pub struct Couriers {
    script: Arc<Mutex<Script>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Couriers {
    /// # Errors
    /// When the kubeconfig is of no use.
    pub fn start(kubeconfig: &Path) -> anyhow::Result<Self> {
        let script = Arc::new(Mutex::new(Script::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(client(kubeconfig))?;
        let (end, ended) = oneshot::channel();
        let acting = Arc::clone(&script);
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    () = play(client, acting) => {}
                }
            });
        });
        Ok(Self { script, end: Some(end), thread: Some(thread) })
    }

    /// This seed's courier runs.
    pub fn serve(&self, seed: &str) {
        self.serve_by(seed, SignedDuration::ZERO);
    }

    /// The same with a clock that is wrong.
    pub fn serve_by(&self, seed: &str, ahead: SignedDuration) {
        self.script.lock().alive.insert(seed.to_owned(), ahead);
    }

    /// Sets whether backups of this entry run. The cluster that writes there does not hand it over
    /// while they do.
    pub fn keep_busy(&self, entry: &str, is_busy: bool) {
        let busy = &mut self.script.lock().busy;
        if is_busy {
            busy.insert(entry.to_owned())
        } else {
            busy.remove(entry)
        };
    }

    /// It is no more.
    pub fn stop(&self, seed: &str) {
        self.script.lock().alive.remove(seed);
    }

    /// Of this bucket the store says so, and it is not made.
    pub fn refuse(&self, bucket: &str, state: &str, codes: &[&str]) {
        let answer = json!({
            "lastOperation": operation("Create", state),
            "lastError": {"description": "the store will not have it", "codes": codes},
        });
        self.script.lock().refused.insert(bucket.to_owned(), answer);
    }

    /// Most entries that a bucket ever had, by its name.
    pub fn most(&self) -> BTreeMap<String, usize> {
        self.script.lock().most.clone()
    }

    /// Entries that were in more than one bucket, and data that would have gone without a deletion.
    pub fn faults(&self) -> Vec<String> {
        let script = self.script.lock();
        let moved = script.homes.iter().filter(|(_, homes)| homes.len() > 1);
        let moved = moved.map(|(uid, homes)| format!("{uid} was in {homes:?}"));
        script.faults.iter().cloned().chain(moved).collect()
    }
}

impl Drop for Couriers {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn play(client: Client, script: Arc<Mutex<Script>>) {
    let room = Semaphore::new(AT_ONCE);
    let buckets = watcher(Api::<BackupBucket>::all(client.clone()), watcher::Config::default());
    let buckets = follow(buckets.default_backoff(), |event| {
        let mut script = script.lock();
        match event {
            watcher::Event::Init => script.buckets.clear(),
            watcher::Event::InitApply(bucket) | watcher::Event::Apply(bucket) => script.saw_bucket(bucket),
            watcher::Event::Delete(bucket) => drop(script.buckets.remove(&bucket.name_any())),
            watcher::Event::InitDone => {}
        }
    });
    let entries = watcher(Api::<BackupEntry>::all(client.clone()), watcher::Config::default());
    let entries = follow(entries.default_backoff(), |event| {
        let mut script = script.lock();
        match event {
            watcher::Event::Init => script.entries.clear(),
            watcher::Event::InitApply(entry) | watcher::Event::Apply(entry) => script.saw_entry(entry),
            watcher::Event::Delete(entry) => drop(script.entries.remove(&key(&entry))),
            watcher::Event::InitDone => {}
        }
    });
    let acting = async {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        let mut asked: BTreeMap<(String, String), (String, Instant)> = BTreeMap::new();
        loop {
            tick.tick().await;
            // What was written is not written again before the watch shows what became of it.
            let answers: Vec<Answer> = script.lock().answers();
            let fresh = answers.into_iter().filter(|answer| {
                let known = asked
                    .get(&answer.key)
                    .is_some_and(|(version, at)| *version == answer.version && at.elapsed() < LOOK);
                if !known {
                    asked.insert(answer.key.clone(), (answer.version.clone(), Instant::now()));
                }
                !known
            });
            let fresh: Vec<Answer> = fresh.collect();
            let writes = fresh.into_iter().map(|answer| {
                let (client, room) = (&client, &room);
                async move {
                    let _permit = room.acquire().await;
                    answer.write(client).await;
                }
            });
            futures::future::join_all(writes).await;
        }
    };
    let reporting = async {
        let mut tick = tokio::time::interval(REPORT / 4);
        let mut reported: BTreeMap<String, Instant> = BTreeMap::new();
        let api: Api<Seed> = Api::all(client.clone());
        loop {
            tick.tick().await;
            let mut due = script.lock().alive.clone();
            due.retain(|seed, _| reported.get(seed).is_none_or(|at| at.elapsed() >= REPORT));
            // Side by side: none is silent because the others take their time.
            let reports = due.into_iter().map(async |(seed, ahead)| {
                let patch = json!({"status": {"lastHeartbeatTime": Time(Timestamp::now() + ahead)}});
                let sent = api.patch_status(&seed, &PatchParams::default(), &Patch::Merge(patch)).await;
                sent.is_ok().then_some(seed)
            });
            let heard = futures::future::join_all(reports).await;
            reported.extend(heard.into_iter().flatten().map(|seed| (seed, Instant::now())));
        }
    };
    tokio::join!(buckets, entries, acting, reporting);
}

async fn follow<K>(
    events: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>>,
    mut observe: impl FnMut(watcher::Event<K>),
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        // An interrupted watch begins again.
        if let Ok(event) = event {
            observe(event);
        }
    }
}

struct Answer {
    /// Empty namespace: a bucket.
    key: (String, String),
    version: String,
    status: Value,
}

impl Answer {
    /// A conflict is an answer, too: the next version is judged again.
    async fn write(&self, client: &Client) {
        let patch = json!({"metadata": {"resourceVersion": self.version}, "status": self.status});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let (namespace, name) = &self.key;
        if namespace.is_empty() {
            let api: Api<BackupBucket> = Api::all(client.clone());
            let _ = api.patch_status(name, &params, &patch).await;
        } else {
            let api: Api<BackupEntry> = Api::namespaced(client.clone(), namespace);
            let _ = api.patch_status(name, &params, &patch).await;
        }
    }
}

impl Script {
    fn saw_bucket(&mut self, bucket: BackupBucket) {
        let used = bucket.status.as_ref().map_or(0, |status| status.allocated.len());
        let most = self.most.entry(bucket.name_any()).or_default();
        *most = used.max(*most);
        self.buckets.insert(bucket.name_any(), bucket);
    }

    fn saw_entry(&mut self, entry: BackupEntry) {
        let homes = self.homes.entry(entry.uid().unwrap_or_default()).or_default();
        homes.extend(entry.spec.bucket_name.clone());
        let released = entry.status.as_ref().is_some_and(|status| status.released_at.is_some());
        if released && entry.metadata.deletion_timestamp.is_none() {
            self.faults.push(format!("{} was released and not deleted", entry.name_any()));
        }
        self.entries.insert(key(&entry), entry);
    }

    /// What couriers that are there have to say now.
    fn answers(&self) -> Vec<Answer> {
        let buckets = self.buckets.values().filter_map(|bucket| {
            let status = bucket.status.clone().unwrap_or_default();
            self.alive.get(status.seed.as_ref()?)?;
            let wanted = match (bucket.metadata.deletion_timestamp.is_some(), status.released_at.is_some()) {
                (true, false) => return None,
                (true, true) => json!({"lastOperation": operation("Delete", "Succeeded"), "lastError": null}),
                (false, _) => self.refused.get(&bucket.name_any()).cloned().unwrap_or_else(
                    || json!({"lastOperation": operation("Create", "Succeeded"), "lastError": null}),
                ),
            };
            let said =
                status.last_operation.map(|last| (json!(last.kind.as_str()), json!(last.state.as_str())));
            answer(bucket, said, wanted)
        });
        let entries = self.entries.values().filter_map(|entry| {
            let status = entry.status.clone().unwrap_or_default();
            self.alive.get(status.seed.as_ref()?)?;
            let wanted = match (entry.metadata.deletion_timestamp.is_some(), status.released_at.is_some()) {
                (true, false) => return None,
                (true, true) => json!({
                    "lastOperation": operation("Delete", "Succeeded"),
                    "removed": {"objects": 3, "bytes": 42},
                }),
                (false, _) if status.seed.as_ref() == Some(&entry.spec.seed_name) => json!({
                    "lastOperation": operation("Create", "Succeeded"),
                    "observedGeneration": entry.metadata.generation,
                }),
                (false, _) if self.busy.contains(&entry.name_any()) => return None,
                (false, _) => json!({
                    "lastOperation": operation("Migrate", "Succeeded"),
                    "observedGeneration": entry.metadata.generation,
                }),
            };
            let said =
                status.last_operation.map(|last| (json!(last.kind.as_str()), json!(last.state.as_str())));
            answer(entry, said, wanted)
        });
        buckets.chain(entries).collect()
    }
}

/// Nothing, where it was said before.
fn answer(object: &impl ResourceExt, said: Option<(Value, Value)>, status: Value) -> Option<Answer> {
    let last = &status["lastOperation"];
    let is_new = said != Some((last["type"].clone(), last["state"].clone()));
    is_new.then(|| Answer {
        key: (object.namespace().unwrap_or_default(), object.name_any()),
        version: object.resource_version().unwrap_or_default(),
        status,
    })
}

fn operation(kind: &str, state: &str) -> Value {
    let now = MicroTime(Timestamp::now());
    json!({"type": kind, "state": state, "description": "played", "progress": 100, "lastUpdateTime": now})
}

fn key(entry: &BackupEntry) -> (String, String) {
    (entry.namespace().unwrap_or_default(), entry.name_any())
}
