//! The ledger: which grants are decided and not seen on their objects yet. One ConfigMap, written with the version that was
//! read, before any grant; so only one leader at a time can give any. While it is in force, admission lets nobody prepare
//! without a grant. It is never removed while berth runs: an old leader's write must always fail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::client::{is_conflict, is_not_found};
use crate::install::{PART_OF, PART_OF_BERTH};
use crate::mirror::{Change, mirror, of_namespace};

pub const LEDGER: &str = "berth-mover-grants";
const UIDS: &str = "uids";
const IN_FORCE: &str = "inForce";
const WRITE: Duration = Duration::from_secs(10);

pub struct Ledger {
    api: Api<ConfigMap>,
    /// As it was last read or written. `None`: there is none.
    found: Option<ConfigMap>,
}

impl Ledger {
    /// # Errors
    /// When it cannot be read.
    pub async fn open(client: Client, namespace: &str) -> anyhow::Result<Self> {
        let api: Api<ConfigMap> = Api::namespaced(client, namespace);
        let found =
            timeout(WRITE, api.get_opt(LEDGER)).await?.context("the ledger of grants cannot be read")?;
        Ok(Self { api, found })
    }

    /// `None`: it is not in force.
    pub fn uids(&self) -> Option<BTreeSet<String>> {
        let found = self.found.as_ref().filter(|found| is_in_force(found))?;
        let text =
            found.data.as_ref().and_then(|data| data.get(UIDS)).map(String::as_str).unwrap_or_default();
        Some(text.split_whitespace().map(str::to_owned).collect())
    }

    /// Puts it in force with these. `false`: somebody else has written it. Then whoever wrote it grants.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub async fn write(&mut self, uids: &BTreeSet<String>) -> anyhow::Result<bool> {
        self.put(true, &uids.iter().map(String::as_str).collect::<Vec<_>>().join(" ")).await
    }

    /// Nothing is held back any more. `false`: somebody else has written it.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub async fn retire(&mut self) -> anyhow::Result<bool> {
        self.put(false, "").await
    }

    async fn put(&mut self, in_force: bool, uids: &str) -> anyhow::Result<bool> {
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
        // Also where nothing else changes: a write that changes nothing keeps the version, and an old leader's would pass.
        let mark = jiff::Timestamp::now().to_string();
        map.metadata.annotations.get_or_insert_default().insert("berth.dev/written-at".to_owned(), mark);
        let params = PostParams::default();
        let written = async {
            match self.found.is_some() {
                true => self.api.replace(LEDGER, &params, &map).await,
                false => self.api.create(&params, &map).await,
            }
        };
        match timeout(WRITE, written).await? {
            Ok(written) => {
                self.found = Some(written);
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

/// Whether it is in force, as admission sees it. `None`: not known yet.
#[derive(Default)]
pub struct InForce(Mutex<Option<bool>>);

impl InForce {
    pub fn get(&self) -> Option<bool> {
        *self.0.lock()
    }

    /// For ever.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let only = watcher::Config::default().fields(&format!("metadata.name={LEDGER}"));
        mirror(
            of_namespace(client, namespace),
            only,
            |map: ConfigMap| is_in_force(&map),
            |change| {
                let in_force = match change {
                    Change::All(all) => all.contains(&true),
                    Change::Applied(in_force) => in_force,
                    Change::Deleted(_) => false,
                };
                *self.0.lock() = Some(in_force);
            },
        )
        .await;
    }
}
