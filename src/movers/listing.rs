//! A one-time read of what the servers have from watches, for commands. Objects that may not be
//! read are an error.

use std::collections::HashSet;

use anyhow::Context as _;
use berth_api::mover_pod::toleration;
use berth_core::affinity::Toleration;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};

use super::mover_cache::{MoverCache, MoverItem};
use super::node_cache::{NodeCacheState, agent, class, node};
use super::{configuration, target};
use crate::client::is_forbidden;
use crate::objects::{STOCK_NODE_AGENTS, is_stock_node_agent};
use crate::watch::{list, of_namespace};

const CALLS_AT_ONCE: usize = 16;

/// Reads the node-agents and their configuration, all of which is in their namespace. `configmap`:
/// the leader's `--node-agent-configmap`.
///
/// # Errors
/// The API server cannot be read.
pub async fn agents(
    client: &Client,
    namespace: &str,
    configmap: Option<&str>,
) -> anyhow::Result<NodeCacheState> {
    let agents = ListParams::default().labels(STOCK_NODE_AGENTS);
    let pods = list(of_namespace::<Pod>(client, namespace), &agents).await?;
    let mut state = NodeCacheState::default();
    state.configuration = configuration::read_once(client, namespace, configmap).await?;
    state.put_agents(pods.into_iter().filter_map(agent));
    Ok(state)
}

/// Adds all nodes.
///
/// # Errors
/// The API server cannot be read.
pub async fn nodes(client: &Client, state: &mut NodeCacheState) -> anyhow::Result<()> {
    let found = list(Api::all(client.clone()), &ListParams::default()).await?;
    state.put_nodes(found.into_iter().map(node).collect());
    Ok(())
}

/// Adds all StorageClasses.
///
/// # Errors
/// The API server cannot be read.
pub async fn classes(client: &Client, state: &mut NodeCacheState) -> anyhow::Result<()> {
    let found = list(Api::all(client.clone()), &ListParams::default()).await?;
    state.classes = found.into_iter().map(class).collect();
    Ok(())
}

/// The tolerations of node-agents.
///
/// # Errors
/// The API server cannot be read.
pub async fn tolerations(client: &Client, namespace: &str) -> anyhow::Result<Vec<Toleration>> {
    let sets: Vec<DaemonSet> = list(of_namespace(client, namespace), &ListParams::default()).await?;
    let templates = sets.into_iter().filter_map(|set| Some(set.spec?.template));
    let of_agents = templates.filter(|template| {
        let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
        labels.is_some_and(is_stock_node_agent)
    });
    let tolerations = of_agents.filter_map(|template| template.spec?.tolerations);
    Ok(tolerations.flatten().map(|one| toleration(&one)).collect())
}

/// The data movers that have not ended.
#[derive(Default)]
pub struct UnfinishedMovers {
    /// Each with its node, as far as that is known.
    pub items: Vec<MoverItem>,
    /// UIDs of data movers whose pod may not be read, so that their node is unknown.
    pub hidden: HashSet<String>,
}

/// Reads the data movers.
///
/// # Errors
/// The API server cannot be read.
pub async fn movers(client: &Client, namespace: &str) -> anyhow::Result<UnfinishedMovers> {
    let movers = MoverCache::default();
    movers.list(client, namespace).await?;
    let looked = futures::stream::iter(movers.frozen()).map(|item| with_node(client, item));
    let mut looked = std::pin::pin!(looked.buffer_unordered(CALLS_AT_ONCE));
    let mut found = UnfinishedMovers::default();
    while let Some((item, is_hidden)) = looked.try_next().await? {
        if is_hidden {
            found.hidden.insert(item.mover.uid.clone());
        }
        found.items.push(item);
    }
    Ok(found)
}

/// A PodVolumeRestore runs on the node of its pod. The flag is true if that pod may not be read.
async fn with_node(client: &Client, mut item: MoverItem) -> anyhow::Result<(MoverItem, bool)> {
    let Some(pod) = item.unbound() else { return Ok((item, false)) };
    match target::node(client, pod).await {
        Ok(node) => item.bind(node),
        Err(error) if is_forbidden(&error) => return Ok((item, true)),
        Err(error) => {
            let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
            let pod = format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default());
            return Err(error).with_context(|| format!("failed to read pod {pod}"));
        }
    }
    Ok((item, false))
}
