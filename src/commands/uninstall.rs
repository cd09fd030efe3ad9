//! `berth uninstall`: removes berth, in an order in which no request waits for a missing webhook.

use anyhow::Context as _;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};

use crate::args::UninstallArgs;
use crate::cli::print::say;
use crate::client::persistent;
use crate::install::apply::LISTS_AT_ONCE;
use crate::install::render::{VELERO_GROUP, is_admission};
use crate::install::{
    InstallCluster, Reference, RunningBackups, apply, finalizers, member_objects, remove, running, velero,
};
use crate::movers::nudge;

/// How many objects of a kind are removed at the same time.
const AT_ONCE: usize = 8;

pub async fn run(args: UninstallArgs) -> anyhow::Result<()> {
    crate::cli::print::tell_server(&args.target).await?;
    let client = persistent(args.target.source()).await?;
    let cluster = InstallCluster { client, namespace: args.target.namespace };
    let there = cluster.inspect().await?;
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
            say!("{reference} would be removed{}", if kept { ", unless it is in use" } else { "" });
        }
        for reference in member_objects::written(&cluster, None).await? {
            say!("{reference} would be removed");
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
    remove_all(&cluster, &before).await?;
    // Roles go after the pods, because until then the pods hand over Backups, undo what hooks
    // began, and release the Lease.
    remove::pods_gone(&cluster, args.timeout).await?;
    remove_all(&cluster, &after).await?;
    for reference in remove::delete_written(&cluster).await? {
        say!("{reference} removed");
    }
    let woken = nudge::refused(&cluster.client, &cluster.namespace).await;
    if woken > 0 {
        say!("{woken} data movers annotated, so that their node-agents check them again");
    }
    for released in remove::release_holds(&cluster).await? {
        say!("{released} released");
    }
    put_velero_back(&cluster).await?;
    let (definitions, namespaces): (Vec<_>, Vec<_>) =
        kept.iter().partition(|one| one.kind == "CustomResourceDefinition");
    // All are listed first.
    let removals = stream::iter(definitions).map(|one| remove_definition(&cluster, one, has_velero));
    tell_all(removals.buffered(LISTS_AT_ONCE)).await?;
    let removals = stream::iter(namespaces).map(|one| remove_namespace(&cluster, one));
    tell_all(removals.buffered(AT_ONCE)).await?;
    tell_held(&cluster).await?;
    say!(
        "berth is removed from namespace {}; Backups, locations and archives are as they were",
        cluster.namespace
    );
    Ok(())
}

/// Removes objects, one kind after the other, because some of one kind need those of another.
async fn remove_all(cluster: &InstallCluster, references: &[Reference]) -> anyhow::Result<()> {
    for of_kind in references.chunk_by(|one, other| one.kind == other.kind) {
        let removals = stream::iter(of_kind).map(|one| async move {
            anyhow::Ok(remove::delete(cluster, one).await?.then(|| format!("{one} removed")))
        });
        tell_all(removals.buffered(AT_ONCE)).await?;
    }
    Ok(())
}

/// Prints what became of each object, in their order.
async fn tell_all(told: impl Stream<Item = anyhow::Result<Option<String>>>) -> anyhow::Result<()> {
    let mut told = std::pin::pin!(told);
    while let Some(line) = told.try_next().await? {
        line.into_iter().for_each(|line| say!("{line}"));
    }
    Ok(())
}

/// Removes a definition without objects. Returns what became of it, unless it was gone before.
async fn remove_definition(
    cluster: &InstallCluster,
    reference: &Reference,
    has_velero: bool,
) -> anyhow::Result<Option<String>> {
    if has_velero && reference.name.ends_with(VELERO_GROUP) {
        return Ok(Some(format!("{reference} kept: there is a Velero")));
    }
    let count = remove::instances(cluster, reference).await?;
    if !count.is_none() {
        return Ok(Some(format!("{reference} kept: there are objects of it ({count})")));
    }
    Ok(remove::delete(cluster, reference).await?.then(|| format!("{reference} removed")))
}

/// Removes a namespace without inhabitants. Returns what became of it, unless it was gone before.
async fn remove_namespace(cluster: &InstallCluster, reference: &Reference) -> anyhow::Result<Option<String>> {
    let inhabitants = remove::inhabitants(cluster, &reference.name).await?;
    if !inhabitants.is_empty() {
        return Ok(Some(format!("{reference} kept: there are {}", inhabitants.join(", "))));
    }
    Ok(remove::delete(cluster, reference).await?.then(|| format!("{reference} removed")))
}

/// The warning about Backups that berth runs, because they do not end without berth.
async fn tell_running(cluster: &InstallCluster) -> anyhow::Result<()> {
    let all = RunningBackups::read(cluster).await?.by_berth;
    if !all.is_empty() {
        say!(
            "{} running ({}): without berth that stays InProgress, until a later `berth install` continues it. To have it end first, wait before you uninstall, or `berth queue cancel NAME`",
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
    let held = finalizers::held(cluster).await?;
    if let Some(note) = finalizers::note(&held, &cluster.namespace) {
        say!("{note}");
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
        say!("Velero runs backups by itself again");
    }
    Ok(())
}
