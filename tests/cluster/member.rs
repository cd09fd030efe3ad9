//! A cluster that is its own hub: the agent runs as it was installed, and is heard of there.

use serde_json::{Value, json};

use super::{NAMESPACE, PATIENCE, images, run, uninstall};
use crate::support::pods::Cluster;
use crate::support::wait_for;

const AGENT: &str = "app.kubernetes.io/name=berth-garden-agent";

/// When the hub last heard from the seed; empty, if never.
fn heartbeat(cluster: &Cluster) -> anyhow::Result<String> {
    let path = "jsonpath={.status.lastHeartbeatTime}";
    cluster.kubectl().run(&["get", "seeds.garden.berth.dev", "ship", "-o", path])
}

/// Waits until the hub hears from the seed again.
fn is_heard_of(cluster: &Cluster, what: &str) {
    let before = heartbeat(cluster).unwrap();
    wait_for(what, PATIENCE, || Ok((heartbeat(cluster)? != before).then_some(()))).unwrap();
}

#[test]
fn a_member_is_heard_of_keeps_its_hub_through_an_upgrade_and_goes() {
    let cluster = Cluster::start(images()).unwrap();
    // Signs of life come every two seconds and a half.
    cluster.set_variable("BERTH_PACE", "4");
    let kubectl = cluster.kubectl();
    run(&cluster, "berth install");
    kubectl.run(&["create", "serviceaccount", "ship", "-n", "garden-seeds"]).unwrap();
    let hub = cluster.plane().service_account_kubeconfig("garden-seeds", "ship").unwrap();
    let install = format!("berth install --hub-kubeconfig {} --seed ship", hub.display());
    let text = run(&cluster, &install);
    assert!(text.contains("secret/berth-garden-hub in velero created"), "{text}");
    let of_hub = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "garden.berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let profile = json!({"provider": "packet", "constraints": {"regions": ["ewr1"]}});
    let seed = json!({"cloudProfileName": "packet", "region": "ewr1"});
    // The webhooks learn of both through watches.
    let profile = of_hub("CloudProfile", "packet", profile);
    wait_for("the profile to be let in", PATIENCE, || Ok(cluster.plane().apply(vec![profile.clone()]).ok()))
        .unwrap();
    let seed = of_hub("Seed", "ship", seed);
    wait_for("the seed to be let in", PATIENCE, || Ok(cluster.plane().apply(vec![seed.clone()]).ok()))
        .unwrap();
    is_heard_of(&cluster, "the hub to hear from the seed");

    let again = run(&cluster, &install);
    assert!(!again.contains(" created") && !again.contains(" changed"), "not idempotent: {again}");
    let again = run(&cluster, "berth install");
    assert!(!again.contains(" created") && !again.contains(" changed"), "{again}");
    run(&cluster, "berth install --image berth:next");
    let pods = cluster.pods(NAMESPACE, AGENT).unwrap();
    assert!(!pods.is_empty());
    for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        let image = &pod.spec.as_ref().unwrap().containers[0].image;
        assert_eq!(image.as_deref(), Some("berth:next"));
    }
    is_heard_of(&cluster, "the hub to hear from the new version");
    let checked = crate::install::said(&crate::install::berth(&cluster.plane().kubeconfig(), &["check"]));
    assert!(
        checked.contains("berth-garden-agent") && checked.contains("Secret berth-garden-hub has"),
        "{checked}"
    );

    let taken = run(&cluster, "berth install --garden-member=false");
    for line in [
        "deployment/berth-garden-agent in velero removed",
        "secret/berth-garden-hub in velero removed",
        "lease/berth-garden-agent in velero removed",
    ] {
        assert!(taken.contains(line), "{line}: {taken}");
    }
    wait_for("its pods to be gone", PATIENCE, || {
        Ok(cluster.pods(NAMESPACE, AGENT)?.is_empty().then_some(()))
    })
    .unwrap();
    run(&cluster, "berth install --garden-member");
    let removed = uninstall(&cluster);
    assert!(removed.contains("deployment/berth-garden-agent in velero removed"), "{removed}");
    let args = ["get", "deployments,leases,roles", "-n", NAMESPACE, "-o", "name"];
    wait_for("nothing of it to be left", PATIENCE, || {
        Ok((!kubectl.run(&args)?.contains("berth-garden")).then_some(()))
    })
    .unwrap();
}
