//! The most that Backups may ask for, and whatever they ask: one comparison of two, and one cycle
//! on a thousand.

use std::sync::Arc;

use berth_core::glob::{Effort, Glob};
use berth_core::limits;
use berth_core::namespace::NamespaceSet;
use berth_core::queue::{QueuePhase, QueueView, plan, work};

use crate::planner::{SLOTS, entry, time};
use crate::report::{Aim, Report, median, quantile};

const BACKUPS: u32 = 1_000;

/// Namespaces, included and excluded.
#[derive(Default)]
pub struct Texts {
    pub included: Vec<String>,
    pub excluded: Vec<String>,
}

/// Another number makes other namespaces, that have nothing in common with these.
type Shape = fn(usize) -> Texts;

const SHAPES: [(&str, Shape); 6] = [
    ("names", names_alone),
    ("names less names and patterns", names_less),
    ("patterns of many stars", stars),
    ("patterns of one star", questions),
    ("patterns of classes", classes),
    ("everything less names and patterns", everything_less),
];
/// Of which a thousand are made in seconds.
const PLANNED: [(&str, Shape); 3] =
    [("names", names_alone), ("patterns of many stars", stars), ("patterns of one star", questions)];

pub fn measure(report: &mut Report) -> anyhow::Result<()> {
    eprintln!("Backups at the limits of what they may ask for:");
    compare(report)?;
    for (what, shape) in PLANNED {
        decide(what, shape, report)?;
    }
    Ok(())
}

fn compare(report: &mut Report) -> anyhow::Result<()> {
    let made = |seed: usize| {
        let made = |(what, shape): (&'static str, Shape)| anyhow::Ok((what, set(shape(seed))?));
        SHAPES.into_iter().map(made).collect::<anyhow::Result<Vec<_>>>()
    };
    let (ours, theirs) = (made(0)?, made(3)?);
    let mut slowest = (0.0, 0.0, String::new());
    for (what, set) in &ours {
        for (other_what, other) in &theirs {
            let times = time(|| set.meets(other, &Effort::of_decision()));
            if median(&times) > slowest.0 {
                slowest = (median(&times), quantile(&times, 1.0), format!("{what}, beside {other_what}"));
            }
        }
    }
    let (usual, longest, pair) = slowest;
    eprintln!("  the slowest pair: {pair}");
    let part = "two sets at the limits";
    report.add(part, "comparison of the slowest pair, median", usual, "ms", Aim::AtMost(1.0));
    report.add(part, "comparison of the slowest pair, longest", longest, "ms", Aim::None);
    Ok(())
}

fn decide(what: &str, shape: Shape, report: &mut Report) -> anyhow::Result<()> {
    let mut backups = Vec::new();
    for i in 0..BACKUPS {
        let runs = usize::try_from(i)? < SLOTS - 1;
        let phase = if runs { QueuePhase::InProgress } else { QueuePhase::Queued };
        backups.push(Arc::new(entry(i, phase, set(shape(usize::try_from(i)?))?)));
    }
    let view = QueueView { slots: SLOTS, backups, ..QueueView::default() };
    let times = time(|| plan(&view));
    let part = format!("planner, {BACKUPS} at the limits");
    report.add(&part, &format!("{what}: one cycle, median"), median(&times), "ms", Aim::AtMost(50.0));
    report.add(&part, &format!("{what}: one cycle, longest"), quantile(&times, 1.0), "ms", Aim::None);
    // The ratio of these two does not depend on the machine's speed: code that visits each name
    // once for each backup ahead takes longer.
    let work = work(&view);
    let names = f64::from(BACKUPS) * limits::NAMES as f64;
    report.add(&part, &format!("{what}: looks at a name"), work.names as f64 / names, "", Aim::AtMost(3.0));
    report.add(&part, &format!("{what}: steps of comparing"), f64::from(work.steps), "", Aim::None);
    Ok(())
}

fn set(texts: Texts) -> anyhow::Result<NamespaceSet> {
    let globs = |texts: Vec<String>| {
        texts.iter().map(|text| anyhow::Ok(Glob::parse(text)?)).collect::<anyhow::Result<Vec<Glob>>>()
    };
    Ok(NamespaceSet::new(globs(texts.included)?, globs(texts.excluded)?))
}

/// As long as a name may be, and different only at its end.
fn names(seed: usize, count: usize) -> impl Iterator<Item = String> {
    let same = "n".repeat(50);
    (0..count).map(move |i| format!("{same}-{:012}", seed * limits::NAMES + i))
}

pub fn names_alone(seed: usize) -> Texts {
    Texts { included: names(seed, limits::NAMES).collect(), ..Texts::default() }
}

fn names_less(seed: usize) -> Texts {
    Texts { excluded: names_and(pattern_of_stars, seed + 1_000_000), ..names_alone(seed) }
}

pub fn stars(seed: usize) -> Texts {
    // Of another kind: nothing may be included and excluded.
    let excluded = names_and(pattern_of_questions, seed + 1_000_000);
    Texts { included: names_and(pattern_of_stars, seed), excluded }
}

fn questions(seed: usize) -> Texts {
    let excluded = names_and(pattern_of_stars, seed + 1_000_000);
    Texts { included: names_and(pattern_of_questions, seed), excluded }
}

fn classes(seed: usize) -> Texts {
    let excluded = names_and(pattern_of_stars, seed + 1_000_000);
    Texts { included: names_and(pattern_of_classes, seed), excluded }
}

fn everything_less(seed: usize) -> Texts {
    Texts { excluded: names_and(pattern_of_stars, seed), ..Texts::default() }
}

fn names_and(pattern: fn(usize, usize) -> String, seed: usize) -> Vec<String> {
    let patterns = (0..limits::PATTERNS).map(|p| pattern(seed, p));
    names(seed, limits::NAMES - limits::PATTERNS).chain(patterns).collect()
}

fn letter(i: usize) -> char {
    char::from(b'a' + u8::try_from(i % 26).unwrap_or_default())
}

/// A name may be read by it in very many ways.
fn pattern_of_stars(seed: usize, p: usize) -> String {
    (0..31).map(|i| format!("*{}", letter(seed + p * 7 + i * (p % 5 + 1)))).collect()
}

/// What it has read so far says little of where it stands.
fn pattern_of_questions(seed: usize, p: usize) -> String {
    format!("*{}{}{}", letter(seed + p), "?".repeat(20 + p % 40), letter(seed + p * 3 + 1))
}

fn pattern_of_classes(seed: usize, p: usize) -> String {
    let class = |i: usize| {
        let low = letter((seed + p + i) % 13);
        let high = letter(13 + (seed + p / 13 + i * 2) % 13);
        format!("[{low}-{high}]*")
    };
    (0..10).map(class).chain([letter(p).to_string()]).collect()
}
