//! Checks of a cluster and an installation. Each finding has one way out.

mod admission;
mod installation;
pub mod leftovers;
mod operation;

use serde::Serialize;

use crate::install::cluster::Presence;
use crate::install::{ClusterFindings, InstallCluster};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    Ok,
    /// Backups run, but an admin should know this.
    Warning,
    /// Backups do not run as they should.
    Fault,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    pub outcome: CheckOutcome,
    pub message: String,
    /// The way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, outcome: CheckOutcome::Ok, message: message.into(), fix: None }
    }

    fn warning(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, outcome: CheckOutcome::Warning, message: message.into(), fix: Some(fix.into()) }
    }

    fn fault(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, outcome: CheckOutcome::Fault, message: message.into(), fix: Some(fix.into()) }
    }
}

/// Runs all checks, in the order in which an admin would.
///
/// # Errors
/// When the API server does not answer, or refuses the most basic reads.
pub async fn all(cluster: &InstallCluster) -> anyhow::Result<Vec<Finding>> {
    let found = cluster.inspect().await?;
    let mut findings = vec![installation::api_server(&found)];
    findings.push(installation::definition(&found, &cluster.namespace));
    let Some(installed) = found.installed.clone() else {
        findings.extend(installation::before(cluster, &found).await?);
        if found.definition != Presence::Absent {
            findings.push(leftovers::find(cluster).await);
        }
        return Ok(findings);
    };
    findings.extend(installation::after(cluster, &found, &installed).await?);
    findings.extend(admission::all(cluster, &installed).await?);
    findings.extend(operation::all(cluster, &found, &installed).await?);
    findings.push(leftovers::find(cluster).await);
    Ok(findings)
}

/// Do the webhook configurations call another berth?
fn stranger(found: &ClusterFindings, namespace: &str) -> Option<Finding> {
    let other = found.called.as_ref().filter(|other| *other != namespace)?;
    Some(Finding::fault(
        "other berths",
        format!(
            "the webhooks of this cluster call another berth, in namespace {other}: two queues must not run"
        ),
        format!("use that one (--namespace {other}), or end it: berth uninstall --namespace {other}"),
    ))
}
