//! Checks by a dry-run create of a Backup that the API server reaches berth's webhooks.

use berth_api::velero::Backup;
use kube::api::{Api, PostParams};
use serde_json::json;

use super::InstallCluster;
use crate::text::chain;

/// The result of a dry-run create of a Backup.
pub enum Probe {
    /// berth answered with a place, or with a refusal.
    Answered,
    Silent(String),
    /// The user may not create Backups.
    NotAllowed,
}

pub async fn probe(cluster: &InstallCluster) -> Probe {
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
        Err(kube::Error::Api(status)) if status.code == 403 => Probe::NotAllowed,
        Err(error) => Probe::Silent(chain(&error)),
    }
}
