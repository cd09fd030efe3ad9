//! Whether the cluster's definition of Backups has the phases of the queue. Definitions from before
//! Velero 1.18 do not.

use std::time::Duration;

use berth_api::velero::BackupPhase;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::Api;
use tokio::time::timeout;
use tracing::warn;

use crate::text::chain;

pub const DEFINITION: &str = "backups.velero.io";
const READ: Duration = Duration::from_secs(10);
/// Definitions change only with an upgrade.
pub const PERIOD: Duration = Duration::from_secs(30);

/// # Errors
/// What is wrong with the definition of Backups, and the way out. A definition that cannot be read
/// counts as valid.
pub async fn check(client: &Client) -> Result<(), String> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = match timeout(READ, api.get_opt(DEFINITION)).await {
        Ok(Ok(Some(definition))) => definition,
        Ok(Ok(None)) => {
            return Err(format!("the definition {DEFINITION} is missing: apply what `berth crd` prints"));
        }
        Ok(Err(error)) => {
            warn!(
                error = chain(&error),
                "could not read the definition of Backups: taking it for one that has the phases of the queue"
            );
            return Ok(());
        }
        Err(_) => return Ok(()),
    };
    fault(&definition).map_or(Ok(()), Err)
}

/// What is wrong with a definition of Backups, and the way out.
pub fn fault(definition: &CustomResourceDefinition) -> Option<String> {
    let known = phases(definition)?;
    let wanted = [BackupPhase::Queued, BackupPhase::ReadyToStart].map(BackupPhase::as_str);
    let missing: Vec<&str> =
        wanted.into_iter().filter(|phase| !known.iter().any(|one| one == phase)).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "the definition {DEFINITION} has no phase {}: it is from before Velero 1.18; apply what `berth crd` prints",
            missing.join(" and no phase ")
        )
    })
}

/// Values of `status.phase`; `None` where the definition does not list them, and so allows any.
fn phases(definition: &CustomResourceDefinition) -> Option<Vec<String>> {
    let version = definition.spec.versions.iter().find(|version| version.name == "v1")?;
    let schema = serde_json::to_value(version.schema.as_ref()?).ok()?;
    let values = schema.pointer("/openAPIV3Schema/properties/status/properties/phase/enum")?.as_array()?;
    Some(values.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests;
