//! One decision on a long queue. No control plane: values in, values out.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use berth_core::glob::Glob;
use berth_core::namespace::NamespaceSet;
use berth_core::queue::{QueueEntry, QueuePhase, QueueView, explain_newcomer, plan};
use jiff::{SignedDuration, Timestamp};

use crate::report::{Aim, Report, median};

const WAITING: u32 = 10_000;
const NAMESPACES: u32 = 1_000;
const SCHEDULES: u32 = 50;
/// Backups of everything, at the end: ahead of others they would hold all of the queue back, which
/// is easy to plan.
const ALL: u32 = 5;
pub const SLOTS: usize = 4;
const RUNS: usize = 21;

pub fn measure(report: &mut Report) -> anyhow::Result<()> {
    let view = view(ALL)?;
    let times = time(|| plan(&view));
    let part = format!("planner, {WAITING} wait × {NAMESPACES} ns");
    report.add(&part, "one decision, median", median(&times), "ms", Aim::AtMost(10.0));
    // The speed of the machine when no other program uses it.
    let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
    report.add(&part, "one decision, fastest", fastest, "ms", Aim::None);
    let newcomer = entry(WAITING * 2, QueuePhase::Queued, set(&["ns-7", "ns-not-taken"])?);
    let times = time(|| explain_newcomer(&view, &newcomer));
    report.add(&part, "why a newcomer waits, median", median(&times), "ms", Aim::None);
    // Only then does it take a whole plan to know whether a slot is left.
    let (view, free) = (self::view(0)?, entry(WAITING * 2, QueuePhase::Queued, set(&["nobody-has-this"])?));
    let times = time(|| explain_newcomer(&view, &free));
    report.add(&part, "that a newcomer waits for nobody, median", median(&times), "ms", Aim::None);
    Ok(())
}

/// How long each of a few runs takes, in milliseconds.
pub fn time<T>(mut work: impl FnMut() -> T) -> Vec<f64> {
    let run = |_| {
        let started = Instant::now();
        black_box(work());
        started.elapsed().as_secs_f64() * 1000.0
    };
    (0..RUNS).map(run).collect()
}

/// Literal lists of 1 to 10 names, one in twenty a pattern of some schedule, and behind them a few
/// of everything.
fn view(all: u32) -> anyhow::Result<QueueView> {
    let mut state = 1_u64;
    // A linear congruence is random enough, and the same on every machine.
    let mut random = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 33).unwrap_or(0) % below
    };
    let mut backups = Vec::new();
    for i in 0..WAITING {
        let includes = if i >= WAITING - all {
            vec!["*".to_owned()]
        } else if random(20) == 0 {
            // `ns-1?` to `ns-99?`, less than all of them in use.
            vec![format!("ns-{}?", 1 + random(SCHEDULES))]
        } else {
            (0..=random(10)).map(|_| format!("ns-{}", random(NAMESPACES))).collect()
        };
        let includes: Vec<&str> = includes.iter().map(String::as_str).collect();
        backups.push(Arc::new(entry(i, QueuePhase::Queued, set(&includes)?)));
    }
    for i in 0..u32::try_from(SLOTS - 1)? {
        let running = set(&[format!("ns-{}", i * 7).as_str()])?;
        backups.push(Arc::new(entry(WAITING + i, QueuePhase::InProgress, running)));
    }
    Ok(QueueView { slots: SLOTS, backups, ..QueueView::default() })
}

pub fn entry(i: u32, phase: QueuePhase, namespaces: NamespaceSet) -> QueueEntry {
    let at = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i.into());
    QueueEntry {
        name: format!("backup-{i}"),
        uid: format!("00000000-0000-0000-0000-{i:012}"),
        phase,
        // Out of order, so that the line has to be made.
        position: 1 + i.wrapping_mul(7_919) % WAITING,
        enqueued_at: Some(at),
        created_at: at,
        namespaces,
        ..QueueEntry::default()
    }
}

fn set(names: &[&str]) -> anyhow::Result<NamespaceSet> {
    let parse = |name: &&str| Glob::parse(name).ok().with_context(|| format!("{name} is no pattern"));
    Ok(NamespaceSet::new(names.iter().map(parse).collect::<Result<_, _>>()?, Vec::new()))
}
