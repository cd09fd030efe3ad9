//! Creates all the while: each must get its place in the answer of the create itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use berth_api::velero::Backup;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use super::NAMESPACE;
use crate::support::control_plane::client;
use crate::support::pods::Cluster;

const AT_ONCE: usize = 64;
/// Of so many creates one may meet the close of a connection.
const ONE_OF: usize = 2_000;

/// Held Backups, created at a steady rate and deleted again. They block no other Backup.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Done>,
    /// Of the API server.
    log: PathBuf,
    closes: usize,
}

/// What became of the creates.
#[derive(Debug, Default)]
pub struct Done {
    pub created: usize,
    /// The API server said no, or nothing.
    pub failed: Vec<String>,
    /// No place in the answer: no webhook was asked, or none answered.
    pub unqueued: Vec<String>,
    /// How often the API server says that a review of a new Backup met the close of a connection.
    pub closes: usize,
    pub slowest: Duration,
    pub lasted: Duration,
}

impl Done {
    /// A replica that stops asks for each connection in an answer, and closes after the delay what
    /// nobody has used since. An API server keeps it for 90 s, whichever pods there are, and may
    /// choose it in that very moment: HTTP/1.1 has no way to tell it. On a busy machine the moment
    /// is long, and a burst follows it. So one create may be lost to that, if the API server says
    /// so; none to anything else.
    pub fn ensure_all_queued(&self) {
        let borne = self.closes.min(1 + self.created / ONE_OF);
        assert!(
            self.failed.is_empty() && self.unqueued.len() <= borne,
            "{} created, {} failed, {} unqueued, {} met a close: {:?} {:?}",
            self.created,
            self.failed.len(),
            self.unqueued.len(),
            self.closes,
            self.failed.first(),
            self.unqueued.first()
        );
    }
}

impl Load {
    pub fn start(cluster: &Cluster, per_second: u32) -> Self {
        let log = cluster.plane().api_server().log().to_owned();
        let closes = closes(&log);
        let stop = Arc::new(AtomicBool::new(false));
        let (kubeconfig, stopped) = (cluster.plane().kubeconfig(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = client(&kubeconfig).await.unwrap();
                press(Api::namespaced(client, NAMESPACE), per_second, &stopped).await
            })
        });
        Self { stop, thread, log, closes }
    }

    pub fn finish(self) -> Done {
        self.stop.store(true, Ordering::Relaxed);
        let done = self.thread.join().unwrap();
        Done { closes: closes(&self.log) - self.closes, ..done }
    }
}

fn closes(log: &Path) -> usize {
    let text = std::fs::read(log).unwrap();
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().filter(|line| line.contains("failing open backups.mutate.berth.dev: "));
    lines
        .filter(|line| line.ends_with(": EOF") || line.ends_with(": http: server closed idle connection"))
        .count()
}

/// A create, and then a delete; name, and what the create gave.
async fn one(api: Api<Backup>, name: String) -> (String, Result<bool, kube::Error>, Duration) {
    let backup = json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": {"name": name, "annotations": {"berth.dev/hold": "true"}},
        "spec": {"includedNamespaces": ["default"]},
    });
    let backup: Backup = serde_json::from_value(backup).unwrap();
    let begun = Instant::now();
    let created = api.create(&PostParams::default(), &backup).await;
    let took = begun.elapsed();
    let queued = created.map(|created| created.phase().as_str() == "Queued");
    let _ = api.delete(&backup.name_any(), &DeleteParams::default()).await;
    (name, queued, took)
}

async fn press(api: Api<Backup>, per_second: u32, stop: &AtomicBool) -> Done {
    let mut done = Done::default();
    let mut under_way = FuturesUnordered::new();
    let mut beat = tokio::time::interval(Duration::from_secs(1) / per_second);
    // What could not be begun in time is made up for: the rate is what was asked for.
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let begun = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        tokio::select! {
            _ = beat.tick(), if under_way.len() < AT_ONCE => {
                done.created += 1;
                under_way.push(one(api.clone(), format!("load-{}", done.created)));
            }
            Some(one) = under_way.next() => done.take(one),
        }
    }
    while let Some(one) = under_way.next().await {
        done.take(one);
    }
    done.lasted = begun.elapsed();
    done
}

impl Done {
    fn take(&mut self, (name, queued, took): (String, Result<bool, kube::Error>, Duration)) {
        self.slowest = self.slowest.max(took);
        match queued {
            Ok(true) => {}
            Ok(false) => self.unqueued.push(name),
            Err(error) => self.failed.push(format!("{name}: {error}")),
        }
    }
}
