//! `berth certificates`: asks the leader, which keeps them.

use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_api::keys::{self, FIELD_MANAGER};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::args::{CertificatesArgs, CertificatesCommand};
use crate::certificates::SECRET;
use crate::client::Clients;

const LOOK: Duration = Duration::from_millis(100);
/// A new authority is trusted for a while before it is used.
const PATIENCE: Duration = Duration::from_secs(300);

pub async fn run(args: CertificatesArgs) -> anyhow::Result<()> {
    let clients = Clients::new(args.target.kubeconfig.as_deref()).await?;
    let CertificatesCommand::Rotate { ca } = args.command;
    let api: Api<Secret> = Api::namespaced(clients.call, &args.target.namespace);
    let found = api.get_opt(SECRET).await.context("the Secret cannot be read")?;
    let found = found.with_context(|| {
        format!("there is no Secret {SECRET} in {}: is berth installed?", args.target.namespace)
    })?;
    if found.annotations().contains_key("cert-manager.io/certificate-name") {
        bail!(
            "cert-manager keeps this certificate: `cmctl renew --namespace {} berth-webhook`",
            args.target.namespace
        );
    }
    let what = if ca { "ca" } else { "leaf" };
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = json!({"metadata": {"annotations": {keys::ROTATE: what}}});
    api.patch_metadata(SECRET, &params, &Patch::Merge(patch))
        .await
        .context("the Secret cannot be written")?;
    let waiting = async {
        loop {
            let secret = api.get(SECRET).await;
            if secret.is_ok_and(|secret| !secret.annotations().contains_key(keys::ROTATE)) {
                return;
            }
            sleep(LOOK).await;
        }
    };
    if timeout(PATIENCE, waiting).await.is_err() {
        bail!(
            "nobody did so within {} s: does a `berth controller` lead? See `berth check`",
            PATIENCE.as_secs()
        );
    }
    println!("rotated: {}", if ca { "authority and certificate" } else { "certificate" });
    Ok(())
}
