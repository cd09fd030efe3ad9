//! Artifacts of backups, by DownloadRequest: the server signs a URL, and the artifact is read from
//! it as a stream. The request is deleted when its URL is there or is not wanted any more.

mod fetch;

pub use fetch::{Fetcher, Pieces, Unpacked};

use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_api::keys;
use berth_api::velero::download_request::{DownloadRequestSpec, DownloadTarget};
use berth_api::velero::{
    Backup, BackupStorageLocation, DownloadRequest, DownloadRequestPhase, DownloadTargetKind,
};
use berth_core::download::{CHECKPOINT, INDEX};
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::{Instant, sleep, timeout};

use super::config;
use crate::args::backup::TlsArgs;
use crate::client::is_not_found;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownloadArtifact {
    Log,
    Contents,
    /// Where in the archive which objects are.
    Index,
    /// What the run of a backup has done, its log included.
    Checkpoint,
    ResourceList,
    Results,
    VolumeInfos,
    ItemOperations,
}

impl DownloadArtifact {
    fn kind(self) -> DownloadTargetKind {
        match self {
            // The definitions have no kind for the index and the checkpoint, so an annotation asks
            // for them. A server that does not know the annotation gives a link to the archive or
            // the log.
            Self::Log | Self::Checkpoint => DownloadTargetKind::BackupLog,
            Self::Contents | Self::Index => DownloadTargetKind::BackupContents,
            Self::ResourceList => DownloadTargetKind::BackupResourceList,
            Self::Results => DownloadTargetKind::BackupResults,
            Self::VolumeInfos => DownloadTargetKind::BackupVolumeInfos,
            Self::ItemOperations => DownloadTargetKind::BackupItemOperations,
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "the log",
            Self::Contents => "the archive",
            Self::Index => "the index of the archive",
            Self::Checkpoint => "the checkpoint",
            Self::ResourceList => "the resource list",
            Self::Results => "the errors and warnings",
            Self::VolumeInfos => "the list of volumes",
            Self::ItemOperations => "the list of operations",
        }
    }
}

/// Pauses between looks at a DownloadRequest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the deletion of an answered DownloadRequest may take.
const TIDY: Duration = Duration::from_secs(5);
/// The API server cuts a generated name to 63 characters, of which 5 are its own.
const NAME: usize = 57;

/// Downloads of one namespace.
pub struct Downloads<'a> {
    pub client: &'a Client,
    pub namespace: &'a str,
    pub tls: &'a TlsArgs,
}

impl Downloads<'_> {
    /// What fetches the artifacts of a backup, trusting what its location trusts.
    ///
    /// # Errors
    /// When the file of `--cacert` cannot be used.
    pub async fn fetcher(&self, backup: &Backup) -> anyhow::Result<Fetcher> {
        let mut authorities = Vec::new();
        let of_config = || config::read().cacert.map(|path| ("cacert of Velero's config.json:", path.into()));
        let named = self.tls.cacert.clone().map(|path| ("--cacert", path)).or_else(of_config);
        if let Some((by, path)) = named {
            let called = format!("{by} {}", path.display());
            let text = std::fs::read(&path).with_context(|| format!("{called} cannot be read"))?;
            authorities.push((called, text));
        } else if let Some((location, text)) = self.authority(backup).await {
            authorities.push((format!("caCert of location {location}"), text));
        }
        Fetcher::new(&authorities, self.tls.insecure_skip_tls_verify)
    }

    /// The authority that the backup's location names in its spec.
    async fn authority(&self, backup: &Backup) -> Option<(String, Vec<u8>)> {
        use base64::Engine as _;
        let name = backup.spec.storage_location.as_deref().filter(|name| !name.is_empty())?;
        let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), self.namespace);
        let location = api.get_opt(name).await.ok().flatten()?;
        let text = location.spec.object_storage.ca_cert.filter(|text| !text.is_empty())?;
        let text = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
        Some((name.to_owned(), text))
    }

    /// The URL of an artifact.
    ///
    /// # Errors
    /// When the request cannot be made, or nobody answers it before `deadline`.
    pub async fn url(
        &self,
        backup: &str,
        artifact: DownloadArtifact,
        deadline: Instant,
    ) -> anyhow::Result<String> {
        let api: Api<DownloadRequest> = Api::namespaced(self.client.clone(), self.namespace);
        let target = DownloadTarget { kind: artifact.kind(), name: backup.to_owned() };
        let base: String = backup.chars().take(NAME).collect();
        let asks = match artifact {
            DownloadArtifact::Index => Some(INDEX),
            DownloadArtifact::Checkpoint => Some(CHECKPOINT),
            _ => None,
        };
        let asks = asks.map(|file| (keys::DOWNLOAD.to_owned(), file.to_owned()));
        let metadata = ObjectMeta {
            generate_name: Some(format!("{base}-")),
            namespace: Some(self.namespace.to_owned()),
            annotations: asks.map(|asks| [asks].into()),
            ..ObjectMeta::default()
        };
        let request = DownloadRequest { metadata, spec: DownloadRequestSpec { target }, status: None };
        let made = api.create(&PostParams::default(), &request).await;
        let name = made.context("failed to create a DownloadRequest")?.name_any();
        let answered = self.await_url(&api, &name, deadline).await;
        // Whoever answers these requests deletes them later, if this does not.
        let _ = timeout(TIDY, api.delete(&name, &DeleteParams::default())).await;
        answered.with_context(|| format!("{} of Backup {backup} cannot be had", artifact.name()))
    }

    async fn await_url(
        &self,
        api: &Api<DownloadRequest>,
        name: &str,
        deadline: Instant,
    ) -> anyhow::Result<String> {
        let mut pause = FIRST_PAUSE;
        loop {
            let now = Instant::now();
            if now >= deadline {
                bail!(
                    "nobody answered DownloadRequest {name} in time: is a controller that serves downloads running in namespace {}, and is the backup's location Available? --timeout sets how long to wait",
                    self.namespace
                );
            }
            sleep(pause.min(deadline.duration_since(now))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let found =
                match timeout(deadline.saturating_duration_since(Instant::now()) + TIDY, api.get(name)).await
                {
                    Ok(Ok(found)) => found,
                    Ok(Err(error)) if is_not_found(&error) => {
                        bail!("DownloadRequest {name} was deleted before it was answered: try again")
                    }
                    Ok(Err(error)) => return Err(error).context("failed to get a DownloadRequest"),
                    Err(_) => continue,
                };
            let status = found.status.unwrap_or_default();
            if let Some(url) = status.download_url.filter(|url| !url.is_empty()) {
                return Ok(url);
            }
            if status.phase == Some(DownloadRequestPhase::Processed) {
                bail!("DownloadRequest {name} was answered without a URL: the log of the server says why");
            }
        }
    }
}
