//! No data mover starves, however the cluster is used: simulations of many steps.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;

use super::{GrantView, Limits, Mover, MoverPhase, NodeAgentState, plan};
use crate::mover::MoverKind::{self, *};

/// What one data mover does once it has a place.
#[derive(Clone, Copy, Debug)]
struct SimulatedMover {
    kind: MoverKind,
    /// The node to which it is bound, or on which the scheduler will put it.
    node: usize,
    /// Number of steps from Accepted to Prepared; number of steps in progress.
    prepares: u32,
    runs: u32,
}

const NODES: usize = 3;

/// A cluster whose agents accept each granted data mover at once, and start data paths in the order
/// of acceptance.
struct SimulatedCluster {
    view: GrantView,
    work: Vec<SimulatedMover>,
    /// The step at which each last changed its phase, and the step at which it was prepared.
    since: Vec<u32>,
    started: Vec<Option<u32>>,
    step: u32,
}

impl SimulatedCluster {
    fn new(limit: usize, data_paths: u32) -> Self {
        let agent = NodeAgentState { ready: true, ..NodeAgentState::default() };
        let view = GrantView {
            agents: (0..NODES).map(|node| (name(node), agent)).collect(),
            limits: Limits { limit: Some(limit), global: data_paths, per_node: Vec::new() },
            ledger: Some(BTreeSet::new()),
            ..GrantView::default()
        };
        Self { view, work: Vec::new(), since: Vec::new(), started: Vec::new(), step: 0 }
    }

    fn create(&mut self, work: SimulatedMover) {
        let id = format!("m{:05}", self.work.len());
        let bound_node = work.kind.is_bound().then(|| name(work.node));
        let mover = Mover { bound_node, ..Mover::new(work.kind, id.clone(), id, at(self.step)) };
        self.view.movers.push(Arc::new(mover));
        self.work.push(work);
        self.since.push(self.step);
        self.started.push(None);
    }

    fn mover(&mut self, i: usize) -> &mut Mover {
        Arc::make_mut(&mut self.view.movers[i])
    }

    fn go(&mut self) {
        self.step += 1;
        let plan = plan(&self.view, at(self.step));
        self.view.ledger = Some(plan.ledger.uids);
        assert!(plan.revoke.is_empty() && plan.recover.is_empty());
        for i in plan.grant {
            self.mover(i).granted = true;
        }
        for i in 0..self.work.len() {
            self.advance(i);
        }
        let holding = self.view.movers.iter().filter(|m| m.phase.holds_place()).count();
        assert!(holding <= self.view.limits.limit.unwrap());
    }

    fn advance(&mut self, i: usize) {
        let (work, step, since) = (self.work[i], self.step, self.since[i]);
        let next = match self.view.movers[i].phase {
            MoverPhase::New if self.view.movers[i].granted => MoverPhase::Accepted,
            MoverPhase::Accepted if step - since >= work.prepares => {
                self.mover(i).running_on = Some(name(work.node));
                MoverPhase::Prepared
            }
            MoverPhase::Prepared if self.has_data_path(i) => MoverPhase::InProgress,
            MoverPhase::InProgress if step - since >= work.runs => MoverPhase::Completed,
            _ => return,
        };
        if next == MoverPhase::Prepared {
            self.started[i] = Some(step);
        }
        self.mover(i).phase = next;
        self.since[i] = step;
    }

    /// Agents give data paths to the data mover that has been Prepared longest.
    fn has_data_path(&self, i: usize) -> bool {
        let on_node = |o: &usize| self.work[*o].node == self.work[i].node;
        let is = |o: &usize, phase| self.view.movers[*o].phase == phase;
        let nodes = || (0..self.work.len()).filter(on_node);
        let running = nodes().filter(|o| is(o, MoverPhase::InProgress)).count();
        let before = |o: &usize| is(o, MoverPhase::Prepared) && (self.started[*o], *o) < (self.started[i], i);
        running < self.view.limits.global as usize && !nodes().any(|o| before(&o))
    }

    fn phase(&self, i: usize) -> MoverPhase {
        self.view.movers[i].phase
    }
}

fn name(node: usize) -> String {
    format!("n{node}")
}

fn at(step: u32) -> Timestamp {
    Timestamp::from_second(step.into()).unwrap()
}

fn any_work() -> impl Strategy<Value = SimulatedMover> {
    (prop::sample::select(&MoverKind::ALL), 0..NODES, 0..4_u32, 0..8_u32)
        .prop_map(|(kind, node, prepares, runs)| SimulatedMover { kind, node, prepares, runs })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// A victim is created after some others; then two new ones are created at every step, for
    /// ever. It must complete within the time in which those before it would complete one by one.
    #[test]
    fn a_stream_of_newcomers_starves_nobody(
        before in prop::collection::vec(any_work(), 0..10),
        victim in any_work(),
        after in prop::collection::vec(any_work(), 1..20),
        limit in 1..4_usize,
        data_paths in 1..3_u32,
    ) {
        let mut cluster = SimulatedCluster::new(limit, data_paths);
        let place = before.len();
        for work in before.into_iter().chain([victim]) {
            cluster.create(work);
            cluster.step += 1;
        }
        let mut newcomers = after.into_iter().cycle();
        // One takes 15 steps at most, and may wait for one later mover for each earlier one.
        let bound = 40 * (place as u32 + limit as u32 + 2);
        for _ in 0..bound {
            cluster.go();
            if cluster.phase(place) == MoverPhase::Completed {
                return Ok(());
            }
            for work in newcomers.by_ref().take(2) {
                cluster.create(work);
            }
        }
        prop_assert!(false, "{:?} after {bound} steps", cluster.phase(place));
    }

    /// No further movers are created: all of them end.
    #[test]
    fn everything_ends(work in prop::collection::vec(any_work(), 0..40), limit in 1..4_usize, data_paths in 1..3_u32) {
        let mut cluster = SimulatedCluster::new(limit, data_paths);
        let bound = 16 * work.len();
        work.into_iter().for_each(|work| cluster.create(work));
        for _ in 0..bound {
            cluster.go();
        }
        let mut phases: HashMap<MoverPhase, usize> = HashMap::new();
        (0..cluster.work.len()).for_each(|i| *phases.entry(cluster.phase(i)).or_default() += 1);
        prop_assert_eq!(phases.get(&MoverPhase::Completed).copied().unwrap_or(0), cluster.work.len(), "{:?}", phases);
    }
}

/// Uploads that all run on n0 fill that node again as soon as they leave it: a mover that is bound
/// to n0 gets its turn all the same.
#[test]
fn uploads_that_flood_a_node_keep_out_nobody_who_is_bound_to_it() {
    let mut cluster = SimulatedCluster::new(2, 1);
    let upload = SimulatedMover { kind: DataUpload, node: 0, prepares: 0, runs: 5 };
    (0..2).for_each(|_| cluster.create(upload));
    (0..3).for_each(|_| cluster.go());
    let victim = cluster.work.len();
    cluster.create(SimulatedMover { kind: PodVolumeBackup, ..upload });
    for _ in 0..60 {
        cluster.step += 1;
        cluster.create(upload);
        cluster.go();
    }
    assert_eq!(cluster.phase(victim), MoverPhase::Completed);
}
