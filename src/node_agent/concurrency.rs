//! How many volumes of the node are read or restored at the same time: what a flag says, or the
//! node-agents' ConfigMap, which is read live.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use berth_api::node_agent::{NodeAgentConfig, parse};
use berth_core::mover::grant::Limits;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Client;
use kube::api::Api;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Settings;
use crate::pace::paced;

/// How often the ConfigMap and the labels of the node are read.
const LOOK: Duration = Duration::from_secs(30);
/// No more at the same time, whatever the ConfigMap says: the most that the flag may say.
const MOST: usize = 100;

/// Places for jobs. There may be fewer than jobs that hold one: then none begins until enough have
/// ended.
#[derive(Debug)]
pub struct Places {
    most: AtomicUsize,
    taken: AtomicUsize,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Place(Arc<Places>);

impl Places {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: AtomicUsize::new(most), taken: AtomicUsize::new(0) })
    }

    /// Only one task takes places.
    pub fn take(self: &Arc<Self>) -> Option<Place> {
        if self.taken.load(Ordering::Acquire) >= self.most.load(Ordering::Acquire) {
            return None;
        }
        self.taken.fetch_add(1, Ordering::AcqRel);
        Some(Place(Arc::clone(self)))
    }

    /// Whether that is another number than before.
    fn set(&self, most: usize) -> bool {
        self.most.swap(most, Ordering::AcqRel) != most
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Keeps the number of places as the ConfigMap says. Never ends. While it cannot be read the last
/// number holds.
pub async fn follow(client: &Client, settings: &Settings, places: &Places, changed: &Notify) {
    let Some(name) = settings.configmap.as_deref() else { return std::future::pending().await };
    let mut told = String::new();
    loop {
        match read(client, settings, name).await {
            Ok(most) => {
                told.clear();
                if places.set(most) {
                    info!(configmap = name, volumes = most, "at the same time from now on");
                    changed.notify_one();
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                if error != told {
                    warn!(configmap = name, error, "how many volumes at the same time cannot be read");
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
    }

    #[test]
    fn fewer_places_than_are_taken_are_given_once_enough_are_free() {
        let places = Places::new(2);
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
}
