//! One plan: which data movers get a place, which give one up, and why the others wait.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use super::orphan::{is_orphan, is_orphan_for_long, is_out};
use super::reason::MoverWaitReason;
use super::view::{GrantView, Mover, MoverPhase};

/// The most grants of one plan, because the ledger is one object, which has room for some ten
/// thousand UIDs.
pub const AT_ONCE: usize = 1000;

/// The actions of one plan, as indices into the view's `movers`. The ledger is written first if
/// `ledger.write` says so; all other actions follow in any order, each with the resourceVersion
/// that the view shows. A write that fails is left to the next plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantPlan {
    pub ledger: LedgerPlan,
    /// Data movers that get the annotation, in this order.
    pub grant: Vec<usize>,
    /// New data movers whose annotation is removed, because others can use the place.
    pub revoke: Vec<usize>,
    /// Orphans: Accepted or Prepared data movers that no node-agent continues. See
    /// [`super::remedy`].
    pub recover: Vec<Recover>,
    /// Data movers that wait, in order.
    pub waiting: Vec<WaitingMover>,
    /// There is no limit any more, and every data mover that it held back was nudged: mark the
    /// ledger as not in force, with the resourceVersion that was read. A view treats such a ledger
    /// as absent.
    pub retire_ledger: bool,
}

/// What the ledger must contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerPlan {
    pub uids: BTreeSet<String>,
    pub write: LedgerWrite,
}

/// When to write the ledger: always with the resourceVersion that was read. A write that fails ends
/// the leader's term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LedgerWrite {
    /// The ledger has these contents already, and no action depends on the write.
    #[default]
    No,
    /// When there is time: the UIDs that it has in excess are no longer counted.
    Tidy,
    /// Before any other action, and even with the same contents, because only a leader whose write
    /// succeeds may grant.
    First,
}

/// An orphan. If it is reset to New, its phase and its annotation are one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recover {
    pub mover: usize,
    /// Keeps its annotation if an agent can run it at once. Otherwise it loses it and waits again,
    /// by its age.
    pub keeps_place: bool,
    /// Its agent has been away for [`super::NodeAgentTimeouts::given_up_after`].
    pub for_long: bool,
}

/// A data mover that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingMover {
    pub mover: usize,
    /// Its exact place in the queue, from 1.
    pub place: usize,
    pub reason: MoverWaitReason,
}

/// One walk over all four kinds, oldest first. Places go to the oldest data movers that an agent
/// can run. One whose node is full is passed over while others can start, because it would hold a
/// place without using it. Only older data movers make a node full, so later ones do not keep it
/// waiting for ever.
pub fn plan(view: &GrantView, now: Timestamp) -> GrantPlan {
    let order = order(view);
    let mut plan = match view.limits.limit {
        Some(limit) => GrantPlanner::new(view, limit.max(1), now).run(&order),
        None => nudge_all(view, &order, now),
    };
    plan.ledger.write = ledger_write(view, &plan);
    plan
}

/// Data movers that have not ended, in the total order.
fn order(view: &GrantView) -> Vec<usize> {
    let mut order: Vec<_> = (view.movers.iter().enumerate())
        .filter(|(_, m)| !m.third_party && !m.phase.is_final() && m.phase != MoverPhase::Unknown)
        .map(|(i, mover)| (mover.queue_key(), i))
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, i)| i).collect()
}

fn ledger_write(view: &GrantView, plan: &GrantPlan) -> LedgerWrite {
    if plan.retire_ledger {
        return LedgerWrite::No;
    }
    let is_listed = |i: &usize| view.movers.get(*i).is_some_and(|mover| is_promised(view, mover));
    if !plan.grant.is_empty() || plan.revoke.iter().any(is_listed) {
        // A later leader that found the UID in the ledger but no annotation on the object would
        // grant it again.
        return LedgerWrite::First;
    }
    let is_as_it_should_be = match &view.ledger {
        Some(ledger) => *ledger == plan.ledger.uids,
        None => view.limits.limit.is_none(),
    };
    if is_as_it_should_be { LedgerWrite::No } else { LedgerWrite::Tidy }
}

fn is_promised(view: &GrantView, mover: &Mover) -> bool {
    view.ledger.as_ref().is_some_and(|ledger| ledger.contains(&mover.uid))
}

/// The plan without a limit: no data mover is held back. Those that an earlier limit held back get
/// an annotation, because agents try again only when the object changes.
fn nudge_all(view: &GrantView, order: &[usize], now: Timestamp) -> GrantPlan {
    let mut plan = GrantPlan::default();
    for (i, mover) in movers(view, order) {
        if is_orphan(view, mover, now) {
            let keeps_place = can_go(view, mover).is_ok() && !mover.canceled;
            let for_long = is_orphan_for_long(view, mover, now);
            plan.recover.push(Recover { mover: i, keeps_place, for_long });
        }
    }
    if view.ledger.is_none() {
        return plan;
    }
    for (i, mover) in movers(view, order).filter(|(_, m)| m.phase == MoverPhase::New && !m.granted) {
        let promised = is_promised(view, mover);
        if promised || (!mover.canceled && plan.grant.len() < AT_ONCE) {
            plan.ledger.uids.insert(mover.uid.clone());
            plan.grant.push(i);
        } else if !mover.canceled {
            plan.waiting.push(WaitingMover {
                mover: i,
                place: plan.waiting.len() + 1,
                reason: MoverWaitReason::Next,
            });
        }
    }
    plan.retire_ledger = plan.grant.is_empty();
    plan
}

fn movers<'v>(view: &'v GrantView, order: &[usize]) -> impl Iterator<Item = (usize, &'v Mover)> {
    order.iter().filter_map(|i| Some((*i, &**view.movers.get(*i)?)))
}

/// Can an agent run it now?
fn can_go(view: &GrantView, mover: &Mover) -> Result<(), MoverWaitReason> {
    match &mover.bound_node {
        _ if mover.own => Ok(()),
        Some(node) if view.has_ready_agent(node) => Ok(()),
        Some(node) => Err(MoverWaitReason::NoAgent { node: Some(node.clone()) }),
        None if mover.kind.is_bound() => Err(MoverWaitReason::NoNode),
        None if view.some_agent_is_ready() => Ok(()),
        None => Err(MoverWaitReason::NoAgent { node: None }),
    }
}

/// Would this data mover hold a place without being able to use it?
fn wastes_place(view: &GrantView, mover: &Mover, now: Timestamp) -> bool {
    let is_lost = match &mover.bound_node {
        // It needs no node-agent.
        _ if mover.own => false,
        Some(node) => is_out(view, node, now),
        None => mover.kind.is_bound(),
    };
    mover.canceled || is_lost
}

struct GrantPlanner<'v> {
    view: &'v GrantView,
    now: Timestamp,
    places: usize,
    taken: usize,
    /// Number of places that are taken beyond the limit and are not being freed yet.
    surplus: usize,
    /// Data paths of each node that older data movers take, and how many the node has.
    load: HashMap<&'v str, u32>,
    data_paths: HashMap<&'v str, u32>,
    plan: GrantPlan,
    /// By index: data movers that hold a place, or are granted one.
    holds: Vec<bool>,
    passed_over: Vec<usize>,
    /// Data movers that wait, in order. `None`: they wait for a place.
    waiting: Vec<(usize, Option<MoverWaitReason>)>,
}

impl<'v> GrantPlanner<'v> {
    fn new(view: &'v GrantView, places: usize, now: Timestamp) -> Self {
        let holds: Vec<bool> = view.movers.iter().map(|mover| view.holds_place(mover)).collect();
        let taken = holds.iter().filter(|holds| **holds).count();
        Self {
            view,
            now,
            places,
            taken,
            surplus: taken.saturating_sub(places),
            load: HashMap::new(),
            data_paths: HashMap::new(),
            plan: GrantPlan::default(),
            holds,
            passed_over: Vec::new(),
            waiting: Vec::new(),
        }
    }

    fn run(mut self, order: &[usize]) -> GrantPlan {
        for (i, mover) in movers(self.view, order) {
            match mover.phase {
                MoverPhase::New if mover.granted => self.granted(i, mover),
                // Promised by this leader or an earlier one: its annotation may be on its way.
                MoverPhase::New if self.holds.get(i) == Some(&true) => self.grant(i, mover),
                MoverPhase::New => self.consider(i, mover),
                _ if is_orphan(self.view, mover, self.now) => self.recover(i, mover),
                _ => self.loads(mover),
            }
        }
        self.let_the_passed_over_go();
        self.take_back_the_youngest(order);
        self.into_plan(order)
    }

    fn granted(&mut self, i: usize, mover: &'v Mover) {
        if wastes_place(self.view, mover, self.now) {
            self.plan.revoke.push(i);
            self.surplus = self.surplus.saturating_sub(1);
        }
        self.loads(mover);
    }

    fn recover(&mut self, i: usize, mover: &'v Mover) {
        let keeps_place = self.surplus == 0 && !mover.canceled && can_go(self.view, mover).is_ok();
        if !keeps_place {
            self.surplus = self.surplus.saturating_sub(1);
        }
        let for_long = is_orphan_for_long(self.view, mover, self.now);
        self.plan.recover.push(Recover { mover: i, keeps_place, for_long });
        self.loads(mover);
    }

    /// Considers a data mover without a place.
    fn consider(&mut self, i: usize, mover: &'v Mover) {
        if mover.canceled {
            // Any agent ends a canceled one, without a place.
            return;
        }
        let reason = match can_go(self.view, mover) {
            Err(reason) => Some(reason),
            Ok(()) if self.taken >= self.places => None,
            Ok(()) if self.plan.grant.len() >= AT_ONCE => Some(MoverWaitReason::Next),
            Ok(()) if self.is_full(mover) => {
                self.passed_over.push(i);
                mover.bound_node.clone().map(|node| MoverWaitReason::NodeFull { node })
            }
            Ok(()) => {
                self.taken += 1;
                self.grant(i, mover);
                return;
            }
        };
        self.waiting.push((i, reason));
    }

    fn grant(&mut self, i: usize, mover: &'v Mover) {
        self.plan.ledger.uids.insert(mover.uid.clone());
        self.plan.grant.push(i);
        if let Some(holds) = self.holds.get_mut(i) {
            *holds = true;
        }
        if let Some(node) = mover.node() {
            *self.load.entry(node).or_default() += 1;
        }
    }

    fn loads(&mut self, mover: &'v Mover) {
        if let Some(node) = mover.node().filter(|_| mover.loads_node()) {
            *self.load.entry(node).or_default() += 1;
        }
    }

    fn is_full(&mut self, mover: &'v Mover) -> bool {
        let Some(node) = mover.bound_node.as_deref() else { return false };
        let view = self.view;
        let data_paths = *self.data_paths.entry(node).or_insert_with(|| {
            let unlabelled = Default::default();
            view.limits.data_paths(view.node_labels.get(node).unwrap_or(&unlabelled))
        });
        self.load.get(node).is_some_and(|load| *load >= data_paths)
    }

    /// Grants the remaining places to those that were passed over, because no other one can use
    /// them.
    fn let_the_passed_over_go(&mut self) {
        let left = self.places.saturating_sub(self.taken).min(AT_ONCE.saturating_sub(self.plan.grant.len()));
        let passed_over = std::mem::take(&mut self.passed_over);
        for i in passed_over.into_iter().take(left) {
            let Some(mover) = self.view.movers.get(i) else { continue };
            self.taken += 1;
            self.grant(i, mover);
        }
    }

    /// The limit was lowered, or is new: data movers that have not begun lose their grant, youngest
    /// first.
    fn take_back_the_youngest(&mut self, order: &[usize]) {
        if self.surplus == 0 {
            return;
        }
        let known: BTreeSet<usize> = self.plan.revoke.iter().copied().collect();
        let is_granted =
            |i: &usize| self.view.movers.get(*i).is_some_and(|m| m.phase == MoverPhase::New && m.granted);
        let youngest = order.iter().rev().copied().filter(|i| is_granted(i) && !known.contains(i));
        self.plan.revoke.extend(youngest.take(self.surplus));
    }

    fn into_plan(self, order: &[usize]) -> GrantPlan {
        let Self { view, places, taken, mut plan, holds, waiting, .. } = self;
        let is_holder = |i: &usize| holds.get(*i) == Some(&true);
        let by = movers(view, order).filter(|(i, _)| is_holder(i)).take(MoverWaitReason::MAX_NAMES);
        let by: std::sync::Arc<[String]> = by.map(|(_, mover)| mover.name.clone()).collect();
        let left = waiting.into_iter().filter(|(i, _)| !is_holder(i));
        plan.waiting = (1..)
            .zip(left)
            .map(|(place, (mover, reason))| {
                let reason =
                    reason.unwrap_or_else(|| MoverWaitReason::NoPlace { places, taken, by: by.clone() });
                WaitingMover { mover, place, reason }
            })
            .collect();
        plan
    }
}

impl GrantView {
    /// Does it take a place, or might it already, before the view shows it?
    pub fn holds_place(&self, mover: &Mover) -> bool {
        let has_grant = || mover.phase == MoverPhase::New && (mover.granted || is_promised(self, mover));
        !mover.third_party && (mover.phase.holds_place() || has_grant())
    }
}

#[cfg(test)]
mod tests;
