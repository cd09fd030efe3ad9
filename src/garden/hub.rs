//! The hub: one loop of the leader over all of its objects: freeze, decide, act. It calls no store,
//! except that it has the provider create keys for directories.
//!
//! - [`access`]: the Role by which each Seed reads its Secrets.
//! - [`location_keys`]: keys that are limited to one directory.
//! - [`objects`]: the watch caches of the hub's objects.
//! - [`writer`]: writes what was decided.
//! - [`tombstone`]: the record of an entry that has ended.
//! - [`reporter`]: Events and metrics of all that.

mod access;
mod location_keys;
pub mod objects;
pub mod reporter;
pub mod tombstone;
pub mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use berth_garden_api::BackupEntry;
use berth_garden_core::deletion_permit::ClockReading;
use berth_garden_core::heartbeat::{MissingSenders, Senders};
use berth_garden_core::hub::{HubPlan, HubSettings, HubView, SeedState, plan};
use jiff::Timestamp;
use kube::api::{Api, ListParams};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::client::{Clients, is_not_found};
use crate::events::Events;
use crate::garden::deletion_permits;
use crate::metrics::GardenMetrics;
use crate::pace::paced;
use crate::text::chain;
use location_keys::LocationKeyKeeper;
use objects::HubCache;
use reporter::Reporter;
use writer::HubWriter;

/// A cycle begins at least this often, whatever the watches show.
const PERIOD: Duration = Duration::from_secs(60);
/// Pause after a write failed; doubles with each failure, up to [`PERIOD`].
const RETRY: Duration = Duration::from_millis(500);
/// Changes that come within this time are handled by one plan.
const GATHER: Duration = Duration::from_millis(20);
/// Watches of different kinds are not synchronous, so only objects that are missing for longer than
/// this are looked for.
const ABSENT: Duration = Duration::from_secs(2);
const READ: Duration = Duration::from_secs(30);
const PAGE: u32 = 500;

pub struct Hub {
    pub clients: Clients,
    pub settings: HubSettings,
    pub events: Events,
    pub metrics: GardenMetrics,
}

impl Hub {
    /// Runs while this process leads.
    pub async fn run(&self) {
        let objects = HubCache::default();
        let namespace = &self.settings.namespace;
        let keeper = LocationKeyKeeper { client: &self.clients.call, namespace, events: &self.events };
        tokio::join!(
            objects.follow(&self.clients.watch, namespace),
            self.decide(&objects),
            keeper.run(&objects),
        );
    }

    async fn decide(&self, objects: &HubCache) {
        let mut changed = objects.changed();
        while !objects.is_synced() {
            let _ = changed.changed().await;
        }
        let writer =
            HubWriter::new(self.clients.call.clone(), &self.settings.namespace, objects, &self.metrics);
        let mut reporter = Reporter::new(self.events.clone(), self.metrics.clone());
        let mut absent = MissingEntries::default();
        let mut senders = Senders::default();
        let mut missing = MissingSenders::default();
        let mut retry = RETRY;
        loop {
            changed.mark_unchanged();
            let frozen = objects.frozen();
            let mut view = frozen.view(absent.gone.clone());
            let now = Timestamp::now();
            let moment = ClockReading { wall: now, ..deletion_permits::now() };
            listen(&mut senders, &mut view, moment);
            view.unregistered = missing.look(&view.missing_seeds(), moment);
            let decided = plan(&view, &self.settings, now);
            reporter.record_plan(&view, &decided);
            let acted = writer.act(&frozen, &view, &decided, now).await;
            reporter.record_done(&view, &acted);
            absent.gone.extend(acted.gone);
            absent.forget(&view);
            let found_gone = absent.look(&self.clients, &decided).await;
            retry = if acted.is_complete { RETRY } else { retry.saturating_mul(2).min(PERIOD) };
            let pace = match acted.is_complete {
                _ if found_gone => Duration::ZERO,
                false => retry,
                true if absent.since.is_empty() && missing.is_empty() => until(decided.next, now).min(PERIOD),
                true => ABSENT,
            };
            let _ = timeout(pace, changed.changed()).await;
            sleep(GATHER).await;
        }
    }
}

/// Takes in heartbeats. A seed that reports is alive, whatever its clock says.
fn listen(senders: &mut Senders, view: &mut HubView, now: ClockReading) {
    for cluster in &mut view.seeds {
        let SeedState { member, beat, .. } = cluster;
        let seed = &member.seed.name;
        let signs = senders.listen(seed, *beat, now);
        (member.seen, member.unknown_until) = (signs.seen, signs.unknown_until);
        match signs.skew {
            Some(skew) if skew.is_zero() => info!(%seed, "the clock of a Seed is right again"),
            Some(skew) => {
                let (off, which) = (skew.abs(), if skew.is_negative() { "behind" } else { "ahead of" });
                warn!(%seed, "the clock of a Seed is {off:#} {which} the hub's: times that it reports, and those of its backups, are off by that");
            }
            None => {}
        }
    }
    senders.keep(&view.seeds.iter().map(|cluster| cluster.member.seed.name.as_str()).collect());
}

fn until(next: Option<Timestamp>, now: Timestamp) -> Duration {
    // The next event may be a silence; a cycle that begins too early costs nothing.
    next.map_or(PERIOD, |next| paced(Duration::try_from(next.duration_since(now)).unwrap_or_default()))
}

/// UIDs that have a place and no entry: since when, and which of them are certainly gone.
#[derive(Default)]
struct MissingEntries {
    since: BTreeMap<String, Instant>,
    gone: BTreeSet<String>,
}

impl MissingEntries {
    /// UIDs that no bucket lists any more are forgotten, because no UID comes twice.
    fn forget(&mut self, view: &HubView) {
        let listed: BTreeSet<&String> =
            view.buckets.iter().flat_map(|bucket| &bucket.status.allocated).collect();
        self.gone.retain(|uid| listed.contains(uid));
    }

    /// A place is given to another entry only when the API server itself has no entry with the UID.
    /// `true`: more of them are gone now.
    async fn look(&mut self, clients: &Clients, decided: &HubPlan) -> bool {
        self.since.retain(|uid, _| decided.unknown.contains(uid));
        for uid in &decided.unknown {
            self.since.entry(uid.clone()).or_insert_with(Instant::now);
        }
        if !self.since.values().any(|since| since.elapsed() >= ABSENT) {
            return false;
        }
        match timeout(READ, uids(clients)).await {
            Ok(Ok(here)) => {
                let before = self.gone.len();
                let away = self
                    .since
                    .iter()
                    .filter(|(uid, since)| since.elapsed() >= ABSENT && !here.contains(*uid));
                self.gone.extend(away.map(|(uid, _)| uid.clone()));
                self.since.retain(|uid, _| !self.gone.contains(uid) && !here.contains(uid));
                self.gone.len() > before
            }
            Ok(Err(error)) => {
                warn!(
                    error = chain(&error),
                    "the BackupEntries cannot be listed: places of those that are gone stay taken"
                );
                false
            }
            Err(_) => false,
        }
    }
}

/// UIDs of all BackupEntries, read from the API server.
async fn uids(clients: &Clients) -> Result<BTreeSet<String>, kube::Error> {
    let api: Api<BackupEntry> = Api::all(clients.call.clone());
    let mut params = ListParams::default().limit(PAGE);
    let mut found = BTreeSet::new();
    loop {
        let page = match api.list_metadata(&params).await {
            Err(error) if is_not_found(&error) => return Ok(found),
            page => page?,
        };
        found.extend(page.items.into_iter().filter_map(|entry| entry.metadata.uid));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}
