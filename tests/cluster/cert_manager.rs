//! The cert-manager component, with cert-manager's own controllers and cainjector.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_certs::Bundle;
use berth_certs::bundle::is_signed_by;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::pods::Cluster;
use crate::support::process::in_own_session;
use crate::support::{Process, binaries, wait_for};

use super::load::Load;
use super::{NAMESPACE, PATIENCE, demo, images, make_location, run, uninstall};

const PER_SECOND: u32 = 10;
/// The shortest life that cert-manager allows, renewed every five seconds.
const RENEWED_EVERY_5_S: &str = r#"{"spec": {"duration": "1h", "renewBefore": "59m55s"}}"#;
/// Before the end of that life: two seconds after the renewal is due.
const OVERDUE: SignedDuration = SignedDuration::from_secs(59 * 60 + 53);

fn start_cert_manager(cluster: &Cluster) -> Process {
    let [program] = binaries::get(["cert-manager"]).unwrap();
    let mut command = in_own_session(&program);
    command.arg("--kubeconfig").arg(cluster.plane().kubeconfig());
    Process::start("cert-manager", command, &cluster.plane().folder().join("cert-manager.log")).unwrap()
}

fn secret(cluster: &Cluster, name: &str, key: &str) -> anyhow::Result<String> {
    let args = ["get", "secret", name, "-n", NAMESPACE, "--ignore-not-found", "-o", "json"];
    let secret: Value = serde_json::from_str(&cluster.kubectl().run(&args)?).unwrap_or_default();
    Ok(String::from_utf8(STANDARD.decode(secret["data"][key].as_str().unwrap_or_default())?)?)
}

fn leaf(cluster: &Cluster) -> anyhow::Result<String> {
    secret(cluster, "berth-webhook-certs", "tls.crt")
}

/// What the Secret holds, with its key.
fn served(cluster: &Cluster) -> anyhow::Result<Bundle> {
    let key = secret(cluster, "berth-webhook-certs", "tls.key")?;
    let provider = rustls::crypto::ring::default_provider();
    let bundle = Bundle::parse(leaf(cluster)?.as_bytes(), key.as_bytes(), &provider);
    bundle.map_err(|error| anyhow::anyhow!("{error}"))
}

/// Waits until nothing is found to be wrong.
fn healthy(cluster: &Cluster) {
    let check = || crate::install::berth(&cluster.plane().kubeconfig(), &["check"]);
    let well = wait_for("nothing to be wrong", PATIENCE, || Ok(check().status.success().then_some(())));
    well.unwrap_or_else(|error| panic!("{error}: {}", crate::install::said(&check())));
}

/// Waits until both replicas serve what the Secret holds, while no controller renews it.
fn all_serve_it(cluster: &Cluster) {
    let (label, name) = ("app.kubernetes.io/name=berth-webhook", "berth_certificate_not_after_seconds");
    wait_for("both replicas to serve the leaf", PATIENCE, || {
        let wanted = 2 * u64::try_from(served(cluster)?.not_after.as_second())?;
        Ok((cluster.metric(NAMESPACE, label, name)? == wanted).then_some(()))
    })
    .unwrap();
}

/// Waits until there is another leaf.
fn renewed(cluster: &Cluster, before: &str) -> String {
    let other = || Ok(Some(leaf(cluster)?).filter(|now| !now.is_empty() && now != before));
    wait_for("another certificate", PATIENCE, other).unwrap()
}

#[test]
fn cert_manager_issues_renews_and_replaces_and_no_admission_is_lost() {
    let cluster = Cluster::start(images()).unwrap();
    // Who waits for cert-manager says so sooner, and replicas have seven seconds for a new leaf,
    // not twenty.
    cluster.set_variable("BERTH_PACE", "3");
    let kubectl = cluster.kubectl();
    let [definitions] = binaries::get(["cert-manager-crds"]).unwrap();
    kubectl.run(&["apply", "--server-side", "-f", definitions.to_str().unwrap()]).unwrap();
    kubectl.await_definitions().unwrap();
    let mut cert_manager = start_cert_manager(&cluster);
    println!("{}", run(&cluster, "berth install --certificates=cert-manager"));
    let _s3 = make_location(&cluster);
    demo(&cluster);
    run(&cluster, "berth check");
    // berth may neither write the Secret nor caBundle.
    let controller = format!("system:serviceaccount:{NAMESPACE}:berth-controller");
    for what in [["update", "secrets/berth-webhook-certs"], ["patch", "mutatingwebhookconfigurations/berth"]]
    {
        let args = ["auth", "can-i", what[0], what[1], "-n", NAMESPACE, "--as", &controller];
        assert!(!kubectl.answer(&args, "").unwrap().status.success(), "{what:?}");
    }

    let load = Load::start(&cluster, PER_SECOND);
    let patch =
        ["patch", "certificate", "berth-webhook", "-n", NAMESPACE, "--type=merge", "-p", RENEWED_EVERY_5_S];
    let mut current = leaf(&cluster).unwrap();
    kubectl.run(&patch).unwrap();
    for _ in 0..3 {
        current = renewed(&cluster, &current);
    }
    kubectl.run(&["delete", "secret", "berth-webhook-certs", "-n", NAMESPACE]).unwrap();
    current = renewed(&cluster, &current);
    // Another authority: cert-manager makes one when the old one's Secret is gone, and a leaf under
    // it when asked.
    let authority = secret(&cluster, "berth-webhook-ca", "tls.crt").unwrap();
    kubectl.run(&["delete", "secret", "berth-webhook-ca", "-n", NAMESPACE]).unwrap();
    wait_for("another authority", PATIENCE, || {
        let now = secret(&cluster, "berth-webhook-ca", "tls.crt")?;
        Ok((!now.is_empty() && now != authority).then_some(()))
    })
    .unwrap();
    kubectl.run(&["delete", "secret", "berth-webhook-certs", "-n", NAMESPACE]).unwrap();
    renewed(&cluster, &current);
    // Down for longer than a renewal, and back.
    cert_manager.terminate(PATIENCE).unwrap();
    // It may have renewed once more on its way out.
    current = leaf(&cluster).unwrap();
    let end = served(&cluster).unwrap().not_after;
    let is_overdue = || Ok((end.duration_since(Timestamp::now()) < OVERDUE).then_some(()));
    wait_for("a renewal to be missed", PATIENCE, is_overdue).unwrap();
    assert_eq!(leaf(&cluster).unwrap(), current, "nobody is there to renew it");
    cert_manager.restart().unwrap();
    renewed(&cluster, &current);
    let told = load.finish();
    println!("cert-manager: {told:?}");
    told.ensure_all_queued();
    assert!(told.created > 150);

    // berth takes the certificates over, ends trust in what was signed before, which it could not
    // do until then, and gives them back.
    let refused =
        crate::install::berth(&cluster.plane().kubeconfig(), &["certificates", "rotate", "--ca", "--revoke"]);
    let text = crate::install::said(&refused);
    assert!(!refused.status.success() && text.contains("hand them back"), "{text}");
    let old = leaf(&cluster).unwrap();
    let load = Load::start(&cluster, PER_SECOND);
    run(&cluster, "berth install --certificates=self-managed");
    healthy(&cluster);
    for kind in ["certificates", "issuers"] {
        assert_eq!(kubectl.run(&["get", kind, "-n", NAMESPACE, "-o", "name"]).unwrap(), "");
    }
    assert_eq!(secret(&cluster, "berth-webhook-ca", "tls.crt").unwrap(), "");
    let authority_of_its_own = || {
        let authorities = secret(&cluster, "berth-webhook-authority", "ca.crt")?;
        // The first one signs; cert-manager's is trusted beside it.
        let first = authorities.split_inclusive("-----END CERTIFICATE-----").next().unwrap_or_default();
        Ok(is_signed_by(leaf(&cluster)?.as_bytes(), first.as_bytes()).then_some(()))
    };
    wait_for("a certificate of berth's own authority", PATIENCE, authority_of_its_own).unwrap();
    healthy(&cluster);
    run(&cluster, "berth certificates rotate --ca --revoke");
    run(&cluster, "berth install --certificates=cert-manager");
    healthy(&cluster);
    assert_ne!(secret(&cluster, "berth-webhook-ca", "tls.crt").unwrap(), "");
    assert_eq!(secret(&cluster, "berth-webhook-authority", "ca.key").unwrap(), "");
    let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
    let bundle = kubectl.run(&["get", "mutatingwebhookconfiguration", "berth", "-o", path]).unwrap();
    assert!(!is_signed_by(old.as_bytes(), &STANDARD.decode(bundle).unwrap()), "it is believed again");
    let told = load.finish();
    println!("from one to the other and back: {told:?}");
    told.ensure_all_queued();

    // No controller injects the CA: berth does not, and says so.
    cert_manager.terminate(PATIENCE).unwrap();
    let clear =
        json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]).to_string();
    kubectl.run(&["patch", "mutatingwebhookconfiguration", "berth", "--type=json", "-p", &clear]).unwrap();
    let check = crate::install::berth(&cluster.plane().kubeconfig(), &["check"]);
    let text = crate::install::said(&check);
    assert!(
        check.status.code() == Some(1) && text.contains("no caBundle") && text.contains("cainjector"),
        "{text}"
    );
    let log = || {
        let pods = cluster.pods(NAMESPACE, "app.kubernetes.io/name=berth-controller").unwrap();
        let logs =
            pods.iter().map(|pod| cluster.log(NAMESPACE, pod.metadata.name.as_deref().unwrap(), "berth"));
        logs.map(|log| std::fs::read_to_string(log).unwrap_or_default()).collect::<String>()
    };
    wait_for("the controller to say so", PATIENCE, || {
        Ok(log().contains("does cert-manager's cainjector run").then_some(()))
    })
    .unwrap();
    cert_manager.restart().unwrap();
    healthy(&cluster);

    // A new certificate waits until its CA is in the caBundles, however long that takes.
    cert_manager.terminate(PATIENCE).unwrap();
    all_serve_it(&cluster);
    let swapped = super::rotation::swapped(&cluster);
    let stranger = {
        let now = Timestamp::now();
        let names = ["berth-webhook.velero.svc".to_owned()];
        berth_certs::Authority::new("stranger", now).unwrap().issue("x", &[], &names, now).unwrap()
    };
    let data = json!({"data": {"tls.crt": STANDARD.encode(&stranger.certificate), "tls.key": STANDARD.encode(&stranger.key)}});
    kubectl
        .run(&[
            "patch",
            "secret",
            "berth-webhook-certs",
            "-n",
            NAMESPACE,
            "--type=merge",
            "-p",
            &data.to_string(),
        ])
        .unwrap();
    let load = Load::start(&cluster, PER_SECOND);
    wait_for("the webhook to say that it waits", PATIENCE, || {
        let pods = cluster.pods(NAMESPACE, "app.kubernetes.io/name=berth-webhook")?;
        let logs =
            pods.iter().map(|pod| cluster.log(NAMESPACE, pod.metadata.name.as_deref().unwrap(), "berth"));
        let text: String = logs.map(|log| std::fs::read_to_string(log).unwrap_or_default()).collect();
        Ok(text.contains("is not in every caBundle: the previous one is served").then_some(()))
    })
    .unwrap();
    load.finish().ensure_all_queued();
    assert_eq!(super::rotation::swapped(&cluster), swapped);
    uninstall(&cluster);
    for kind in ["certificates", "issuers"] {
        assert_eq!(kubectl.run(&["get", kind, "-A", "-o", "name"]).unwrap(), "");
    }
    assert_eq!(
        kubectl.run(&["get", "secrets", "-n", NAMESPACE, "-o", "name"]).unwrap().trim(),
        "secret/cloud-credentials"
    );
}
