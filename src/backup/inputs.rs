//! What a backup must know of the cluster before it begins: types, namespaces, its location.

use std::collections::HashSet;
use std::time::Duration;

use berth_api::parse::{self, ValidatedBackupSpec};
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::namespace::NamespaceSet;
use berth_core::run::AfterInterruption;
use berth_core::selection::{ResourceType, TypeSelection};
use berth_core::violation::Violations;
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace as KubernetesNamespace;
use kube::api::Api;
use tokio::time::{Instant, sleep};

use super::checkpoint::{BackupScope, Packed};
use super::discovery::{ServedTypes, Unknown};
use super::engine::{Engine, RunFailure};
use super::list::{FEW_NAMESPACES, ListError, ListProgress, ListedObject, Lister, Namespace, ObjectSink};
use super::log::{BackupLog, ResultsHeading};
use super::prepare::{Prepared, StartInput, prepare};
use super::reading::ReadRetries;
use super::servers::api_services;
use super::status::BackupWriter;
use crate::client::list;
use crate::storage::{OpenError, Opened};
use crate::text::chain;

const READY: &str = "/readyz";
/// How long an APIService may have no types. A definition that is created or removed is in one and
/// not in the other for a moment.
const SETTLES: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(1);

/// What the cluster serves, and the APIServices of aggregated servers, if they are known.
pub(super) type ServedCluster = Result<(ServedTypes, Option<HashSet<String>>), ListError>;

/// The cluster as it was when the backup began.
pub struct ClusterInputs {
    pub types: Vec<ResourceType>,
    pub namespaces: Vec<Namespace>,
    /// APIServices of aggregated servers, if they are known.
    pub aggregated: Option<HashSet<String>>,
}

impl Engine {
    /// Reads everything concurrently. `served`: [`Engine::served`], which may be under way. The
    /// inner error makes the backup FailedValidation.
    pub(super) async fn gather_inputs(
        &self,
        record: &BackupWriter,
        lister: &Lister,
        served: impl Future<Output = ServedCluster>,
        log: &BackupLog,
    ) -> Result<Result<(ClusterInputs, Prepared), Violations>, RunFailure> {
        let backup: Backup = record.backup().map_err(|e| RunFailure::Cluster(e.into()))?;
        let ask = async {
            tokio::try_join!(
                lister.patiently("storage locations", || self.locations(&backup, log)),
                lister.patiently("the server's version", || self.discovery.version()),
                served,
                // For its claim on the folder.
                self.cluster_uid()
            )
        };
        let (ask, namespaces, policies) =
            tokio::join!(ask, namespaces(&backup, lister), self.policies(&backup, lister, log));
        let (locations, server, (served, aggregated), _) = ask.map_err(|e| RunFailure::Cluster(e.into()))?;
        let namespaces = namespaces.map_err(|e| RunFailure::Cluster(e.into()))?;
        let policies = policies.map_err(|e| RunFailure::Cluster(e.into()))?;
        let situation = StartInput {
            backup: &backup,
            locations: &locations,
            namespaces: &namespaces,
            types: &served.types,
            policies: &policies,
            server: &server,
            default_ttl: self.default_ttl,
            default_files: self.volumes.files,
            default_moves: self.volumes.moves,
            now: Timestamp::now(),
        };
        let prepared = match prepare(&situation) {
            Ok(prepared) => prepared,
            Err(violations) => return Ok(Err(violations)),
        };
        prepared.warn(log);
        served.warn(log);
        for unknown in served.unknown {
            tell_unknown(&prepared.wanted, &unknown, log);
        }
        Ok(Ok((ClusterInputs { types: served.types, namespaces, aggregated }, prepared)))
    }

    /// Asks what the cluster serves.
    pub(super) async fn served(&self, lister: &Lister, log: &BackupLog) -> ServedCluster {
        self.await_ready(lister, log).await?;
        let begun = Instant::now();
        loop {
            let types = lister.patiently("the served types", || self.discovery.types(self.list_retry));
            let (mut served, services) = tokio::try_join!(types, api_services(&self.client, lister))?;
            let lacking =
                services.iter().flat_map(|services| served.lacks(&services.all)).collect::<Vec<_>>();
            if lacking.is_empty() || begun.elapsed() >= SETTLES.min(self.list_retry) {
                served.unknown.extend(lacking);
                return Ok((served, services.map(|services| services.aggregated)));
            }
            sleep(AGAIN).await;
        }
    }

    /// Waits for an API server that began a moment ago and does not know all its types yet.
    /// Everybody who has logged in may ask it that, unless somebody has taken the right away: then
    /// nobody waits.
    async fn await_ready(&self, lister: &Lister, log: &BackupLog) -> Result<(), ListError> {
        let ask = || async {
            let request = http::Request::get(READY).body(Vec::new()).map_err(kube::Error::HttpError)?;
            self.client.request_text(request).await
        };
        match lister.patiently("whether the API server is ready", ask).await {
            Err(error) if matches!(error.code(), Some(400..=499)) => Ok(()),
            Err(error) if error.is_about_type() => {
                let message = format!(
                    "the API server says that it is not ready, so it may not know all its types (`kubectl get --raw '{READY}?verbose'` says why): {}",
                    chain(&error)
                );
                log.warning(&ResultsHeading::Cluster, "", &message);
                Ok(())
            }
            asked => asked.map(drop),
        }
    }

    /// The scope of a backup, if the run writes checkpoints.
    pub(super) fn scope_of(&self, cluster: &ClusterInputs, prepared: &Prepared) -> Option<Packed> {
        // A backup with operations waits for them with nothing but its checkpoint.
        if self.after_interruption != AfterInterruption::Resume && !prepared.moves_data {
            return None;
        }
        let scope =
            BackupScope::of(&cluster.types, &prepared.selection, &prepared.resolved, &prepared.policy);
        // Writing to memory does not fail.
        Packed::new(&scope).ok()
    }

    /// Opens a location. Reads its Secret as patiently as everything else.
    pub(super) async fn open(&self, location: &BackupStorageLocation) -> Result<Opened, OpenError> {
        let mut patience = ReadRetries::new(self.list_retry);
        let opener = self.opener.patient();
        loop {
            match opener.open_with_parts(location).await {
                Err(OpenError::ReadSecret(name, error)) => {
                    let Some(pause) = patience.pause_after(&error) else {
                        return Err(OpenError::ReadSecret(name, error));
                    };
                    tokio::time::sleep(pause).await;
                }
                opened => return opened,
            }
        }
    }

    /// The location that the backup names, or else all, because one of them may be the default.
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
            log.warning(
                &ResultsHeading::Cluster,
                "backupstoragelocations",
                &format!("{name} cannot be read: {why}"),
            );
        }
        Ok(all.items)
    }
}

/// The namespaces that the backup may take: the few that it names, or else all of the cluster.
pub(super) async fn namespaces(backup: &Backup, lister: &Lister) -> Result<Vec<Namespace>, ListError> {
    let kind = ResourceType::regular("", "v1", "Namespace", false);
    let mut namespaces: Vec<Namespace> = Vec::new();
    let named = parse::backup_namespaces(&backup.spec).ok().filter(NamespaceSet::is_literal);
    if let Some(named) = named.filter(|set| set.literals().count() <= FEW_NAMESPACES) {
        let found = try_join_all(named.literals().map(|name| lister.get(&kind, None, name))).await?;
        for namespace in found.into_iter().flatten() {
            namespaces.take(namespace).await?;
        }
        return Ok(namespaces);
    }
    let mut progress = ListProgress::default();
    while !progress.is_done() {
        lister.page(&kind, None, "", &mut progress, &mut namespaces).await?;
    }
    // A page that was requested twice brings a name twice.
    namespaces.sort_by(|a, b| a.name.cmp(&b.name));
    namespaces.dedup_by(|a, b| a.name == b.name);
    Ok(namespaces)
}

/// Logs a group whose types are unknown: an error, because objects may be missing, or a warning if
/// the backup takes only other types.
pub(super) fn tell_unknown(wanted: &ValidatedBackupSpec, unknown: &Unknown, log: &BackupLog) {
    let Unknown { group, version, why } = unknown;
    // The types are unknown, so a made-up type tells whether the backup takes all types.
    let any = |namespaced| ResourceType {
        group: group.clone(),
        version: version.clone(),
        kind: "Any".into(),
        resource: "any".into(),
        singular: "any".into(),
        short_names: Vec::new(),
        namespaced,
    };
    let all = wanted.namespaces.takes_all();
    let is_listed = |namespaced| {
        let any = any(namespaced);
        wanted.resources.resolve(std::slice::from_ref(&any), all).fate(&any) == TypeSelection::Listed
    };
    let is_wanted = is_listed(true) || is_listed(false);
    let message = format!(
        "the types of {group}/{version} are not known, and whatever there is of them is missing: {why}; `kubectl get apiservice {version}.{group}` says more: repair its server, or delete that APIService if nothing serves it any more"
    );
    if is_wanted && unknown.may_hold_objects() {
        log.error(&ResultsHeading::Cluster, "", &message);
    } else {
        log.warning(&ResultsHeading::Cluster, "", &message);
    }
}

impl ObjectSink for Vec<Namespace> {
    async fn take(&mut self, found: ListedObject) -> Result<(), ListError> {
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
