//! Watch events of one kind, from kube's watcher to a cache ([`crate::cache`]). An object that
//! cannot be read is skipped with a warning, because one bad object must not hide the others.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt;
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::client::is_not_found;
use crate::guarded::Guarded;
use crate::pace::paced;
use crate::text::chain;

/// What a list or a watch shows of the objects of one kind.
pub enum WatchEvent<T, I = String> {
    /// All of them, after a (re)start of the watch.
    Replaced(Vec<T>),
    Applied(T),
    /// By name; of all namespaces, by [`ObjectKey`].
    Deleted(I),
}

impl<I: Ord, V> WatchEvent<(I, V), I> {
    /// Brings a map up to date. That is enough for objects that this process never writes, because
    /// what it knows of them is never newer than what the watch shows; and where each write carries
    /// the version that it was decided on, so that a decision on an older version is a conflict and
    /// is made again. Otherwise a process that decides again before the watch shows its own write
    /// would do the same twice: for that there is [`crate::cache::Cache`].
    pub fn apply_to(self, map: &mut BTreeMap<I, V>) {
        match self {
            Self::Replaced(all) => *map = all.into_iter().collect(),
            Self::Applied((key, value)) => drop(map.insert(key, value)),
            Self::Deleted(key) => drop(map.remove(&key)),
        }
    }
}

/// Namespace, which is empty for cluster-scoped kinds, and name.
pub type ObjectKey = (String, String);

/// Objects in one answer of a list: what is read at once takes several times the memory of what is
/// kept of it.
const PAGE: u32 = 100;
/// A kind that the API server does not know is asked for this often at first, because an
/// installation may just be defining it.
const ABSENT: Duration = Duration::from_secs(1);
/// How many times. Afterwards it is asked for less often, because most clusters never define all
/// kinds, and every process asks for each of them.
const ABSENT_AT_FIRST: u32 = 60;
const ABSENT_LATER: Duration = Duration::from_secs(10);

/// Doubles. An API server that is just taking up a definition puts a watch off for a moment, and
/// whoever waits for an admission should not have to wait for much more.
struct Pause(Duration);

impl Pause {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(15);
    /// After as long without a failure the first one is the first again.
    const FORGET: Duration = Duration::from_secs(30);

    fn backoff() -> ResetTimerBackoff<Self> {
        ResetTimerBackoff::new(Self(Self::FIRST), Self::FORGET)
    }
}

impl Iterator for Pause {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let longer = self.0.saturating_mul(2).min(Self::LONGEST);
        Some(std::mem::replace(&mut self.0, longer))
    }
}

impl Backoff for Pause {
    fn reset(&mut self) {
        self.0 = Self::FIRST;
    }
}

/// Objects of a namespace, to be watched.
pub fn of_namespace<K>(client: &Client, namespace: &str) -> Api<Guarded<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(client.clone(), namespace)
}

/// Watches for ever; reconnects with back-off. What `keep` makes of an object is all that is held
/// of it. A kind that the API server does not know has no objects.
pub async fn reflect<K, T>(
    api: Api<Guarded<K>>,
    config: watcher::Config,
    keep: impl Fn(K) -> T,
    observe: impl FnMut(WatchEvent<T>),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    reflect_by(api, config, Guarded::name_any, || (), keep, observe).await;
}

/// [`reflect`] for objects that are told apart by namespace and name.
pub async fn reflect_everywhere<K, T>(
    api: Api<Guarded<K>>,
    config: watcher::Config,
    keep: impl Fn(K) -> T,
    observe: impl FnMut(WatchEvent<T, ObjectKey>),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let key = |object: &Guarded<K>| (object.namespace().unwrap_or_default(), object.name_any());
    reflect_by(api, config, key, || (), keep, observe).await;
}

/// [`reflect`] for objects that are told apart by what `key` makes of them. `begin` is called
/// before each list, for a `keep` that bounds what the objects of one list take together: the list
/// reaches `observe` only when it is whole.
pub async fn reflect_by<K, T, I>(
    api: Api<Guarded<K>>,
    config: watcher::Config,
    key: impl Fn(&Guarded<K>) -> I,
    begin: impl Fn(),
    keep: impl Fn(K) -> T,
    mut observe: impl FnMut(WatchEvent<T, I>),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let kind = K::kind(&());
    let read = |guard| read(guard).map(&keep);
    let config = config.page_size(PAGE);
    let mut events = std::pin::pin!(watcher(api, config));
    let mut pauses = Pause::backoff();
    let mut listed = Vec::new();
    let mut absences = 0_u32;
    while let Some(event) = events.next().await {
        // kube's own back-off takes the beginning of a list, which is told before it is asked for,
        // and its first pages for a success: whoever cannot list would ask ten times a second.
        if matches!(
            event,
            Ok(watcher::Event::InitDone | watcher::Event::Apply(_) | watcher::Event::Delete(_))
        ) {
            pauses.reset();
        }
        match event {
            Ok(watcher::Event::Init) => {
                listed.clear();
                begin();
            }
            Ok(watcher::Event::InitApply(object)) => listed.extend(read(object)),
            Ok(watcher::Event::InitDone) => {
                absences = 0;
                observe(WatchEvent::Replaced(std::mem::take(&mut listed)));
            }
            Ok(watcher::Event::Apply(object)) => {
                let key = key(&object);
                // What can no longer be read is no longer known either.
                observe(read(object).map_or(WatchEvent::Deleted(key), WatchEvent::Applied));
            }
            Ok(watcher::Event::Delete(object)) => observe(WatchEvent::Deleted(key(&object))),
            Err(watcher::Error::InitialListFailed(error)) if is_not_found(&error) => {
                debug!(%kind, "there is no such kind here");
                observe(WatchEvent::Replaced(Vec::new()));
                absences = absences.saturating_add(1);
                sleep(if absences < ABSENT_AT_FIRST { ABSENT } else { paced(ABSENT_LATER) }).await;
            }
            Err(error) => {
                warn!(%kind, error = chain(&error), "the watch was interrupted");
                sleep(pauses.next().unwrap_or(Pause::LONGEST)).await;
            }
        }
    }
}

fn read<K: Resource<DynamicType = ()>>(guard: Guarded<K>) -> Option<K> {
    let (kind, unreadable) = match guard.0 {
        Ok(object) => return Some(object),
        Err(error) => (K::kind(&()), error),
    };
    let name = unreadable.metadata.name.clone().unwrap_or_default();
    warn!(%kind, %name, error = chain(&unreadable), "skipped: it cannot be read");
    None
}

/// One list of what [`reflect`] would show, for a caller that waits for it.
///
/// # Errors
/// When they cannot be listed. Of a kind that the API server does not know there are none.
pub async fn list<K>(api: Api<Guarded<K>>, params: &ListParams) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match api.list(params).await {
        Ok(found) => Ok(found.items.into_iter().filter_map(read).collect()),
        Err(error) if is_not_found(&error) => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("failed to list {}", K::plural(&()))),
    }
}

/// Resource versions of one object grow (KEP-5504). What is no number is taken as newer.
pub fn is_older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}

#[cfg(test)]
mod tests;
