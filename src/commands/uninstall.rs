//! `berth uninstall`: removes berth, in an order in which no request waits for a missing webhook.

use anyhow::Context as _;

use crate::args::UninstallArgs;
use crate::client::persistent;
use crate::install::render::{VELERO_GROUP, is_admission};
use crate::install::{InstallCluster, RunningBackups, apply, left, member, remove, running, velero};
use crate::movers::nudge;

pub async fn run(args: UninstallArgs) -> anyhow::Result<()> {
    crate::cli::print::tell_server(&args.target).await?;
    let client = persistent(args.target.source()).await?;
    let cluster = InstallCluster { client, namespace: args.target.namespace };
    let there = cluster.look().await?;
    if let Some(release) = &there.helm_release {
        anyhow::bail!(
            "berth was installed here by Helm: helm uninstall {release} --namespace {}",
            cluster.namespace
        );
    }
    let has_velero = there.velero.is_some();
    let other = there.called.filter(|called| *called != cluster.namespace);
    if let Some(other) = other {
        anyhow::bail!("the berth of this cluster is installed in namespace {other}: say --namespace {other}");
    }
    let found = apply::installed(&cluster).await?;
    if args.dry_run {
        for reference in &found {
            let kept = matches!(reference.kind.as_str(), "Namespace" | "CustomResourceDefinition");
            println!("{reference} would be removed{}", if kept { ", unless it is in use" } else { "" });
        }
        for reference in member::written(&cluster, None).await? {
            println!("{reference} would be removed");
        }
        tell_running(&cluster).await?;
        tell_held(&cluster).await?;
        return Ok(());
    }
    tell_running(&cluster).await?;
    let (kept, removed): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|one| matches!(one.kind.as_str(), "Namespace" | "CustomResourceDefinition"));
    // The list has admission objects first, then what runs pods, then the objects that these need.
    let (before, after): (Vec<_>, Vec<_>) = removed
        .into_iter()
        .partition(|one| is_admission(&one.kind) || matches!(one.kind.as_str(), "Deployment" | "DaemonSet"));
    for reference in &before {
        if remove::delete(&cluster, reference).await? {
            println!("{reference} removed");
        }
    }
    // Roles go after the pods, because until then the pods hand over Backups, undo what hooks
    // began, and release the Lease.
    remove::pods_gone(&cluster, args.timeout).await?;
    for reference in &after {
        if remove::delete(&cluster, reference).await? {
            println!("{reference} removed");
        }
    }
    for reference in remove::delete_written(&cluster).await? {
        println!("{reference} removed");
    }
    let woken = nudge::refused(&cluster.client, &cluster.namespace).await;
    if woken > 0 {
        println!("{woken} data movers that may have waited for a place woken");
    }
    for released in remove::release_holds(&cluster).await? {
        println!("{released} released");
    }
    put_velero_back(&cluster).await?;
    for reference in kept.iter().filter(|one| one.kind == "CustomResourceDefinition") {
        let count = remove::instances(&cluster, reference).await?;
        if has_velero && reference.name.ends_with(VELERO_GROUP) {
            println!("{reference} kept: there is a Velero");
        } else if count > 0 {
            println!("{reference} kept: there are objects of it ({count})");
        } else if remove::delete(&cluster, reference).await? {
            println!("{reference} removed");
        }
    }
    for reference in kept.iter().filter(|one| one.kind == "Namespace") {
        let inhabitants = remove::inhabitants(&cluster, &reference.name).await?;
        if !inhabitants.is_empty() {
            println!("{reference} kept: there are {}", inhabitants.join(", "));
        } else if remove::delete(&cluster, reference).await? {
            println!("{reference} removed");
        }
    }
    tell_held(&cluster).await?;
    println!(
        "berth is removed from namespace {}; Backups, locations and archives are as they were",
        cluster.namespace
    );
    Ok(())
}

/// The warning about Backups that berth runs, because they do not end without berth.
async fn tell_running(cluster: &InstallCluster) -> anyhow::Result<()> {
    let all = RunningBackups::read(cluster).await?.by_berth;
    if !all.is_empty() {
        println!(
            "{} running ({}): without berth that stays InProgress, until a later `berth install` goes on with it. To have it end first, wait before you uninstall, or `berth queue cancel NAME`",
            match all.len() {
                1 => "1 Backup is".to_owned(),
                several => format!("{several} Backups are"),
            },
            running::names(&all)
        );
    }
    Ok(())
}

/// The warning about objects of shared buckets that cannot be deleted without berth.
async fn tell_held(cluster: &InstallCluster) -> anyhow::Result<()> {
    let held = left::held(cluster).await?;
    if let Some(note) = left::note(&held, &cluster.namespace) {
        println!("{note}");
    }
    Ok(())
}

async fn put_velero_back(cluster: &InstallCluster) -> anyhow::Result<()> {
    let Some(deployment) = cluster.velero().await? else { return Ok(()) };
    if !velero::is_adjusted(&deployment) {
        return Ok(());
    }
    if let Some(change) = velero::change(&deployment, &[]) {
        change
            .write(&cluster.client, &deployment)
            .await
            .context("Velero's own queue is still switched off")?;
        println!("Velero runs backups by itself again");
    }
    Ok(())
}
