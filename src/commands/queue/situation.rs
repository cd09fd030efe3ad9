//! The present queue with exact positions and expected times, which are computed here and not read
//! from the objects.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use anyhow::Context as _;
use berth_api::keys;
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::glob::Effort;
use berth_core::location::{Location, choose};
use berth_core::queue::{
    Band, CompletedRun, Expectation, Plan, QueueEntry, QueueOrder, QueuePhase, QueueReason, QueueView, plan,
};
use berth_core::stage::Stage;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Client, ResourceExt};
use serde::Serialize;

use super::super::namespaced::{NamespacedClient, lease};
use super::super::version;
use super::operations::Operations;
use crate::cli::plan::Like;
use crate::cli::print::note;
use crate::cli::suggest::closest;
use crate::client::list;
use crate::queue::seen::{BackupAfterQueue, entry, run};
use crate::queue::{BackupCache, QueueSettings};
use crate::settings::Executor;
use crate::text::printable;
use crate::watch::WatchEvent;

/// A longer queue is listed without expected times.
const ESTIMATE_MOST: usize = 400;

/// The leader's annotations on its Lease.
#[derive(PartialEq)]
pub struct Leader {
    pub settings: QueueSettings,
    /// Does Velero run the started Backups?
    pub velero_runs: bool,
    /// Why it starts no Backup.
    pub stopped: Option<String>,
    /// UIDs of Backups that it skips, because the API server refuses every write to them.
    pub unwritable: HashSet<String>,
}

/// The state at one moment.
pub struct QueueSituation {
    pub view: QueueView,
    pub plan: Plan,
    /// Started Backups that are skipped since, because not even InProgress could be written. They
    /// take no slot.
    stuck: Vec<Arc<QueueEntry>>,
    /// Backups whose objects are stored and that have not ended, in the order of arrival.
    pub after: Vec<BackupAfterQueue>,
    /// What has become of their operations, by UID, where that is known better than they say.
    pub operations: HashMap<String, Operations>,
    expected: HashMap<usize, Expectation>,
    locations: Arc<Vec<Location>>,
    pub velero_runs: bool,
    pub now: Timestamp,
}

/// One row of the list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueRow {
    pub name: String,
    pub phase: &'static str,
    /// Exact position, computed now; the object's own may lag behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    pub since: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<ExpectedTimes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_end: Option<ExpectedTimes>,
    /// Once all objects are stored: what has become of what still goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<Operations>,
}

/// Expected times, from recent runs of similar Backups.
#[derive(Clone, Copy, Serialize)]
pub struct ExpectedTimes {
    pub earliest: Timestamp,
    pub likely: Timestamp,
    pub latest: Timestamp,
}

impl From<Band<Timestamp>> for ExpectedTimes {
    fn from(band: Band<Timestamp>) -> Self {
        Self { earliest: band.earliest, likely: band.likely, latest: band.latest }
    }
}

/// The node-agents' ConfigMap, if a flag of the leader names it.
pub fn configmap(lease: &Lease) -> Option<String> {
    lease.annotations().get(keys::NODE_AGENT_CONFIGMAP).filter(|name| !name.is_empty()).cloned()
}

/// The leader's settings. A user who may not read the Lease gets the default settings.
pub async fn leader(client: &Client, namespace: &str) -> Leader {
    let lease = lease(client, namespace).await;
    if let Some(lease) = &lease {
        version::tell(lease);
    }
    let told = |key: &str| lease.as_ref().and_then(|lease| lease.annotations().get(key)).cloned();
    let velero_runs = told(keys::EXECUTOR).as_deref() == Some(Executor::Velero.as_str());
    let settings = QueueSettings {
        slots: told(keys::CONCURRENT_BACKUPS).and_then(|text| text.parse().ok()).unwrap_or(1),
        order: told(keys::QUEUE_ORDER)
            .and_then(|text| berth_api::order::from_json(&text).ok())
            .unwrap_or_default(),
    };
    let unwritable = told(keys::UNWRITABLE).unwrap_or_default();
    let unwritable = unwritable.split(',').filter(|uid| !uid.is_empty()).map(str::to_owned).collect();
    Leader { settings, velero_runs, stopped: told(keys::STOPPED).filter(|why| !why.is_empty()), unwritable }
}

pub async fn read(here: &NamespacedClient) -> anyhow::Result<QueueSituation> {
    read_with(here, None).await.map(|(situation, _)| situation)
}

/// The state as if another Backup had just been created, and the last one like it.
pub async fn read_with(
    here: &NamespacedClient,
    newcomer: Option<&Backup>,
) -> anyhow::Result<(QueueSituation, Option<Like>)> {
    let leader = leader(&here.client, &here.namespace).await;
    let mut backups =
        list::<Backup>(&here.client, &here.namespace).await.context("failed to list the Backups")?;
    let locations = list::<BackupStorageLocation>(&here.client, &here.namespace);
    let locations = locations.await.context("failed to list the locations")?;
    for (kind, unreadable) in
        [("Backup", &backups.unreadable), ("BackupStorageLocation", &locations.unreadable)]
    {
        for (name, why) in unreadable {
            note!("{kind} {name} is left out, because it cannot be read: {}", printable(why));
        }
    }
    let order = &leader.settings.order;
    let like = newcomer.and_then(|newcomer| last_like(newcomer, &backups.items, order));
    backups.items.extend(newcomer.cloned());
    let store = BackupCache::new(leader.settings.clone());
    store.observe(WatchEvent::Replaced(backups.items));
    store.observe_location(WatchEvent::Replaced(locations.items));
    Ok((QueueSituation::new(&store, &leader, Timestamp::now()), like))
}

/// Of the same Schedule, or else of the same namespaces, as the queue's own estimate goes by.
fn last_like(newcomer: &Backup, backups: &[Backup], order: &QueueOrder) -> Option<Like> {
    let wanted = entry(newcomer, order)?;
    let is_like = |run: &CompletedRun| match &wanted.schedule {
        Some(schedule) => run.schedule.as_ref() == Some(schedule),
        None => run.schedule.is_none() && run.includes == wanted.includes,
    };
    let runs = backups.iter().filter_map(|backup| Some((backup, run(backup, order)?)));
    let (backup, run) = runs.filter(|(_, run)| is_like(run)).max_by_key(|(_, run)| run.ended)?;
    let progress = backup.status.as_ref().and_then(|status| status.progress.as_ref());
    let items = progress.and_then(|progress| progress.items_backed_up);
    Some(Like { name: backup.name_any(), seconds: run.took.as_secs(), items })
}

impl QueueSituation {
    pub fn new(store: &BackupCache, leader: &Leader, now: Timestamp) -> Self {
        let mut view = store.view(leader.stopped.clone(), now);
        view.unwritable.clone_from(&leader.unwritable);
        let backups = std::mem::take(&mut view.backups);
        let (stuck, backups) = backups.into_iter().partition(|entry| view.is_stuck(entry));
        view.backups = backups;
        let expected = store.expectations(&view, now, ESTIMATE_MOST);
        let expected = expected.into_iter().map(|expectation| (expectation.backup, expectation)).collect();
        let (plan, locations) = (plan(&view), store.locations());
        let mut after = store.after();
        after.sort_by(|a, b| (a.since, &a.name).cmp(&(b.since, &b.name)));
        let operations = HashMap::new();
        Self {
            plan,
            view,
            stuck,
            after,
            operations,
            expected,
            locations,
            velero_runs: leader.velero_runs,
            now,
        }
    }

    /// Names of waiting Backups, in order; with a location, only those to it.
    pub fn waiting_at(&self, location: Option<&str>) -> Vec<String> {
        let starting = self.plan.start.iter().copied();
        let line = starting.chain(self.plan.waiting.iter().map(|waiting| waiting.backup));
        self.going_to(location, line)
    }

    /// Names of Backups that berth runs; with a location, only those to it.
    pub fn running_at(&self, location: Option<&str>) -> Vec<String> {
        if self.velero_runs { Vec::new() } else { self.going_to(location, self.running()) }
    }

    fn going_to(&self, location: Option<&str>, backups: impl IntoIterator<Item = usize>) -> Vec<String> {
        let goes_there = |entry: &&QueueEntry| {
            let chosen = choose(&self.locations, &entry.location);
            location.is_none() || chosen.map(|chosen| chosen.name.as_str()) == location
        };
        let entries = backups.into_iter().map(|i| self.entry(i)).filter(goes_there);
        entries.map(|entry| entry.name.clone()).collect()
    }

    /// In order.
    fn running(&self) -> Vec<usize> {
        let mut running: Vec<usize> =
            (0..self.view.backups.len()).filter(|i| self.entry(*i).phase.is_running()).collect();
        running.sort_by(|a, b| self.view.precedence(self.entry(*a), self.entry(*b)));
        running
    }

    /// Running Backups, those whose objects are stored, next and waiting ones, in order.
    pub fn lines(&self) -> Vec<QueueRow> {
        let running = self.running().into_iter().map(|i| self.line(i, None, None));
        let starting = self.plan.start.iter().map(|i| self.line(*i, None, Some(&QueueReason::Next)));
        let waiting = self.plan.waiting.iter().map(|w| self.line(w.backup, Some(w.place), Some(&w.reason)));
        let stuck = self.stuck.iter().map(|entry| line(entry, None, Some(&QueueReason::Unwritable), None));
        let after = self.after.iter().map(|after| self.line_after(after));
        running.chain(after).chain(starting).chain(waiting).chain(stuck).collect()
    }

    fn entry(&self, index: usize) -> &QueueEntry {
        static NONE: std::sync::LazyLock<Arc<QueueEntry>> = std::sync::LazyLock::new(Arc::default);
        self.view.backups.get(index).unwrap_or(&NONE)
    }

    fn line(&self, index: usize, position: Option<u32>, reason: Option<&QueueReason>) -> QueueRow {
        line(self.entry(index), position, reason, self.expected.get(&index))
    }

    fn line_after(&self, after: &BackupAfterQueue) -> QueueRow {
        let waits = Stage::of(after.phase.as_str()) == Some(Stage::Waiting);
        let known = self.operations.get(&after.uid).copied();
        QueueRow {
            name: after.name.clone(),
            phase: after.phase.as_str(),
            position: None,
            priority_class: None,
            waits_for: waits.then(|| "its data to be moved".to_owned()),
            reason: waits.then_some("Operations"),
            since: after.since,
            expected_start: None,
            expected_end: None,
            operations: Some(known.unwrap_or_else(|| after.operations.into())),
        }
    }

    /// Says which Backup may be meant by a name, of those that wait or run; nothing, if none is
    /// like it.
    pub fn meant(&self, name: &str) -> String {
        let queued = self.view.backups.iter().chain(&self.stuck).map(|backup| backup.name.as_str());
        let names = queued.chain(self.after.iter().map(|after| after.name.as_str()));
        let meant = closest(name, names.filter(|other| *other != name));
        meant.map(|meant| format!(": did you mean {meant}?")).unwrap_or_default()
    }

    pub fn explain(&self, name: &str) -> anyhow::Result<Explanation> {
        let running = self.view.backups.iter().filter(|b| b.phase.is_running()).count();
        if let Some(after) = self.after.iter().find(|after| after.name == name) {
            let (line, slots) = (self.line_after(after), self.view.slots);
            return Ok(Explanation { line, blockers: Vec::new(), running, slots });
        }
        let lines = self.lines();
        let wanted = self.view.backups.iter().chain(&self.stuck).find(|b| b.name == name);
        let wanted =
            wanted.with_context(|| format!("Backup {name} neither waits nor runs{}", self.meant(name)))?;
        let ahead = |b: &&Arc<QueueEntry>| {
            b.name != name
                && self.view.blocks(b)
                && (b.phase.is_running() || self.view.precedence(b, wanted).is_lt())
        };
        let mut blockers: Vec<&Arc<QueueEntry>> = if wanted.phase.is_running() {
            Vec::new()
        } else {
            self.view.backups.iter().filter(ahead).collect()
        };
        blockers.sort_by(|a, b| {
            b.phase.is_running().cmp(&a.phase.is_running()).then_with(|| self.view.precedence(a, b))
        });
        let blockers = blockers
            .into_iter()
            .filter_map(|blocker| {
                let meeting = blocker.namespaces.meets(&wanted.namespaces, &Effort::of_decision())?;
                let line = lines.iter().find(|line| line.name == blocker.name);
                Some(Blocker {
                    name: blocker.name.clone(),
                    running: blocker.phase.is_running(),
                    namespaces: meeting.namespaces,
                    waits_for: line.and_then(|line| line.waits_for.clone()),
                    expected_end: line.and_then(|line| line.expected_end),
                })
            })
            .collect();
        let line = lines.into_iter().find(|line| line.name == name);
        Ok(Explanation {
            line: line.with_context(|| format!("Backup {name} is about to end"))?,
            blockers,
            running,
            slots: self.view.slots,
        })
    }
}

fn line(
    entry: &QueueEntry,
    position: Option<u32>,
    reason: Option<&QueueReason>,
    expected: Option<&Expectation>,
) -> QueueRow {
    QueueRow {
        name: entry.name.clone(),
        phase: match entry.phase {
            QueuePhase::New => "New",
            QueuePhase::Queued => "Queued",
            QueuePhase::ReadyToStart => "ReadyToStart",
            QueuePhase::InProgress => "InProgress",
        },
        position,
        priority_class: entry.class.clone(),
        waits_for: reason.map(ToString::to_string),
        reason: reason.map(QueueReason::word),
        since: entry.enqueued_at.unwrap_or(entry.created_at),
        expected_start: expected.and_then(|e| e.start).map(ExpectedTimes::from),
        expected_end: expected.and_then(|e| e.end).map(ExpectedTimes::from),
        operations: None,
    }
}

/// One Backup, and everything that blocks it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    #[serde(flatten)]
    pub line: QueueRow,
    /// Each of them must end first.
    pub blockers: Vec<Blocker>,
    pub running: usize,
    pub slots: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    pub name: String,
    pub running: bool,
    /// The namespaces that both take.
    pub namespaces: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_end: Option<ExpectedTimes>,
}
