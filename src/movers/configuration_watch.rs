//! Keeps the node-agents' configuration in the node cache as it is now.

use std::collections::BTreeMap;

use kube::Client;
use kube::runtime::watcher;
use tokio::sync::watch;

use super::NodeCache;
use super::configuration::{ConfigMapContents, ConfigurationState, first_named, named};
use crate::watch::{WatchEvent, of_namespace, reflect};

/// Watches the ConfigMap that is `given`, or else the one that a DaemonSet of node-agents names,
/// and updates the node cache. Never returns.
pub async fn follow(client: &Client, namespace: &str, given: Option<&str>, node_cache: &NodeCache) {
    let name = watch::Sender::new(None::<Option<String>>);
    let watching = async {
        match given {
            Some(given) => {
                name.send_replace(Some(Some(given.to_owned())));
                std::future::pending::<()>().await;
            }
            None => watch_sets(client, namespace, &name).await,
        }
    };
    let following = async {
        let mut changed = name.subscribe();
        loop {
            let current = changed.borrow_and_update().clone();
            tokio::select! {
                () = read(client, namespace, current.as_ref(), node_cache) => {}
                _ = changed.changed() => {}
            }
        }
    };
    tokio::join!(watching, following);
}

async fn watch_sets(client: &Client, namespace: &str, name: &watch::Sender<Option<Option<String>>>) {
    let mut known = BTreeMap::new();
    reflect(of_namespace(client, namespace), watcher::Config::default(), named, |event| {
        event.apply_to(&mut known);
        let first = first_named(&known);
        name.send_if_modified(|current| {
            let is_new = current.as_ref() != Some(&first);
            *current = Some(first);
            is_new
        });
    })
    .await;
}

async fn read(client: &Client, namespace: &str, name: Option<&Option<String>>, node_cache: &NodeCache) {
    let Some(name) = name else { return std::future::pending().await };
    let Some(name) = name else {
        node_cache.configure(ConfigurationState::default());
        return std::future::pending().await;
    };
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let apply = |found: Option<ConfigMapContents>| {
        let before = node_cache.read(|state| state.configuration.clone());
        // The settings of another ConfigMap must not be kept.
        let before = if before.name.as_ref() == Some(name) { before } else { ConfigurationState::default() };
        node_cache.configure(before.with(name, found.as_ref()));
    };
    reflect(of_namespace(client, namespace), only, ConfigMapContents::of, |event| match event {
        WatchEvent::Replaced(all) => apply(all.into_iter().next()),
        WatchEvent::Applied(found) => apply(Some(found)),
        WatchEvent::Deleted(_) => apply(None),
    })
    .await;
}
