//! The leader's loop that grants places: never more data movers are prepared than
//! `prepareQueueLength` allows. It builds a view, plans, and acts.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::keys;
use berth_core::mover::grant::{
    GrantPlan, GrantView, LedgerWrite, Limits, Mover, NodeAgentTimeouts, Recover, plan,
};
use futures::StreamExt;
use jiff::Timestamp;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::NodeCache;
use super::ledger::{GrantLedger, GrantSignPeriods};
use super::mover_cache::{MoverCache, MoverItem};
use super::node_cache::NodeCacheState;
use super::objects::{api, reference};
use super::{nudge, recovery, target};
use crate::client::Clients;
use crate::events::{EventReason, Events};
use crate::metrics::MoverMetrics;
use crate::text::chain;
use crate::watch::is_older;
use crate::write::{Write, WriteResult, patch_metadata};

/// The longest pause between two plans, because agents are found to be away by the time that has
/// passed.
const PERIOD: Duration = Duration::from_secs(2);
/// How often the ledger is read while it is not in force.
const IDLE: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_secs(1);
const READ: Duration = Duration::from_secs(10);
const GRANTS_AT_ONCE: usize = 32;
/// Admission replicas see a new ledger within this time, unless their watch was broken just then.
const SEEN: Duration = Duration::from_secs(2);
/// How often a pod is read whose node is known and for which a place is held, and how often a
/// waiting orphan is checked (more often when little of its time is left).
const LOOK: Duration = Duration::from_secs(5);
/// How many pods are read before one plan, because the plan waits for them.
const ASKED_AT_ONCE: usize = 32;
/// How long to wait for further changes, because the API server reports many changes one by one and
/// one plan can take them all in.
const GATHER: Duration = Duration::from_millis(5);

pub struct Granting {
    pub clients: Clients,
    pub namespace: String,
    pub patience: NodeAgentTimeouts,
    pub signs: GrantSignPeriods,
    pub node_cache: Arc<NodeCache>,
    pub events: Events,
    pub metrics: MoverMetrics,
}

/// The node of a pod, and when it was last read.
struct CachedPodNode {
    node: Option<String>,
    at: Instant,
}

impl Granting {
    /// Runs while this process leads. Never returns.
    pub async fn run(&self) {
        let since = Timestamp::now();
        let mut changed = self.node_cache.changed();
        while !self.node_cache.is_synced() {
            let _ = changed.changed().await;
        }
        loop {
            match self.term(since).await {
                Ok(()) => sleep(GATHER).await,
                Err(error) => {
                    warn!(error = format!("{error:#}"), "failed to grant places to data movers");
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Until a usable configuration has been seen, the limit of the last leader applies.
    fn limits(&self, ledger: &GrantLedger) -> Limits {
        let (mut limits, is_known) = self.node_cache.read(|state| {
            let configuration = &state.configuration;
            (state.limits(), !configuration.unusable || configuration.changed_at.is_some())
        });
        if !is_known {
            limits.limit = ledger.limit();
        }
        limits
    }

    /// One term: begins with a ledger that was read, and ends when another process has written the
    /// ledger or when the limit changes, because agents accept without grants while there is no
    /// limit.
    async fn term(&self, since: Timestamp) -> anyhow::Result<()> {
        let mut changed = self.node_cache.changed();
        let mut ledger = GrantLedger::open(self.clients.call.clone(), &self.namespace).await?;
        let limit = self.limits(&ledger).limit;
        if ledger.uids().is_none() && limit.is_none() {
            // No data mover is held back. A leader that is about to stop may still put the ledger
            // in force.
            let _ = timeout(IDLE, changed.changed()).await;
            return Ok(());
        }
        // From here on the former leader cannot grant, so the list that follows shows all its
        // grants.
        let was_in_force = ledger.uids().is_some();
        let uids = ledger.uids().unwrap_or_default();
        if !ledger.write(&uids, limit).await? {
            return Ok(());
        }
        if !was_in_force {
            // Until the webhook's replicas have seen the ledger, they admit every data mover.
            sleep(SEEN).await;
        }
        let movers = MoverCache::default();
        tokio::select! {
            () = movers.follow(&self.clients.watch, &self.namespace) => Ok(()),
            ended = self.grant(&movers, ledger, limit, since) => ended,
        }
    }

    async fn grant(
        &self,
        movers: &MoverCache,
        mut ledger: GrantLedger,
        limit: Option<usize>,
        since: Timestamp,
    ) -> anyhow::Result<()> {
        let (mut moved, mut node_cache) = (movers.changed(), self.node_cache.changed());
        while !movers.is_synced() {
            let _ = moved.changed().await;
        }
        let mut nodes_of_pods = HashMap::new();
        let mut told: HashSet<String> = HashSet::new();
        let mut recovering = JoinSet::new();
        let mut in_recovery: HashMap<String, Option<String>> = HashMap::new();
        loop {
            moved.mark_unchanged();
            node_cache.mark_unchanged();
            while let Some(done) = recovering.try_join_next() {
                match done {
                    Ok((uid, Some(written))) => drop(in_recovery.insert(uid, Some(written))),
                    Ok((uid, None)) => drop(in_recovery.remove(&uid)),
                    Err(_) => {}
                }
            }
            let (items, more_nodes) = self.with_nodes(movers.frozen(), &mut nodes_of_pods).await;
            // A data mover that was written is not recovered again before the write is visible.
            in_recovery.retain(|uid, written| {
                let Some(version) = written else { return true };
                items.iter().any(|item| item.mover.uid == *uid && is_older(&item.resource_version, version))
            });
            let view = self.view(&items, &ledger, since);
            if view.limits.limit != limit {
                return Ok(());
            }
            let decided = plan(&view, Timestamp::now());
            self.tell(&view, &decided, &mut told);
            if decided.retire_ledger {
                info!("no limit of data movers any more: nothing is held back");
                let retired = ledger.retire().await?;
                if retired {
                    // Admission may have refused some in the meantime.
                    sleep(SEEN).await;
                    nudge::refused(&self.clients.call, &self.namespace).await;
                }
                return Ok(());
            }
            let is_wanted = decided.ledger.write != LedgerWrite::No || ledger.is_due(self.signs);
            if is_wanted && !ledger.write(&decided.ledger.uids, limit).await? {
                return Ok(());
            }
            let marks =
                decided.grant.iter().map(|i| (*i, true)).chain(decided.revoke.iter().map(|i| (*i, false)));
            let marks = marks.filter_map(|(i, grant)| Some((items.get(i)?, grant)));
            futures::stream::iter(marks)
                .for_each_concurrent(GRANTS_AT_ONCE, |(item, grant)| self.mark(movers, item, grant))
                .await;
            for recover in &decided.recover {
                let Some(item) = items.get(recover.mover) else { continue };
                if let Entry::Vacant(free) = in_recovery.entry(item.mover.uid.clone()) {
                    free.insert(None);
                    recovering.spawn(self.recover(item.clone(), *recover));
                }
            }
            let more = more_nodes || !decided.grant.is_empty() || !decided.revoke.is_empty();
            let pace = if more { GATHER } else { PERIOD };
            tokio::select! {
                _ = timeout(pace, moved.changed()) => {}
                _ = node_cache.changed() => {}
            }
            sleep(GATHER).await;
        }
    }

    fn view(&self, items: &[MoverItem], ledger: &GrantLedger, since: Timestamp) -> GrantView {
        let (agents, node_labels) = self.node_cache.read(NodeCacheState::carriers);
        GrantView {
            movers: items.iter().map(|item| Arc::clone(&item.mover)).collect(),
            agents,
            node_labels,
            limits: self.limits(ledger),
            ledger: ledger.uids(),
            watching_since: since,
            patience: self.patience,
        }
    }

    /// A PodVolumeRestore runs on the node of its pod, which is read until the node is known.
    /// Returns `true` if some pods were never read.
    async fn with_nodes(
        &self,
        mut items: Vec<MoverItem>,
        known: &mut HashMap<String, CachedPodNode>,
    ) -> (Vec<MoverItem>, bool) {
        let going: HashSet<&String> = items.iter().map(|item| &item.mover.uid).collect();
        known.retain(|uid, _| going.contains(uid));
        let asked = |item: &MoverItem| known.get(&item.mover.uid);
        let is_due = |item: &&MoverItem| {
            let is_due = |asked: &CachedPodNode| match (&asked.node, item.mover.granted) {
                (None, _) => asked.at.elapsed() >= RETRY,
                // No agent accepts it if its pod is gone.
                (Some(_), true) => asked.at.elapsed() >= LOOK,
                (Some(_), false) => false,
            };
            item.unbound().is_some() && asked(item).is_none_or(is_due)
        };
        let mut due: Vec<&MoverItem> = items.iter().filter(is_due).collect();
        // Pods that were never read come first; otherwise many pods without a node would keep out
        // all others.
        due.sort_by_key(|item| (asked(item).map(|asked| asked.at), item.mover.created_at));
        let more = due.get(ASKED_AT_ONCE).is_some_and(|item| asked(item).is_none());
        due.truncate(ASKED_AT_ONCE);
        let answers = futures::future::join_all(due.into_iter().map(|item| self.ask(item))).await;
        for (uid, answer) in answers {
            let at = Instant::now();
            match answer {
                Some(node) => drop(known.insert(uid, CachedPodNode { node, at })),
                None => known.entry(uid).or_insert(CachedPodNode { node: None, at }).at = at,
            }
        }
        for item in items.iter_mut().filter(|item| item.unbound().is_some()) {
            item.bind(known.get(&item.mover.uid).and_then(|asked| asked.node.clone()));
        }
        (items, more)
    }

    /// Reads the node of its pod, once that pod waits for the restore, because no node-agent
    /// accepts it before. Returns its UID as well; `None`: the API server did not answer.
    async fn ask(&self, item: &MoverItem) -> (String, Option<Option<String>>) {
        let uid = item.mover.uid.clone();
        let Some(pod) = item.unbound() else { return (uid, Some(None)) };
        let node = match timeout(READ, target::node(&self.clients.call, pod)).await {
            Ok(Ok(node)) => Some(node),
            Ok(Err(error)) => {
                debug!(restore = %item.mover.name, error = chain(&error), "could not read the node of its pod");
                None
            }
            Err(_) => None,
        };
        (uid, node)
    }

    /// Writes or removes a grant.
    async fn mark(&self, movers: &MoverCache, item: &MoverItem, grant: bool) {
        let mover = &item.mover;
        let value = if grant { json!(Timestamp::now().to_string()) } else { json!(null) };
        let change = json!({"metadata": {"annotations": {keys::GRANTED: value}}});
        let api = api(&self.clients.call, &self.namespace, mover.kind);
        let (kind, name) = (mover.kind, &mover.name);
        let decided_on = Write::to(name).uid(Some(&mover.uid)).version(Some(&item.resource_version));
        match patch_metadata(&api, decided_on, change).await {
            WriteResult::Written(written) => {
                if grant {
                    self.metrics.granted.inc();
                }
                let version = written.metadata.resource_version.unwrap_or_default();
                movers.assume_granted(mover, grant, version);
            }
            WriteResult::Conflict(_) | WriteResult::Gone(_) => {}
            WriteResult::Refused(error) => {
                warn!(%kind, %name, error = chain(&error), "could not write grant");
            }
            WriteResult::TimedOut => {
                warn!(%kind, %name, "could not write grant: the API server takes too long")
            }
        }
    }

    /// Returns the UID once the recovery ends, successful or not, and the resourceVersion that was
    /// written, if any.
    fn recover(
        &self,
        item: MoverItem,
        recover: Recover,
    ) -> impl Future<Output = (String, Option<String>)> + Send + use<> {
        let (client, namespace) = (self.clients.call.clone(), self.namespace.clone());
        let (events, metrics) = (self.events.clone(), self.metrics.clone());
        let is_gone = |node: &String| self.node_cache.read(|state| state.nodes.get(node).is_none());
        let node_gone = item.mover.bound_node.as_ref().is_some_and(is_gone);
        let look = LOOK.min(self.patience.given_up_after.unsigned_abs() / 5);
        async move {
            let Mover { kind, name, uid, .. } = &*item.mover;
            let mut written = None;
            match recovery::recover(&client, &namespace, &item, recover, node_gone).await {
                Ok(Some((outcome, version))) => {
                    written = Some(version);
                    let nodes = item.mover.nodes().into_iter().collect::<Vec<_>>().join(", ");
                    let note = format!("its node-agent is gone ({nodes}): {outcome}");
                    warn!(%kind, %name, %note);
                    metrics.recovered.inc();
                    events.tell_about(EventReason::Recovered, reference(&namespace, &item.mover), note);
                }
                Ok(None) => sleep(look).await,
                Err(error) => {
                    warn!(%kind, %name, error = format!("{error:#}"), "could not recover data mover");
                    sleep(RETRY).await;
                }
            }
            (uid.clone(), written)
        }
    }

    /// Reports each waiting data mover once.
    fn tell(&self, view: &GrantView, decided: &GrantPlan, told: &mut HashSet<String>) {
        self.metrics.waiting.set(i64::try_from(decided.waiting.len()).unwrap_or(i64::MAX));
        let holds =
            view.movers.iter().filter(|mover| !mover.third_party && mover.phase.holds_place()).count();
        self.metrics.preparing.set(i64::try_from(holds).unwrap_or(i64::MAX));
        let mut waiting = HashSet::with_capacity(decided.waiting.len());
        for one in &decided.waiting {
            let Some(mover) = view.movers.get(one.mover) else { continue };
            if !told.contains(&mover.uid) {
                let note = format!("place {} in the queue; waits for {}", one.place, one.reason);
                self.events.tell_about(EventReason::Held, reference(&self.namespace, mover), note);
            }
            waiting.insert(mover.uid.clone());
        }
        *told = waiting;
    }
}
