//! What a backup must know of the cluster before it begins: types, namespaces, its location.

use berth_api::parse;
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::namespace::NamespaceSet;
use berth_core::selection::ResourceType;
use berth_core::violation::Violations;
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace as KubernetesNamespace;
use kube::api::Api;

use super::collect::{FEW_NAMESPACES, Namespace};
use super::list::{Found, ListError, Progress, Taker};
use super::log::{About, BackupLog};
use super::prepare::{Prepared, Situation, prepare};
use super::run::{Engine, Failure};
use super::status::Record;
use crate::client::list;

/// As it was when the backup began.
pub struct Cluster {
    pub types: Vec<ResourceType>,
    pub namespaces: Vec<Namespace>,
}

impl Engine {
    /// Asks everything at once. The inner error: what makes the backup FailedValidation.
    pub(super) async fn survey(
        &self,
        record: &Record,
        log: &BackupLog,
    ) -> Result<Result<(Cluster, Prepared), Violations>, Failure> {
        let backup: Backup = record.backup().map_err(|e| Failure::Cluster(e.into()))?;
        let ask = async {
            tokio::try_join!(
                self.locations(&backup, log),
                self.discovery.version(),
                self.discovery.types(log)
            )
        };
        let (ask, namespaces) = tokio::join!(ask, self.namespaces(&backup));
        let (locations, server, types) = ask.map_err(|e| Failure::Cluster(e.into()))?;
        let namespaces = namespaces.map_err(Failure::List)?;
        let situation = Situation {
            backup: &backup,
            locations: &locations,
            namespaces: &namespaces,
            types: &types,
            server: &server,
            default_ttl: self.default_ttl,
            now: Timestamp::now(),
        };
        let prepared = prepare(&situation);
        if let Ok(prepared) = &prepared {
            prepared.warn(log);
        }
        Ok(prepared.map(|prepared| (Cluster { types, namespaces }, prepared)))
    }

    /// The one that the backup names, or else all: one of them may be the default.
    async fn locations(
        &self,
        backup: &Backup,
        log: &BackupLog,
    ) -> Result<Vec<BackupStorageLocation>, kube::Error> {
        if let Some(name) = backup.spec.storage_location.as_deref().filter(|name| !name.is_empty()) {
            let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
            return Ok(api.get_opt(name).await?.into_iter().collect());
        }
        let all = list::<BackupStorageLocation>(&self.client, &self.namespace).await?;
        for (name, why) in &all.unreadable {
            log.warning(&About::Cluster, "backupstoragelocations", &format!("{name} cannot be read: {why}"));
        }
        Ok(all.items)
    }

    /// Those that the backup may take: the few that it names, or else every one of the cluster.
    async fn namespaces(&self, backup: &Backup) -> Result<Vec<Namespace>, ListError> {
        let kind = ResourceType {
            group: String::new(),
            version: "v1".into(),
            kind: "Namespace".into(),
            resource: "namespaces".into(),
            singular: "namespace".into(),
            short_names: Vec::new(),
            namespaced: false,
        };
        let mut namespaces: Vec<Namespace> = Vec::new();
        let named = parse::backup_namespaces(&backup.spec).ok().filter(NamespaceSet::is_literal);
        if let Some(named) = named.filter(|set| set.literals().count() <= FEW_NAMESPACES) {
            let lister = self.lister();
            let found = try_join_all(named.literals().map(|name| lister.get(&kind, name))).await?;
            for namespace in found.into_iter().flatten() {
                namespaces.take(namespace).await?;
            }
            return Ok(namespaces);
        }
        let mut progress = Progress::default();
        while !progress.is_done() {
            self.lister().page(&kind, None, "", &mut progress, &mut namespaces).await?;
        }
        // A page that was asked for twice brings a name twice.
        namespaces.sort_by(|a, b| a.name.cmp(&b.name));
        namespaces.dedup_by(|a, b| a.name == b.name);
        Ok(namespaces)
    }
}

impl Taker for Vec<Namespace> {
    async fn take(&mut self, found: Found) -> Result<(), ListError> {
        let read: KubernetesNamespace = serde_json::from_slice(&found.json).map_err(ListError::Object)?;
        self.push(Namespace {
            name: found.name,
            labels: read.metadata.labels.unwrap_or_default(),
            json: found.json,
            lacks_type: found.lacks_type,
            deleting: found.deleting,
            excluded: found.excluded,
        });
        Ok(())
    }
}
