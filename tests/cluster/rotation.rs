//! Certificates, replicas and versions change under load, and no admission is lost.
//!
//! `make test` does it for a minute; `make test-large` as often as it takes to be sure, and with
//! another build to upgrade to and from.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::admission::program;
use crate::support::pods::Cluster;
use crate::support::{number, wait_for};

use super::load::Load;
use super::{IMAGE, NAMESPACE, PATIENCE, images, make_location, run};

const WEBHOOK: &str = "app.kubernetes.io/name=berth-webhook";
const PREVIOUS: &str = "berth:previous";

/// Certificates taken up by the replicas that run, together.
pub fn swapped(cluster: &Cluster) -> u64 {
    cluster.metric(NAMESPACE, WEBHOOK, "berth_certificate_swapped_total").unwrap()
}

/// Asks one replica after the other to go, as the drain of a node does; gives how many.
fn restart_replicas(cluster: &Cluster, done: &AtomicBool) -> u32 {
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut count = 0;
    while !done.load(Ordering::Relaxed) {
        let ready: Vec<_> = cluster
            .pods(NAMESPACE, WEBHOOK)
            .unwrap()
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_ready(pod))
            .collect();
        // Never the last one: that is what the disruption budget is for.
        if ready.len() < 2 {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let pod = ready[usize::try_from(random % 2).unwrap()].metadata.name.clone().unwrap();
        cluster.kubectl().run(&["delete", "pod", &pod, "-n", NAMESPACE, "--wait=false"]).unwrap();
        count += 1;
        let until = std::time::Instant::now() + Duration::from_millis(2_000 + random % 4_000);
        while std::time::Instant::now() < until && !done.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    count
}

fn is_ready(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}

fn rotate(cluster: &Cluster, args: &[&str]) {
    let all = [&["certificates", "rotate"], args].concat();
    let output = crate::install::berth(&cluster.plane().kubeconfig(), &all);
    assert!(output.status.success(), "{}", crate::install::said(&output));
}

#[test]
fn rotations_restarts_and_upgrades_cost_no_admission() {
    let (leaves, authorities) = (number("BERTH_LEAF_ROTATIONS", 12), number("BERTH_CA_ROTATIONS", 1));
    let per_second = number("BERTH_CREATES_PER_SECOND", 20);
    let cluster = Cluster::start(images()).unwrap();
    let previous = std::env::var_os("BERTH_PREVIOUS").map(PathBuf::from);
    cluster.set_image(PREVIOUS, previous.clone().unwrap_or_else(program));
    run(&cluster, "berth install");
    let _s3 = make_location(&cluster);

    let load = Load::start(&cluster, per_second);
    let done = AtomicBool::new(false);
    let mut has_swapped = false;
    let restarts = std::thread::scope(|scope| {
        let restarting = scope.spawn(|| restart_replicas(&cluster, &done));
        for index in 0..leaves.max(authorities) {
            if index < authorities {
                rotate(&cluster, &["--ca"]);
            }
            if index < leaves {
                rotate(&cluster, &[]);
            }
            has_swapped = has_swapped || swapped(&cluster) > 0;
        }
        done.store(true, Ordering::Relaxed);
        restarting.join().unwrap()
    });
    let told = load.finish();
    println!("{leaves} leaves, {authorities} authorities, {restarts} restarts: {told:?}");
    told.ensure_all_queued();
    assert!(restarts > 0 && told.created > 100);
    // A replica that started after the last rotation has taken up none, until the next one comes by
    // itself.
    wait_for("a certificate to be taken up", PATIENCE, || {
        has_swapped = has_swapped || swapped(&cluster) > 0;
        Ok(has_swapped.then_some(()))
    })
    .unwrap();

    // From here on each begins while replicas of the one before are on their way out.
    let load = Load::start(&cluster, per_second);
    run(&cluster, "kubectl -n velero rollout restart deployment/berth-webhook deployment/berth-controller");
    run(&cluster, "kubectl -n velero rollout status deployment/berth-webhook --timeout=600s");
    run(&cluster, "kubectl -n velero rollout status deployment/berth-controller --timeout=600s");
    let told = load.finish();
    println!("rolling restart: {told:?}");
    told.ensure_all_queued();

    // Down to the other build, by its own installer, and up again. Without one (BERTH_PREVIOUS) it
    // is this one under another name.
    let installer = previous.as_ref().map_or_else(|| "berth".to_owned(), |path| path.display().to_string());
    for (installer, image) in [(installer.as_str(), PREVIOUS), ("berth", IMAGE)] {
        let load = Load::start(&cluster, per_second);
        run(&cluster, &format!("{installer} install --image {image}"));
        if image == IMAGE {
            gone(&cluster);
        }
        let told = load.finish();
        println!(
            "to {image} ({}): {told:?}",
            if previous.is_some() { "another build" } else { "the same build" }
        );
        told.ensure_all_queued();
    }
}

/// Waits until no replica is on its way out.
fn gone(cluster: &Cluster) {
    wait_for("the old replicas to have gone", PATIENCE, || {
        let pods = cluster.pods(NAMESPACE, WEBHOOK)?;
        let stay = pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_none() && is_ready(pod));
        Ok((stay && pods.len() == 2).then_some(()))
    })
    .unwrap();
}
