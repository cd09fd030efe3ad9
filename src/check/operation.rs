//! Checks the leader, clocks, Velero's controllers, and storage locations.

use std::time::Duration;

use anyhow::Context as _;
use berth_api::keys;
use berth_api::velero::BackupStorageLocation;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::Api;
use kube::client::Body;
use tokio::time::{sleep, timeout};

use super::Finding;
use crate::client::{ListResult, list};
use crate::install::{ClusterFindings, InstallCluster, Installed, velero};
use crate::leader::LEASE;
use crate::settings::{Controller, Executor};
use crate::text::chain;

/// A leader that has not renewed its Lease for this long counts as gone.
const SILENT: SignedDuration = SignedDuration::from_secs(60);
/// Larger differences of clocks are a fault, because certificates allow for this much.
const FAR: SignedDuration = SignedDuration::from_mins(10);
/// How long to wait for a new leader, because candidates read the Lease every few seconds.
const HANDOVER: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(250);
/// Larger differences of clocks are a warning.
const APART: SignedDuration = SignedDuration::from_secs(30);

pub(super) async fn all(
    cluster: &InstallCluster,
    found: &ClusterFindings,
    installed: &Installed,
) -> anyhow::Result<Vec<Finding>> {
    handed_over(cluster).await;
    let server_time = server_time(cluster).await;
    let mut findings =
        leader(cluster, server_time.as_ref().map_or_else(|_| Timestamp::now(), |time| *time)).await;
    findings.push(clock(server_time.map_err(|error| format!("{error:#}"))));
    findings.extend(other_queue(found, installed, &cluster.namespace));
    findings.push(locations(cluster).await?);
    Ok(findings)
}

/// The API server's clock, in whole seconds.
pub(super) async fn server_time(cluster: &InstallCluster) -> anyhow::Result<Timestamp> {
    let request = http::Request::get("/version").body(Body::empty())?;
    let response = cluster.client.send(request).await?;
    let date = response.headers().get(http::header::DATE).context("the API server tells no time")?;
    let date = jiff::fmt::rfc2822::parse(date.to_str()?)?;
    Ok(date.timestamp())
}

/// Waits for a handover, because a moment without a leader between two leaders is no finding.
async fn handed_over(cluster: &InstallCluster) {
    let api: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let waiting = async {
        while let Ok(Some(lease)) = api.get_opt(LEASE).await {
            if lease.spec.and_then(|spec| spec.holder_identity).is_some_and(|holder| !holder.is_empty()) {
                return;
            }
            sleep(LOOK).await;
        }
    };
    let _ = timeout(HANDOVER, waiting).await;
}

async fn leader(cluster: &InstallCluster, now: Timestamp) -> Vec<Finding> {
    const CHECK: &str = "leader";
    let look = format!("kubectl logs --namespace {} deployment/berth-controller", cluster.namespace);
    let api: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let lease = match api.get_opt(LEASE).await {
        Ok(Some(lease)) => lease,
        Ok(None) => return vec![Finding::fault(CHECK, "no controller ever led", look)],
        Err(error) => {
            let message = format!("the Lease cannot be read: {}", chain(&error));
            return vec![Finding::warning(CHECK, message, "bind the Role berth-viewer")];
        }
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let renewed = spec.renew_time.map(|time| time.0).unwrap_or_default();
    let age = now.duration_since(renewed);
    let mut findings = Vec::new();
    match holder {
        None => findings.push(Finding::fault(CHECK, "no controller leads: nothing is started", look)),
        Some(holder) if age > SILENT => findings.push(Finding::fault(
            CHECK,
            format!("{holder} is silent since {renewed}: nothing is started (or its clock is wrong)"),
            look,
        )),
        Some(holder) if age < -APART => findings.push(Finding::warning(
            CHECK,
            format!("the clock of {holder} is ahead of the API server's by {} s", -age.as_secs()),
            "set its node's clock (NTP)",
        )),
        Some(holder) => findings.push(Finding::ok(CHECK, holder)),
    }
    if let Some(here) = lease.annotations().get(keys::CONTROLLERS) {
        findings.push(controllers(here));
    }
    if let Some(why) = lease.annotations().get(keys::STOPPED).filter(|why| !why.is_empty()) {
        findings.push(Finding::fault(
            "queue",
            format!("nothing is started: {why}"),
            "do as the message says",
        ));
    }
    findings
}

/// Which controllers of a backup's life run here, as the leader says.
fn controllers(here: &str) -> Finding {
    let all = Controller::ALL.map(Controller::as_str);
    let is_here = |one: &&str| here.split(',').any(|name| name == *one);
    let (ours, others): (Vec<&str>, Vec<&str>) = all.into_iter().partition(is_here);
    let said = match (ours.is_empty(), others.is_empty()) {
        (_, true) => "all run here".to_owned(),
        (true, false) => "none run here: they are left to Velero".to_owned(),
        (false, false) => format!("here: {}; left to Velero: {}", ours.join(", "), others.join(", ")),
    };
    Finding::ok("controllers", said)
}

fn clock(server_time: Result<Timestamp, String>) -> Finding {
    const CHECK: &str = "clock";
    let server_time = match server_time {
        Ok(server_time) => server_time,
        Err(why) => return Finding::warning(CHECK, why, "compare the clocks by hand"),
    };
    let apart = Timestamp::now().duration_since(server_time).abs();
    let said = format!("this machine and the API server are {} s apart", apart.as_secs());
    if apart > FAR {
        Finding::fault(CHECK, said, "set the clocks (NTP): certificates tolerate ten minutes")
    } else if apart > APART {
        Finding::warning(CHECK, said, "set the clocks (NTP)")
    } else {
        Finding::ok(CHECK, said)
    }
}

fn other_queue(found: &ClusterFindings, installed: &Installed, namespace: &str) -> Option<Finding> {
    const CHECK: &str = "Velero";
    let velero = match (&found.velero, installed.executor) {
        (Some(velero), _) => velero,
        (None, Executor::Berth) => return None,
        (None, Executor::Velero) => {
            return Some(Finding::fault(
                CHECK,
                format!(
                    "there is no Velero in namespace {namespace}, and with --executor=velero nothing else runs backups"
                ),
                format!("install Velero there, or: berth install --namespace {namespace} --executor=berth"),
            ));
        }
    };
    if installed.trusts_no_velero() {
        return Some(Finding::warning(
            CHECK,
            format!(
                "Deployment {} came after berth, which refuses what it writes: expiry, deletion, what it finds in stores",
                velero.name_any()
            ),
            format!("berth install --namespace {namespace} --executor={}", installed.executor.as_str()),
        ));
    }
    if let Some((why, way_out)) = velero::runs_nothing(velero, installed.executor) {
        return Some(Finding::fault(CHECK, why, way_out));
    }
    let on = velero::still_on(velero, velero::to_switch_off(installed.executor));
    Some(if on.is_empty() {
        Finding::ok(CHECK, format!("Deployment {} leaves the queue to berth", velero.name_any()))
    } else {
        Finding::fault(
            CHECK,
            format!(
                "Deployment {} still runs what berth takes the place of: {}",
                velero.name_any(),
                on.join(", ")
            ),
            format!(
                "berth install --namespace {namespace} --executor={} --adjust-velero",
                installed.executor.as_str()
            ),
        )
    })
}

async fn locations(cluster: &InstallCluster) -> anyhow::Result<Finding> {
    const CHECK: &str = "locations";
    let found = list::<BackupStorageLocation>(&cluster.client, &cluster.namespace);
    let ListResult { items: found, unreadable } =
        found.await.context("the storage locations cannot be listed")?;
    if found.is_empty() && unreadable.is_empty() {
        return Ok(Finding::warning(
            CHECK,
            "there is no BackupStorageLocation yet: backups have nowhere to go",
            "create one: see manifests/samples/backupstoragelocation-accepted.yaml",
        ));
    }
    let said = |location: &BackupStorageLocation| {
        let status = location.status.clone().unwrap_or_default();
        let phase =
            status.phase.map(|phase| format!("{phase:?}")).unwrap_or_else(|| "not checked yet".to_owned());
        (
            phase == "Available",
            format!("{} is {phase} {}", location.name_any(), status.message.unwrap_or_default()),
        )
    };
    let hidden = unreadable.iter().map(|(name, why)| (false, format!("{name} cannot be read: {why}")));
    let all = found.iter().map(said).chain(hidden);
    let (good, bad): (Vec<_>, Vec<_>) = all.partition(|(available, _)| *available);
    let text = |all: &[(bool, String)]| {
        all.iter().map(|(_, said)| said.trim_end().to_owned()).collect::<Vec<_>>().join("; ")
    };
    Ok(if bad.is_empty() {
        Finding::ok(CHECK, text(&good))
    } else if good.is_empty() {
        Finding::fault(CHECK, text(&bad), "see the message; credentials and bucket are the usual causes")
    } else {
        Finding::warning(CHECK, text(&bad), "see the message; credentials and bucket are the usual causes")
    })
}
