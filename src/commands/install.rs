//! `berth install`: everything that a cluster needs, applied in an order in which no admission is ever lost.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use berth_api::velero::Backup;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::args::{Executor, InstallArgs};
use crate::client::persistent;
use crate::install::apply::{self, Mode, Outcome};
use crate::install::cluster::Presence;
use crate::install::{Certificates, Cluster, Found, Settings, diff, remove, render, velero};

const LOOK: Duration = Duration::from_millis(100);
/// Definitions and the namespace are applied before anything that needs them.
const FIRST: [&str; 2] = ["Namespace", "CustomResourceDefinition"];

pub async fn run(args: InstallArgs) -> anyhow::Result<()> {
    let mut settings = settings(&args);
    if args.output.is_some() {
        let beside = args.beside_velero.unwrap_or_default();
        (settings.bring_namespace, settings.bring_definitions) = (!beside, !beside);
        for object in render(&settings)? {
            print!("---\n{}", serde_saphyr::to_string(&object)?);
        }
        return Ok(());
    }
    let client = persistent(args.target.kubeconfig.as_deref()).await?;
    let cluster = Cluster { client, namespace: args.target.namespace.clone() };
    let found = cluster.look().await?;
    found.ensure_installable(&cluster.namespace, args.certificates == Certificates::CertManager)?;
    fit(&mut settings, &found, &args)?;
    let mut objects = render(&settings)?;
    if !found.has_policies {
        println!(
            "Kubernetes {} knows no ValidatingAdmissionPolicy: installed without; while berth is away nothing guards phases and places",
            found.version
        );
        objects.retain(|object| {
            !object["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmissionPolicy"))
        });
    }
    let missing = apply::missing_rights(&cluster.client, &objects).await?;
    if !missing.is_empty() {
        bail!(
            "you lack rights to install berth; nothing was changed. Have somebody grant them, or run this as a cluster admin:\n  {}",
            missing.join("\n  ")
        );
    }
    if args.dry_run || args.diff {
        preview(&cluster, &objects, &args).await?;
        return advise(&cluster, &args, &found).await;
    }
    install(&cluster, objects, &args).await?;
    advise(&cluster, &args, &found).await
}

fn settings(args: &InstallArgs) -> Settings {
    let mut flags = Vec::new();
    flags.extend(args.concurrent_backups.map(|n| format!("--concurrent-backups={n}")));
    flags.extend(args.item_block_worker_count.map(|n| format!("--item-block-worker-count={n}")));
    Settings {
        executor: args.executor,
        certificates: args.certificates,
        image: args.image.clone(),
        args: flags,
        ..Settings::new(&args.target.namespace)
    }
}

/// What is there already is not brought; what somebody else brought is not touched.
fn fit(settings: &mut Settings, found: &Found, args: &InstallArgs) -> anyhow::Result<()> {
    let beside = args.beside_velero.unwrap_or(found.velero.is_some());
    settings.bring_definitions = !beside && found.definition != Presence::Foreign;
    settings.bring_namespace =
        found.namespace != Presence::Foreign && !(beside && found.namespace == Presence::Absent);
    if beside && found.definition == Presence::Absent {
        bail!(
            "--beside-velero: there is no Velero here, not even its definitions; leave the flag out, or install Velero first"
        );
    }
    if args.beside_velero.is_none()
        && let Some(velero) = &found.velero
    {
        println!("found Velero (Deployment {}): installing beside it", velero.name_any());
    }
    Ok(())
}

async fn preview(cluster: &Cluster, objects: &[Value], args: &InstallArgs) -> anyhow::Result<()> {
    for object in objects {
        let (outcome, difference) = apply::apply(&cluster.client, object, Mode::DryRun).await?;
        if args.diff {
            print!("{difference}");
        } else {
            tell(object, outcome, " (dry run)");
        }
    }
    for reference in apply::left_over(cluster, objects).await? {
        println!("{reference} {}", if args.diff { "would be removed" } else { "removed (dry run)" });
    }
    Ok(())
}

async fn install(cluster: &Cluster, objects: Vec<Value>, args: &InstallArgs) -> anyhow::Result<()> {
    let begun = Instant::now();
    let write = async |object: &Value| {
        let (outcome, _) = apply::apply(&cluster.client, object, Mode::Write).await?;
        tell(object, outcome, "");
        anyhow::Ok(())
    };
    let left_over = apply::left_over(cluster, &objects).await?;
    let (first, others): (Vec<Value>, Vec<Value>) = objects
        .into_iter()
        .partition(|object| object["kind"].as_str().is_some_and(|kind| FIRST.contains(&kind)));
    for object in &first {
        write(object).await?;
    }
    for object in first.iter().filter(|object| object["kind"] == "CustomResourceDefinition") {
        apply::established(&cluster.client, object).await?;
    }
    let (others, admission) = apply::split_admission(others);
    for object in &others {
        write(object).await?;
    }
    // Not before there is somebody to answer: an upgrade's new rules meet its new replicas.
    let waiting = apply::rolled_out(cluster, &others, args.timeout, |line| println!("{line}"));
    // At the first installation replicas become ready with their certificate, and a review that nobody answers costs
    // nothing: the API server goes on without.
    waiting.await?;
    for object in &admission {
        write(object).await?;
    }
    for reference in &left_over {
        if remove::delete(cluster, reference).await? {
            println!("{reference} removed");
        }
    }
    answers(cluster, args.timeout).await?;
    println!(
        "berth {} is ready in namespace {} after {:.1} s",
        env!("CARGO_PKG_VERSION"),
        cluster.namespace,
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

fn tell(object: &Value, outcome: Outcome, how: &str) {
    if let Some(reference) = crate::install::Reference::of(object) {
        println!("{reference} {}{how}", outcome.word());
    }
}

/// Waits until the API server gets an answer from berth to a Backup that is tried and not stored.
async fn answers(cluster: &Cluster, patience: Duration) -> anyhow::Result<()> {
    let mut seen = String::new();
    let waiting = async {
        loop {
            match probe(cluster).await {
                Probe::Answered => return,
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

/// What a Backup that is tried and not stored tells of the webhooks.
pub enum Probe {
    /// A place, or a refusal of berth's.
    Answered,
    Silent(String),
}

pub async fn probe(cluster: &Cluster) -> Probe {
    let backup = json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": {"generateName": "berth-check-", "namespace": cluster.namespace},
        "spec": {},
    });
    let Ok(backup) = serde_json::from_value::<Backup>(backup) else {
        return Probe::Silent("no Backup could be made".to_owned());
    };
    let api: Api<Backup> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    match api.create(&dry_run, &backup).await {
        Ok(created) if created.phase().as_str() == "Queued" => Probe::Answered,
        Ok(_) => Probe::Silent("a Backup is let through without a place".to_owned()),
        Err(kube::Error::Api(status)) if status.message.contains("berth.dev") => Probe::Answered,
        Err(error) => Probe::Silent(crate::telemetry::chain(&error)),
    }
}

/// What is left to do in Velero, or done.
async fn advise(cluster: &Cluster, args: &InstallArgs, found: &Found) -> anyhow::Result<()> {
    let wanted = velero::to_switch_off(args.executor);
    let Some(deployment) = &found.velero else {
        if args.executor == Executor::Velero {
            println!(
                "no Velero was found in namespace {}: with --executor=velero nothing runs until there is one",
                cluster.namespace
            );
        }
        return Ok(());
    };
    // What runs as berth left it is left alone.
    let Some(change) = velero::change(deployment, wanted) else { return Ok(()) };
    let name = deployment.name_any();
    let lines = |args: &[String]| args.iter().map(|arg| format!("{arg}\n")).collect::<String>();
    let difference =
        diff::texts(&format!("deployment/{name} arguments"), &lines(&change.before), &lines(&change.after));
    if args.adjust_velero {
        println!("{difference}");
    }
    if args.adjust_velero && !args.dry_run && !args.diff {
        change.write(&cluster.client, deployment).await.context("--adjust-velero")?;
        println!("deployment/{name} changed; `berth uninstall` changes it back");
    } else if !args.adjust_velero {
        println!(
            "Velero still runs what berth takes the place of ({}). Run `berth install --adjust-velero`, or start it with --disable-controllers={}",
            velero::still_on(deployment, wanted).join(", "),
            wanted.join(",")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admission_is_kept_apart() {
        let objects = render(&Settings::new("velero")).unwrap_or_default();
        let (others, admission) = apply::split_admission(objects);
        assert!(
            admission
                .iter()
                .all(|object| object["kind"].as_str().is_some_and(crate::install::render::is_admission))
        );
        assert!(!others.is_empty() && admission.len() == 4, "{}", admission.len());
    }
}
