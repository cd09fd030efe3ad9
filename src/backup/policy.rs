//! The resource policy of a Backup: a ConfigMap in its namespace, read once, when the backup
//! begins.

use berth_api::parse;
use berth_api::policy;
use berth_api::velero::Backup;
use berth_core::policy::Policies;
use berth_core::violation::{Field, Violations};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::Api;

use super::engine::Engine;
use super::list::{ListError, Lister};
use super::log::BackupLog;

impl Engine {
    /// The inner error makes the backup FailedValidation.
    pub(super) async fn policies(
        &self,
        backup: &Backup,
        lister: &Lister,
        log: &BackupLog,
    ) -> Result<Result<Policies, Violations>, ListError> {
        policies_of(&self.client, &self.namespace, backup, lister, log).await
    }
}

/// The inner error is what is wrong with the resource policy.
///
/// # Errors
/// When the API server does not answer, or refuses it.
pub(super) async fn policies_of(
    client: &Client,
    namespace: &str,
    backup: &Backup,
    lister: &Lister,
    log: &BackupLog,
) -> Result<Result<Policies, Violations>, ListError> {
    // A reference that cannot be resolved is a fault of the spec, which is reported with its
    // other faults.
    let Some(name) = parse::resource_policy(&backup.spec) else { return Ok(Ok(Policies::default())) };
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = lister.patiently("the resource policy", || api.get_opt(name)).await?;
    let called = format!("ConfigMap {namespace}/{name}");
    let Some(found) = found else {
        let mut violations = Violations::default();
        let at = Field::root("spec").child("resourcePolicy").child("name");
        violations.push(at, format!("{called} does not exist: create it, or name another one"));
        return Ok(Err(violations));
    };
    let (uid, version) = (found.metadata.uid.as_deref(), found.metadata.resource_version.as_deref());
    log.info(&format!(
        "the resource policy is that of {called}, UID {}, resourceVersion {}",
        uid.unwrap_or_default(),
        version.unwrap_or_default()
    ));
    Ok(policy::parse(&found.data.unwrap_or_default(), &Field::root(&called)))
}
