//! `times FILE`: where the time of a run of the tests went, as a table. `tests/run` ends with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Deserialize;

const SLOWEST: usize = 20;
/// How many waits of a test are shown.
const WAITS: usize = 3;

/// One line of the file: what `times::Record` of the support writes.
#[derive(Deserialize)]
struct Record {
    kind: String,
    what: String,
    seconds: f64,
    /// Where and why a test failed.
    #[serde(default)]
    failure: Option<String>,
    /// What a test waited for, in seconds.
    #[serde(default)]
    waits: BTreeMap<String, f64>,
}

fn main() -> ExitCode {
    let run = || {
        let path = std::env::args_os().nth(1).context("usage: times FILE")?;
        let text = std::fs::read_to_string(&path)?;
        // A line that cannot be read does not stop the others.
        let records = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        anyhow::Ok(table(records))
    };
    match run() {
        Ok(table) => {
            println!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("times: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn table(records: Vec<Record>) -> String {
    let (mut tests, others): (Vec<Record>, Vec<Record>) =
        records.into_iter().partition(|record| record.kind == "test");
    let (begun, others): (Vec<Record>, Vec<Record>) =
        others.into_iter().partition(|record| record.kind == "begun");
    tests.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let mut table = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(table, "\nThe slowest tests, in seconds, and what they waited for:");
    for test in tests.iter().take(SLOWEST) {
        let mut waits: Vec<(&String, &f64)> = test.waits.iter().collect();
        waits.sort_by(|a, b| b.1.total_cmp(a.1));
        let waits: Vec<String> =
            waits.iter().take(WAITS).map(|(what, seconds)| format!("{seconds:.1} {what}")).collect();
        let _ = writeln!(table, "{:7.1}  {}: {}", test.seconds, test.what, waits.join("; "));
    }

    let mut totals: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for record in &others {
        let total = totals.entry(&record.kind).or_default();
        total.0 += 1;
        total.1 += record.seconds;
    }
    let _ = writeln!(table, "\nIn all, in seconds (what runs side by side is counted twice):");
    for (kind, (count, seconds)) in totals {
        let _ = writeln!(table, "{seconds:7.1}  {kind} ({count})");
    }
    let sum: f64 = tests.iter().map(|test| test.seconds).sum();
    let waited: f64 = tests.iter().flat_map(|test| test.waits.values()).sum();
    let _ = writeln!(table, "{sum:7.1}  {} tests on real programs, {waited:.1} of them waiting", tests.len());

    let ended: BTreeSet<&str> = tests.iter().map(|test| test.what.as_str()).collect();
    for test in begun.iter().filter(|test| !ended.contains(test.what.as_str())) {
        let _ = writeln!(table, "Not ended: {}", test.what);
    }

    // What is printed last is read first, and some readers see nothing else of a long run.
    for test in &tests {
        let (name, Some(why)) = (&test.what, &test.failure) else { continue };
        let _ = write!(
            table,
            "\nFailed: {name}. Alone: cargo test --locked --workspace --test main -- --exact {name}\n{why}\n"
        );
    }
    table
}
