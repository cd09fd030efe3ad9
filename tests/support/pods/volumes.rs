//! A pod's volumes, as folders of this machine.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, PersistentVolume,
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodSpec, Secret, ServiceAccount,
    ServiceAccountTokenProjection, Volume as Spec, VolumeProjection,
};
use kube::Api;
use kube::api::PostParams;

use super::environment::field;
use super::identity::Identity;
use super::site::{self, Host};

/// Attribute of a volume that is a folder of this machine: which.
const FOLDER: &str = "berth.test/folder";
/// The mode of files that name no other.
const MODE: i32 = 0o644;

/// A volume on this machine.
pub struct Volume {
    pub source: PathBuf,
    pub is_read_only: bool,
}

/// A file to be.
struct File {
    path: String,
    bytes: Vec<u8>,
    mode: i32,
    owner: Option<u32>,
}

struct Maker<'a> {
    host: &'a Host,
    pod: &'a Pod,
    namespace: String,
    spec: PodSpec,
    address: Ipv4Addr,
}

/// All of them.
///
/// # Errors
/// When something that is not optional is not there, or a volume is of a kind that cannot be had
/// here.
pub async fn make(host: &Host, pod: &Pod, address: Ipv4Addr) -> anyhow::Result<BTreeMap<String, Volume>> {
    let (namespace, _) = site::key(pod);
    let maker = Maker { host, pod, namespace, spec: pod.spec.clone().unwrap_or_default(), address };
    let mut volumes = BTreeMap::new();
    for volume in maker.spec.volumes.iter().flatten() {
        let made = maker.make(volume).await.with_context(|| format!("volume {}", volume.name))?;
        volumes.insert(volume.name.clone(), made);
    }
    Ok(volumes)
}

impl Maker<'_> {
    async fn make(&self, volume: &Spec) -> anyhow::Result<Volume> {
        if let Some(host_path) = &volume.host_path {
            return of_host(host_path);
        }
        if let Some(wanted) = &volume.persistent_volume_claim {
            return self.claimed(wanted).await;
        }
        // As kubelet names them, because node-agents look for pods' volumes by these names.
        let folder =
            self.host.site.folder_of(self.pod).join("volumes").join(plugin(volume)).join(&volume.name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?; // Of an attempt that failed.
        }
        std::fs::create_dir_all(&folder)?;
        let is_read_only = volume.empty_dir.is_none();
        if !is_read_only {
            set(&folder, 0o777, None, self.group(), true)?;
        }
        for file in self.files(volume).await? {
            let path = folder.join(&file.path);
            std::fs::create_dir_all(path.parent().unwrap_or(&folder))?;
            std::fs::write(&path, &file.bytes)?;
            set(&path, file.mode, file.owner, self.group(), false)?;
        }
        Ok(Volume { source: folder, is_read_only })
    }

    /// Where the driver of the tests keeps it: its volumes are folders of this machine, and say
    /// where.
    async fn claimed(&self, wanted: &PersistentVolumeClaimVolumeSource) -> anyhow::Result<Volume> {
        let name = &wanted.claim_name;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.host.client.clone(), &self.namespace);
        let claim = claims.get_opt(name).await?.with_context(|| format!("no claim {name}"))?;
        let is_bound = claim.status.is_some_and(|status| status.phase.as_deref() == Some("Bound"));
        let bound = claim.spec.filter(|_| is_bound).and_then(|spec| spec.volume_name);
        let bound = bound.with_context(|| format!("claim {name} is not bound"))?;
        let volume = Api::<PersistentVolume>::all(self.host.client.clone()).get(&bound).await?;
        let csi = volume.spec.and_then(|spec| spec.csi);
        let folder = csi.and_then(|csi| csi.volume_attributes?.remove(FOLDER));
        let folder = folder.with_context(|| format!("volume {bound} is no folder of this machine"))?;
        Ok(Volume { source: folder.into(), is_read_only: wanted.read_only == Some(true) })
    }

    fn group(&self) -> Option<u32> {
        let context = self.spec.security_context.as_ref()?;
        u32::try_from(context.fs_group?).ok()
    }

    async fn files(&self, volume: &Spec) -> anyhow::Result<Vec<File>> {
        if volume.empty_dir.is_some() {
            Ok(Vec::new())
        } else if let Some(secret) = &volume.secret {
            let name = secret.secret_name.as_deref().unwrap_or_default();
            let data = self.secret(name, secret.optional).await?;
            pick(&data, secret.items.as_deref(), secret.default_mode)
        } else if let Some(map) = &volume.config_map {
            let data = self.config_map(&map.name, map.optional).await?;
            pick(&data, map.items.as_deref(), map.default_mode)
        } else if let Some(downward) = &volume.downward_api {
            self.fields(downward.items.as_deref(), downward.default_mode)
        } else if let Some(projected) = &volume.projected {
            let mut files = Vec::new();
            for source in projected.sources.iter().flatten() {
                files.extend(self.projection(source, projected.default_mode).await?);
            }
            Ok(files)
        } else {
            bail!(
                "it must be an emptyDir, hostPath, secret, configMap, downwardAPI, projected or a claim: \
                 no other can be had here"
            )
        }
    }

    async fn projection(&self, source: &VolumeProjection, mode: Option<i32>) -> anyhow::Result<Vec<File>> {
        if let Some(token) = &source.service_account_token {
            Ok(vec![self.token(token, mode).await?])
        } else if let Some(map) = &source.config_map {
            pick(&self.config_map(&map.name, map.optional).await?, map.items.as_deref(), mode)
        } else if let Some(secret) = &source.secret {
            pick(&self.secret(&secret.name, secret.optional).await?, secret.items.as_deref(), mode)
        } else if let Some(downward) = &source.downward_api {
            self.fields(downward.items.as_deref(), mode)
        } else {
            bail!("only serviceAccountToken, configMap, secret and downwardAPI can be projected here")
        }
    }

    /// Good for as long as the pod exists, and only for its account.
    async fn token(&self, wanted: &ServiceAccountTokenProjection, mode: Option<i32>) -> anyhow::Result<File> {
        let account = self.spec.service_account_name.as_deref().unwrap_or("default");
        let pod = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: self.pod.metadata.name.clone(),
            uid: self.pod.metadata.uid.clone(),
        };
        let spec = TokenRequestSpec {
            audiences: wanted.audience.iter().cloned().collect(),
            bound_object_ref: Some(pod),
            expiration_seconds: wanted.expiration_seconds,
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.host.client.clone(), &self.namespace);
        let issued = accounts.create_token_request(account, &PostParams::default(), &request).await?;
        let token = issued.status.context("no token was issued")?.token;
        let owner = self.only_user();
        let is_private = owner.is_some() || self.group().is_some();
        let mode = if is_private { 0o600 } else { mode.unwrap_or(MODE) };
        Ok(File { path: wanted.path.clone(), bytes: token.into_bytes(), mode, owner })
    }

    /// If all containers run as the same one.
    fn only_user(&self) -> Option<u32> {
        let mut users = self.spec.containers.iter().map(|container| Identity::of(&self.spec, container).user);
        let first = users.next()?;
        u32::try_from(first).ok().filter(|_| users.all(|user| user == first))
    }

    async fn secret(&self, name: &str, optional: Option<bool>) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
        let secrets: Api<Secret> = Api::namespaced(self.host.client.clone(), &self.namespace);
        let found = secrets.get_opt(name).await?;
        if found.is_none() && optional != Some(true) {
            bail!("no Secret {name}");
        }
        let data = found.and_then(|secret| secret.data).unwrap_or_default();
        Ok(data.into_iter().map(|(key, value)| (key, value.0)).collect())
    }

    async fn config_map(
        &self,
        name: &str,
        optional: Option<bool>,
    ) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.host.client.clone(), &self.namespace);
        let found = maps.get_opt(name).await?;
        if found.is_none() && optional != Some(true) {
            bail!("no ConfigMap {name}");
        }
        let map = found.unwrap_or_default();
        let texts = map.data.unwrap_or_default().into_iter().map(|(key, text)| (key, text.into_bytes()));
        let bytes = map.binary_data.unwrap_or_default().into_iter().map(|(key, bytes)| (key, bytes.0));
        Ok(texts.chain(bytes).collect())
    }

    fn fields(
        &self,
        items: Option<&[DownwardAPIVolumeFile]>,
        mode: Option<i32>,
    ) -> anyhow::Result<Vec<File>> {
        let file = |item: &DownwardAPIVolumeFile| {
            let wanted = item.field_ref.as_ref().context("only fields can be had here, no resources")?;
            let bytes = field(self.pod, &wanted.field_path, self.address)?.into_bytes();
            let mode = item.mode.or(mode).unwrap_or(MODE);
            Ok(File { path: item.path.clone(), bytes, mode, owner: None })
        };
        items.unwrap_or_default().iter().map(file).collect()
    }
}

fn pick(
    data: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    mode: Option<i32>,
) -> anyhow::Result<Vec<File>> {
    let mode = mode.unwrap_or(MODE);
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        let file = |(path, bytes): (&String, &Vec<u8>)| File {
            path: path.clone(),
            bytes: bytes.clone(),
            mode,
            owner: None,
        };
        return Ok(data.iter().map(file).collect());
    };
    let file = |item: &KeyToPath| {
        let bytes = data.get(&item.key).with_context(|| format!("no key {}", item.key))?.clone();
        Ok(File { path: item.path.clone(), bytes, mode: item.mode.unwrap_or(mode), owner: None })
    };
    items.iter().map(file).collect()
}

/// The folder in which kubelet puts such a volume.
fn plugin(volume: &Spec) -> &'static str {
    match volume {
        Spec { secret: Some(_), .. } => "kubernetes.io~secret",
        Spec { config_map: Some(_), .. } => "kubernetes.io~configmap",
        Spec { downward_api: Some(_), .. } => "kubernetes.io~downward-api",
        Spec { projected: Some(_), .. } => "kubernetes.io~projected",
        _ => "kubernetes.io~empty-dir",
    }
}

fn of_host(wanted: &HostPathVolumeSource) -> anyhow::Result<Volume> {
    let source = PathBuf::from(&wanted.path);
    if wanted.type_.as_deref() == Some("DirectoryOrCreate") {
        std::fs::create_dir_all(&source)?;
    }
    if !source.exists() {
        bail!("no {} on this machine", source.display());
    }
    Ok(Volume { source, is_read_only: false })
}

/// The group of the pod's volumes may do what the owner may.
fn set(
    path: &Path,
    mode: i32,
    owner: Option<u32>,
    group: Option<u32>,
    is_writable: bool,
) -> anyhow::Result<()> {
    let mut mode = u32::try_from(mode)?;
    if group.is_some() {
        mode |= if is_writable { 0o2770 } else { 0o040 };
    }
    // A change of owner may take bits away.
    chown(path, owner, group)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(())
}
