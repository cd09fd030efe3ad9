//! `berth queue movers`: lists unfinished data movers, and which of them have a place. It computes
//! the same plan as the leader.

use std::collections::{HashMap, HashSet};
use std::io::Write;

use berth_core::mover::grant::{GrantPlan, GrantView, Mover, MoverPhase, MoverWaitReason, plan};
use jiff::Timestamp;
use serde::Serialize;

use super::super::namespaced::{NamespacedClient, lease};
use super::super::version;
use super::situation;
use crate::args::Output;
use crate::cli::print::{self, ColumnHead, age};
use crate::client::is_forbidden;
use crate::leader::no_leader_reason;
use crate::movers::ledger::GrantLedger;
use crate::movers::listing;
use crate::movers::node_cache::NodeCacheState;
use crate::text::printable;

pub(super) async fn show(here: &NamespacedClient, output: Output) -> anyhow::Result<()> {
    let (client, namespace) = (&here.client, here.namespace.as_str());
    let lease = lease(client, namespace).await;
    if let Some(lease) = &lease {
        version::tell(lease);
    }
    let configmap = lease.as_ref().and_then(situation::configmap);
    let mut node_cache = listing::agents(client, namespace, configmap.as_deref()).await?;
    let mut notes = Vec::new();
    if !node_cache.configuration.config.per_node.is_empty() {
        // Nodes matter only for this, and the user may not have the right to list them.
        match listing::nodes(client, &mut node_cache).await {
            Err(error) if error.downcast_ref().is_some_and(is_forbidden) => {
                notes.push("you may not list nodes, so perNodeConfig is left out of this".to_owned());
            }
            other => other?,
        }
    }
    let ledger = GrantLedger::open(client.clone(), namespace).await?.uids();
    let listing::UnfinishedMovers { items, hidden } = listing::movers(client, namespace).await?;
    let now = Timestamp::now();
    let (agents, node_labels) = node_cache.carriers();
    let view = GrantView {
        movers: items.into_iter().map(|item| item.mover).collect(),
        agents,
        node_labels,
        limits: node_cache.limits(),
        ledger,
        watching_since: now,
        ..GrantView::default()
    };
    notes.extend(told(&node_cache, &view, no_leader_reason(lease.as_ref(), now)));
    let report = MoversReport::new(&node_cache, &view, &hidden, notes, now);
    let mut out = print::stdout();
    match output {
        Output::Table => Ok(report.write(&mut out, now)?),
        structured => print::value(&mut out, &report, structured),
    }
}

/// Reasons why the real order may differ.
fn told(node_cache: &NodeCacheState, view: &GrantView, absence: Option<String>) -> Vec<String> {
    let configuration = &node_cache.configuration;
    let mut notes = Vec::new();
    if configuration.unusable {
        let faults: Vec<String> = configuration.faults.iter().map(ToString::to_string).collect();
        let faults = faults.join("; ");
        notes
            .push(format!("the limit is not known, berth goes by the last one that could be read: {faults}"));
    }
    let is_held = view.limits.limit.is_some() || view.ledger.is_some();
    match absence {
        Some(why) if is_held => {
            notes.push(format!("no leader grants places now ({why}): node-agents accept any data mover"));
        }
        None if view.limits.limit.is_some() && view.ledger.is_none() => {
            notes.push("the limit is new: nothing is held back yet".to_owned());
        }
        _ => {}
    }
    notes
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MoversReport {
    /// The node-agents' ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    config_map: Option<String>,
    /// Its `loadConcurrency.prepareQueueLength`.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<usize>,
    /// Taken places.
    taken: usize,
    waiting: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    movers: Vec<MoverRow>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MoverRow {
    kind: &'static str,
    name: String,
    phase: &'static str,
    /// It has a place already.
    granted: bool,
    /// In line.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    since: Timestamp,
}

impl MoversReport {
    fn new(
        node_cache: &NodeCacheState,
        view: &GrantView,
        hidden: &HashSet<String>,
        notes: Vec<String>,
        now: Timestamp,
    ) -> Self {
        let plan = if node_cache.configuration.unusable { GrantPlan::default() } else { plan(view, now) };
        let mut movers: Vec<(usize, &Mover)> = view.movers.iter().map(|mover| &**mover).enumerate().collect();
        movers.retain(|(_, mover)| !mover.phase.is_final());
        movers.sort_unstable_by_key(|(_, mover)| mover.queue_key());
        let mut waiting: HashMap<usize, (Option<usize>, MoverWaitReason)> = HashMap::new();
        waiting.extend(plan.grant.iter().map(|i| (*i, (None, MoverWaitReason::Next))));
        waiting.extend(plan.waiting.into_iter().map(|one| (one.mover, (Some(one.place), one.reason))));
        let lines = movers.into_iter().map(|(i, mover)| line(view, mover, waiting.remove(&i), hidden));
        let movers: Vec<MoverRow> = lines.collect();
        Self {
            config_map: node_cache.configuration.name.clone(),
            limit: view.limits.limit,
            taken: movers.iter().filter(|line| line.granted).count(),
            waiting: movers.iter().filter(|line| !line.granted && line.reason.is_some()).count(),
            notes,
            movers,
        }
    }

    fn write(&self, out: &mut impl Write, now: Timestamp) -> std::io::Result<()> {
        let Self { taken, waiting, .. } = self;
        match (self.limit, &self.config_map) {
            (Some(limit), Some(map)) => {
                let length = format!("prepareQueueLength of ConfigMap {map}");
                writeln!(out, "{taken} of {limit} places are taken ({length}), {waiting} wait")?;
            }
            (None, Some(map)) => writeln!(out, "no prepareQueueLength in ConfigMap {map}")?,
            _ => writeln!(out, "no prepareQueueLength: no node-agent names a ConfigMap")?,
        }
        for note in &self.notes {
            writeln!(out, "{}", printable(note))?;
        }
        if self.movers.is_empty() {
            return writeln!(out, "No data mover waits and none runs.");
        }
        let place = |line: &MoverRow| match line.place {
            _ if line.granted => "granted".to_owned(),
            Some(place) => place.to_string(),
            None if line.reason.is_some() => "next".to_owned(),
            None => String::new(),
        };
        let row = |line: &MoverRow| {
            vec![
                place(line),
                line.kind.to_owned(),
                line.name.clone(),
                line.phase.to_owned(),
                line.node.clone().unwrap_or_default(),
                age(now.duration_since(line.since)),
                line.waits_for.clone().unwrap_or_default(),
            ]
        };
        let heads = ["PLACE", "KIND", "NAME", "PHASE"].map(ColumnHead::Always).into_iter();
        let heads = heads.chain([
            ColumnHead::IfAny("NODE"),
            ColumnHead::Always("SINCE"),
            ColumnHead::IfAny("WAITS FOR"),
        ]);
        print::table(out, &heads.collect::<Vec<_>>(), &self.movers.iter().map(row).collect::<Vec<_>>())
    }
}

/// `waiting`: its position and the reason, if it waits for a place.
fn line(
    view: &GrantView,
    mover: &Mover,
    waiting: Option<(Option<usize>, MoverWaitReason)>,
    hidden: &HashSet<String>,
) -> MoverRow {
    let granted = view.holds_place(mover);
    let (place, reason) = match waiting.filter(|_| !granted) {
        Some((place, reason)) => (place, Some(reason)),
        None => (None, stalled(view, mover).filter(|_| granted)),
    };
    let is_new = mover.phase == MoverPhase::New;
    let waits_for = match &reason {
        Some(MoverWaitReason::NoNode) if hidden.contains(&mover.uid) => {
            Some("the node of its pod, which you may not read".to_owned())
        }
        Some(reason) => Some(reason.to_string()),
        None if mover.third_party => Some("nothing here: it is for another data mover".to_owned()),
        None if is_new && mover.canceled => Some("its end: it is canceled".to_owned()),
        None => None,
    };
    MoverRow {
        kind: mover.kind.as_str(),
        name: mover.name.clone(),
        phase: mover.phase.as_str(),
        granted,
        place,
        node: mover.node().map(str::to_owned),
        waits_for,
        reason: reason.as_ref().map(MoverWaitReason::word),
        since: mover.created_at,
    }
}

/// It has a place, but its node-agent is gone.
fn stalled(view: &GrantView, mover: &Mover) -> Option<MoverWaitReason> {
    let accepted = mover.accepted_by.as_deref().filter(|_| mover.phase == MoverPhase::Accepted);
    let node = accepted.or(mover.node()).filter(|_| !mover.own)?;
    (!view.has_ready_agent(node)).then(|| MoverWaitReason::NoAgent { node: Some(node.to_owned()) })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_core::mover::MoverKind;
    use berth_core::mover::grant::{Limits, NodeAgentState};
    use jiff::SignedDuration;

    use super::*;
    use crate::movers::configuration::ConfigurationState;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn mover(kind: MoverKind, name: &str, age: i64) -> Mover {
        Mover::new(kind, name, format!("uid of {name}"), NOW - SignedDuration::from_secs(age))
    }

    fn view(movers: Vec<Mover>, limit: Option<usize>, ledger: &[&str]) -> GrantView {
        let ready = |ready| NodeAgentState { ready, ..NodeAgentState::default() };
        GrantView {
            movers: movers.into_iter().map(Arc::new).collect(),
            agents: [("n1".to_owned(), ready(true)), ("n2".to_owned(), ready(false))].into(),
            limits: Limits { limit, global: 9, per_node: Vec::new() },
            ledger: Some(ledger.iter().map(|uid| (*uid).to_owned()).collect()),
            watching_since: NOW,
            ..GrantView::default()
        }
    }

    fn node_cache() -> NodeCacheState {
        let name = Some("agents".to_owned());
        let mut node_cache = NodeCacheState::default();
        node_cache.configuration = ConfigurationState { name, ..ConfigurationState::default() };
        node_cache
    }

    fn printed(node_cache: &NodeCacheState, view: &GrantView, hidden: &[&str], notes: Vec<String>) -> String {
        let hidden = hidden.iter().map(|uid| (*uid).to_owned()).collect();
        let mut out = Vec::new();
        let written = MoversReport::new(node_cache, view, &hidden, notes, NOW).write(&mut out, NOW);
        assert!(written.is_ok());
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn the_table_shows_who_has_a_place_and_what_the_others_wait_for() {
        use MoverKind::*;
        let on = |node: &str| Some(node.to_owned());
        let movers = vec![
            Mover { canceled: true, ..mover(DataUpload, "canceled", 5) },
            mover(DataDownload, "down", 10),
            mover(PodVolumeRestore, "hidden", 20),
            Mover { bound_node: on("n2"), ..mover(PodVolumeBackup, "dead", 30) },
            mover(DataUpload, "up-2", 40),
            mover(DataUpload, "up-1", 40),
            Mover { granted: true, ..mover(DataUpload, "granted", 60) },
            Mover { phase: MoverPhase::Accepted, accepted_by: on("n2"), ..mover(DataUpload, "stalled", 300) },
            Mover { phase: MoverPhase::InProgress, running_on: on("n1"), ..mover(DataUpload, "runs", 9000) },
            Mover { phase: MoverPhase::Completed, ..mover(DataUpload, "done", 9999) },
            Mover { third_party: true, ..mover(DataUpload, "theirs", 1) },
        ];
        let view = view(movers, Some(2), &["uid of granted"]);
        let expected = "\
2 of 2 places are taken (prepareQueueLength of ConfigMap agents), 5 wait
PLACE    KIND              NAME      PHASE       NODE  SINCE  WAITS FOR
         DataUpload        runs      InProgress  n1    2h
granted  DataUpload        stalled   Accepted          5m     node n2 has no ready node-agent
granted  DataUpload        granted   New               60s
1        DataUpload        up-1      New               40s    2 of 2 places are taken by stalled, granted
2        DataUpload        up-2      New               40s    2 of 2 places are taken by stalled, granted
3        PodVolumeBackup   dead      New         n2    30s    node n2 has no ready node-agent
4        PodVolumeRestore  hidden    New               20s    the node of its pod, which you may not read
5        DataDownload      down      New               10s    2 of 2 places are taken by stalled, granted
         DataUpload        canceled  New               5s     its end: it is canceled
         DataUpload        theirs    New               1s     nothing here: it is for another data mover
";
        assert_eq!(printed(&node_cache(), &view, &["uid of hidden"], Vec::new()), expected);
    }

    #[test]
    fn without_a_limit_nobody_waits_and_what_is_free_goes_next() {
        let free = view(vec![mover(MoverKind::DataUpload, "up", 1)], Some(1), &[]);
        let lines = MoversReport::new(&node_cache(), &free, &HashSet::new(), Vec::new(), NOW).movers;
        let [line] = lines.as_slice() else { unreachable!("{}", lines.len()) };
        assert_eq!((line.granted, line.place, line.reason), (false, None, Some("Next")));
        let unlimited =
            GrantView { ledger: None, ..view(vec![mover(MoverKind::DataUpload, "up", 1)], None, &[]) };
        let table = printed(&node_cache(), &unlimited, &[], Vec::new());
        assert_eq!(
            table,
            "no prepareQueueLength in ConfigMap agents\n\
             PLACE  KIND        NAME  PHASE  SINCE\n       DataUpload  up    New    1s\n"
        );
        let nothing = printed(&NodeCacheState::default(), &GrantView::default(), &[], Vec::new());
        let expected =
            "no prepareQueueLength: no node-agent names a ConfigMap\nNo data mover waits and none runs.\n";
        assert_eq!(nothing, expected);
    }

    #[test]
    fn what_makes_it_uncertain_is_told() {
        let limited = view(Vec::new(), Some(1), &[]);
        assert_eq!(told(&node_cache(), &limited, None), [""; 0]);
        let silent = told(&node_cache(), &limited, Some("no controller leads".to_owned()));
        assert_eq!(
            silent,
            ["no leader grants places now (no controller leads): node-agents accept any data mover"]
        );
        let new = GrantView { ledger: None, ..view(Vec::new(), Some(1), &[]) };
        assert_eq!(told(&node_cache(), &new, None), ["the limit is new: nothing is held back yet"]);
        // A former limit is unknown here.
        let mut broken = node_cache();
        broken.configuration.unusable = true;
        let waiting = view(vec![mover(MoverKind::DataUpload, "up", 1)], None, &[]);
        let report =
            MoversReport::new(&broken, &waiting, &HashSet::new(), told(&broken, &waiting, None), NOW);
        assert_eq!((report.notes.len(), report.waiting), (1, 0));
    }
}
