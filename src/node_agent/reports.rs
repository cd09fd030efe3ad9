//! Reports on repositories in BackupRepositories, as Velero's server does for its own.
//!
//! A BackupRepository is created only after its repository, because a Velero server that finds one
//! creates a repository for it, with a password of its own. BackupRepositories that an older Velero
//! created (their names end with random letters) belong to repositories with Velero's password, and
//! only Velero writes them. One that a Velero 1.18 creates has the name that berth gives: it is for
//! a restore of what berth has stored, or of what a Velero before 1.17 has.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use berth_api::keys::{REPOSITORY_TYPE, STORAGE_LOCATION, VOLUME_NAMESPACE, label_value};
use berth_api::velero::pod_volume::BackupRepositoryStatus;
use berth_core::limits;
use berth_core::pod_volume::{UPLOADER, repository_names, whole_seconds};
use jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tracing::warn;

use crate::patch::digest;
use crate::write::{Pauses, Write, WriteResult, create, patch};

/// The maintenance frequency that Velero sets for repositories of this type.
const FREQUENCY: &str = "168h0m0s";
/// For how many repositories the last report is remembered.
const MOST: usize = 1024;
/// How many times a refused write is tried: for about three seconds, because maintenance only
/// covers repositories that have a BackupRepository.
const ATTEMPTS: u32 = 5;
/// How many BackupRepositories are read for one repository.
const FOUND: u32 = 100;

pub fn backup_repositories(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("velero.io", "v1", "BackupRepository"));
    let kind = ApiResource { plural: "backuprepositories".to_owned(), ..kind };
    Api::namespaced_with(client, namespace, &kind)
}

/// Did berth create it?
pub fn is_ours(found: &DynamicObject) -> bool {
    let text = |field: &str| found.data["spec"][field].as_str().unwrap_or_default();
    let names = repository_names(text("backupStorageLocation"), text("volumeNamespace"), digest);
    found.metadata.name.as_ref().is_some_and(|name| names.contains(name))
}

pub struct Reports {
    api: Api<DynamicObject>,
    /// The last report, by name of the location and namespace of the volumes.
    told: Mutex<BTreeMap<(String, String), Option<String>>>,
}

impl Reports {
    /// `namespace`: the namespace of berth.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: backup_repositories(client, namespace), told: Mutex::default() }
    }

    /// Reports that a repository can be used, or why it cannot. Nothing depends on this report.
    pub async fn tell(&self, location: &str, namespace: &str, fault: Option<String>) {
        let key = (location.to_owned(), namespace.to_owned());
        let fault = fault.map(|fault| fault.chars().take(limits::STATUS_MESSAGE).collect::<String>());
        if self.told.lock().get(&key) == Some(&fault) {
            return;
        }
        let mut pauses = Pauses::default();
        for attempt in 1.. {
            let Err(error) = self.write(location, namespace, fault.as_deref()).await else { break };
            if attempt < ATTEMPTS {
                pauses.wait().await;
                continue;
            }
            let error = format!("{error:#}");
            warn!(location, namespace, error, "its BackupRepository could not be written");
            return;
        }
        let mut told = self.told.lock();
        if told.len() >= MOST {
            told.clear();
        }
        told.insert(key, fault);
    }

    async fn write(&self, location: &str, namespace: &str, fault: Option<&str>) -> anyhow::Result<()> {
        let labels = [
            (VOLUME_NAMESPACE, label_value(namespace, digest)),
            (STORAGE_LOCATION, label_value(location, digest)),
            (REPOSITORY_TYPE, UPLOADER.to_owned()),
        ];
        let selector: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let params = ListParams::default().labels(&selector.join(",")).limit(FOUND);
        let found = self.api.list(&params).await.context("the BackupRepositories cannot be listed")?;
        let status = BackupRepositoryStatus::checked(fault);
        if let Some(found) = found.items.iter().find(|found| is_ours(found)) {
            let known = &found.data["status"];
            let is_so = known["phase"] == status["phase"]
                && known["message"].as_str().unwrap_or_default() == fault.unwrap_or_default();
            if !is_so {
                let (name, uid) = (found.name_any(), found.uid());
                let to = Write::to(&name).uid(uid.as_deref());
                patch(&self.api, to, json!({"status": status})).await.written()?;
            }
            return Ok(());
        }
        if fault.is_some() || !found.items.is_empty() {
            return Ok(());
        }
        // A Velero counts from there, as from its own. Without it, it would begin at once.
        let status = BackupRepositoryStatus::created(whole_seconds(Timestamp::now()));
        let labels: BTreeMap<&str, String> = labels.into_iter().collect();
        let spec = json!({
            "volumeNamespace": namespace, "backupStorageLocation": location, "repositoryType": UPLOADER,
            "maintenanceFrequency": FREQUENCY,
        });
        for name in repository_names(location, namespace, digest) {
            let object: DynamicObject = serde_json::from_value(json!({
                "apiVersion": "velero.io/v1", "kind": "BackupRepository",
                "metadata": {"name": name, "labels": labels}, "spec": spec, "status": status,
            }))?;
            match create(&self.api, &object).await {
                WriteResult::Written(_) => return Ok(()),
                WriteResult::Conflict(_) => {
                    let there = self.api.get(&name).await.context("a BackupRepository cannot be read")?;
                    let is_its = ["volumeNamespace", "backupStorageLocation"]
                        .into_iter()
                        .all(|field| there.data["spec"][field] == spec[field]);
                    // Another node's agent was first. Otherwise the object is of another pair of
                    // location and namespace that results in the same name.
                    if is_its {
                        return Ok(());
                    }
                }
                answer => return Ok(answer.written().map(drop)?),
            }
        }
        bail!("every name that it could have is taken by another BackupRepository")
    }
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get, list, patch as patching, post};
    use serde_json::Value;

    use super::*;

    const REPOSITORIES: &str = "/apis/velero.io/v1/namespaces/velero/backuprepositories";

    fn repository(name: &str) -> Value {
        json!({
            "apiVersion": "velero.io/v1", "kind": "BackupRepository",
            "metadata": {"name": name, "namespace": "velero", "uid": format!("uid-{name}")},
            "spec": {
                "volumeNamespace": "shop", "backupStorageLocation": "default", "repositoryType": "restic",
                "maintenanceFrequency": "1h0m0s",
            },
            "status": {"phase": "Ready"},
        })
    }

    async fn told(api: &Scripted, fault: Option<&str>) {
        let reports = Reports::new(api.client("velero"), "velero");
        reports.tell("default", "shop", fault.map(str::to_owned)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_velero_made_is_not_written_and_has_no_second_one() {
        for fault in [Some("why"), None] {
            let found = list("5", &[repository("shop-default-restic-x7k2p")]);
            let api = Scripted::new().next(get(REPOSITORIES).answers(found));
            told(&api, fault).await;
            assert!(api.writes().is_empty(), "{fault:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_repository_whose_name_another_one_has_gets_its_own() {
        let mut taken = repository("a-b-c-restic");
        taken["spec"]["volumeNamespace"] = json!("a-b");
        taken["spec"]["backupStorageLocation"] = json!("c");
        let own = repository_names("b-c", "a", digest).remove(1);
        let api = Scripted::new()
            .next(get(REPOSITORIES).answers(list("5", &[])))
            .next(post(REPOSITORIES).already_exists())
            .next(get(&format!("{REPOSITORIES}/a-b-c-restic")).answers(taken))
            .next(post(REPOSITORIES).takes_as("6"));
        let reports = Reports::new(api.client("velero"), "velero");
        reports.tell("b-c", "a", None).await;
        let writes = api.writes();
        assert_eq!(writes[1].body["metadata"]["name"], json!(own));
        assert!(writes[1].body["status"]["lastMaintenanceTime"].is_string(), "{:#}", writes[1].body);
        let made: DynamicObject = serde_json::from_value(writes[1].body.clone()).unwrap();
        assert!(is_ours(&made));
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_agents_that_are_first_one_makes_it() {
        let mut there = repository("shop-default-restic");
        there["metadata"]["resourceVersion"] = json!("6");
        let api = Scripted::new()
            .next(get(REPOSITORIES).answers(list("5", &[])))
            .next(post(REPOSITORIES).already_exists())
            .next(get(&format!("{REPOSITORIES}/shop-default-restic")).answers(there));
        told(&api, None).await;
        assert_eq!(api.writes().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn of_several_only_the_own_one_is_written() {
        let ours = repository("shop-default-restic");
        let found = list("5", &[repository("shop-default-restic-x7k2p"), ours.clone()]);
        let path = format!("{REPOSITORIES}/shop-default-restic");
        let api = Scripted::new().next(get(REPOSITORIES).answers(found)).next(patching(&path).answers(ours));
        told(&api, Some("why")).await;
        let writes = api.writes();
        assert_eq!(writes[0].body["status"], json!({"phase": "NotReady", "message": "why"}));
        assert_eq!(writes[0].body["metadata"]["uid"], "uid-shop-default-restic");
    }
}
