//! Checks that the webhooks answer, and that their certificate does not expire soon.

use std::time::Instant;

use berth_certs::Bundle;
use berth_certs::bundle::is_signed_by;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;

use super::Finding;
use crate::certificates::ca_bundles::CaBundles;
use crate::certificates::{AUTHORITY, CA_KEY, LEAF_CERTIFICATE, LEAF_KEY, SECRET, text};
use crate::install::cluster::CONFIGURATION;
use crate::install::probe::{Probe, probe};
use crate::install::{InstallCluster, Installed};
use crate::settings::Certificates;
use crate::text::chain;

/// A certificate that expires within this time is a finding, because berth renews a month before.
const SOON: SignedDuration = SignedDuration::from_hours(24 * 14);
const HOUR: i64 = 3600;

pub(super) async fn all(cluster: &InstallCluster, installed: &Installed) -> anyhow::Result<Vec<Finding>> {
    let mut findings = vec![webhooks(cluster).await];
    findings.extend(certificate(cluster, installed).await?);
    Ok(findings)
}

async fn webhooks(cluster: &InstallCluster) -> Finding {
    const CHECK: &str = "webhooks";
    let begun = Instant::now();
    match probe(cluster).await {
        Probe::Answered => Finding::ok(
            CHECK,
            format!("a Backup that is tried is answered in {} ms", begun.elapsed().as_millis()),
        ),
        Probe::NotAllowed => Finding::warning(
            CHECK,
            "you may not create Backups, so none can be tried",
            "bind the Role berth-user",
        ),
        Probe::Silent(why) => Finding::fault(
            CHECK,
            format!("the API server got no answer from berth: {why}"),
            format!(
                "see the log of the webhook: kubectl logs --namespace {} deployment/berth-webhook; and whether a network policy or firewall keeps the API server from port 9443",
                cluster.namespace
            ),
        ),
    }
}

async fn certificate(cluster: &InstallCluster, installed: &Installed) -> anyhow::Result<Vec<Finding>> {
    const CHECK: &str = "certificate";
    let namespace = &cluster.namespace;
    let way_out = match installed.certificates {
        Certificates::SelfManaged => format!(
            "see the log of the controller: kubectl logs --namespace {namespace} deployment/berth-controller"
        ),
        Certificates::CertManager => {
            format!("kubectl describe certificate --namespace {namespace} berth-webhook")
        }
    };
    let trust = CaBundles { client: cluster.client.clone(), configuration: CONFIGURATION.to_owned() };
    let believed = trust.read().await?;
    if believed.is_empty() {
        let fix = format!("berth install --namespace {namespace}");
        return Ok(vec![Finding::fault(CHECK, "the webhook configurations are missing", fix)]);
    }
    let bare: Vec<&str> = believed
        .iter()
        .filter(|(_, bundle)| bundle.trim().is_empty())
        .map(|(name, _)| name.as_str())
        .collect();
    if !bare.is_empty() {
        let message = format!("no caBundle: {}", bare.join(", "));
        let fix = match installed.certificates {
            Certificates::SelfManaged => way_out,
            Certificates::CertManager => "see whether cert-manager's cainjector runs".to_owned(),
        };
        return Ok(vec![Finding::fault(CHECK, message, fix)]);
    }
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), namespace);
    let secret = match api.get_opt(SECRET).await {
        Ok(Some(secret)) => secret,
        Ok(None) => return Ok(vec![Finding::fault(CHECK, format!("there is no Secret {SECRET}"), way_out)]),
        Err(error) => {
            let message = format!("cannot be looked at: {}", chain(&error));
            return Ok(vec![Finding::warning(
                CHECK,
                message,
                "run this as somebody who may read that Secret",
            )]);
        }
    };
    let (leaf, key) = (text(&secret, LEAF_CERTIFICATE), text(&secret, LEAF_KEY));
    let provider = rustls::crypto::ring::default_provider();
    let bundle = match Bundle::parse(leaf.as_bytes(), key.as_bytes(), &provider) {
        Ok(bundle) => bundle,
        Err(error) => return Ok(vec![Finding::fault(CHECK, chain(&error), way_out)]),
    };
    let strange: Vec<&str> = believed
        .iter()
        .filter(|(_, trusted)| !is_signed_by(leaf.as_bytes(), trusted.as_bytes()))
        .map(|(name, _)| name.as_str())
        .collect();
    if !strange.is_empty() {
        let message = format!("its authority is not in the caBundle of {}", strange.join(", "));
        return Ok(vec![Finding::fault(CHECK, message, way_out)]);
    }
    let left = bundle.not_after.duration_since(Timestamp::now());
    let said = format!("good for {} days, until {}", left.as_secs() / HOUR / 24, bundle.not_after);
    Ok(vec![if left.is_negative() {
        Finding::fault(CHECK, format!("it expired at {}", bundle.not_after), way_out)
    } else if left < SOON && installed.certificates == Certificates::SelfManaged {
        Finding::warning(CHECK, format!("it should have been renewed: {said}"), way_out)
    } else if !text(&secret, CA_KEY).is_empty() {
        Finding::warning(
            CHECK,
            format!("the webhook's pods can read its authority's key, which is in Secret {SECRET}"),
            format!(
                "berth install --namespace {namespace}: a controller of this version keeps it in {AUTHORITY}"
            ),
        )
    } else {
        Finding::ok(CHECK, said)
    }])
}
