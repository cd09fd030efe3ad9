//! `berth check`: what [`crate::check`] finds, as a table or for machines; and the removal of what
//! is left of backups that are gone.

use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;

use super::person::confirmed;
use crate::args::{CheckArgs, Output};
use crate::check::leftovers::{self, Leftover, REMOVED};
use crate::check::{self, CheckOutcome, Finding};
use crate::cli::print::{self, ColumnHead, note, tell_server};
use crate::client::persistent;
use crate::install::InstallCluster;
use crate::text::{chain, escaped};

/// Exit code 0: no fault. 1: a fault, or something that could not be removed. 2: the check itself
/// failed.
pub async fn run(args: CheckArgs) -> ExitCode {
    match look(&args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            note!("berth: {}", chain(error.as_ref()));
            ExitCode::from(2)
        }
    }
}

async fn look(args: &CheckArgs) -> anyhow::Result<bool> {
    tell_server(&args.target).await?;
    let client = persistent(args.target.source()).await?;
    let cluster = InstallCluster { client, namespace: args.target.namespace.clone() };
    if args.clean {
        return clean(args, &cluster).await;
    }
    let findings = check::all(&cluster).await?;
    let mut out = print::stdout();
    let written = match args.output {
        Output::Table => {
            findings.iter().try_for_each(|finding| tell(&mut out, finding)).map_err(anyhow::Error::from)
        }
        structured => print::value(&mut out, &findings, structured),
    };
    print::unless_closed(written, ())?;
    Ok(findings.iter().all(|finding| finding.outcome != CheckOutcome::Fault))
}

/// Removes what is left. `false`: not all of it could be removed.
async fn clean(args: &CheckArgs, cluster: &InstallCluster) -> anyhow::Result<bool> {
    let before = leftovers::inspect(cluster).await?;
    let count = before.to_remove().count();
    for why in before.unknown().into_iter().chain(before.more()) {
        note!("{why}");
    }
    if count == 0 {
        list(&before.all, args.output)?;
        note!("there is nothing to remove");
        return Ok(true);
    }
    let told: Vec<Leftover> = before.all.clone();
    write_table(&mut std::io::stderr().lock(), &told)?;
    note!("{count} objects are removed, snapshots in the storage with their objects");
    note!(
        "names and labels are no proof, because whoever may change an object gives it labels: look at each"
    );
    if !confirmed(args.confirm)? {
        return Ok(true);
    }
    note!(
        "waiting until berth's sync has brought all of every storage location twice, because it may bring a Backup back"
    );
    leftovers::wait_synced(cluster, &before).await?;
    let now = leftovers::inspect(cluster).await?;
    let all = leftovers::remove(cluster, &before, now).await;
    list(&all, args.output)?;
    Ok(all.iter().all(|one| one.doubt.is_some() || one.outcome == REMOVED))
}

fn list(all: &[Leftover], output: Output) -> anyhow::Result<()> {
    let mut out = print::stdout();
    let written = match output {
        Output::Table if all.is_empty() => Ok(()),
        Output::Table => write_table(&mut out, all),
        structured => print::value(&mut out, &all, structured),
    };
    print::unless_closed(written, ())
}

fn write_table(out: &mut impl Write, all: &[Leftover]) -> anyhow::Result<()> {
    let heads = [
        ColumnHead::Always("KIND"),
        ColumnHead::Always("NAMESPACE"),
        ColumnHead::Always("NAME"),
        ColumnHead::Always("BACKUP"),
        ColumnHead::IfAny("OUTCOME"),
    ];
    let row = |one: &Leftover| {
        vec![
            one.kind.to_owned(),
            one.namespace.clone(),
            one.name.clone(),
            one.backup.clone(),
            one.outcome.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    Ok(print::table(out, &heads, &rows)?)
}

/// A message may hold what others have written, as a store's answer in the status of a location.
fn printed(text: &str) -> Cow<'_, str> {
    escaped(text, &['\n', '\t'])
}

fn tell(out: &mut impl Write, finding: &Finding) -> std::io::Result<()> {
    let word = match finding.outcome {
        CheckOutcome::Ok => "ok",
        CheckOutcome::Warning => "warning",
        CheckOutcome::Fault => "FAULT",
    };
    writeln!(out, "{word:<8} {:<17} {}", finding.check, printed(&finding.message))?;
    match &finding.fix {
        Some(fix) => writeln!(out, "{:<26} -> {}", "", printed(fix)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_has_answered_controls_no_terminal() {
        let finding = Finding {
            check: "locations",
            outcome: CheckOutcome::Fault,
            message: "l is Unavailable \u{1b}[2Jok\u{202e}".to_owned(),
            fix: Some("see\u{7} it".to_owned()),
        };
        let mut out = Vec::new();
        tell(&mut out, &finding).unwrap();
        let said = String::from_utf8(out).unwrap();
        assert!(said.contains("l is Unavailable \\u{1b}[2Jok\\u{202e}\n"), "{said}");
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{said:?}");
    }
}
