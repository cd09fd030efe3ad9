use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::view::{Limits, NodeAgentState, OUT_AFTER};
use super::*;
use crate::label::Selector;
use crate::mover::MoverKind::{self, *};
use crate::violation::{Field, Violations};

mod orphans;

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

const NOW: i64 = 10_000;

/// A data mover with this name, created in the order of `age`.
fn mover(kind: MoverKind, name: &str, age: i64, phase: MoverPhase) -> Mover {
    Mover { phase, ..Mover::new(kind, name, format!("uid-{name}"), second(age)) }
}

fn upload(name: &str, age: i64, phase: MoverPhase) -> Mover {
    let mover = mover(DataUpload, name, age, phase);
    let accepted = phase != MoverPhase::New;
    Mover {
        granted: accepted,
        accepted_by: accepted.then(|| "n1".to_owned()),
        accepted_at: accepted.then(|| second(age + 1)),
        ..mover
    }
}

fn new_upload(name: &str, age: i64) -> Mover {
    upload(name, age, MoverPhase::New)
}

fn bound(name: &str, age: i64, node: &str, phase: MoverPhase) -> Mover {
    let accepted_at = (phase != MoverPhase::New).then(|| second(age + 1));
    Mover { bound_node: Some(node.to_owned()), accepted_at, ..mover(PodVolumeBackup, name, age, phase) }
}

fn ready() -> NodeAgentState {
    NodeAgentState { ready: true, started_at: Some(second(0)), not_ready_since: None }
}

fn out(since: i64) -> NodeAgentState {
    NodeAgentState { ready: false, not_ready_since: Some(second(since)), ..ready() }
}

/// Two places, three nodes, two data paths each.
fn view(movers: impl IntoIterator<Item = Mover>) -> GrantView {
    GrantView {
        movers: movers.into_iter().map(Arc::new).collect(),
        agents: ["n1", "n2", "n3"].into_iter().map(|node| (node.to_owned(), ready())).collect(),
        limits: Limits { limit: Some(2), global: 2, per_node: Vec::new() },
        ledger: Some(BTreeSet::new()),
        ..GrantView::default()
    }
}

fn planned(view: &GrantView) -> GrantPlan {
    plan(view, second(NOW))
}

fn names<'v>(view: &'v GrantView, indices: &[usize]) -> Vec<&'v str> {
    indices.iter().map(|i| view.movers[*i].name.as_str()).collect()
}

fn granted<'v>(view: &'v GrantView, plan: &GrantPlan) -> Vec<&'v str> {
    names(view, &plan.grant)
}

fn reasons(view: &GrantView, plan: &GrantPlan) -> Vec<String> {
    plan.waiting.iter().map(|w| format!("{} {}: {}", w.place, view.movers[w.mover].name, w.reason)).collect()
}

fn uids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| format!("uid-{name}")).collect()
}

fn selector(key: &str, value: &str) -> Selector {
    let mut found = Violations::default();
    Selector::parse([(key, value)].into_iter(), std::iter::empty(), &Field::root("s"), &mut found)
}

#[test]
fn the_oldest_of_all_kinds_go_first() {
    let view = view([
        new_upload("du-young", 9),
        Mover { bound_node: Some("n1".to_owned()), ..mover(PodVolumeRestore, "pvr", 3, MoverPhase::New) },
        mover(DataDownload, "b", 3, MoverPhase::New),
        bound("pvb", 3, "n2", MoverPhase::New),
        mover(DataDownload, "a", 3, MoverPhase::New),
    ]);
    let plan = planned(&view);
    assert_eq!(granted(&view, &plan), ["a", "b"]);
    assert_eq!(plan.ledger, LedgerPlan { uids: uids(&["a", "b"]), write: LedgerWrite::First });
    let waiting: Vec<&str> = plan.waiting.iter().map(|w| view.movers[w.mover].name.as_str()).collect();
    assert_eq!(waiting, ["pvb", "pvr", "du-young"]);
}

#[test]
fn whoever_is_accepted_or_prepared_holds_a_place_and_whoever_runs_does_not() {
    use MoverPhase::*;
    for (phase, expected) in [
        (Accepted, vec!["new-1"]),
        (Prepared, vec!["new-1"]),
        (InProgress, vec!["new-1", "new-2"]),
        (Canceling, vec!["new-1", "new-2"]),
        (Completed, vec!["new-1", "new-2"]),
        (Unknown, vec!["new-1", "new-2"]),
    ] {
        let view = view([upload("du", 1, phase), new_upload("new-1", 2), new_upload("new-2", 3)]);
        assert_eq!(granted(&view, &planned(&view)), expected, "{phase:?}");
    }
}

#[test]
fn it_tells_who_takes_the_places() {
    let view = view([
        upload("du-1", 1, MoverPhase::Prepared),
        upload("du-2", 2, MoverPhase::Accepted),
        new_upload("du-3", 3),
        new_upload("du-4", 4),
    ]);
    let plan = planned(&view);
    assert_eq!(
        reasons(&view, &plan),
        ["1 du-3: 2 of 2 places are taken by du-1, du-2", "2 du-4: 2 of 2 places are taken by du-1, du-2"]
    );
    assert_eq!(plan.ledger.write, LedgerWrite::No);
}

#[test]
fn what_the_ledger_promises_holds_a_place_and_is_granted_again() {
    let mut view = view([new_upload("du-1", 1), new_upload("du-2", 2), new_upload("du-3", 3)]);
    view.ledger = Some(uids(&["du-3", "gone"]));
    let plan = planned(&view);
    assert_eq!(granted(&view, &plan), ["du-1", "du-3"]);
    assert_eq!(plan.ledger.uids, uids(&["du-1", "du-3"]));
    assert_eq!(reasons(&view, &plan), ["1 du-2: 2 of 2 places are taken by du-1, du-3"]);
}

#[test]
fn a_promise_is_kept_even_to_one_that_is_canceled_or_cannot_go() {
    let canceled = Mover { canceled: true, ..new_upload("du-1", 1) };
    let mut view = view([canceled, bound("pvb", 2, "lost", MoverPhase::New), new_upload("du-2", 3)]);
    view.ledger = Some(uids(&["du-1", "pvb"]));
    let plan = planned(&view);
    // Their annotations may be on the way. Once they are visible they can be removed again.
    assert_eq!(granted(&view, &plan), ["du-1", "pvb"]);
    assert_eq!(plan.ledger, LedgerPlan { uids: uids(&["du-1", "pvb"]), write: LedgerWrite::First });
}

#[test]
fn a_uid_leaves_the_ledger_once_its_object_shows_the_grant() {
    let shown = Mover { granted: true, ..new_upload("du-1", 1) };
    let mut view = view([shown, upload("du-2", 2, MoverPhase::Accepted), new_upload("du-3", 3)]);
    view.ledger = Some(uids(&["du-1", "du-2", "gone"]));
    let plan = planned(&view);
    assert_eq!(plan.grant, Vec::<usize>::new());
    assert_eq!(plan.ledger, LedgerPlan { uids: BTreeSet::new(), write: LedgerWrite::Tidy });
    assert_eq!(reasons(&view, &plan), ["1 du-3: 2 of 2 places are taken by du-1, du-2"]);
}

#[test]
fn a_limit_that_is_new_makes_a_ledger_even_with_nothing_to_grant() {
    let view = GrantView { ledger: None, ..view([]) };
    assert_eq!(planned(&view).ledger.write, LedgerWrite::Tidy);
}

#[test]
fn those_of_others_are_left_alone() {
    let theirs = |phase| Mover { third_party: true, ..upload("theirs", 1, phase) };
    let view =
        view([theirs(MoverPhase::Accepted), theirs(MoverPhase::New), new_upload("a", 2), new_upload("b", 3)]);
    let plan = planned(&view);
    assert_eq!(granted(&view, &plan), ["a", "b"]);
    assert_eq!(plan.waiting, []);
}

#[test]
fn one_on_a_node_without_an_agent_waits_and_blocks_nobody() {
    let mut view = view([
        bound("lost", 1, "n9", MoverPhase::New),
        bound("down", 2, "n3", MoverPhase::New),
        mover(PodVolumeRestore, "unscheduled", 3, MoverPhase::New),
        new_upload("du", 4),
    ]);
    view.agents.insert("n3".to_owned(), out(NOW));
    let plan = planned(&view);
    assert_eq!(granted(&view, &plan), ["du"]);
    assert_eq!(
        reasons(&view, &plan),
        [
            "1 lost: node n9 has no ready node-agent",
            "2 down: node n3 has no ready node-agent",
            "3 unscheduled: its pod does not wait for it on a node yet"
        ]
    );
}

#[test]
fn nothing_is_granted_while_there_is_no_agent_at_all() {
    let view = GrantView { agents: HashMap::new(), ..view([new_upload("du", 1)]) };
    let plan = planned(&view);
    assert_eq!(plan.grant, Vec::<usize>::new());
    assert_eq!(reasons(&view, &plan), ["1 du: no node has a ready node-agent"]);
}

#[test]
fn one_on_a_full_node_lets_others_go_first() {
    let full = |phase| bound("runs", 1, "n3", phase);
    let mut view = view([full(MoverPhase::InProgress), bound("pvb", 2, "n3", MoverPhase::New)]);
    view.limits.global = 1;
    // No other data mover competes for the place.
    assert_eq!(granted(&view, &planned(&view)), ["pvb"]);
    view.movers.extend([new_upload("du-1", 3), new_upload("du-2", 4)].map(Arc::new));
    let plan = planned(&view);
    assert_eq!(granted(&view, &plan), ["du-1", "du-2"]);
    assert_eq!(reasons(&view, &plan), ["1 pvb: node n3 is full and others can go first"]);
    // A grant of this plan counts as well.
    let mut two = self::view([bound("a", 1, "n3", MoverPhase::New), bound("b", 2, "n3", MoverPhase::New)]);
    two.movers.push(Arc::new(new_upload("du", 3)));
    two.limits.global = 1;
    assert_eq!(granted(&two, &planned(&two)), ["a", "du"]);
}

#[test]
fn whoever_came_later_makes_no_node_full() {
    let later = Mover { running_on: Some("n3".to_owned()), ..upload("later", 9, MoverPhase::InProgress) };
    let mut view =
        view([bound("pvb", 2, "n3", MoverPhase::New), later, new_upload("du-1", 3), new_upload("du-2", 4)]);
    view.limits.global = 1;
    assert_eq!(granted(&view, &planned(&view)), ["pvb", "du-1"]);
}

#[test]
fn of_rules_for_a_node_the_smallest_positive_number_counts() {
    let labels =
        BTreeMap::from([("disk".to_owned(), "slow".to_owned()), ("zone".to_owned(), "a".to_owned())]);
    let limits = |per_node: &[(&str, &str, u32)]| Limits {
        limit: None,
        global: 5,
        per_node: per_node.iter().map(|(key, value, number)| (selector(key, value), *number)).collect(),
    };
    for (rules, expected) in [
        (&[][..], 5),
        (&[("disk", "slow", 3), ("zone", "a", 2)], 2),
        (&[("disk", "slow", 0), ("zone", "a", 7)], 7),
        (&[("disk", "fast", 1)], 5),
    ] {
        assert_eq!(limits(rules).data_paths(&labels), expected, "{rules:?}");
    }
    assert_eq!(Limits::default().data_paths(&labels), 1);
}

#[test]
fn a_grant_that_cannot_be_used_is_taken_back() {
    let with_grant = |mover: Mover| Mover { granted: true, ..mover };
    let mut view = view([
        with_grant(bound("pvb", 1, "n3", MoverPhase::New)),
        with_grant(Mover { canceled: true, ..new_upload("du-1", 2) }),
        new_upload("du-2", 3),
    ]);
    for (agent, expected) in [
        (out(NOW - OUT_AFTER.as_secs()), vec!["pvb", "du-1"]),
        (out(NOW - OUT_AFTER.as_secs() + 1), vec!["du-1"]),
        (ready(), vec!["du-1"]),
    ] {
        view.agents.insert("n3".to_owned(), agent);
        let plan = planned(&view);
        assert_eq!(names(&view, &plan.revoke), expected, "{agent:?}");
        // Their places are not given away before they are seen to be free.
        assert_eq!(plan.grant, Vec::<usize>::new());
        assert_eq!(plan.ledger.write, LedgerWrite::No);
    }
    // The ledger must not name a UID whose object has no annotation.
    view.ledger = Some(uids(&["du-1"]));
    assert_eq!(planned(&view).ledger, LedgerPlan { uids: BTreeSet::new(), write: LedgerWrite::First });
}

#[test]
fn files_that_berth_has_moved_by_a_pod_need_no_agent_and_wait_for_their_node() {
    let own = |name, node| Mover { own: true, ..bound(name, 1, node, MoverPhase::New) };
    let mut view = view([own("gone", "n9"), Mover { granted: true, ..own("granted", "n3") }]);
    view.agents.insert("n3".to_owned(), out(0));
    let plan = planned(&view);
    assert_eq!((granted(&view, &plan), plan.revoke), (vec!["gone"], Vec::new()));
    // A node that is full lets others go first, whoever moves its data.
    let full = bound("runs", 0, "n1", MoverPhase::InProgress);
    let mut view = self::view([full, own("pvb", "n1"), new_upload("a", 2), new_upload("b", 3)]);
    view.limits.global = 1;
    assert_eq!(granted(&view, &planned(&view)), ["a", "b"]);
}

#[test]
fn an_agent_that_was_never_seen_is_away_since_agents_are_watched() {
    let mut view = view([Mover { granted: true, ..bound("pvb", 1, "n9", MoverPhase::New) }]);
    view.watching_since = second(NOW - OUT_AFTER.as_secs() + 1);
    assert_eq!(planned(&view).revoke, Vec::<usize>::new());
    view.watching_since = second(NOW - OUT_AFTER.as_secs());
    assert_eq!(planned(&view).revoke, [0]);
}

#[test]
fn a_lowered_limit_takes_back_what_has_not_begun_the_youngest_first() {
    let with_grant = |name, age| Mover { granted: true, ..new_upload(name, age) };
    let mut view = view([
        upload("du-1", 1, MoverPhase::Accepted),
        with_grant("du-2", 2),
        with_grant("du-3", 3),
        with_grant("du-4", 4),
        new_upload("du-5", 5),
    ]);
    assert_eq!(names(&view, &planned(&view).revoke), ["du-4", "du-3"]);
    view.limits.limit = Some(1);
    let plan = planned(&view);
    assert_eq!(names(&view, &plan.revoke), ["du-4", "du-3", "du-2"]);
    assert_eq!(plan.grant, Vec::<usize>::new());
    assert_eq!(
        reasons(&view, &plan),
        ["1 du-5: 4 places are taken, 1 allowed: by du-1, du-2, du-3 and 1 more"]
    );
}

#[test]
fn without_a_limit_all_are_nudged_once_and_the_ledger_retires() {
    let mut view = view([
        upload("du-1", 1, MoverPhase::Accepted),
        new_upload("du-2", 2),
        Mover { granted: true, ..new_upload("du-3", 3) },
        Mover { third_party: true, ..new_upload("theirs", 4) },
        bound("pvb", 5, "n9", MoverPhase::New),
    ]);
    view.limits.limit = None;
    let nudged = planned(&view);
    assert_eq!(granted(&view, &nudged), ["du-2", "pvb"]);
    assert_eq!(nudged.ledger, LedgerPlan { uids: uids(&["du-2", "pvb"]), write: LedgerWrite::First });
    assert!(!nudged.retire_ledger);
    for i in nudged.grant {
        Arc::make_mut(&mut view.movers[i]).granted = true;
    }
    view.ledger = Some(nudged.ledger.uids);
    assert_eq!(planned(&view), GrantPlan { retire_ledger: true, ..GrantPlan::default() });
    view.ledger = None;
    view.movers.push(Arc::new(new_upload("du-4", 6)));
    assert_eq!(planned(&view), GrantPlan::default());
}

#[test]
fn more_than_the_ledger_can_hold_are_nudged_in_parts() {
    let mut view = view((0..2_500).map(|i| new_upload(&format!("du-{i:04}"), i)));
    view.limits.limit = None;
    let mut parts = Vec::new();
    loop {
        let plan = planned(&view);
        if plan.retire_ledger {
            break;
        }
        parts.push((plan.grant.len(), plan.waiting.len()));
        for i in plan.grant {
            Arc::make_mut(&mut view.movers[i]).granted = true;
        }
        view.ledger = Some(plan.ledger.uids);
    }
    assert_eq!(parts, [(1_000, 1_500), (1_000, 500), (500, 0)]);
}

fn any_mover() -> impl Strategy<Value = Mover> {
    use MoverPhase::*;
    let phase = prop_oneof![4 => Just(New), 1 => Just(Accepted), 1 => Just(Prepared), 1 => Just(InProgress),
        1 => Just(Canceling), 1 => Just(Completed), 1 => Just(Unknown)];
    let node = proptest::option::of(prop_oneof!["n[1-4]", Just("n1".to_owned())]);
    let flags = (any::<bool>(), prop::bool::weighted(0.1), prop::bool::weighted(0.1));
    (prop::sample::select(&MoverKind::ALL), 0..50_i64, phase, node, flags, any::<u32>()).prop_map(
        |(kind, age, phase, node, (granted, canceled, third_party), id)| {
            let bound_node = node.clone().filter(|_| kind.is_bound());
            let accepted_by = node.filter(|_| !kind.is_bound());
            Mover {
                granted,
                canceled,
                third_party,
                bound_node,
                accepted_by,
                accepted_at: Some(second(age)),
                ..mover(kind, &format!("m{id}"), age, phase)
            }
        },
    )
}

fn any_view() -> impl Strategy<Value = GrantView> {
    let agent = prop_oneof![3 => Just(ready()), 1 => Just(out(0)), 1 => Just(out(NOW))];
    let agents = prop::collection::vec(agent, 0..4);
    let movers = prop::collection::vec((any_mover(), prop::bool::weighted(0.2)), 0..30);
    (movers, agents, prop::option::weighted(0.9, 1..6_usize), 1..3_u32).prop_map(
        |(movers, agents, limit, global)| {
            let agents = (1..).zip(agents).map(|(i, agent)| (format!("n{i}"), agent)).collect();
            let ledger = movers.iter().filter(|(_, listed)| *listed).map(|(m, _)| m.uid.clone()).collect();
            let limits = Limits { limit, global, per_node: Vec::new() };
            GrantView {
                agents,
                limits,
                ledger: Some(ledger),
                ..view(movers.into_iter().map(|(mover, _)| mover))
            }
        },
    )
}

proptest! {
    /// Holds for every view.
    #[test]
    fn no_plan_gives_more_places_than_there_are(view in any_view()) {
        let plan = planned(&view);
        let Some(limit) = view.limits.limit else { return Ok(()) };
        let new = |m: &Mover| m.phase == MoverPhase::New && !m.third_party;
        let taken = view.movers.iter().filter(|m| {
            !m.third_party && m.phase.holds_place()
                || new(m) && (m.granted || view.ledger.as_ref().unwrap().contains(&m.uid))
        }).count();
        let promised = |i: &&usize| !view.ledger.as_ref().unwrap().contains(&view.movers[**i].uid);
        let fresh = plan.grant.iter().filter(promised).count();
        prop_assert!(fresh == 0 || taken + fresh <= limit, "{taken} taken, {fresh} granted, {limit} allowed");
    }

    #[test]
    fn the_ledger_holds_what_is_granted_and_no_promise_is_forgotten(view in any_view()) {
        let plan = planned(&view);
        let granted: BTreeSet<String> = plan.grant.iter().map(|i| view.movers[*i].uid.clone()).collect();
        prop_assert_eq!(&plan.ledger.uids, &granted);
        prop_assert!(plan.grant.is_empty() || plan.ledger.write == LedgerWrite::First);
        for m in &view.movers {
            let open = m.phase == MoverPhase::New && !m.granted && !m.third_party;
            prop_assert!(!open || !view.ledger.as_ref().unwrap().contains(&m.uid) || granted.contains(&m.uid));
        }
    }

    /// Every New one is granted, waits, or has a reported reason for neither.
    #[test]
    fn each_one_is_in_one_list(view in any_view()) {
        let plan = planned(&view);
        for (i, m) in view.movers.iter().enumerate() {
            let lists = [plan.grant.contains(&i), plan.waiting.iter().any(|w| w.mover == i), plan.revoke.contains(&i),
                plan.recover.iter().any(|r| r.mover == i)];
            let count = lists.iter().filter(|is| **is).count();
            prop_assert!(count <= 1);
            let open = m.phase == MoverPhase::New && !m.granted && !m.third_party && !m.canceled;
            prop_assert!(!open || count == 1);
        }
        let places: Vec<usize> = plan.waiting.iter().map(|w| w.place).collect();
        prop_assert_eq!(places, (1..=plan.waiting.len()).collect::<Vec<_>>());
    }

    /// No place stays empty while a data mover could use it.
    #[test]
    fn places_are_used(view in any_view()) {
        let plan = planned(&view);
        for w in &plan.waiting {
            let full = matches!(w.reason, MoverWaitReason::NoPlace { .. } | MoverWaitReason::NodeFull { .. });
            if let Some(limit) = view.limits.limit.filter(|_| full) {
                let m = |i: &usize| &view.movers[*i];
                let held = view.movers.iter().filter(|m| view.holds_place(m)).count();
                let fresh = plan.grant.iter().filter(|i| !view.holds_place(m(i))).count();
                prop_assert!(held + fresh >= limit);
            }
        }
    }

    #[test]
    fn nothing_hangs_on_the_order_of_the_view(view in any_view(), seed in any::<u64>()) {
        let mut other = view.clone();
        other.movers.sort_by_key(|m| m.uid.len() as u64 ^ seed.rotate_left(m.uid.as_bytes()[4].into()));
        let told = |view: &GrantView| {
            let plan = planned(view);
            (granted(view, &plan).join(" "), names(view, &plan.revoke).join(" "), reasons(view, &plan))
        };
        prop_assert_eq!(told(&view), told(&other));
    }
}
