//! Tells the hub that this seed's controllers are running, and of which cluster they are. A cluster
//! that uses another one's name reports only that, and syncs nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use berth_api::keys;
use berth_garden_api::report::with_condition;
use berth_garden_api::{Condition, Seed, SeedStatus};
use berth_garden_core::assignment::SILENT;
use berth_garden_core::identity::{SeedIdentity, seed_identity};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::Api;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{error, info, warn};

use crate::pace::{paced, passed};
use crate::text::chain;
use crate::write::{Pauses, Write, WriteResult, patch_status};

/// The hub considers a seed gone after four periods without a heartbeat.
const PERIOD: Duration = Duration::from_secs(10);
/// Time-out of a call to an API server.
const ANSWER: Duration = Duration::from_secs(5);
/// Writes of one heartbeat: the hub writes the same status now and then.
const ATTEMPTS: usize = 3;
/// Its UID identifies the cluster, because it cannot be deleted and created again.
const OF_CLUSTER: &str = "kube-system";
/// Type of the Seed's condition: another cluster uses its name.
const CLUSTER_CONFLICT: &str = "ClusterConflict";

/// Is this cluster the seed?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterIdentity {
    /// The hub has not been asked yet.
    Unknown,
    /// No other cluster is the seed.
    Ours,
    Anothers,
}

pub struct Heart<'a> {
    pub hub: &'a Client,
    pub member: &'a Client,
    pub seed: &'a str,
    pub identity: &'a watch::Sender<ClusterIdentity>,
}

/// Result of one heartbeat.
enum HeartbeatResult {
    Beaten,
    /// Another cluster is the seed, with this UID.
    Another(String),
    Unregistered,
}

/// The condition that a rejected cluster writes and renews, and when it was last seen to change, by
/// this process's clock.
#[derive(Default)]
struct Rival {
    renewed: Option<(Time, Instant)>,
}

impl Heart<'_> {
    /// Runs for ever.
    pub async fn run(&self) {
        let mut ticks = interval(paced(PERIOD));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut silent, mut own, mut rival) = (false, None, Rival::default());
        loop {
            ticks.tick().await;
            let failed = match self.look(&mut own, &mut rival).await {
                Ok(HeartbeatResult::Beaten) => {
                    self.become_known(ClusterIdentity::Ours);
                    None
                }
                Ok(HeartbeatResult::Another(uid)) => {
                    self.become_known(ClusterIdentity::Anothers);
                    Some(format!(
                        "the hub knows this Seed as another cluster, with UID {uid}: nothing is synced; if it is this cluster from now on, give \
                         the Seed the annotation {}: {}",
                        keys::CLUSTER,
                        own.as_deref().unwrap_or_default()
                    ))
                }
                Ok(HeartbeatResult::Unregistered) => {
                    // No other cluster is the seed either, unless one was a moment ago.
                    if *self.identity.borrow() == ClusterIdentity::Unknown {
                        self.become_known(ClusterIdentity::Ours);
                    }
                    Some("the hub has no Seed of this name: register it".to_owned())
                }
                Err(error) => Some(format!("{error:#}")),
            };
            match (&failed, silent) {
                (Some(why), _) if *self.identity.borrow() == ClusterIdentity::Anothers => {
                    error!(seed = self.seed, why, "this cluster is not the Seed whose name it uses");
                }
                (Some(why), _) => {
                    warn!(seed = self.seed, why, "could not send a heartbeat to the hub; syncing continues");
                }
                (None, true) => info!(seed = self.seed, "sends heartbeats to the hub again"),
                (None, false) => {}
            }
            silent = failed.is_some();
        }
    }

    fn become_known(&self, now: ClusterIdentity) {
        self.identity.send_if_modified(|identity| std::mem::replace(identity, now) != now);
    }

    /// Each write carries the resourceVersion that was judged, so of two clusters that write at the
    /// same time only one succeeds.
    async fn look(&self, own: &mut Option<String>, rival: &mut Rival) -> anyhow::Result<HeartbeatResult> {
        let uid = match own {
            Some(uid) => uid.clone(),
            None => own.insert(self.uid().await?).clone(),
        };
        let api: Api<Seed> = Api::all(self.hub.clone());
        let mut last = anyhow!("the hub's Seed changed each time before it could be written");
        let mut pauses = Pauses::default();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                pauses.wait().await;
            }
            let asked =
                timeout(ANSWER, api.get_opt(self.seed)).await.context("the hub did not answer in time")?;
            let Some(found) = asked.map_err(|error| anyhow!(chain(&error)))? else {
                return Ok(HeartbeatResult::Unregistered);
            };
            let status = found.status.clone().unwrap_or_default();
            let said = found.annotations().get(keys::CLUSTER).map(String::as_str);
            let (status, look) = match seed_identity(&uid, said, status.cluster_uid.as_deref()) {
                SeedIdentity::Known | SeedIdentity::First => {
                    (rival.heartbeat_status(&uid, &status.conditions), HeartbeatResult::Beaten)
                }
                SeedIdentity::Another(other) => {
                    let conflict = conflict(&uid, other, self.seed);
                    let renewed = renewed(&status.conditions, conflict);
                    (SeedStatus::judged(&renewed), HeartbeatResult::Another(other.to_owned()))
                }
            };
            let judged = found.metadata.resource_version.as_deref();
            let as_judged = Write::to(self.seed).version(judged).within(ANSWER);
            match (patch_status(&api, as_judged, json!({"status": status})).await, look) {
                (WriteResult::Written(_), look) => return Ok(look),
                // Another cluster is the seed, whether the condition could be written or not.
                (_, HeartbeatResult::Another(other)) => return Ok(HeartbeatResult::Another(other)),
                (WriteResult::Conflict(error), _) => last = anyhow!(chain(&error)),
                (WriteResult::Gone(_), _) => return Ok(HeartbeatResult::Unregistered),
                (WriteResult::Refused(error), _) => return Err(anyhow!(chain(&error))),
                (WriteResult::TimedOut, _) => return Err(anyhow!("the hub did not answer in time")),
            }
        }
        Err(last)
    }

    /// UID of this cluster.
    async fn uid(&self) -> anyhow::Result<String> {
        let api: Api<Namespace> = Api::all(self.member.clone());
        let asked = timeout(ANSWER, api.get_metadata(OF_CLUSTER)).await;
        let found = asked.context("this cluster's API server did not answer in time")?;
        let found = found.map_err(|error| {
            anyhow!(
                "cannot identify this cluster: {}: it takes the right to get namespace {OF_CLUSTER}, which ClusterRole \
                 berth-garden-courier grants",
                chain(&error)
            )
        })?;
        found.metadata.uid.context("namespace kube-system has no UID")
    }
}

impl Rival {
    /// What a heartbeat writes. The condition that another cluster uses the same name is taken back
    /// when that cluster has not renewed it for a while.
    fn heartbeat_status(&mut self, uid: &str, conditions: &[Condition]) -> Value {
        let now = Timestamp::now();
        let told = conditions.iter().find(|one| one.kind == CLUSTER_CONFLICT && one.status == "True");
        let Some(told) = told else {
            self.renewed = None;
            return SeedStatus::beaten(uid, now, None);
        };
        let mut changed = None;
        match &self.renewed {
            Some((renewed, at)) if *renewed == told.last_update_time => {
                if passed(at.elapsed()) > SILENT.unsigned_abs() {
                    let over = condition("False", "OneCluster", "no other cluster uses this name any more");
                    changed = with_condition(conditions, over);
                }
            }
            _ => self.renewed = Some((told.last_update_time.clone(), Instant::now())),
        }
        SeedStatus::beaten(uid, now, changed.as_deref())
    }
}

fn condition(status: &str, reason: &str, message: &str) -> Condition {
    let now = Time(Timestamp::now());
    Condition {
        kind: CLUSTER_CONFLICT.to_owned(),
        status: status.to_owned(),
        last_transition_time: now.clone(),
        last_update_time: now,
        reason: reason.to_owned(),
        message: message.to_owned(),
        codes: Vec::new(),
    }
}

fn conflict(own: &str, other: &str, seed: &str) -> Condition {
    let message = format!(
        "a cluster with UID {own} uses the name of Seed {seed}, which is the cluster with UID {other}: it syncs nothing. If \
         it is a copy, stop its agent, or register it as a Seed of its own; if it is this Seed from now on, set the annotation {}: \
         {own}",
        keys::CLUSTER
    );
    condition("True", "AnotherCluster", &message)
}

/// Renewed with each heartbeat: the cluster that is the Seed takes it back when it is not renewed.
fn renewed(conditions: &[Condition], wanted: Condition) -> Vec<Condition> {
    let now = wanted.last_update_time.clone();
    let mut all = with_condition(conditions, wanted).unwrap_or_else(|| conditions.to_vec());
    for one in all.iter_mut().filter(|one| one.kind == CLUSTER_CONFLICT) {
        one.last_update_time = now.clone();
    }
    all
}

#[cfg(test)]
mod tests;
