//! `berth certificates`: asks the leading controller, which issues the certificates, by an
//! annotation.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use berth_api::keys;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::Api;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::args::{CertificatesArgs, CertificatesCommand};
use crate::certificates::{AUTHORITY, CA_CERTIFICATE, SECRET, text};
use crate::cli::print::say;
use crate::client::Clients;
use crate::write::{Write, patch_metadata};

const LOOK: Duration = Duration::from_millis(100);
/// How long to wait. A new authority is in caBundle for a while before it is used.
const PATIENCE: Duration = Duration::from_secs(300);

pub async fn run(args: CertificatesArgs) -> anyhow::Result<()> {
    let clients = Clients::new(args.target.source()).await?;
    let CertificatesCommand::Rotate { ca, revoke } = args.command;
    let namespace = &args.target.namespace;
    let api: Api<Secret> = Api::namespaced(clients.call, namespace);
    let found = api.get_opt(SECRET).await.context("the Secret cannot be read")?;
    let found =
        found.with_context(|| format!("there is no Secret {SECRET} in {namespace}: is berth installed?"))?;
    if found.annotations().contains_key("cert-manager.io/certificate-name") {
        ensure!(
            !revoke,
            "cert-manager keeps this certificate and caBundle, in which it leaves older authorities beside the new one; berth may write neither, so it cannot end trust in them. Let berth take both over, revoke, and hand them back: `berth install --namespace {namespace} --certificates=self-managed`, `berth certificates rotate --namespace {namespace} --ca --revoke`, `berth install --namespace {namespace} --certificates=cert-manager`"
        );
        bail!("cert-manager keeps this certificate: `cmctl renew --namespace {namespace} berth-webhook`");
    }
    let what = if ca { "ca" } else { "leaf" };
    let mut annotations = json!({keys::ROTATE: what});
    if revoke {
        annotations[keys::REVOKE] = json!("true");
        say!("older authorities are revoked once the certificate of a new one is served: half a minute");
    }
    let patch = json!({"metadata": {"annotations": annotations}});
    let asked = patch_metadata(&api, Write::to(SECRET), patch).await;
    asked.written().context("the Secret cannot be written")?;
    let waiting = async {
        loop {
            let secret = api.get(SECRET).await.ok();
            let is_asked =
                |key: &str| secret.as_ref().is_none_or(|secret| secret.annotations().contains_key(key));
            if !(is_asked(keys::ROTATE) || revoke && is_asked(keys::REVOKE)) {
                return;
            }
            sleep(LOOK).await;
        }
    };
    if timeout(PATIENCE, waiting).await.is_err() {
        bail!(
            "nobody did so within {} s: does a `berth controller` of this version lead? See `berth check`",
            PATIENCE.as_secs()
        );
    }
    say!("rotated: {}", if ca { "authority and certificate" } else { "certificate" });
    if revoke {
        let authority = api.get(AUTHORITY).await.with_context(|| format!("Secret {AUTHORITY}"))?;
        ensure!(
            text(&authority, CA_CERTIFICATE).matches("BEGIN CERTIFICATE").count() == 1,
            "older authorities are still trusted: somebody made the Secrets anew meanwhile. Run this again"
        );
        say!("revoked: whatever older authorities signed is believed no more");
    }
    Ok(())
}
