//! Waiting for the end of a Backup, and showing what happens meanwhile.

use std::io::{IsTerminal as _, Write};
use std::pin::Pin;
use std::time::Duration;

use anyhow::Context as _;
use berth_api::velero::{Backup, BackupPhase};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::super::person::Person;
use super::super::queue::read;
use crate::cli::print::{note, say, unwritten};
use crate::cli::wait::{WaitOutcome, WatchedBackup, bar, drawn, ending, line};
use crate::client::{Clients, is_forbidden, is_not_found};
use crate::text::{chain, printable};

/// How often the line on a terminal is written again.
const TICK: Duration = Duration::from_secs(1);
/// How often the reason of a wait is worked out, and how often progress is told where there is no
/// terminal.
const SELDOM: Duration = Duration::from_secs(5);
/// Working the reason out takes at most this part of the time, because all Backups are read for it.
const SHARE: u32 = 20;
/// Seconds after which the API server ends a watch. A connection that was lost without a word is
/// noticed then.
const WATCH: u32 = 60;

/// Position and reason, where they are known.
type Waits = Option<(Option<u32>, String)>;

/// Waits until the Backup ends, is canceled or is deleted.
///
/// # Errors
/// When the Backup cannot be watched.
pub async fn until_ended(person: &Person, made: &Backup) -> anyhow::Result<WaitOutcome> {
    let out = std::io::stdout();
    let mut display = WaitDisplay::new(out.is_terminal(), out);
    let (backup, outcome) = follow(person, watching(person).await?, made, &mut display).await?;
    say!("{}", printable(&ending(&made.name_any(), Some(&backup), outcome)));
    Ok(outcome)
}

/// Waits until the Backup ends, and tells on standard error what happens meanwhile: a line for each
/// change, because others print to that terminal, too. Returns the Backup as it was last seen.
///
/// # Errors
/// When the Backup cannot be watched.
pub async fn aside(person: &Person, backup: &Backup) -> anyhow::Result<(Backup, WaitOutcome)> {
    let mut display = WaitDisplay::new(false, std::io::stderr());
    follow(person, watching(person).await?, backup, &mut display).await
}

async fn watching(person: &Person) -> anyhow::Result<Api<Backup>> {
    let client = Clients::new(person.target().source()).await?.watch;
    Ok(Api::namespaced(client, person.namespace()))
}

async fn follow(
    person: &Person,
    api: Api<Backup>,
    made: &Backup,
    display: &mut WaitDisplay<impl Write>,
) -> anyhow::Result<(Backup, WaitOutcome)> {
    let name = made.name_any();
    let config = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(WATCH);
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut watched, mut failures) = (WatchedBackup::new(made), 0_u32);
    // Asked beside the watch, so that a slow answer does not hide the end.
    let mut asking: Option<Pin<Box<dyn Future<Output = Waits> + '_>>> = None;
    loop {
        if asking.is_none() && display.wants_reason(&watched.last) {
            asking = Some(Box::pin(waits(person, &name)));
        }
        let ended = tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(event)) => {
                    // A list begins before it is known whether it succeeds.
                    if !matches!(event, watcher::Event::Init) {
                        failures = 0;
                    }
                    watched.observe(event)
                }
                Ok(None) => {
                    display.end();
                    anyhow::bail!("the watch of Backup {name} ended")
                }
                Err(error) => {
                    // A right that lacks does not come back.
                    if call(&error).is_some_and(is_forbidden) {
                        display.end();
                        return Err(error).context("Backups cannot be watched");
                    }
                    failures = failures.saturating_add(1);
                    if failures == 1 {
                        display.end();
                        note!("the API server cannot be watched just now, and is asked again: {}", chain(&error));
                    }
                    // The definition is gone, and with it every Backup.
                    call(&error).is_some_and(is_not_found).then_some(WaitOutcome::Deleted)
                }
            },
            told = answer(&mut asking) => {
                asking = None;
                display.told(told);
                None
            }
            _ = ticks.tick() => None,
        };
        if let Some(outcome) = ended {
            display.end();
            return Ok((watched.last, outcome));
        }
        display.show(&watched.last);
    }
}

/// Why a list or a watch did not begin.
fn call(error: &watcher::Error) -> Option<&kube::Error> {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => Some(error),
        _ => None,
    }
}

/// What was asked for; never, if nothing was.
async fn answer<F: Future + Unpin>(asking: &mut Option<F>) -> F::Output {
    match asking {
        Some(asked) => asked.await,
        None => std::future::pending().await,
    }
}

/// What is shown: one line that changes on a terminal, otherwise a line for each change.
struct WaitDisplay<W> {
    out: W,
    is_terminal: bool,
    text: String,
    phase: Option<BackupPhase>,
    shown: Option<Instant>,
    waits: Waits,
    /// The line that is shown has a reason.
    has_reason: bool,
    /// When the reason was asked for, and when it is to be asked for again.
    asked: Instant,
    due: Instant,
}

impl<W: Write> WaitDisplay<W> {
    fn new(is_terminal: bool, out: W) -> Self {
        let now = Instant::now();
        Self {
            out,
            is_terminal,
            text: String::new(),
            phase: None,
            shown: None,
            waits: None,
            has_reason: false,
            asked: now,
            due: now,
        }
    }

    /// Whether the reason of the wait is to be worked out now.
    fn wants_reason(&mut self, backup: &Backup) -> bool {
        let now = Instant::now();
        let wants = backup.phase() == BackupPhase::Queued && now >= self.due;
        if wants {
            self.asked = now;
        }
        wants
    }

    fn told(&mut self, waits: Waits) {
        self.due = Instant::now() + SELDOM.max(self.asked.elapsed().saturating_mul(SHARE));
        self.waits = waits;
    }

    fn show(&mut self, backup: &Backup) {
        let phase = backup.phase();
        if phase != BackupPhase::Queued {
            self.waits = None;
        }
        let waits = self.waits.as_ref().map(|(position, why)| (*position, why.as_str()));
        let has_reason = waits.is_some();
        let mut text = printable(&line(backup, waits, Timestamp::now())).into_owned();
        if let Some(bar) = bar(backup).filter(|_| self.is_terminal) {
            text = format!("{bar} {text}");
        }
        let is_new_phase = self.phase != Some(phase);
        let is_news = is_new_phase || (has_reason && !self.has_reason);
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= SELDOM);
        if text == self.text || !(self.is_terminal || is_news || is_due) {
            return;
        }
        // Phases stay on the screen.
        let is_below = is_new_phase && !self.text.is_empty();
        let written = if self.is_terminal { drawn(&text, is_below) } else { format!("{text}\n") };
        self.write(&written);
        (self.text, self.phase, self.shown) = (text, Some(phase), Some(Instant::now()));
        self.has_reason = has_reason;
    }

    /// What is written next stands below what is shown.
    fn end(&mut self) {
        if self.is_terminal && !self.text.is_empty() {
            self.write("\n");
            self.text.clear();
        }
    }

    /// Whoever reads may have had enough of it. The exit code tells the outcome all the same.
    fn write(&mut self, text: &str) {
        if let Err(error) = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            unwritten(&error);
        }
    }
}

/// Position and reason, as `berth queue explain` tells them.
async fn waits(person: &Person, name: &str) -> Waits {
    let here = person.here().await.ok()?;
    let situation = read(&here).await.ok()?;
    let line = situation.lines().into_iter().find(|line| line.name == name)?;
    Some((line.position, line.waits_for?))
}

#[cfg(test)]
mod tests;
