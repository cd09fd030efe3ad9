//! What a person waits for: a help, and the first byte of a list, beside stock Velero's command on
//! the same machine in the same run.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use berth_test_support::backup::backup_of;
use berth_test_support::peers::install_definitions;
use berth_test_support::process::without_proxies;
use berth_test_support::{ControlPlane, binaries};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::observer;
use crate::report::{Aim, Report, median};

const NAMESPACE: &str = "velero";
const BACKUPS: usize = 1_000;
const ROUNDS: usize = 15;

pub fn measure(runtime: &Runtime, berth: &Path, alone: bool, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("Commands of people:");
    let plane = ControlPlane::start()?;
    plane.define()?;
    install_definitions(&plane)?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    plane.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &namespace.to_string())?;
    runtime.block_on(async {
        let backups = (0..BACKUPS).map(|i| backup_of(&format!("nightly-{i:04}"), &[&format!("n-{i}")]));
        observer::create(&plane.client().await?, NAMESPACE, backups.collect()).await
    })?;
    let stock = if alone { None } else { Some(binaries::get(["velero"])?) };
    let stock = stock.as_ref().map(|[program]| program.as_path());
    let get = format!("backup get, {BACKUPS} Backups");
    for (what, args, most) in [
        ("--help", &["--help"][..], 10.0),
        ("backup create --help", &["backup", "create", "--help"], 10.0),
        (&get, &["backup", "get"], 50.0),
    ] {
        // By turns, so that both have the same machine.
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(first_byte(berth, args, &plane)?);
            if let Some(stock) = stock {
                theirs.push(first_byte(stock, args, &plane)?);
            }
        }
        report.add("cli", &format!("{what}, first output"), median(&ours), "ms", Aim::AtMost(most));
        if !theirs.is_empty() {
            report.add("cli", &format!("{what}, first output of velero"), median(&theirs), "ms", Aim::None);
        }
    }
    Ok(())
}

/// Milliseconds from the start of the process to the first byte of what it prints. It must end
/// well.
fn first_byte(program: &Path, args: &[&str], plane: &ControlPlane) -> anyhow::Result<f64> {
    let mut command = Command::new(program);
    // Before what is asked for, because velero takes no flag with a value after `--help`.
    command.args(["--namespace", NAMESPACE]).args(args).env("KUBECONFIG", plane.kubeconfig());
    command.env("HOME", plane.folder()).current_dir(plane.folder());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    without_proxies(&mut command);
    let begun = Instant::now();
    let mut child = command.spawn().with_context(|| format!("failed to run {}", program.display()))?;
    let mut out = child.stdout.take().context("no output")?;
    let read = out.read(&mut [0])?;
    let took = begun.elapsed();
    std::io::copy(&mut out, &mut std::io::sink())?;
    ensure!(child.wait()?.success() && read == 1, "{} {args:?} printed nothing", program.display());
    Ok(took.as_secs_f64() * 1_000.0)
}
