//! `berth install`: applies all objects, in an order in which no admission request is ever lost.

mod desired;
mod handover;
mod print;

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use kube::ResourceExt;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use desired::{fit, settings, tell_account};
use handover::{Hands, difference, let_end, take_over};

use crate::args::InstallArgs;
use crate::cli::print::{note, say};
use crate::client::persistent;
use crate::install::apply::{self, ApplyMode, ApplyOutcome};
use crate::install::engine::HOOKS;
use crate::install::hub::HubAccess;
use crate::install::probe::{Probe, probe};
use crate::install::render::is_workload;
use crate::install::{
    BackedUpTypes, InstallCluster, Installed, MemberParts, Reference, Reviews, RunningBackups, certificates,
    finalizers, kept, member_objects, pod_volumes, remove, render, running, velero,
};
use crate::objects::{PART_OF, PART_OF_BERTH};
use crate::settings::{Certificates, EngineRights, Executor};

const LOOK: Duration = Duration::from_millis(100);
/// Applied first, because other objects need the definitions and the namespace.
const FIRST: [&str; 2] = ["Namespace", "CustomResourceDefinition"];

pub async fn run(args: InstallArgs) -> anyhow::Result<()> {
    args.member.ensure_consistent()?;
    let access = match (&args.member.hub_kubeconfig, &args.member.seed) {
        (Some(file), Some(seed)) => Some(HubAccess::read(file, seed)?),
        _ => None,
    };
    if args.output.is_some() {
        let engine = match args.engine_rights {
            Some(EngineRights::Listed) => {
                Some(BackedUpTypes::served(&persistent(args.target.source()).await?).await?)
            }
            Some(EngineRights::All) | None => None,
        };
        tell_gaps(engine.as_ref());
        return print::run(&args, access.as_ref(), engine);
    }
    crate::cli::print::tell_server(&args.target).await?;
    let client = persistent(args.target.source()).await?;
    let cluster = InstallCluster { client, namespace: args.target.namespace.clone() };
    let found = cluster.inspect().await?;
    let mut settings = settings(&args, access.as_ref(), Some(&found));
    settings.reviews = Reviews::wanted(&args.reviews, Reviews::of(&cluster, &found).await?);
    pod_volumes::ensure_fits(settings.pod_volumes, settings.files_by_movers, settings.executor)?;
    settings.engine = BackedUpTypes::wanted(args.engine_rights, &cluster.client).await?;
    tell_gaps(settings.engine.as_ref());
    let image = found.installed.as_ref().and_then(Installed::image).filter(|image| image.contains('@'));
    if let (Some(before), Some(now)) = (image, settings.image.as_deref().filter(|now| !now.contains('@'))) {
        say!("{before} was named by its digest, {now} is not: say --image with the digest of this version");
    }
    found.ensure_installable(&cluster.namespace, settings.certificates == Certificates::CertManager)?;
    tell_account(&settings, &found, &args);
    fit(&mut settings, &found, &args)?;
    let mut objects = render(&settings)?;
    for line in kept::keep(&mut objects, found.installed.as_ref())? {
        say!("{line}");
    }
    if let Some(hub) = settings.member.as_ref().and_then(MemberParts::hub) {
        member_objects::ensure_hub(&cluster, hub, access.as_ref()).await?;
    }
    if let Some(access) = &access {
        let deployment = objects.iter().position(is_workload);
        objects.insert(deployment.unwrap_or(objects.len()), access.secret(&cluster.namespace));
    }
    if !found.has_policies {
        say!(
            "Kubernetes {} knows no ValidatingAdmissionPolicy: installed without; while berth is away nothing guards phases and places, and agents of Seeds get no rights here, because nothing would keep one from writing about another's data; nor does berth run hooks, because nothing would keep whoever may create Backups from running commands in any pod",
            found.version
        );
        objects.retain(|object| !needs_policies(object));
    }
    ensure_allowed(&cluster, &objects).await?;
    ensure_ours(&cluster, &objects, args.adopt).await?;
    let executor = settings.executor;
    let hands = Hands::of(&found, settings);
    if args.dry_run || args.diff {
        preview(&cluster, &objects, &args, &hands).await?;
        return advise(&cluster, &args, executor).await;
    }
    match (executor, &found.installed) {
        (Executor::Berth, _) => take_over(&cluster, &args).await?,
        (Executor::Velero, Some(installed)) => let_end(&cluster, &args, installed.executor).await?,
        (Executor::Velero, None) => {}
    }
    install(&cluster, objects, &args, hands).await?;
    advise(&cluster, &args, executor).await
}

/// Prints to standard error, because objects are printed to standard output.
fn tell_gaps(engine: Option<&BackedUpTypes>) {
    if engine.is_some_and(|types| !types.is_whole) {
        note!(
            "the API server does not know all of its types now, because a server behind it does not answer: what is not listed is missing in backups; run this again when it answers"
        );
    }
}

/// Is this a role or a binding of the Seeds' agents at the hub?
const SEEDS_ROLE: &str = "berth-garden-seeds";

/// Is this a policy, or an object that is only safe beside one? Only policies limit what Seeds may
/// write, and which users' Backups may run commands in pods.
fn needs_policies(object: &Value) -> bool {
    let is_policy = object["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmissionPolicy"));
    let is_of_seeds = object["metadata"]["name"] == SEEDS_ROLE && object["kind"] != "Namespace";
    is_policy || is_of_seeds || object["metadata"]["name"] == HOOKS
}

/// Checks before any write that the user has the rights to write everything.
async fn ensure_allowed(cluster: &InstallCluster, objects: &[Value]) -> anyhow::Result<()> {
    let missing = apply::missing_rights(&cluster.client, objects).await?;
    if !missing.is_empty() {
        bail!(
            "you lack rights to install berth; nothing was changed. Have somebody grant them, or run this as a cluster admin:\n  {}",
            missing.join("\n  ")
        );
    }
    // The API server lets a user grant only rights that the user has.
    let is_role =
        |object: &&Value| object["kind"].as_str().is_some_and(|kind| kind.starts_with("ClusterRole"));
    let roles = objects.iter().filter(is_role);
    let tried = apply::apply_at_once(&cluster.client, roles, ApplyMode::DryRun, |_, _, _| {});
    tried.await.context("nothing was changed")
}

/// Checks before any write that no foreign object with one of berth's names would be overwritten.
async fn ensure_ours(cluster: &InstallCluster, objects: &[Value], adopt: bool) -> anyhow::Result<()> {
    let strangers = apply::strangers(&cluster.client, objects).await?;
    if adopt {
        strangers.iter().for_each(|one| say!("{one} is taken over: no `berth install` brought it"));
    } else if !strangers.is_empty() {
        let names: Vec<String> = strangers.iter().map(ToString::to_string).collect();
        bail!(
            "these are there already, and lack the label {PART_OF}={PART_OF_BERTH} of what berth brings or were never written by `berth install`; nothing was changed. Delete what is somebody else's, or take all of it over by --adopt, as after `kubectl apply` (with --diff it only shows what would change):\n  {}",
            names.join("\n  ")
        );
    }
    Ok(())
}

async fn preview(
    cluster: &InstallCluster,
    objects: &[Value],
    args: &InstallArgs,
    hands: &Hands,
) -> anyhow::Result<()> {
    let tell_one = |object: &Value, outcome: ApplyOutcome, difference: &str| {
        if args.diff {
            if !difference.is_empty() {
                say!("{}", difference.trim_end_matches('\n'));
            }
        } else {
            tell(object, outcome, " (dry run)");
        }
    };
    apply::apply_at_once(&cluster.client, objects, ApplyMode::DryRun, tell_one).await?;
    let mut left_over = apply::left_over(cluster, objects).await?;
    left_over.extend(hands.written(cluster).await?);
    for reference in left_over {
        say!("{reference} removed (dry run)");
    }
    Ok(())
}

async fn install(
    cluster: &InstallCluster,
    objects: Vec<Value>,
    args: &InstallArgs,
    hands: Hands,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let left_over = apply::left_over(cluster, &objects).await?;
    let (first, others): (Vec<Value>, Vec<Value>) = objects
        .into_iter()
        .partition(|object| object["kind"].as_str().is_some_and(|kind| FIRST.contains(&kind)));
    let tell_one = |object: &Value, outcome: ApplyOutcome, _: &str| tell(object, outcome, "");
    apply::apply_at_once(&cluster.client, &first, ApplyMode::Write, tell_one).await?;
    for object in first.iter().filter(|object| object["kind"] == "CustomResourceDefinition") {
        apply::established(&cluster.client, object).await?;
    }
    let (others, admission) = apply::split_admission(others);
    if hands.certificates_to == Some(Certificates::SelfManaged) {
        certificates::take(cluster).await?;
    }
    let gives = hands.certificates_to == Some(Certificates::CertManager);
    let (later, others): (Vec<Value>, Vec<Value>) =
        others.into_iter().partition(|object| gives && certificates::is_of_cert_manager(object));
    for rank in 0..RANKS {
        let some = others.iter().filter(|object| rank_of(object) == rank);
        apply::apply_at_once(&cluster.client, some, ApplyMode::Write, tell_one).await?;
    }
    // After the rollout, because the new admission rules need the new replicas.
    apply::rolled_out(cluster, &others, args.timeout, |line| say!("{line}")).await?;
    if hands.executor_to.is_some() || gives {
        // After the pods have ended, because until then they need their rights and a policy that
        // lets them write.
        say!("waiting: the controllers before these end");
        remove::leaving_gone(cluster, args.timeout).await?;
    }
    if hands.executor_to == Some(Executor::Velero) {
        let left = RunningBackups::read(cluster).await?.by_berth;
        ensure!(
            left.is_empty(),
            "{} began at the last moment, and nobody runs that now. `berth install --executor=berth` continues it; have the queue wait before you say --executor=velero again: `berth queue hold --all`, and `berth queue hold --location NAME` for what is created later",
            running::names(&left)
        );
    }
    if gives {
        certificates::give(cluster, &later, args.timeout).await?;
    }
    apply::apply_at_once(&cluster.client, &admission, ApplyMode::Write, tell_one).await?;
    let written = hands.written(cluster).await?;
    for reference in left_over.iter().chain(&written) {
        if remove::delete(cluster, reference).await? {
            say!("{reference} removed");
        }
    }
    if hands.from_member && hands.member.is_none() {
        let mut held = finalizers::held(cluster).await?;
        held.retain(|one| one.by != finalizers::RemovableBy::Controller);
        if let Some(note) = finalizers::note(&held, &cluster.namespace) {
            say!("{note}");
        }
    }
    // Without its Certificate the Secret is not renewed.
    let authority = remove::authority(cluster);
    let taken = hands.certificates_to == Some(Certificates::SelfManaged);
    if taken && remove::delete(cluster, &authority).await? {
        say!("{authority} removed");
    }
    answers(cluster, args.timeout).await?;
    if let Some(line) = cluster.agents().await?.as_ref().and_then(pod_volumes::not_ready_message) {
        say!("{line}");
    }
    say!(
        "berth {} is ready in namespace {} after {:.1} s",
        env!("CARGO_PKG_VERSION"),
        cluster.namespace,
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// How many [`rank_of`] knows.
const RANKS: usize = 3;

/// What an object needs has a lower rank: a binding needs its role, because the API server asks
/// whether the user may give its rights, and pods need all the others.
fn rank_of(object: &Value) -> usize {
    match object["kind"].as_str().unwrap_or_default() {
        _ if is_workload(object) => 2,
        "RoleBinding" | "ClusterRoleBinding" => 1,
        _ => 0,
    }
}

fn tell(object: &Value, outcome: ApplyOutcome, how: &str) {
    if let Some(reference) = Reference::of(object) {
        say!("{reference} {}{how}", outcome.word());
    }
}

/// Waits until a dry-run create of a Backup is answered by berth.
async fn answers(cluster: &InstallCluster, patience: Duration) -> anyhow::Result<()> {
    let mut seen = String::new();
    let waiting = async {
        loop {
            match probe(cluster).await {
                Probe::Answered => return,
                // A user who may not create Backups cannot check more.
                Probe::NotAllowed => return,
                Probe::Silent(why) => seen = why,
            }
            sleep(LOOK).await;
        }
    };
    if timeout(patience, waiting).await.is_err() {
        bail!("the API server does not reach berth's webhooks ({seen}); `berth check` tells more");
    }
    Ok(())
}

/// Adjusts Velero, or prints what has to be adjusted.
async fn advise(cluster: &InstallCluster, args: &InstallArgs, executor: Executor) -> anyhow::Result<()> {
    let wanted = velero::to_switch_off(executor);
    let Some(deployment) = cluster.velero().await? else {
        if executor == Executor::Velero {
            say!(
                "no Velero was found in namespace {}: with --executor=velero nothing runs until there is one",
                cluster.namespace
            );
        }
        return Ok(());
    };
    let change = velero::change(&deployment, wanted);
    if let Some((why, way_out)) = velero::runs_nothing(&deployment, executor)
        && !(args.adjust_velero && change.as_ref().is_some_and(velero::DeploymentChange::switches_on_backups))
    {
        say!("{why}: {way_out}");
    }
    // A Deployment that is as wanted is not changed.
    let Some(change) = change else { return Ok(()) };
    let name = deployment.name_any();
    if !args.adjust_velero {
        let on = velero::still_on(&deployment, wanted);
        if !on.is_empty() {
            say!(
                "Velero still runs what berth takes the place of ({}). Run `berth install --executor={} --adjust-velero`, or start it with --disable-controllers={}",
                on.join(", "),
                executor.as_str(),
                wanted.join(",")
            );
        }
        return Ok(());
    }
    say!("{}", difference(&name, &change));
    if !args.dry_run && !args.diff {
        change.write(&cluster.client, &deployment).await.context("--adjust-velero")?;
        say!("deployment/{name} changed; `berth uninstall` changes it back");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::install::InstallSettings;

    #[test]
    fn roles_come_before_their_bindings_and_all_comes_before_the_pods() {
        let objects = render(&InstallSettings::new("velero")).unwrap();
        let ranks = |kind: &str| -> BTreeSet<usize> {
            objects.iter().filter(|object| object["kind"] == kind).map(rank_of).collect()
        };
        for (earlier, later) in [
            ("Role", "RoleBinding"),
            ("ClusterRole", "ClusterRoleBinding"),
            ("ServiceAccount", "Deployment"),
            ("ClusterRoleBinding", "Deployment"),
        ] {
            let (before, after) = (ranks(earlier), ranks(later));
            assert!(before.last().is_some() && before.last() < after.first(), "{earlier}, {later}");
        }
        assert!(objects.iter().all(|object| rank_of(object) < RANKS), "all are applied");
    }

    #[test]
    fn admission_is_kept_apart() {
        let objects = render(&InstallSettings::new("velero")).unwrap_or_default();
        let (others, admission) = apply::split_admission(objects);
        assert!(
            admission
                .iter()
                .all(|object| object["kind"].as_str().is_some_and(crate::install::render::is_admission))
        );
        assert!(!others.is_empty() && admission.len() == 42, "{}", admission.len());
    }
}
