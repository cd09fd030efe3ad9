//! The queue as a table, JSON or YAML.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use berth_core::queue::QueueReason;
use jiff::Timestamp;
use tokio::sync::watch::{Receiver, Sender};

use super::super::namespaced::NamespacedClient;
use super::operations::{self, Operations};
use super::situation::{ExpectedTimes, Explanation, Leader, QueueRow, QueueSituation, leader, read};
use crate::args::Output;
use crate::cli::print::{self, ColumnHead, age};
use crate::queue::BackupCache;
use crate::queue::cache::reflect_queue;
use crate::queue::seen::BackupAfterQueue;
use crate::text::printable;

/// Changes within this time are shown together.
const CALM: Duration = Duration::from_millis(200);
/// The list is shown again after this time without a change, because ages grow.
const REFRESH: Duration = Duration::from_secs(5);

pub fn show(situation: &QueueSituation, output: Output) -> anyhow::Result<()> {
    let lines = situation.lines();
    let mut out = print::stdout();
    match output {
        Output::Table => write_table(&mut out, &lines, situation.now),
        structured => print::value(&mut out, &lines, structured),
    }
}

/// Shows the list again at every change, for ever: in place on a terminal, otherwise one after the
/// other.
pub(super) async fn watch(
    here: &NamespacedClient,
    watching: &kube::Client,
    output: Output,
) -> anyhow::Result<()> {
    // A first list reports errors, where a watch would only retry.
    read(here).await?;
    loop {
        let known = leader(&here.client, &here.namespace).await;
        let store = BackupCache::new(known.settings.clone());
        let (waiting, read) = (Sender::default(), Sender::<KnownOperations>::default());
        tokio::select! {
            shown = show_changes(here, &store, &known, (&waiting, read.subscribe()), output) => shown?,
            () = follow(here, waiting.subscribe(), &read) => anyhow::bail!("the reading of operations ended"),
            () = reflect_queue(watching, &here.namespace, &store) => anyhow::bail!("the watch ended"),
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// By UID of the Backup.
type KnownOperations = HashMap<String, Operations>;

/// Reads the operations of these Backups again and again, beside what is shown meanwhile. Runs for
/// ever.
async fn follow(
    here: &NamespacedClient,
    mut waiting: Receiver<Vec<BackupAfterQueue>>,
    read: &Sender<KnownOperations>,
) {
    loop {
        let is_any = waiting.wait_for(|waiting| !waiting.is_empty()).await.is_ok();
        if !is_any {
            // Nobody shows anything any more.
            return std::future::pending().await;
        }
        let after = waiting.borrow_and_update().clone();
        read.send_replace(operations::read(here, &after, Timestamp::now()).await);
        tokio::time::sleep(REFRESH).await;
    }
}

/// Resolves when the leader's annotations on the Lease change. `waiting`: is told whose operations
/// are to be read.
async fn show_changes(
    here: &NamespacedClient,
    store: &BackupCache,
    known: &Leader,
    (waiting, mut read): (&Sender<Vec<BackupAfterQueue>>, Receiver<KnownOperations>),
    output: Output,
) -> anyhow::Result<()> {
    let mut changed = store.changed();
    let mut asked = Instant::now();
    loop {
        changed.mark_unchanged();
        if store.is_synced() {
            let mut situation = QueueSituation::new(store, known, Timestamp::now());
            waiting.send_replace(situation.after.clone());
            situation.operations.clone_from(&read.borrow_and_update());
            if std::io::stdout().is_terminal() {
                write!(print::stdout(), "\x1b[2J\x1b[H")?;
            }
            show(&situation, output)?;
            if output == Output::Table {
                writeln!(print::stdout())?;
            }
        }
        tokio::time::sleep(CALM).await;
        let any = async {
            tokio::select! {
                _ = changed.changed() => {}
                _ = read.changed() => {}
            }
        };
        let _ = tokio::time::timeout(REFRESH, any).await;
        if asked.elapsed() >= REFRESH {
            if leader(&here.client, &here.namespace).await != *known {
                return Ok(());
            }
            asked = Instant::now();
        }
    }
}

fn write_table(out: &mut impl Write, lines: &[QueueRow], now: Timestamp) -> anyhow::Result<()> {
    if lines.is_empty() {
        writeln!(out, "Nothing waits and nothing runs.")?;
        return Ok(());
    }
    let expected = |line: &QueueRow| match (line.expected_start, line.expected_end) {
        (Some(start), _) => format!("starts {}", expected_time(start, now)),
        (None, Some(end)) => format!("ends {}", expected_time(end, now)),
        (None, None) => String::new(),
    };
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            vec![
                line.position.map_or_else(String::new, |p| p.to_string()),
                line.name.clone(),
                line.phase.to_owned(),
                line.priority_class.clone().unwrap_or_default(),
                age(now.duration_since(line.since)),
                line.operations.map_or_else(String::new, |operations| operations.to_string()),
                expected(line),
                line.waits_for.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let heads = [
        ColumnHead::Always("POSITION"),
        ColumnHead::Always("NAME"),
        ColumnHead::Always("PHASE"),
        ColumnHead::IfAny("PRIORITY"),
        ColumnHead::Always("SINCE"),
        ColumnHead::IfAny("OPERATIONS"),
        ColumnHead::IfAny("EXPECTED"),
        ColumnHead::Always("WAITS FOR"),
    ];
    Ok(print::table(out, &heads, &rows)?)
}

/// As in `in 5m (3m to 9m)`.
pub fn expected_time(when: ExpectedTimes, now: Timestamp) -> String {
    let [earliest, likely, latest] =
        [when.earliest, when.likely, when.latest].map(|at| age(at.duration_since(now)));
    if earliest == latest { format!("in {likely}") } else { format!("in {likely} ({earliest} to {latest})") }
}

/// Every Backup that blocks one, the namespaces that both take, and what the blocking ones wait
/// for.
pub fn explain(situation: &QueueSituation, name: &str, output: Output) -> anyhow::Result<()> {
    let explained = situation.explain(name)?;
    let mut out = print::stdout();
    if output != Output::Table {
        return print::value(&mut out, &explained, output);
    }
    write_explanation(&mut out, &explained, situation.now)
}

/// The same as sentences.
pub fn write_explanation(
    out: &mut impl Write,
    explained: &Explanation,
    now: Timestamp,
) -> anyhow::Result<()> {
    let name = &explained.line.name;
    let line = &explained.line;
    // That may quote what a store has answered.
    let waits_for = line.waits_for.as_deref().map(printable);
    match (line.position, &waits_for) {
        (Some(position), Some(waits_for)) => {
            writeln!(out, "{name} is at position {position} and waits for {waits_for}.")?
        }
        (None, Some(_)) if line.reason == Some(QueueReason::Next.word()) => {
            writeln!(out, "{name} starts next.")?
        }
        (None, Some(waits_for)) => writeln!(out, "{name} waits for {waits_for}.")?,
        _ if line.operations.is_some() => writeln!(out, "{name} is being completed, and holds no slot.")?,
        _ => writeln!(out, "{name} runs.")?,
    }
    if let Some(operations) = line.operations {
        writeln!(out, "  all objects are stored; operations that have ended: {operations}")?;
    }
    if let Some(start) = line.expected_start {
        writeln!(out, "  it is expected to start {}", expected_time(start, now))?;
    }
    if let Some(end) = line.expected_end {
        writeln!(out, "  it is expected to end {}", expected_time(end, now))?;
    }
    for blocker in &explained.blockers {
        let state = if blocker.running { "runs" } else { "is ahead" };
        let namespaces = blocker.namespaces.join(", ");
        write!(out, "  {} {state}, and takes {namespaces} too: it must end first", blocker.name)?;
        if let Some(end) = blocker.expected_end {
            write!(out, ", expected {}", expected_time(end, now))?;
        }
        if let Some(waits_for) = blocker.waits_for.as_ref().filter(|_| !blocker.running) {
            write!(out, "; it waits for {}", printable(waits_for))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "  {} of {} slots are taken", explained.running, explained.slots)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get};
    use serde_json::json;

    use super::*;

    const UPLOADS: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datauploads";

    fn after(uid: &str) -> BackupAfterQueue {
        BackupAfterQueue {
            name: uid.to_owned(),
            uid: uid.to_owned(),
            resource_version: "1".to_owned(),
            phase: berth_api::velero::BackupPhase::WaitingForPluginOperations,
            is_ours: true,
            is_canceled: false,
            since: Timestamp::UNIX_EPOCH,
            location: String::new(),
            operations: berth_core::operation::OperationCounts::default(),
            limit: Duration::from_secs(3600),
            runs: berth_core::run::Runs::default(),
        }
    }

    #[test]
    fn what_a_store_has_answered_controls_no_terminal() {
        let row = QueueRow {
            name: "b".to_owned(),
            phase: "Queued",
            position: Some(1),
            priority_class: None,
            waits_for: Some("storage location l: it is unavailable (\u{1b}[2J\nok)".to_owned()),
            reason: Some("LocationUnavailable"),
            since: Timestamp::UNIX_EPOCH,
            expected_start: None,
            expected_end: None,
            operations: None,
        };
        let explained = Explanation { line: row, blockers: Vec::new(), running: 0, slots: 1 };
        let mut out = Vec::new();
        write_explanation(&mut out, &explained, Timestamp::UNIX_EPOCH).unwrap();
        let said = String::from_utf8(out).unwrap();
        assert!(said.contains("unavailable (\\u{1b}[2J\\nok)") && said.lines().count() == 2, "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn operations_are_read_every_few_seconds_however_often_the_list_changes() {
        let upload = json!({
            "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
            "metadata": {
                "name": "d", "labels": {"velero.io/backup-uid": "u"}, "creationTimestamp": "2026-09-21T14:00:00Z",
                "ownerReferences": [{"apiVersion": "velero.io/v1", "kind": "Backup", "name": "b", "uid": "u"}],
            },
            "status": {"phase": "Completed", "progress": {"bytesDone": 7, "totalBytes": 7}},
        });
        let list = json!({
            "apiVersion": "velero.io/v2alpha1", "kind": "DataUploadList", "metadata": {}, "items": [upload],
        });
        let api = Scripted::new().always(get(UPLOADS).answers(list));
        let here = NamespacedClient { client: api.client("velero"), namespace: "velero".to_owned() };
        let (waiting, read) = (Sender::default(), Sender::<KnownOperations>::default());
        let mut shown = read.subscribe();
        let changes = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(api.asked().is_empty(), "nothing waits");
            waiting.send_replace(vec![after("u")]);
            shown.changed().await.unwrap();
            assert_eq!(shown.borrow()["u"].bytes_done, Some(7));
            for _ in 0..90 {
                waiting.send_replace(vec![after("u"), after("v")]);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = follow(&here, waiting.subscribe(), &read) => {}
            () = changes => {}
        }
        assert_eq!(api.asked().len(), 1 + 2, "once at first, and once for each of them since");
    }
}
