//! 200 DataUploads of 1 MiB and ten stock node-agents: by themselves without a limit, and with
//! berth, which gives eight places at a time.
//!
//! The pods that would move the data are played, each for two tenths of a second, so this is the
//! time of node-agents and of berth. A stock node-agent asks the API server five times a second at
//! most: each of its movements takes more than a second.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use berth_test_support::movers::{Burst, Kind, Pace};
use berth_test_support::{Kubectl, PATIENCE, node_agent, wait_for};
use serde_json::json;

use crate::installed::{NAMESPACE, cluster, install};
use crate::report::{Aim, Report};

const PART: &str = "200 DataUploads, ten node-agents";
const UPLOADS: usize = 200;
const AGENTS: usize = 10;
const LIMIT: usize = 8;
const PACE: Pace = Pace { start: Duration::from_millis(100), run: Duration::from_millis(100) };
const LONGEST: Duration = Duration::from_secs(1200);

struct Done {
    /// From the first acceptance to the last end.
    seconds: f64,
    /// Most that were being prepared at one time.
    most: usize,
}

pub fn measure(berth: &Path, alone: bool, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("{PART}:");
    let ours = run(berth, true)?;
    report.add(PART, &format!("berth, limit {LIMIT}: wall"), ours.seconds, "s", Aim::None);
    let (most, limit) = (ours.most as f64, LIMIT as f64);
    report.add(PART, "berth: most places at one time", most, "", Aim::AtMost(limit));
    report.add(PART, "berth: all places are used", most, "", Aim::AtLeast(limit));
    if alone {
        return Ok(());
    }
    let theirs = run(berth, false)?;
    report.add(PART, "stock, no limit: wall", theirs.seconds, "s", Aim::None);
    report.add(PART, "stock: most at one time", theirs.most as f64, "", Aim::None);
    report.add(PART, "stock's time to berth's", theirs.seconds / ours.seconds, "×", Aim::AtLeast(1.0));
    Ok(())
}

/// Each in a cluster of its own, so that none finds the objects of the other one.
fn run(berth: &Path, is_limited: bool) -> anyhow::Result<Done> {
    let cluster = cluster(berth, AGENTS)?;
    let burst = Burst::new(&cluster, NAMESPACE, PACE)?;
    let mut config = json!({"loadConcurrency": {"globalConfig": 1}});
    if is_limited {
        install(&cluster, berth, "--beside-velero")?;
        config["loadConcurrency"]["prepareQueueLength"] = json!(LIMIT);
    }
    node_agent::start(&cluster, NAMESPACE, &config, &[])?;
    if is_limited {
        await_gate(cluster.kubectl())?;
    }
    burst.create(Kind::DataUpload, "upload", UPLOADS)?;
    burst.wait_completed(UPLOADS, LONGEST)?;
    let (work, most) = (burst.history.work()?, burst.history.most_preparing()?);
    ensure!(most > 0, "nobody saw what was prepared");
    Ok(Done { seconds: work.as_secs_f64(), most })
}

/// Until each replica of the webhook, which take turns, holds back what has no place. It is a dry
/// run, so no object is created.
fn await_gate(kubectl: &Kubectl) -> anyhow::Result<()> {
    const TURNS: usize = 8;
    let forged = json!({
        "apiVersion": Kind::DataUpload.api_version(), "kind": Kind::DataUpload.name(),
        "metadata": {"name": "forged", "namespace": NAMESPACE},
        "spec": {
            "snapshotType": "CSI", "sourcePVC": "data", "sourceNamespace": "source", "operationTimeout": "1m",
            "backupStorageLocation": "default",
        },
        "status": {"phase": "Accepted"},
    })
    .to_string();
    wait_for("the gate to be closed", PATIENCE, || {
        for _ in 0..TURNS {
            let answer = kubectl.answer(&["create", "--dry-run=server", "-f", "-"], &forged)?;
            if !answer.stderr.contains("waits for a place") {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}
