//! The volume data of a backup that is deleted: what can be removed, and what nobody here can.
//!
//! CSI snapshots are removed by their drivers, and what is in berth's own (restic) repositories is
//! forgotten there: files of volumes, and the moved data of snapshots. Data in kopia repositories,
//! and native snapshots of plugins, can be removed only by a Velero, because nothing else opens its
//! repositories or runs its plugins.

use std::collections::BTreeSet;
use std::io::Read as _;

use anyhow::{Context as _, anyhow, ensure};
use berth_api::keys;
use berth_api::velero::{DataUpload, PodVolumeBackup};
use berth_core::mover::own::is_own as is_own_mover;
use berth_core::pod_volume::is_own;
use berth_core::sync::is_name;
use flate2::read::MultiGzDecoder;
use kube::api::{Api, ApiResource, DynamicObject};
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::calls::list;
use super::carrying::{Carrying, Files, SeenVolumes, StoredSnapshot, VolumeData};
use crate::backup::operations::{data_namespaces, may_store};
use crate::patch::digest;
use crate::storage::{BackupLayout, StoredBackups, Survey};

/// Bytes of a file that lists volumes, as it is stored and unpacked.
const PACKED: u64 = 16 << 20;
const UNPACKED: u64 = 32 << 20;
/// Values in its JSON.
const VALUES: usize = 2_000_000;
/// Snapshots that one deletion removes.
const MOST: usize = 10_000;

/// The files beside the archive that list volumes: their infos, PodVolumeBackups, native snapshots.
const LISTS: [&str; 3] = ["-volumeinfo.json.gz", "-podvolumebackups.json.gz", "-volumesnapshots.json.gz"];

const WAY_OUT: &str = "delete this Backup by a Velero that runs the controller backup-deletion (and start berth with \
    --disable-controllers=backup-deletion), or annotate the Backup with berth.dev/forget-volumes=REASON, which leaves this data \
    where it is";

impl Carrying<'_> {
    /// As [`Self::look_at_volumes`]. What this deletion has found before holds where the files that
    /// list volumes are the same ones: a Backup that has ended gets no more data.
    pub(super) async fn look_at_volumes_again(
        &mut self,
        layout: Option<&BackupLayout>,
        survey: Option<&Survey>,
        uid: &str,
        data_in: &BTreeSet<String>,
    ) -> anyhow::Result<VolumeData> {
        let lists = layout.zip(survey).filter(|_| !self.is_backup_gone && !self.are_snapshots_gone);
        let lists =
            lists.and_then(|(layout, survey)| survey.versions(&LISTS.map(|suffix| path(layout, suffix))));
        let is_same = |seen: &&SeenVolumes| seen.uid == uid && Some(&seen.lists) == lists.as_ref();
        if let Some(seen) = self.seen_volumes.as_ref().filter(is_same) {
            return Ok(seen.found.clone());
        }
        let found = self.look_at_volumes(layout, survey, uid, data_in).await?;
        let seen = |lists| SeenVolumes { uid: uid.to_owned(), lists, found: found.clone() };
        self.seen_volumes = lists.map(seen);
        Ok(found)
    }

    /// `layout`: the folder, if it is the Backup's. `survey`: what it has, if that is known. `uid`:
    /// of the Backup. `data_in`: the namespaces that its request records.
    pub(super) async fn look_at_volumes(
        &self,
        layout: Option<&BackupLayout>,
        survey: Option<&Survey>,
        uid: &str,
        data_in: &BTreeSet<String>,
    ) -> anyhow::Result<VolumeData> {
        let mut found = VolumeData::default();
        let (mut moved, mut repositories, mut native) = (0, 0, 0);
        // Does the list of PodVolumeBackups name some of berth's own?
        let mut has_listed = false;
        if let Some(layout) = layout {
            let [infos, files, snapshots] = LISTS;
            for info in read(layout, survey, infos).await? {
                match told_by(info, uid) {
                    VolumeInfoEntry::Snapshot(snapshot) => drop(found.snapshots.insert(snapshot)),
                    VolumeInfoEntry::Moved => moved += 1,
                    VolumeInfoEntry::Own(files) => drop(found.files.insert(files)),
                    VolumeInfoEntry::Nothing => {}
                }
            }
            let files: Vec<StoredVolumeObject> = read(layout, survey, files).await?;
            for one in &files {
                match one.own_files() {
                    Some(files) => {
                        has_listed = true;
                        found.files.insert(files);
                    }
                    None if one.is_in_repository() => repositories += 1,
                    None => {}
                }
            }
            drop(files);
            let snapshots: Vec<StoredVolumeObject> = read(layout, survey, snapshots).await?;
            native += snapshots.iter().filter(|one| one.is_native()).count();
        }
        if moved == 0 {
            let kind = ApiResource::erase::<DataUpload>(&());
            let own = |object: &DynamicObject| own_movement(object, uid);
            for object in
                self.objects(&kind, uid, |object| is_stored(object) || own(object).is_some()).await?
            {
                match own(&object) {
                    Some(files) => drop(found.files.insert(files)),
                    None => moved += 1,
                }
            }
        }
        if repositories == 0 && !has_listed {
            let own =
                |object: &DynamicObject| StoredVolumeObject::deserialize(&object.data).ok()?.own_files();
            let kind = ApiResource::erase::<PodVolumeBackup>(&());
            for object in
                self.objects(&kind, uid, |object| is_stored(object) || own(object).is_some()).await?
            {
                match own(&object) {
                    Some(files) => drop(found.files.insert(files)),
                    None => repositories += 1,
                }
            }
        }
        // The objects have gone with the Backup, so the checkpoint of its run says where data is.
        if let Some(layout) = layout.filter(|_| self.is_backup_gone) {
            let noted = data_namespaces(layout, &self.lifecycle.removals).await;
            let mut noted = noted.context("failed to read in which repositories the backup has data")?;
            noted.extend(data_in.iter().cloned());
            found
                .files
                .extend(noted.into_iter().filter_map(|namespace| own_files(&namespace, None, Some(uid))));
        }
        if self.are_snapshots_gone {
            found.snapshots.clear();
            found.files.clear();
        }
        let too_many = [
            self.leave_many(
                &mut found.files,
                "places in restic repositories",
                "the snapshots with its UID in the tag backup-uid",
            )?,
            self.leave_many(
                &mut found.snapshots,
                "CSI snapshots",
                "the snapshots that its file of volume infos names",
            )?,
        ];
        found.out_of_reach.extend(too_many.into_iter().flatten());
        if !found.snapshots.is_empty() && !self.has_snapshots().await? {
            let count = found.snapshots.len();
            let why =
                format!("{count} CSI snapshots, and this cluster has no snapshot controller: {WAY_OUT}");
            found.out_of_reach.push(why);
            found.snapshots.clear();
        }
        for (count, what) in [
            (
                repositories,
                "files of volumes (PodVolumeBackups) in kopia repositories, which berth cannot open",
            ),
            (moved, "moved snapshots (DataUploads) in kopia repositories, which berth cannot open"),
            (native, "native snapshots, which only the plugins of a Velero can remove"),
        ] {
            if count > 0 {
                found.out_of_reach.push(format!("{count} {what}: {WAY_OUT}"));
            }
        }
        Ok(found)
    }

    /// Empties a list of `what` that is longer than one deletion can remove, and says why.
    /// `way_out`: what somebody has to remove where nobody can annotate the Backup any more.
    ///
    /// # Errors
    /// If the Backup is gone, because the files of its folder must stay then: they say where the
    /// data is.
    fn leave_many<T>(
        &self,
        all: &mut BTreeSet<T>,
        what: &str,
        way_out: &str,
    ) -> anyhow::Result<Option<String>> {
        let count = all.len();
        if count <= MOST {
            return Ok(None);
        }
        ensure!(
            !self.is_backup_gone,
            "the backup may have data in {count} {what}, and one deletion removes {MOST} at most: remove the folder and {way_out} yourself"
        );
        all.clear();
        Ok(Some(format!("{count} {what}, and one deletion removes {MOST} at most: {WAY_OUT}")))
    }

    /// May anything of berth's own still store data for a Backup that is gone? A snapshot that is
    /// saved after the others were forgotten would stay.
    pub(super) async fn may_store(&self, uid: &str) -> anyhow::Result<bool> {
        let Self { lifecycle, .. } = self;
        may_store(&lifecycle.clients.call, &lifecycle.namespace, self.backup_name(), uid).await
    }

    /// The objects of a kind that were made for the Backup, and are to be kept.
    async fn objects(
        &self,
        kind: &ApiResource,
        uid: &str,
        keep: impl Fn(&DynamicObject) -> bool,
    ) -> anyhow::Result<Vec<DynamicObject>> {
        let api: Api<DynamicObject> = self.dynamic(kind);
        let name = keys::label_value(self.backup_name(), digest);
        let selector = format!("{}={name}", keys::BACKUP_NAME);
        let is_its = |object: &DynamicObject| {
            let of = object.metadata.labels.as_ref().and_then(|labels| labels.get(keys::BACKUP_UID));
            of.is_none_or(|of| of == uid) && keep(object)
        };
        let what = || format!("failed to list {}", kind.plural);
        list(&api, Some(&selector), is_its).await.with_context(what)
    }
}

/// What a DataUpload that berth carried may have in one of berth's repositories. `uid`: of the
/// Backup.
fn own_movement(object: &DynamicObject, uid: &str) -> Option<Files> {
    let text = |pointer: &str| object.data.pointer(pointer).and_then(Value::as_str);
    let is_own = is_own_mover(text("/spec/datamover"));
    let namespace = text("/spec/sourceNamespace").filter(|namespace| is_own && is_name(namespace))?;
    own_files(namespace, text("/status/snapshotID"), Some(uid))
}

/// `None`: there is nothing that could be found in the repository, or what is said is no ID.
pub(super) fn own_files(namespace: &str, snapshot: Option<&str>, backup_uid: Option<&str>) -> Option<Files> {
    let is_id = |id: &&str| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let known = |text: &&str| !matches!(*text, "" | "unknown");
    let snapshot = snapshot.filter(known);
    if !snapshot.iter().all(is_id) {
        return None;
    }
    let backup_uid = backup_uid.filter(known);
    let is_any = snapshot.is_some() || backup_uid.is_some();
    is_any.then(|| Files {
        namespace: namespace.to_owned(),
        snapshot: snapshot.map(str::to_owned),
        backup_uid: backup_uid.map(str::to_owned),
    })
}

/// Has it stored data, and told where?
fn is_stored(object: &DynamicObject) -> bool {
    has_text(&object.data, "/status/snapshotID")
}

fn has_text(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).and_then(Value::as_str).is_some_and(|text| !text.is_empty())
}

/// What an entry of the file with volume infos tells.
#[derive(Debug, PartialEq, Eq)]
enum VolumeInfoEntry {
    Snapshot(StoredSnapshot),
    Moved,
    /// Moved into one of berth's own repositories.
    Own(Files),
    Nothing,
}

/// What is read of an entry of that file. Boxes keep one small that has nothing in it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeInfo {
    backup_method: Option<String>,
    pvc_namespace: Option<String>,
    snapshot_data_moved: Option<bool>,
    csi_snapshot_info: Option<Box<CsiSnapshotInfo>>,
    snapshot_data_movement_info: Option<Box<MovementInfo>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CsiSnapshotInfo {
    driver: Option<String>,
    snapshot_handle: Option<String>,
    vsc_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MovementInfo {
    data_mover: Option<String>,
    snapshot_handle: Option<String>,
}

/// What is read of a PodVolumeBackup, and of a native snapshot.
#[derive(Deserialize)]
struct StoredVolumeObject {
    spec: Option<Box<StoredSpec>>,
    status: Option<Box<StoredStatus>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSpec {
    uploader_type: Option<String>,
    pod: Option<StoredPod>,
    tags: Option<StoredTags>,
}

#[derive(Deserialize)]
struct StoredTags {
    #[serde(rename = "backup-uid")]
    backup_uid: Option<String>,
}

#[derive(Deserialize)]
struct StoredPod {
    namespace: Option<String>,
}

#[derive(Deserialize)]
struct StoredStatus {
    #[serde(rename = "snapshotID")]
    in_repository: Option<String>,
    #[serde(rename = "providerSnapshotID")]
    native: Option<String>,
}

impl StoredVolumeObject {
    fn is_in_repository(&self) -> bool {
        self.has(|status| status.in_repository.as_deref())
    }

    /// What it may have in one of berth's repositories.
    fn own_files(&self) -> Option<Files> {
        let spec = self.spec.as_deref().filter(|spec| is_own(spec.uploader_type.as_deref()))?;
        let namespace = spec.pod.as_ref()?.namespace.clone().filter(|namespace| is_name(namespace))?;
        let snapshot = self.status.as_deref().and_then(|status| status.in_repository.as_deref());
        let backup_uid = spec.tags.as_ref().and_then(|tags| tags.backup_uid.as_deref());
        own_files(&namespace, snapshot, backup_uid)
    }

    fn is_native(&self) -> bool {
        self.has(|status| status.native.as_deref())
    }

    fn has(&self, text: impl Fn(&StoredStatus) -> Option<&str>) -> bool {
        self.status.as_deref().and_then(text).is_some_and(|text| !text.is_empty())
    }
}

fn told_by(info: VolumeInfo, uid: &str) -> VolumeInfoEntry {
    let known = |text: Option<String>| text.filter(|text| text != "unknown").unwrap_or_default();
    if info.snapshot_data_moved == Some(true) {
        let moved = info.snapshot_data_movement_info.map(|moved| *moved).unwrap_or_default();
        if is_own_mover(moved.data_mover.as_deref()) {
            // Of one that failed the snapshot has the tag.
            let namespace = info.pvc_namespace.filter(|namespace| is_name(namespace));
            let files = namespace
                .and_then(|namespace| own_files(&namespace, moved.snapshot_handle.as_deref(), Some(uid)));
            return files.map_or(VolumeInfoEntry::Nothing, VolumeInfoEntry::Own);
        }
        return if known(moved.snapshot_handle).is_empty() {
            VolumeInfoEntry::Nothing
        } else {
            VolumeInfoEntry::Moved
        };
    }
    let csi = info.csi_snapshot_info.map(|csi| *csi).unwrap_or_default();
    let snapshot = StoredSnapshot {
        driver: known(csi.driver),
        handle: known(csi.snapshot_handle),
        content: known(csi.vsc_name),
        namespace: known(info.pvc_namespace),
    };
    let is_csi = info.backup_method.as_deref() == Some("CSISnapshot");
    let is_named = !snapshot.driver.is_empty() && !snapshot.handle.is_empty();
    if is_csi && is_named { VolumeInfoEntry::Snapshot(snapshot) } else { VolumeInfoEntry::Nothing }
}

fn path(layout: &BackupLayout, suffix: &str) -> Path {
    layout.folder().join(format!("{}{suffix}", layout.backup()))
}

/// The entries of a file beside the archive. A missing file has none.
async fn read<T: DeserializeOwned>(
    layout: &BackupLayout,
    survey: Option<&Survey>,
    suffix: &str,
) -> anyhow::Result<Vec<T>> {
    let path = path(layout, suffix);
    if survey.is_some_and(|survey| !survey.may_list(&path)) {
        return Ok(Vec::new());
    }
    let found = match layout.store().get(&path).await {
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(anyhow!(crate::text::chain(&error))),
    };
    let too_large = || anyhow!("{path} in the store is too large to be a list of volumes");
    if found.meta.size > PACKED {
        return Err(too_large());
    }
    let packed = found.bytes().await.map_err(|error| anyhow!(crate::text::chain(&error)))?;
    let mut bytes = Vec::new();
    let unpacked = MultiGzDecoder::new(&packed[..]).take(UNPACKED + 1).read_to_end(&mut bytes);
    unpacked.with_context(|| format!("{path} in the store is no gzip file"))?;
    let is_long = u64::try_from(bytes.len()).unwrap_or(u64::MAX) > UNPACKED;
    if is_long || !StoredBackups::is_light(&bytes, VALUES) {
        return Err(too_large());
    }
    let entries: Option<Vec<T>> = serde_json::from_slice(&bytes)
        .with_context(|| format!("{path} in the store is not what Velero writes"))?;
    Ok(entries.unwrap_or_default())
}

#[cfg(test)]
mod tests;
