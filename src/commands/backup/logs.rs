//! `berth backup logs`: the log of a Backup that has ended, and with `--follow`, while it runs,
//! what the checkpoints of its run have of it.

use std::io::{IsTerminal as _, Read, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use berth_api::velero::{Backup, BackupPhase};
use berth_core::download::VALID;
use flate2::read::MultiGzDecoder;
use kube::ResourceExt as _;
use tokio::time::{Instant, sleep};

use super::super::person::Person;
use super::artifacts::{ArtifactSource, waits_for_operations};
use super::wait;
use crate::args::backup::{FetchArgs, LogsArgs, TlsArgs};
use crate::backup::live_log;
use crate::cli::download::{DownloadArtifact, Fetcher, Pieces, Unpacked};
use crate::cli::print::{self, note};
use crate::cli::wait::{WaitOutcome, ending, outcome};
use crate::text::printable;

/// How often the store is asked for more. A run may write checkpoints more often, and each of them
/// has all lines so far.
const PERIOD: Duration = Duration::from_secs(5);
/// How long one such request may take.
const LOOK: Duration = Duration::from_secs(30);
/// How long a link is used: less than it is valid, because reading takes time, too.
const RENEW: Duration = Duration::from_secs(VALID.as_secs().unsigned_abs() * 4 / 5);
/// Most bytes of a log, as text, that are compared with what was printed.
const MOST: u64 = 64 << 20;

pub async fn run(person: &Person, args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let mut backup = person.get::<Backup>(&args.name).await?;
    let mut printed = PrintedLog::default();
    if args.follow && outcome(&backup).is_none() {
        note!(
            "The whole log of Backup {} is in the store when the backup has ended: this waits until then.",
            args.name
        );
        let (seen, ended) = tokio::select! {
            ended = wait::aside(person, &backup) => ended?,
            error = print_meanwhile(person, &backup, &args.fetch.tls, &mut printed) => return Err(error),
        };
        // Another one of that name may be there by now, and its log is not meant.
        if ended == WaitOutcome::Deleted {
            note!("Backup {} was deleted before it was seen to end: there is no log of it", args.name);
            return Ok(ExitCode::from(ended.code()));
        }
        backup = seen;
    }
    let Some(ended) = outcome(&backup).filter(|_| args.follow) else {
        print_stored(person, &backup, &args.fetch, printed).await?;
        return Ok(ExitCode::SUCCESS);
    };
    // Of these the store has no log.
    if !matches!(ended, WaitOutcome::Canceled | WaitOutcome::FailedValidation) {
        print_stored(person, &backup, &args.fetch, printed).await?;
    }
    note!("{}", printable(&ending(&args.name, Some(&backup), ended)));
    Ok(ExitCode::from(ended.code()))
}

/// Prints the log that the store has, or its rest.
async fn print_stored(
    person: &Person,
    backup: &Backup,
    fetch: &FetchArgs,
    printed: PrintedLog,
) -> anyhow::Result<()> {
    let name = backup.name_any();
    match backup.phase() {
        BackupPhase::Completed
        | BackupPhase::PartiallyFailed
        | BackupPhase::Failed
        | BackupPhase::WaitingForPluginOperations
        | BackupPhase::WaitingForPluginOperationsPartiallyFailed
        | BackupPhase::Finalizing
        | BackupPhase::FinalizingPartiallyFailed
        | BackupPhase::Deleting => {}
        BackupPhase::FailedValidation => {
            let faults = backup.status.as_ref().and_then(|status| status.validation_errors.as_deref());
            bail!(
                "Backup {name} was never run, so there is no log. It is not valid: {}",
                printable(&faults.unwrap_or_default().join("; "))
            )
        }
        phase => bail!(
            "Backup {name} is {}, and its log is in the store only when it has ended: wait for it by --follow; `berth backup describe {name}` shows what it does now",
            phase.as_str()
        ),
    }
    let deadline = Instant::now() + fetch.timeout.0;
    let source = ArtifactSource::of(person, backup, DownloadArtifact::Log, &fetch.tls, deadline).await?;
    let read = move |pieces: Pieces| {
        let (mut log, mut start) = (pieces.unpacked()?, Vec::new());
        log.by_ref().take(printed.0.len() as u64).read_to_end(&mut start)?;
        if start == printed.0 {
            return show(log);
        }
        note!("{ANEW}");
        show(start.as_slice().chain(log))
    };
    let read = source.fetcher.stream(&source.url, deadline, read).await?;
    if matches!(read, Unpacked::Missing)
        && let Some(log) = kept(person, backup, &fetch.tls, deadline).await
    {
        note!(
            "Backup {name} waits for operations, and this is its log so far: --follow also prints the rest"
        );
        return show(log.as_slice());
    }
    source.there(read)
}

/// The log of a backup that waits for its operations: berth's engine stores it when these have
/// ended, and until then it is in the checkpoint.
async fn kept(person: &Person, backup: &Backup, tls: &TlsArgs, deadline: Instant) -> Option<Vec<u8>> {
    if !waits_for_operations(backup.phase()) {
        return None;
    }
    let source =
        ArtifactSource::of(person, backup, DownloadArtifact::Checkpoint, tls, deadline).await.ok()?;
    newer(&source.fetcher, &source.url, &mut String::new()).await.ok()?
}

/// Said before a log that does not begin as what was printed of it.
const ANEW: &str = "The backup began again, and this is its log from the beginning:";

fn show(mut log: impl Read) -> anyhow::Result<()> {
    let mut out = print::stdout();
    if std::io::stdout().is_terminal() {
        print::log(log, &mut out)?;
    } else {
        std::io::copy(&mut log, &mut out)?;
    }
    Ok(out.flush()?)
}

/// What was printed of a log.
#[derive(Debug, Default)]
struct PrintedLog(Vec<u8>);

impl PrintedLog {
    /// What is new in a log, and whether the log begins as what was printed.
    fn rest<'l>(&self, log: &'l [u8]) -> (&'l [u8], bool) {
        match log.strip_prefix(self.0.as_slice()) {
            Some(rest) => (rest, true),
            None => (log, false),
        }
    }

    fn print(&mut self, log: Vec<u8>) -> anyhow::Result<()> {
        let (rest, goes_on) = self.rest(&log);
        if !goes_on {
            note!("{ANEW}");
        }
        show(rest)?;
        self.0 = log;
        Ok(())
    }
}

/// Prints what the store has of the log while the backup runs. What cannot be read is not missed,
/// because the whole log comes at the end. Ends only when nothing can be printed.
async fn print_meanwhile(
    person: &Person,
    backup: &Backup,
    tls: &TlsArgs,
    printed: &mut PrintedLog,
) -> anyhow::Error {
    let (mut link, mut known) = (None::<(ArtifactSource, Instant)>, String::new());
    loop {
        sleep(PERIOD).await;
        if !has_checkpoint(person, backup).await {
            continue;
        }
        if link.as_ref().is_none_or(|(_, made)| made.elapsed() >= RENEW) {
            let now = Instant::now();
            let made =
                ArtifactSource::of(person, backup, DownloadArtifact::Checkpoint, tls, now + LOOK).await;
            link = made.ok().map(|source| (source, now));
        }
        let Some((source, _)) = &link else { continue };
        if let Ok(Some(log)) = newer(&source.fetcher, &source.url, &mut known).await
            && let Err(error) = printed.print(log)
        {
            return error;
        }
    }
}

/// Whether the run of the backup may have written one.
async fn has_checkpoint(person: &Person, backup: &Backup) -> bool {
    let Ok(api) = person.api::<Backup>().await else { return false };
    let found = api.get(&backup.name_any()).await;
    found.is_ok_and(|found| {
        let phase = found.phase();
        found.uid() == backup.uid() && (phase == BackupPhase::InProgress || waits_for_operations(phase))
    })
}

/// The log in the checkpoint, if that is not the `known` one.
async fn newer(fetcher: &Fetcher, url: &str, known: &mut String) -> anyhow::Result<Option<Vec<u8>>> {
    let read = async |most: usize| fetcher.start(url, most, Instant::now() + LOOK).await;
    let Unpacked::Read(start) = read(live_log::START).await? else { return Ok(None) };
    let extent = live_log::extent(&start)?;
    if extent.digest == *known {
        return Ok(None);
    }
    let Unpacked::Read(start) = read(extent.bytes).await? else { return Ok(None) };
    let lines = live_log::lines(start)?;
    *known = extent.digest;
    // A long log has no place in a checkpoint.
    if lines.is_empty() {
        return Ok(None);
    }
    let mut log = Vec::new();
    MultiGzDecoder::new(&lines[..]).take(MOST).read_to_end(&mut log)?;
    Ok(Some(log))
}

#[cfg(test)]
mod tests;
