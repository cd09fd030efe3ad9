//! How many volumes of the node are read or restored at the same time, according to a flag or to
//! the node-agents' ConfigMap, which is read live. The ConfigMap's `prepareQueueLength` does not
//! limit this agent's jobs: it limits how many objects are Accepted or Prepared, and
//! PodVolumeBackups and PodVolumeRestores never are, because no pod and no claim are created for
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use berth_api::node_agent::{NodeAgentConfig, parse};
use berth_core::mover::grant::Limits;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Client;
use kube::api::Api;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Settings;
use crate::pace::paced;

/// How often the ConfigMap and the labels of the node are read.
const LOOK: Duration = Duration::from_secs(30);
/// Upper limit of the places, whatever the ConfigMap says; the flag has the same. It is also the
/// limit of released places.
const MOST: usize = 100;

/// The places for jobs. If the number was lowered, more jobs than that may still have one; then no
/// job starts until enough have ended.
#[derive(Debug)]
pub struct Places {
    counts: Mutex<Counts>,
    /// Wakes jobs that want their place back, because a place may be free.
    freed: Notify,
    /// Wakes the loop that starts jobs, because a place may be free.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct Counts {
    most: usize,
    taken: usize,
    /// Places that are released while their jobs wait for something else.
    released: usize,
    /// Jobs that wait to get their place back.
    wanted: usize,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    is_released: AtomicBool,
}

impl Places {
    /// `changed` is notified whenever a place may be free.
    pub fn new(most: usize, changed: Arc<Notify>) -> Arc<Self> {
        let counts = Mutex::new(Counts { most, taken: 0, released: 0, wanted: 0 });
        Arc::new(Self { counts, freed: Notify::new(), changed })
    }

    /// A place for a new job. Jobs that want their place back have precedence, because they are
    /// older.
    pub fn take(self: &Arc<Self>) -> Option<Place> {
        let mut counts = self.counts.lock();
        if counts.taken + counts.wanted >= counts.most {
            return None;
        }
        counts.taken += 1;
        Some(Place { places: Arc::clone(self), is_released: AtomicBool::new(false) })
    }

    fn tell(&self) {
        self.freed.notify_waiters();
        self.changed.notify_one();
    }

    /// Sets the number of places. `true`: the number has changed.
    fn set(&self, most: usize) -> bool {
        let before = std::mem::replace(&mut self.counts.lock().most, most);
        if before != most {
            self.tell();
        }
        before != most
    }
}

impl Place {
    /// The place of the only job of a process.
    pub fn only() -> Self {
        let counts = Mutex::new(Counts { most: 1, taken: 1, released: 0, wanted: 0 });
        let places = Places { counts, freed: Notify::new(), changed: Arc::default() };
        Self { places: Arc::new(places), is_released: AtomicBool::new(false) }
    }

    /// Gives the place to others until [`Place::reacquire`]. If too many places are released
    /// already, the job keeps its own, because each waiting job costs memory and requests.
    pub fn release(&self) {
        {
            let mut counts = self.places.counts.lock();
            if counts.released >= MOST || self.is_released.swap(true, Ordering::AcqRel) {
                return;
            }
            counts.taken = counts.taken.saturating_sub(1);
            counts.released += 1;
        }
        self.places.tell();
    }

    /// Waits until the job has its place again. Returns at once if it was not released.
    pub async fn reacquire(&self) {
        if !self.is_released.load(Ordering::Acquire) {
            return;
        }
        let _wanted = Wanted::new(&self.places);
        loop {
            // Registered before the check, so that no notification in between is missed.
            let freed = self.places.freed.notified();
            {
                let mut counts = self.places.counts.lock();
                if counts.taken < counts.most {
                    counts.taken += 1;
                    counts.released = counts.released.saturating_sub(1);
                    self.is_released.store(false, Ordering::Release);
                    return;
                }
            }
            freed.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut counts = self.places.counts.lock();
            let count = if *self.is_released.get_mut() { &mut counts.released } else { &mut counts.taken };
            *count = count.saturating_sub(1);
        }
        self.places.tell();
    }
}

/// A job that wants its place back, until this is dropped.
struct Wanted<'a>(&'a Places);

impl<'a> Wanted<'a> {
    fn new(places: &'a Places) -> Self {
        places.counts.lock().wanted += 1;
        Self(places)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        {
            let mut counts = self.0.counts.lock();
            counts.wanted = counts.wanted.saturating_sub(1);
        }
        self.0.tell();
    }
}

/// Sets the number of places from the ConfigMap. Never returns. While the ConfigMap cannot be read,
/// the last number stays.
pub async fn follow(client: &Client, settings: &Settings, places: &Places) {
    let Some(name) = settings.configmap.as_deref() else { return std::future::pending().await };
    let mut told = String::new();
    loop {
        match read(client, settings, name).await {
            Ok(most) => {
                told.clear();
                if places.set(most) {
                    info!(configmap = name, volumes = most, "at the same time from now on");
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                if error != told {
                    warn!(
                        configmap = name,
                        error,
                        "cannot read how many volumes to read at the same time: keeping the last number"
                    );
                    told = error;
                }
            }
        }
        sleep(paced(LOOK)).await;
    }
}

async fn read(client: &Client, settings: &Settings, name: &str) -> anyhow::Result<usize> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &settings.namespace);
    let map = maps.get(name).await.context("the ConfigMap cannot be read")?;
    let parsed = parse(&map.data.unwrap_or_default());
    let config = parsed.map_err(|faults| anyhow!("{}", faults.lines().join("; ")))?.config;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get_metadata(&settings.node).await.context("the node cannot be read")?;
    Ok(most(config, &node.metadata.labels.unwrap_or_default()))
}

fn most(config: NodeAgentConfig, labels: &BTreeMap<String, String>) -> usize {
    let limits = Limits { limit: None, global: config.global_config, per_node: config.per_node };
    usize::try_from(limits.data_paths(labels)).unwrap_or(MOST).min(MOST)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn the_configmap_says_how_many_by_the_labels_of_the_node() {
        let of = |config: serde_json::Value, pool: &str| {
            let data = [("config.json".to_owned(), json!({"loadConcurrency": config}).to_string())].into();
            most(parse(&data).unwrap().config, &[("pool".to_owned(), pool.to_owned())].into())
        };
        let per_node = json!([
            {"nodeSelector": {"matchLabels": {"pool": "large"}}, "number": 8},
            {"nodeSelector": {"matchLabels": {"pool": "huge"}}, "number": 100_000},
        ]);
        let config = json!({"globalConfig": 3, "perNodeConfig": per_node});
        for (pool, number) in [("small", 3), ("large", 8), ("huge", MOST)] {
            assert_eq!(of(config.clone(), pool), number, "{pool}");
        }
        assert_eq!(of(json!({}), "small"), 1);
        // No object of this agent is ever Accepted or Prepared, so `prepareQueueLength` limits
        // nothing.
        for length in [-1, 0, 1] {
            let config = json!({"globalConfig": 3, "prepareQueueLength": length});
            assert_eq!(of(config, "small"), 3, "{length}");
        }
    }

    #[test]
    fn fewer_places_than_are_taken_are_given_once_enough_are_free() {
        let places = Places::new(2, Arc::default());
        let (one, two) = (places.take().unwrap(), places.take().unwrap());
        assert!(places.take().is_none());
        assert!(places.set(1) && !places.set(1));
        drop(one);
        assert!(places.take().is_none());
        drop(two);
        let _last = places.take().unwrap();
        assert!(places.take().is_none());
        places.set(2);
        assert!(places.take().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_released_a_place_has_one_again_before_anybody_new() {
        let places = Places::new(1, Arc::default());
        let lender = places.take().unwrap();
        lender.release();
        let other = places.take().unwrap();
        assert!(places.take().is_none());
        {
            let mut back = std::pin::pin!(lender.reacquire());
            assert!(timeout(LOOK, &mut back).await.is_err(), "another one has it");
            drop(other);
            assert!(places.take().is_none(), "it is for the one that wants it back");
            assert!(timeout(LOOK, &mut back).await.is_ok());
        }
        lender.reacquire().await;
        drop(lender);
        // A job that stops waiting for its place does not keep others from it.
        let lender = places.take().unwrap();
        lender.release();
        let other = places.take().unwrap();
        assert!(timeout(LOOK, lender.reacquire()).await.is_err());
        drop((lender, other));
        assert!(places.take().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_only_job_of_a_process_has_its_place_again_at_once() {
        let place = Place::only();
        place.release();
        assert!(timeout(LOOK, place.reacquire()).await.is_ok());
        let counts = place.places.counts.lock();
        assert_eq!((counts.taken, counts.released, counts.wanted), (1, 0, 0));
    }

    #[test]
    fn places_are_released_only_so_often() {
        let places = Places::new(1, Arc::default());
        let lenders: Vec<Place> = std::iter::from_fn(|| {
            let place = places.take()?;
            place.release();
            Some(place)
        })
        .take(2 * MOST)
        .collect();
        assert_eq!(lenders.len(), MOST + 1, "the last one has kept its place");
        drop(lenders);
        let counts = places.counts.lock();
        assert_eq!((counts.taken, counts.released, counts.wanted), (0, 0, 0));
    }
}
