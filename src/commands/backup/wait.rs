//! Waiting for the end of a Backup, and showing what happens meanwhile.

use std::io::{IsTerminal as _, Write as _};
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
use crate::cli::wait::{WaitOutcome, ending, line, outcome};
use crate::client::Clients;
use crate::text::{chain, printable};

/// How often the line on a terminal is written again.
const TICK: Duration = Duration::from_secs(1);
/// How often the reason of a wait is worked out, and how often progress is told where there is no
/// terminal.
const SELDOM: Duration = Duration::from_secs(5);

/// What the watch last showed of the Backup.
enum ObservedBackup {
    There(Box<Backup>),
    Gone,
}

/// Waits until the Backup ends, is canceled or is deleted.
///
/// # Errors
/// When the Backup cannot be watched.
pub async fn until_ended(person: &Person, made: &Backup) -> anyhow::Result<WaitOutcome> {
    let mut shown = Some(WaitDisplay::new());
    let (backup, outcome) = follow(person, made, &mut shown).await?;
    if let Some(shown) = shown {
        shown.end();
    }
    println!("{}", printable(&ending(&made.name_any(), backup.as_ref(), outcome)));
    Ok(outcome)
}

async fn follow(
    person: &Person,
    made: &Backup,
    shown: &mut Option<WaitDisplay>,
) -> anyhow::Result<(Option<Backup>, WaitOutcome)> {
    let watching = Clients::new(person.target().source()).await?.watch;
    let api: Api<Backup> = Api::namespaced(watching, person.namespace());
    let config = watcher::Config::default().fields(&format!("metadata.name={}", made.name_any()));
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last, mut is_listed) = (made.clone(), false);
    let mut failures = 0;
    loop {
        let seen = tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(watcher::Event::InitApply(backup))) => {
                    is_listed = true;
                    Some(ObservedBackup::There(Box::new(backup)))
                }
                Ok(Some(watcher::Event::Apply(backup))) => Some(ObservedBackup::There(Box::new(backup))),
                Ok(Some(watcher::Event::Delete(_))) => Some(ObservedBackup::Gone),
                Ok(Some(watcher::Event::Init)) => {
                    is_listed = false;
                    None
                }
                Ok(Some(watcher::Event::InitDone)) => (!is_listed).then_some(ObservedBackup::Gone),
                Ok(None) => anyhow::bail!("the watch of Backup {} ended", made.name_any()),
                Err(error) => {
                    failures += 1;
                    if failures == 1 {
                        let why = chain(&error);
                        eprintln!("the API server cannot be watched just now, and is asked again: {why}");
                    }
                    // A right that lacks does not come back.
                    if matches!(&error, watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) if crate::client::is_forbidden(error)) {
                        return Err(error).context("Backups cannot be watched");
                    }
                    None
                }
            },
            _ = ticks.tick() => None,
        };
        match seen {
            Some(ObservedBackup::Gone) => return Ok((None, WaitOutcome::Deleted)),
            // Another one of that name.
            Some(ObservedBackup::There(backup)) if backup.metadata.uid != made.metadata.uid => {
                return Ok((None, WaitOutcome::Deleted));
            }
            Some(ObservedBackup::There(backup)) => {
                failures = 0;
                last = *backup;
                if let Some(outcome) = outcome(&last) {
                    return Ok((Some(last), outcome));
                }
            }
            None => {}
        }
        if let Some(shown) = shown {
            shown.show(person, &last).await;
        }
    }
}

/// What is shown: one line that changes on a terminal, otherwise a line for each change.
struct WaitDisplay {
    is_terminal: bool,
    text: String,
    phase: Option<BackupPhase>,
    told: Option<Instant>,
    waits: Option<(Option<u32>, String)>,
    asked: Option<Instant>,
}

impl WaitDisplay {
    fn new() -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self { is_terminal, text: String::new(), phase: None, told: None, waits: None, asked: None }
    }

    async fn show(&mut self, person: &Person, backup: &Backup) {
        let is_due = |since: Option<Instant>| since.is_none_or(|since| since.elapsed() >= SELDOM);
        if backup.phase() != BackupPhase::Queued {
            self.waits = None;
        } else if is_due(self.asked) {
            self.asked = Some(Instant::now());
            self.waits = waits(person, &backup.name_any()).await;
        }
        let waits = self.waits.as_ref().map(|(position, why)| (*position, why.as_str()));
        let text = printable(&line(backup, waits, Timestamp::now())).into_owned();
        let is_new_phase = self.phase != Some(backup.phase());
        if text == self.text || !(self.is_terminal || is_new_phase || is_due(self.told)) {
            return;
        }
        if self.is_terminal {
            // Phases stay on the screen.
            let start = if is_new_phase && self.phase.is_some() { "\n" } else { "\r\x1b[K" };
            print!("{start}{text}");
            // A terminal that is gone ends this process by itself.
            let _ = std::io::stdout().flush();
        } else {
            println!("{text}");
        }
        (self.text, self.phase, self.told) = (text, Some(backup.phase()), Some(Instant::now()));
    }

    fn end(&self) {
        if self.is_terminal && !self.text.is_empty() {
            println!();
        }
    }
}

/// Position and reason, as `berth queue explain` tells them.
async fn waits(person: &Person, name: &str) -> Option<(Option<u32>, String)> {
    let here = person.here().await.ok()?;
    let situation = read(&here).await.ok()?;
    let line = situation.lines().into_iter().find(|line| line.name == name)?;
    Some((line.position, line.waits_for?))
}

/// Waits until the Backup ends, and shows nothing.
///
/// # Errors
/// When the Backup cannot be watched.
pub async fn quietly(person: &Person, backup: &Backup) -> anyhow::Result<()> {
    follow(person, backup, &mut None).await.map(drop)
}
