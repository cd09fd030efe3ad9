//! `berth check`: what [`crate::check`] finds, as a table or for machines.

use std::process::ExitCode;

use crate::args::{CheckArgs, Output};
use crate::check::{self, Finding, Outcome};
use crate::cli::print::{self, tell_server};
use crate::client::persistent;
use crate::install::Cluster;

/// Exit code 0: no fault. 1: a fault. 2: the check itself failed.
pub async fn run(args: CheckArgs) -> ExitCode {
    match look(&args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("berth: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn look(args: &CheckArgs) -> anyhow::Result<bool> {
    tell_server(&args.target).await?;
    let client = persistent(args.target.source()).await?;
    let cluster = Cluster { client, namespace: args.target.namespace.clone() };
    let findings = check::all(&cluster).await?;
    match args.output {
        Output::Table => findings.iter().for_each(tell),
        structured => print::value(&mut std::io::stdout().lock(), &findings, structured)?,
    }
    Ok(findings.iter().all(|finding| finding.outcome != Outcome::Fault))
}

fn tell(finding: &Finding) {
    let word = match finding.outcome {
        Outcome::Ok => "ok",
        Outcome::Warning => "warning",
        Outcome::Fault => "FAULT",
    };
    println!("{word:<8} {:<17} {}", finding.check, finding.message);
    if let Some(fix) = &finding.fix {
        println!("{:<26} -> {fix}", "");
    }
}
