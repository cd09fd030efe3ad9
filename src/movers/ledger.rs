//! The ledger: the grants that are decided and not yet visible on their objects. It is one
//! ConfigMap, written before each grant with the resourceVersion that was read, so only one leader
//! at a time can grant. While it is in force, admission lets no data mover be prepared without a
//! grant. It is not deleted while berth is installed, because the write of a former leader must
//! always fail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Clients, is_conflict, is_not_found};
use crate::objects::{LEDGER, PART_OF, PART_OF_BERTH};
use crate::watch::{WatchEvent, of_namespace, reflect};

const UIDS: &str = "uids";
const IN_FORCE: &str = "inForce";
const LIMIT: &str = "limit";
/// Time-out for reading or writing the ledger.
const CALL: Duration = Duration::from_secs(10);

/// The periods of the signs that a leader grants. All of them are derived from one.
#[derive(Clone, Copy, Debug)]
pub struct GrantSignPeriods {
    silent: Duration,
}

impl GrantSignPeriods {
    /// Without a sign for this long no leader grants. A new leader in a real cluster takes less
    /// time.
    pub fn new(silent: Duration) -> Self {
        Self { silent }
    }

    /// The ledger is written at least this often while it is in force.
    fn beat(self) -> Duration {
        self.silent / 3
    }

    /// Without an event for this long the ledger is read, because a watch may hang.
    fn doubtful(self) -> Duration {
        self.silent / 2
    }

    /// How often that is checked.
    fn look(self) -> Duration {
        self.silent / 6
    }
}

pub struct GrantLedger {
    api: Api<ConfigMap>,
    /// As last read or written. `None`: it does not exist.
    found: Option<ConfigMap>,
    written: Instant,
}

impl GrantLedger {
    /// Reads the ledger.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub async fn open(client: Client, namespace: &str) -> anyhow::Result<Self> {
        let api: Api<ConfigMap> = Api::namespaced(client, namespace);
        let found =
            timeout(CALL, api.get_opt(LEDGER)).await?.context("the ledger of grants cannot be read")?;
        Ok(Self { api, found, written: Instant::now() })
    }

    /// `None`: it is not in force.
    pub fn uids(&self) -> Option<BTreeSet<String>> {
        let found = self.found.as_ref().filter(|found| is_in_force(found))?;
        let text =
            found.data.as_ref().and_then(|data| data.get(UIDS)).map(String::as_str).unwrap_or_default();
        Some(text.split_whitespace().map(str::to_owned).collect())
    }

    /// The number of places that the ledger records, for a process that cannot know it otherwise.
    pub fn limit(&self) -> Option<usize> {
        let found = self.found.as_ref().filter(|found| is_in_force(found))?;
        found.data.as_ref()?.get(LIMIT)?.parse().ok()
    }

    /// Is it time for a sign that this leader grants?
    pub fn is_due(&self, signs: GrantSignPeriods) -> bool {
        self.written.elapsed() >= signs.beat() && self.found.as_ref().is_some_and(is_in_force)
    }

    /// Puts the ledger in force with these UIDs. Returns `false` if another process has written it,
    /// which then grants.
    ///
    /// # Errors
    /// The API server refuses the write.
    pub async fn write(&mut self, uids: &BTreeSet<String>, limit: Option<usize>) -> anyhow::Result<bool> {
        let uids = uids.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        self.put(true, &uids, &limit.map(|limit| limit.to_string()).unwrap_or_default()).await
    }

    /// Marks the ledger as not in force: no data mover is held back any more. Returns `false` if
    /// another process has written it.
    ///
    /// # Errors
    /// The API server refuses the write.
    pub async fn retire(&mut self) -> anyhow::Result<bool> {
        self.put(false, "", "").await
    }

    async fn put(&mut self, in_force: bool, uids: &str, limit: &str) -> anyhow::Result<bool> {
        let mut map = self.found.clone().unwrap_or_else(|| ConfigMap {
            metadata: ObjectMeta {
                name: Some(LEDGER.to_owned()),
                labels: Some(BTreeMap::from([(PART_OF.to_owned(), PART_OF_BERTH.to_owned())])),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        });
        let data = map.data.get_or_insert_default();
        data.insert(UIDS.to_owned(), uids.to_owned());
        data.insert(IN_FORCE.to_owned(), in_force.to_string());
        data.insert(LIMIT.to_owned(), limit.to_owned());
        // A new mark, because a write that changes nothing keeps the resourceVersion, and the write
        // of a former leader would succeed.
        let mark = jiff::Timestamp::now().to_string();
        map.metadata.annotations.get_or_insert_default().insert("berth.dev/written-at".to_owned(), mark);
        let params = PostParams::default();
        let written = async {
            match self.found.is_some() {
                true => self.api.replace(LEDGER, &params, &map).await,
                false => self.api.create(&params, &map).await,
            }
        };
        match timeout(CALL, written).await? {
            Ok(written) => {
                self.found = Some(written);
                self.written = Instant::now();
                Ok(true)
            }
            Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(false),
            Err(error) => Err(error).context("the ledger of grants cannot be written"),
        }
    }
}

fn is_in_force(map: &ConfigMap) -> bool {
    map.data.as_ref().and_then(|data| data.get(IN_FORCE)).is_some_and(|value| value == "true")
}

/// Whether a leader grants, as admission sees it: the ledger is in force, and is written
/// repeatedly. It only reads; [`super::nudge`] writes where the leader is silent.
pub struct InForce {
    signs: GrantSignPeriods,
    last: Mutex<Option<Sign>>,
    silent: watch::Sender<bool>,
}

struct Sign {
    in_force: bool,
    version: Option<String>,
    at: Instant,
}

impl InForce {
    pub fn new(signs: GrantSignPeriods) -> Self {
        Self { signs, last: Mutex::default(), silent: watch::Sender::new(false) }
    }

    /// Whether the ledger is in force and its last sign is too old, so that nobody has nudged the
    /// data movers that were refused. A leader that retires the ledger nudges them itself.
    pub fn silent(&self) -> watch::Receiver<bool> {
        self.silent.subscribe()
    }

    /// Is it known whether the ledger is in force?
    pub fn is_known(&self) -> bool {
        self.last.lock().is_some()
    }

    pub fn is_kept(&self) -> bool {
        self.last.lock().as_ref().is_some_and(|sign| sign.in_force && sign.at.elapsed() < self.signs.silent)
    }

    /// Is the ledger in force, and its last sign older than `age`?
    fn is_older(&self, age: Duration) -> bool {
        self.last.lock().as_ref().is_some_and(|sign| sign.in_force && sign.at.elapsed() >= age)
    }

    /// Watches the ledger. Never returns.
    pub async fn follow(&self, clients: &Clients, namespace: &str) {
        let only = watcher::Config::default().fields(&format!("metadata.name={LEDGER}"));
        let sign = |map: ConfigMap| (is_in_force(&map), map.metadata.resource_version);
        let watching = reflect(of_namespace(&clients.watch, namespace), only, sign, |change| match change {
            WatchEvent::Replaced(mut all) => self.see(all.pop()),
            WatchEvent::Applied(found) => self.see(Some(found)),
            // The leader will notice, and write it again.
            WatchEvent::Deleted(_) => {}
        });
        let api: Api<ConfigMap> = Api::namespaced(clients.call.clone(), namespace);
        let asking = async {
            loop {
                sleep(self.signs.look()).await;
                if self.is_older(self.signs.doubtful())
                    && let Ok(Ok(found)) = timeout(CALL, api.get_opt(LEDGER)).await
                {
                    self.see(found.map(|map| (is_in_force(&map), map.metadata.resource_version)));
                }
                let is_silent = self.is_older(self.signs.silent);
                self.silent.send_if_modified(|silent| std::mem::replace(silent, is_silent) != is_silent);
            }
        };
        tokio::join!(watching, asking);
    }

    /// `None`: it does not exist.
    fn see(&self, found: Option<(bool, Option<String>)>) {
        let mut last = self.last.lock();
        match (found, last.as_mut()) {
            (Some((in_force, version)), Some(sign))
                if sign.in_force == in_force && sign.version == version => {}
            (Some((in_force, version)), _) => *last = Some(Sign { in_force, version, at: Instant::now() }),
            (None, Some(_)) => {}
            (None, None) => *last = Some(Sign { in_force: false, version: None, at: Instant::now() }),
        }
    }
}

#[cfg(test)]
mod tests;
