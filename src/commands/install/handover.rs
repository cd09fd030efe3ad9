//! What one program hands to another when berth is installed over an earlier installation or beside
//! a Velero: the backups, the certificates, and a member's objects.

use anyhow::{Context as _, bail, ensure};
use kube::ResourceExt;
use serde_json::json;

use crate::args::InstallArgs;
use crate::cli::print::say;
use crate::install::{
    ClusterFindings, InstallCluster, InstallSettings, MemberParts, Reference, RunningBackups, apply, diff,
    member_objects, running, velero,
};
use crate::settings::{Certificates, Executor};

/// The handovers that this installation causes.
pub(super) struct Hands {
    pub(super) executor_to: Option<Executor>,
    pub(super) certificates_to: Option<Certificates>,
    pub(super) member: Option<MemberParts>,
    /// A berth was installed before.
    pub(super) from_member: bool,
}

impl Hands {
    pub(super) fn of(found: &ClusterFindings, settings: InstallSettings) -> Self {
        let was = found.installed.as_ref();
        Self {
            executor_to: was
                .is_some_and(|was| was.executor != settings.executor)
                .then_some(settings.executor),
            certificates_to: was
                .is_some_and(|was| was.certificates != settings.certificates)
                .then_some(settings.certificates),
            from_member: was.is_some_and(|was| was.member.is_some()),
            member: settings.member,
        }
    }

    /// Objects of an earlier member installation that are not needed any more.
    pub(super) async fn written(&self, cluster: &InstallCluster) -> anyhow::Result<Vec<Reference>> {
        if self.from_member {
            member_objects::written(cluster, self.member.as_ref()).await
        } else {
            Ok(Vec::new())
        }
    }
}

/// Where berth replaces Velero as the executor: waits until Velero runs no Backup, because
/// otherwise both would write the same backups.
pub(super) async fn take_over(cluster: &InstallCluster, args: &InstallArgs) -> anyhow::Result<()> {
    let wanted = velero::to_switch_off(Executor::Berth);
    let Some(deployment) = cluster.velero().await? else { return Ok(()) };
    let on = velero::still_on(&deployment, wanted);
    let Some(change) = velero::change(&deployment, wanted).filter(|_| !on.is_empty()) else { return Ok(()) };
    let name = deployment.name_any();
    if !args.adjust_velero {
        bail!(
            "Velero (Deployment {name}) runs backups itself ({}), and two must not; nothing was changed. Either say --adjust-velero, or start it with {}={}, or let Velero run what berth queues: --executor=velero",
            on.join(", "),
            "--disable-controllers",
            wanted.join(",")
        );
    }
    say!("{}", difference(&name, &change));
    // berth resumes its own Backups.
    let left = running::ended(
        cluster,
        args.timeout,
        |running| running.by_others,
        |names| say!("waiting: Velero runs {names}"),
    );
    let left = left.await?;
    ensure!(
        left.is_empty(),
        "Velero still runs {}; nothing was changed. Run this again when that has ended, or with a longer --timeout",
        running::names(&left)
    );
    change.write(&cluster.client, &deployment).await.context("--adjust-velero")?;
    say!("deployment/{name} changed; `berth uninstall` changes it back");
    let written = cluster.velero().await?.context("Velero's Deployment is gone")?;
    let object = serde_json::to_value(&written)?;
    let velero = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object["metadata"]});
    apply::rolled_out(cluster, &[velero], args.timeout, |line| say!("{line}")).await
}

/// Where Velero replaces berth as the executor (`was`): waits until berth runs no Backup, because
/// Velero would not end berth's.
pub(super) async fn let_end(
    cluster: &InstallCluster,
    args: &InstallArgs,
    was: Executor,
) -> anyhow::Result<()> {
    if was == Executor::Velero {
        let left = RunningBackups::read(cluster).await?.by_berth;
        if !left.is_empty() {
            say!(
                "berth began {}, and nobody runs that while Velero runs the backups: `berth install --executor=berth` continues it, `kubectl delete` ends it",
                running::names(&left)
            );
        }
        return Ok(());
    }
    let left = running::ended(
        cluster,
        args.timeout,
        |running| running.by_berth,
        |names| {
            say!(
                "waiting: berth runs {names} (`berth queue hold --all` lets nothing that waits start meanwhile)"
            )
        },
    );
    let left = left.await?;
    ensure!(
        left.is_empty(),
        "berth still runs {} after {} s, and a Velero would not go on with that; nothing was changed. Run this again when it has ended, or with a longer --timeout, or end it: `berth queue cancel NAME`. So that no further one starts meanwhile: `berth queue hold --all`, and `berth queue hold --location NAME` for what is created later; `berth queue release` takes that back",
        running::names(&left),
        args.timeout.as_secs()
    );
    Ok(())
}

pub(super) fn difference(name: &str, change: &velero::DeploymentChange) -> String {
    let lines = |args: &[String]| args.iter().map(|arg| format!("{arg}\n")).collect::<String>();
    diff::texts(&format!("deployment/{name} arguments"), &lines(&change.before), &lines(&change.after))
}
