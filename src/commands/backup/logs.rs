//! `berth backup logs`: the log of a Backup that has ended, and with `--follow`, while it runs, what
//! the checkpoints of its run have of it.

use std::io::{IsTerminal as _, Read, Write as _};
use std::time::Duration;

use anyhow::{bail, ensure};
use berth_api::velero::{Backup, BackupPhase};
use flate2::read::MultiGzDecoder;
use kube::ResourceExt as _;
use tokio::time::{Instant, sleep};

use super::super::person::Person;
use super::artifacts::ArtifactSource;
use super::wait;
use crate::args::backup::{LogsArgs, TlsArgs};
use crate::backup::live_log;
use crate::cli::download::{DownloadArtifact, Fetcher, Unpacked};
use crate::cli::print::{self, note};
use crate::cli::wait::{WaitOutcome, outcome};
use crate::text::printable;

/// How often the store is asked for more. A run writes no checkpoint more often.
const PERIOD: Duration = Duration::from_secs(5);
/// How long one such request may take.
const LOOK: Duration = Duration::from_secs(30);
/// How long a link is used. It is valid for ten minutes.
const RENEW: Duration = Duration::from_secs(480);
/// Most bytes of a log, as text, that are compared with what was printed.
const MOST: u64 = 64 << 20;

pub async fn run(person: &Person, args: &LogsArgs) -> anyhow::Result<()> {
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
        ensure!(
            ended != WaitOutcome::Deleted,
            "Backup {} was deleted before it was seen to end: there is no log of it",
            args.name
        );
        backup = seen;
    }
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
            let faults = backup.status.and_then(|status| status.validation_errors).unwrap_or_default();
            bail!(
                "Backup {} was never run, so there is no log. It is not valid: {}",
                args.name,
                printable(&faults.join("; "))
            )
        }
        phase => bail!(
            "Backup {} is {}, and its log is in the store only when it has ended: wait for it by --follow; `berth backup describe {}` shows what it does now",
            args.name,
            phase.as_str(),
            args.name
        ),
    }
    let deadline = Instant::now() + args.fetch.timeout.0;
    let source =
        ArtifactSource::of(person, &backup, DownloadArtifact::Log, &args.fetch.tls, deadline).await?;
    source
        .read(move |pieces| {
            let (mut log, mut start) = (pieces.unpacked()?, Vec::new());
            log.by_ref().take(printed.0.len() as u64).read_to_end(&mut start)?;
            if start == printed.0 {
                return show(log);
            }
            note!("{ANEW}");
            show(start.as_slice().chain(log))
        })
        .await
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
        if !runs(person, backup).await {
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

async fn runs(person: &Person, backup: &Backup) -> bool {
    let Ok(api) = person.api::<Backup>().await else { return false };
    let found = api.get(&backup.name_any()).await;
    found.is_ok_and(|found| found.uid() == backup.uid() && found.phase() == BackupPhase::InProgress)
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
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::Arc;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_log_that_grows_the_rest_is_printed_and_another_one_from_its_beginning() {
        let printed = PrintedLog(b"one\n".to_vec());
        for (log, rest, goes_on) in [
            ("one\n", "", true),
            ("one\ntwo\n", "two\n", true),
            ("other\n", "other\n", false),
            ("", "", false),
        ] {
            assert_eq!(printed.rest(log.as_bytes()), (rest.as_bytes(), goes_on), "{log}");
        }
        assert_eq!(PrintedLog::default().rest(b"one\n"), (&b"one\n"[..], true));
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap()
    }

    /// A checkpoint with log lines, and much more behind them.
    fn checkpoint(digest: &str, lines: &[u8]) -> Vec<u8> {
        let remembered = gzip("{}");
        let head = json!({
            "version": 3, "run": "r", "scope": "", "upload": "", "digest": digest,
            "lengths": [remembered.len(), lines.len(), 0, 0, 0, 100_000],
        });
        [format!("{head}\n").as_bytes(), &remembered, lines, &[0; 100_000]].concat()
    }

    /// How many bytes, from the first one on.
    fn asked_for(connection: &TcpStream) -> usize {
        let mut most = 0;
        for line in BufReader::new(connection).lines() {
            let line = line.unwrap().to_lowercase();
            if let Some(last) = line.strip_prefix("range: bytes=0-") {
                most = last.parse::<usize>().unwrap() + 1;
            }
            if line.is_empty() {
                break;
            }
        }
        most
    }

    #[tokio::test]
    async fn the_log_of_a_checkpoint_is_read_once_and_nothing_behind_it() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}/checkpoint", listener.local_addr().unwrap());
        let (stored, asked) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (content, ranges) = (Arc::clone(&stored), Arc::clone(&asked));
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let most = asked_for(&connection);
                let content: Vec<u8> = content.lock().clone();
                let end = content.len().min(most);
                ranges.lock().push(end);
                let status = if content.is_empty() { "404 Not Found" } else { "206 Partial Content" };
                let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {end}\r\n\r\n");
                connection.write_all(&[head.as_bytes(), &content[..end]].concat()).unwrap();
            }
        });
        let fetcher = Fetcher::new(&[], false).unwrap();
        let mut known = String::new();
        assert!(newer(&fetcher, &url, &mut known).await.unwrap().is_none(), "there is no checkpoint yet");
        // Several members, as of a run that continues.
        let lines = [gzip("one\n"), gzip("two\n")].concat();
        for (digest, lines, log) in [
            ("a", &lines[..], Some("one\ntwo\n")),
            ("a", &lines[..], None),
            // A log that is too long for a checkpoint.
            ("b", &lines[..0], None),
            ("c", &lines[..], Some("one\ntwo\n")),
        ] {
            *stored.lock() = checkpoint(digest, lines);
            let read = newer(&fetcher, &url, &mut known).await.unwrap();
            assert_eq!(read.map(|log| String::from_utf8(log).unwrap()).as_deref(), log, "{digest}");
        }
        assert!(asked.lock().iter().all(|end| *end <= 8192), "{:?}", asked.lock());
        *stored.lock() = b"no checkpoint\n".to_vec();
        assert!(newer(&fetcher, &url, &mut known).await.is_err());
    }
}
