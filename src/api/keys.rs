//! The names of labels, annotations, finalizers and other well-known objects. Each is defined only
//! here.

use std::collections::BTreeMap;

/// The default namespace of Velero and berth.
pub const DEFAULT_NAMESPACE: &str = "velero";

/// A label, annotation or finalizer, with the documentation of its constant.
#[derive(Clone, Copy, Debug)]
pub struct WellKnownKey {
    pub key: &'static str,
    /// `CARRIER: MEANING`, for example `Annotation of a Backup: …`.
    text: &'static str,
}

impl WellKnownKey {
    /// The kind of key and the object that carries it, for example `Annotation of a Backup`.
    pub fn carrier(&self) -> &'static str {
        self.parts().0
    }

    /// The meaning of its value.
    pub fn meaning(&self) -> &'static str {
        self.parts().1
    }

    fn parts(&self) -> (&'static str, &'static str) {
        let text = self.text.trim();
        text.split_once(": ").unwrap_or((text, ""))
    }
}

/// Declares the constants, and [`ALL`] of them with their documentation: the reference shows the
/// same sentences.
macro_rules! keys {
    ($($(#[doc = $line:literal])+ pub const $name:ident: &str = $key:literal;)+) => {
        $($(#[doc = $line])+ pub const $name: &str = $key;)+
        /// Every key of this file.
        pub const ALL: &[WellKnownKey] = &[$(WellKnownKey { key: $key, text: concat!($($line),+) }),+];
    };
}

keys! {
    // The life of a Backup. Only berth writes these.

    /// Annotation of a Backup: when it got its place in the queue, RFC 3339 with microseconds. The
    /// webhook or the controller sets it once.
    pub const ENQUEUED_AT: &str = "berth.dev/enqueued-at";
    /// Annotation of a Backup: when the first of the backups arrived whose place it took by
    /// `berth.dev/supersede`, RFC 3339 with microseconds. The controller sets it.
    pub const WAITS_SINCE: &str = "berth.dev/waits-since";
    /// Annotation of a Backup: the namespaces that the patterns of a started backup resolved to,
    /// comma separated. The backup holds these namespaces while it runs.
    pub const RESOLVED_NAMESPACES: &str = "berth.dev/resolved-namespaces";
    /// Annotation of a Backup: the run (one attempt of one controller) that a Backup in phase
    /// InProgress belongs to. Only that run writes the Backup. A new leader takes a backup over by
    /// replacing this value.
    pub const RUN: &str = "berth.dev/run";
    /// Annotation of a Backup: how often a Backup in phase InProgress was run. Each new leader that
    /// takes the backup over counts one more. The node agent counts so, too, in PodVolumeBackups
    /// and PodVolumeRestores, and berth's data mover pods in DataUploads and DataDownloads.
    pub const RUNS: &str = "berth.dev/runs";
    /// Annotation of a Backup: the run that has stored everything and may publish. From then on the
    /// backup is complete, whichever run writes its last file.
    pub const PUBLISHING: &str = "berth.dev/publishing";
    /// Annotation of a Backup: pods in which hooks of its run have begun and the hooks after them
    /// were not tried yet. It is written before anything is frozen in these pods, because the
    /// leader that takes a dead run over must know what to thaw.
    pub const FROZEN: &str = "berth.dev/frozen";
    /// Annotation of a Backup: digest of the types and namespaces that a started backup takes, as
    /// the checkpoints of its run say it. It is written before the first checkpoint, because
    /// whoever can write to the store could otherwise choose what is read.
    pub const SCOPE: &str = "berth.dev/scope";
    /// Annotation of a Backup: UID of the Schedule that made it. A Backup of another cluster, or
    /// one that somebody else made, is not taken for the Schedule's own because of its name and
    /// label.
    pub const SCHEDULE_UID: &str = "berth.dev/schedule-uid";

    /// Annotation of a DownloadRequest: with the value `index` and kind BackupContents the link is
    /// to the index of the archive, which says where in it which objects are. With the value
    /// `checkpoint` and kind BackupLog it is to the checkpoint of a backup that runs, which has the
    /// log of its run.
    pub const DOWNLOAD: &str = "berth.dev/download";
    /// Annotation of a Backup that was brought from its store: its PodVolumeBackups are not all
    /// there yet. The next rounds of the sync create them.
    pub const VOLUMES_MISSING: &str = "berth.dev/volumes-missing";

    // How people steer a Backup; `berth queue` writes these. Whoever may change a Backup may hold
    // and cancel it; what lets it pass others or ends others needs the verb `update` on
    // `backups/queue`.

    /// Annotation of a Backup or a BackupStorageLocation: with any value but `false` the backup (or
    /// each backup that goes to this location) waits, and blocks no other backup.
    pub const HOLD: &str = "berth.dev/hold";
    /// Annotation of a Backup: a time (RFC 3339). The backup goes to the front of the queue; of
    /// several, the latest time goes first. Needs the verb `update` on `backups/queue`.
    pub const FIRST: &str = "berth.dev/first";
    /// Annotation of a Backup: with any value but `false` the backup ends, waiting or running.
    pub const CANCEL: &str = "berth.dev/cancel";
    /// Annotation or label of a Backup: its priority class, one of those that `--priority-classes`
    /// configures.
    pub const PRIORITY_CLASS: &str = "berth.dev/priority-class";
    /// Annotation of a Schedule, which Velero copies to its Backups: with any value but `false`,
    /// older Backups of the schedule that still wait end when this one arrives.
    pub const SUPERSEDE: &str = "berth.dev/supersede";

    // How a Schedule is run.

    /// Annotation of a Schedule: what becomes of a time at which earlier backups of the schedule
    /// have not ended. `Allow`: its backup is created. `Forbid`: it has none. Absent: its backup is
    /// created once none of them is new or running, as in Velero.
    pub const CONCURRENCY_POLICY: &str = "berth.dev/concurrency-policy";
    /// Annotation of a Schedule: a duration as in `1h`. A time that was missed by more than this
    /// has no backup. Absent: of times that were missed the last one has a backup, however late.
    pub const STARTING_DEADLINE: &str = "berth.dev/starting-deadline";
    /// Annotation of a Schedule: a duration as in `10m`. Its backups are created later than their
    /// times by up to this much, always by the same, so that many schedules of one time spread.
    pub const JITTER: &str = "berth.dev/jitter";
    /// Annotation of a Schedule: a number of at least 1. Of its Completed backups in one location,
    /// only so many stay, the newest ones; the others are deleted as if they had expired. Absent:
    /// all stay until they expire.
    pub const SUCCESSFUL_HISTORY_LIMIT: &str = "berth.dev/successful-history-limit";
    /// Annotation of a Schedule: the same for its backups that failed, in whole or in part. It may
    /// be 0.
    pub const FAILED_HISTORY_LIMIT: &str = "berth.dev/failed-history-limit";
    // Deletion and expiry.

    /// Annotation of a Backup: with any value but `false` neither its expiry nor a
    /// DeleteBackupRequest removes the backup. The value is the reason, in words.
    pub const KEEP: &str = "berth.dev/keep";
    /// Annotation of a Schedule, which hands it on to its Backups: how many of its last good
    /// backups stay however old they are. The largest number on the Schedule or on a Backup of it
    /// counts.
    pub const KEEP_LAST: &str = "berth.dev/keep-last";
    /// Annotation of a Backup: volume data that berth cannot remove stays where it is when the
    /// backup is deleted. The value is the reason, in words.
    pub const FORGET_VOLUMES: &str = "berth.dev/forget-volumes";
    /// Annotation of a BackupStorageLocation: when a round of berth's sync last ended with every
    /// backup of the store in the cluster, RFC 3339. Only the sync writes it, and removes it when a
    /// round failed, left a backup for later, or skipped one that could still come.
    pub const ALL_BROUGHT: &str = "berth.dev/all-brought";
    /// Annotation of a BackupStorageLocation: UIDs of clusters, comma separated, whose backups in
    /// this location are this cluster's by now, so that this cluster may delete them. `*` means
    /// all.
    pub const INHERITS: &str = "berth.dev/inherits";
    /// Annotation of a Backup whose deletion removes its files from now on: an empty folder is what
    /// is left of them.
    pub const FILES_GO: &str = "berth.dev/files-go";
    /// Annotation of a DeleteBackupRequest that has begun: the BackupStorageLocation of its Backup.
    pub const DELETES_IN: &str = "berth.dev/deletes-in";
    /// Annotation of a DeleteBackupRequest for what a deleted Backup has left: the namespaces in
    /// whose repositories it may have data, comma separated.
    pub const DATA_IN: &str = "berth.dev/data-in";
    /// Annotation of a DeleteBackupRequest that has failed because the store keeps the files of its
    /// Backup: until when, RFC 3339. The expiry does not ask again before that time.
    pub const LOCKED_UNTIL: &str = "berth.dev/locked-until";

    // The settings and state of the leader.

    /// Annotation of the leader's Lease: its `--concurrent-backups`.
    pub const CONCURRENT_BACKUPS: &str = "berth.dev/concurrent-backups";
    /// Annotation of the leader's Lease: how it orders the queue, as JSON.
    pub const QUEUE_ORDER: &str = "berth.dev/queue-order";
    /// Annotation of the leader's Lease: why it starts no backup, where that is so.
    pub const STOPPED: &str = "berth.dev/stopped";
    /// Annotation of the leader's Lease: UIDs of the first few Backups whose every write the API
    /// server refuses, comma separated.
    pub const UNWRITABLE: &str = "berth.dev/unwritable";
    /// Annotation of the leader's Lease: its `--node-agent-configmap`. Empty means the ConfigMap
    /// that the node-agents name.
    pub const NODE_AGENT_CONFIGMAP: &str = "berth.dev/node-agent-configmap";
    /// Annotation of the leader's Lease: who runs the backups that it starts, `berth` or `velero`.
    pub const EXECUTOR: &str = "berth.dev/executor";
    /// Annotation of the leader's Lease: which of Velero's other controllers it runs, comma
    /// separated. A Velero runs the others, or `--disable-controllers` names them.
    pub const CONTROLLERS: &str = "berth.dev/controllers";
    /// Annotation of the leader's Lease: its version, so that commands can tell people who may not
    /// ask the server for it.
    pub const VERSION: &str = "berth.dev/version";

    // Data movers, and clusters in which Velero runs beside berth.

    /// Annotation of a Backup, a DataUpload or a DataDownload: when berth last touched it because a
    /// Velero had not reacted to it.
    pub const NUDGED_AT: &str = "berth.dev/nudged-at";
    /// Annotation of the node-agents' ConfigMap: faults are warnings when it is written, not
    /// refusals.
    pub const UNCHECKED: &str = "berth.dev/unchecked";
    /// Annotation of Velero's Deployment: the controllers that berth switched off, comma separated,
    /// so that an uninstallation can switch them on again.
    pub const SWITCHED_OFF: &str = "berth.dev/disabled-controllers";
    /// Annotation of a data mover: with any value but `false` it may be accepted. Only the leader
    /// writes it, because the leader counts the places.
    pub const GRANTED: &str = "berth.dev/granted";
    /// Annotation of a data mover: how often it was put back to New because its node-agent was
    /// gone.
    pub const BEGUN_ANEW: &str = "berth.dev/begun-anew";
    /// Annotation of a PodVolumeBackup or PodVolumeRestore of berth's: a data mover pod carries it,
    /// which the leader makes. A node-agent that sees no files of its node writes it.
    pub const BY_MOVER: &str = "berth.dev/by-mover";
    /// Annotation of a data mover that a pod of berth's carries: since when objects may be there
    /// that were made for it, RFC 3339. The leader removes it when all of them are gone.
    pub const MADE: &str = "berth.dev/made";
    /// Label of an object that was made for a data mover that berth carries, or of the snapshot
    /// that was taken for one: its UID.
    pub const MADE_FOR: &str = "berth.dev/made-for";
    /// Finalizer of a DataUpload or DataDownload that berth carries: berth removes it when all that
    /// was made for it is gone.
    pub const MOVER_FINALIZER: &str = "berth.dev/data-mover";
    /// Annotation of a data mover that a pod of berth's carries: UIDs of its pods that were
    /// evicted, or lost their nodes, with spaces between them.
    pub const LOST_PODS: &str = "berth.dev/lost-pods";
    /// Annotation of a data mover that berth carries: the process that was the last one to begin
    /// it. Only that one writes how it ends, because an earlier one may live on for a while.
    pub const CARRIER: &str = "berth.dev/carrier";
    /// Annotation of a data mover that berth carries: when the process that carries it last had
    /// nothing else to write than that it lives, RFC 3339. No other process takes over what one
    /// that lives has begun.
    pub const CARRIED_AT: &str = "berth.dev/carried-at";
    /// Annotation of a data mover that berth carries: how many files it has begun to read or
    /// restore, and how fast it is, as in `1234 files, 18.2 MiB/s`. It is written with the bytes
    /// in the status, whose definition has no fields for these; once it has ended, it is the
    /// number of files.
    pub const PROGRESS_TEXT: &str = "berth.dev/progress";
    /// Annotation of a BackupRepository: when one of berth's agents last began to maintain it, RFC
    /// 3339. Its status also tells what a Velero has tried.
    pub const MAINTAINED_AT: &str = "berth.dev/maintained-at";
    /// Annotation of a DataDownload that berth carries: when all of its data was in the volume,
    /// RFC 3339.
    pub const RESTORED: &str = "berth.dev/restored";
    /// Annotation of a DataDownload that berth carries: the PersistentVolume with its data, which
    /// is being bound to the claim.
    pub const RESTORED_VOLUME: &str = "berth.dev/restored-volume";
    /// Annotation of a PersistentVolume that is being bound to the claim that its data was restored
    /// for: its reclaim policy until then, and from then on.
    pub const RECLAIM_POLICY: &str = "berth.dev/reclaim-policy";

    // Certificates of the webhooks.

    /// Annotation of the webhooks' Secret: `leaf` or `ca` asks for a new certificate or a new
    /// authority. berth removes it when that is done.
    pub const ROTATE: &str = "berth.dev/rotate";
    /// Annotation of the webhooks' Secret: asks to revoke all authorities but the newest. berth
    /// removes it when that is done.
    pub const REVOKE: &str = "berth.dev/revoke";

    // Keys of Velero.

    /// Label of a Backup: the schedule that made it.
    pub const SCHEDULE: &str = "velero.io/schedule-name";
    /// Label of a Backup: the name of its location, shortened to 63 characters as Velero does.
    pub const STORAGE_LOCATION: &str = "velero.io/storage-location";
    /// Label of any object, namespaces included: `"true"` keeps it out of every backup.
    pub const EXCLUDE_FROM_BACKUP: &str = "velero.io/exclude-from-backup";
    /// Annotation of a Backup: the version of the cluster that it was taken from, in full.
    pub const SOURCE_GIT_VERSION: &str = "velero.io/source-cluster-k8s-gitversion";
    /// Annotation of a Backup: the major version of the cluster that it was taken from.
    pub const SOURCE_MAJOR_VERSION: &str = "velero.io/source-cluster-k8s-major-version";
    /// Annotation of a Backup: the minor version of the cluster that it was taken from.
    pub const SOURCE_MINOR_VERSION: &str = "velero.io/source-cluster-k8s-minor-version";
    /// Annotation of a Backup: how long item actions may wait for a resource.
    pub const RESOURCE_TIMEOUT: &str = "velero.io/resource-timeout";
    /// Annotation of a Backup: the ConfigMap with volume policies that a Velero server applied to
    /// the backup besides those of its spec. Only Velero writes it.
    pub const GLOBAL_VOLUME_POLICY: &str = "velero.io/global-backup-volume-policy-configmap";
    /// Label of a PersistentVolumeClaim: the group of volumes that it belongs to. This key is the
    /// default of `spec.volumeGroupSnapshotLabelKey`, and is written into the effective spec.
    pub const VOLUME_GROUP: &str = "velero.io/volume-group";
    /// Annotation of an object that an item action looks at: the object is left out of the backup,
    /// whatever the value.
    pub const SKIP_FROM_BACKUP: &str = "velero.io/skip-from-backup";
    /// Annotation of an object that an item action looks at: with `"true"`, what the object needs
    /// is stored whatever the filters say. The annotation itself is not stored.
    pub const MUST_INCLUDE: &str = "backup.velero.io/must-include-additional-items";
    /// Label of an object that a restore made: the name of the Restore.
    pub const RESTORE_NAME: &str = "velero.io/restore-name";
    /// Label of an object that a restore made: the UID of the Restore.
    pub const RESTORE_UID: &str = "velero.io/restore-uid";
    /// Label of an object that was made for a backup: the name of the Backup.
    pub const BACKUP_NAME: &str = "velero.io/backup-name";
    /// Label of an object that was made for a backup: the UID of the Backup. A VolumeSnapshot with
    /// this label was made by berth; one that Velero made lacks it.
    pub const BACKUP_UID: &str = "velero.io/backup-uid";
    /// Label of a DataUpload: the UID of the claim whose data it moves. Label of a PodVolumeBackup:
    /// the UID of the claim whose files it backs up.
    pub const PVC_UID: &str = "velero.io/pvc-uid";
    /// Label of a DataUpload: the operation of the backup that it is.
    pub const OPERATION_ID: &str = "velero.io/async-operation-id";
    /// Annotation of a PodVolumeBackup: the name of the claim whose files it backs up.
    pub const PVC_NAME: &str = "velero.io/pvc-name";
    /// Label of a BackupRepository: the namespace whose volumes it holds.
    pub const VOLUME_NAMESPACE: &str = "velero.io/volume-namespace";
    /// Label of a BackupRepository: the program that writes it.
    pub const REPOSITORY_TYPE: &str = "velero.io/repository-type";
    /// Annotation of a Backup: how long all its PodVolumeBackups together may take, in place of
    /// `--fs-backup-timeout`.
    pub const POD_VOLUME_TIMEOUT: &str = "velero.io/pod-volume-timeout";
    /// Annotation of a Pod: names of its volumes whose files are backed up, comma separated.
    pub const BACKUP_VOLUMES: &str = "backup.velero.io/backup-volumes";
    /// Annotation of a Pod: names of its volumes whose files are not backed up where those of all
    /// volumes are, comma separated.
    pub const EXCLUDE_VOLUMES: &str = "backup.velero.io/backup-volumes-excludes";
    /// Label of a VolumeSnapshotClass: snapshots of its driver's volumes are taken by it.
    /// Annotation of a PersistentVolumeClaim: the VolumeSnapshotClass by which its snapshots are
    /// taken. As the first part of an annotation of a Backup, before an underscore and the name of
    /// a driver: the same for all volumes of that driver.
    pub const CLAIM_SNAPSHOT_CLASS: &str = "velero.io/csi-volumesnapshot-class";
    /// Annotation of a VolumeSnapshotClass: it is its driver's default class.
    pub const DEFAULT_SNAPSHOT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
    /// Label of a VolumeGroupSnapshotClass: with `"true"`, group snapshots of its driver's volumes
    /// are taken by it. As the first part of an annotation of a Backup, before an underscore and
    /// the name of a driver: the VolumeGroupSnapshotClass for the volumes of that driver.
    pub const GROUP_SNAPSHOT_CLASS: &str = "velero.io/csi-volumegroupsnapshot-class";
    /// Annotation of a PersistentVolumeClaim: the VolumeGroupSnapshotClass by which the snapshots
    /// of its group are taken.
    pub const CLAIM_GROUP_SNAPSHOT_CLASS: &str = "velero.io/csi-volume-group-snapshot-class";
    /// Annotation of a VolumeGroupSnapshotClass: with `"true"`, it is its driver's default class.
    pub const DEFAULT_GROUP_SNAPSHOT_CLASS: &str =
        "groupsnapshot.storage.kubernetes.io/is-default-class";
    /// Label of a Backup: why it has expired and is not deleted.
    pub const GC_FAILURE: &str = "velero.io/gc-failure";
    /// Label and annotation of a PersistentVolumeClaim: the snapshot that an earlier backup took of
    /// it, or that it was restored from.
    pub const VOLUME_SNAPSHOT_NAME: &str = "velero.io/volume-snapshot-name";
    /// Annotation of a PersistentVolumeClaim in an archive: the data movement of that backup.
    pub const DATA_UPLOAD_NAME: &str = "velero.io/data-upload-name";
    /// Annotation of a VolumeSnapshot in an archive: the handle by which a restore finds the
    /// snapshot in its storage.
    pub const SNAPSHOT_HANDLE: &str = "velero.io/csi-volumesnapshot-handle";
    /// Annotation of a VolumeSnapshot in an archive: the size that a volume restored from it must
    /// have at least.
    pub const SNAPSHOT_RESTORE_SIZE: &str = "velero.io/csi-volumesnapshot-restore-size";
    /// Annotation of a VolumeSnapshot in an archive: the CSI driver that took the snapshot.
    pub const SNAPSHOT_DRIVER: &str = "velero.io/csi-driver-name";
    /// Annotation of a VolumeSnapshot in an archive: the deletion policy of its
    /// VolumeSnapshotContent.
    pub const SNAPSHOT_DELETION_POLICY: &str = "velero.io/csi-vsc-deletion-policy";
    /// Annotation of a VolumeSnapshot in an archive: the handle of the group snapshot that it
    /// belongs to.
    pub const GROUP_SNAPSHOT_HANDLE: &str = "velero.io/csi-volumegroupsnapshot-handle";

    // Shared buckets.

    /// Finalizer of the hub's objects: berth removes it when the object's end is complete.
    pub const GARDEN_FINALIZER: &str = "garden.berth.dev/backup";
    /// Finalizer of a Secret with the credentials of buckets: the Secret stays while a bucket needs
    /// it.
    pub const CREDENTIALS_FINALIZER: &str = "garden.berth.dev/backupbucket";
    /// Finalizer of a member cluster's BackupBucket and its Secret: Gardener's own.
    pub const EXTENSION_BUCKET_FINALIZER: &str = "extensions.gardener.cloud/backupbucket";
    /// Finalizer of a member cluster's BackupEntry and its Secret: Gardener's own.
    pub const EXTENSION_ENTRY_FINALIZER: &str = "extensions.gardener.cloud/backupentry";
    /// Annotation of a member cluster's BackupBucket or BackupEntry: the operation that is asked
    /// for, `reconcile`, `migrate` or `restore`. Gardener's own.
    pub const OPERATION: &str = "gardener.cloud/operation";
    /// Annotation of a member cluster's BackupBucket or BackupEntry: when the operation was asked
    /// for. Gardener's own.
    pub const OPERATION_TIMESTAMP: &str = "gardener.cloud/timestamp";
    /// Annotation of an object that may be deleted: permits the deletion. Gardener's own.
    pub const CONFIRM_DELETION: &str = "confirmation.gardener.cloud/deletion";
    /// Annotation of a BackupEntry of the hub: the purpose of its cluster, which decides how long
    /// deleted data stays.
    pub const PURPOSE: &str = "garden.berth.dev/purpose";
    /// Annotation of a BackupEntry of the hub: the bucket in which it was given its place. It
    /// survives a restore of the hub, which loses finalizers and statuses, so that such an entry
    /// keeps its place though the bucket is full.
    pub const PLACED_IN: &str = "garden.berth.dev/placed-in";
    /// Annotation of a BackupEntry of the hub: the Seed whose cluster may write there, as in
    /// `status.seed`. It survives a restore of the hub, which loses statuses, so that the hub knows
    /// which cluster it has to wait for.
    pub const WRITER: &str = "garden.berth.dev/writer";
    /// Annotation of a BackupEntry, hub or member: what lies in the directory of its name without
    /// an owner's mark is its own. The value is its name. In a hub only who may write statuses of
    /// entries may set it.
    pub const OWN_DIRECTORY: &str = "garden.berth.dev/own-directory";
    /// Annotation of a member's BackupEntry: the namespace of the hub's, to whom its directory
    /// belongs.
    pub const HUB_NAMESPACE: &str = "garden.berth.dev/hub-namespace";
    /// Annotation of a BackupEntry of the hub: its next move does not wait for the cluster that may
    /// be writing there. The value is the reason, in words.
    pub const TAKE_OVER: &str = "garden.berth.dev/take-over";
    /// Annotation of a Seed: UID of the cluster that it is; the first cluster that reported counts.
    pub const CLUSTER: &str = "garden.berth.dev/cluster";
    /// Annotation of a BackupBucket of the hub: the CloudProfile that it was made for.
    pub const CLOUD_PROFILE: &str = "garden.berth.dev/cloud-profile";
    /// Label of a ConfigMap: it is the record of a BackupEntry that no longer exists.
    pub const TOMBSTONE: &str = "garden.berth.dev/tombstone";
    /// Annotation of a BackupEntry of the hub: its data is deleted without a grace period. The
    /// value is the reason, for the record.
    pub const FORCE_DELETION: &str = "garden.berth.dev/force-deletion";
    /// Annotation of a BackupEntry or BackupBucket, hub or member: what is left in the store stays
    /// there, and that is recorded. The value is the reason, for the record.
    pub const FORGET_DATA: &str = "garden.berth.dev/forget-data";
    /// Annotation of a BackupBucket, hub or member: the bucket's own name, so that it is emptied
    /// before it is deleted.
    pub const EMPTY_BUCKET: &str = "garden.berth.dev/empty-bucket";
    /// Annotation of a CloudProfile: another provider without a region is admitted, with a warning,
    /// and gets no bucket.
    pub const ALLOW_CROSS_PROVIDER: &str = "garden.berth.dev/allow-cross-provider";
    /// Annotation of a CloudProfile: an endpoint or path by which its buckets are found from now
    /// on, in the same store.
    pub const SAME_STORE: &str = "garden.berth.dev/same-store";
    /// Annotation of a BackupBucket, hub or member: the bucket's own name, so that it is created
    /// again though it was lost.
    pub const MAKE_ANEW: &str = "garden.berth.dev/make-anew";
    /// Label of a BackupStorageLocation or Secret that was made for a BackupEntry: the name of that
    /// entry.
    pub const BACKUP_ENTRY: &str = "garden.berth.dev/backup-entry";
    /// Annotation of a BackupStorageLocation: the run of `berth garden migrate` that moves it, and
    /// when that run last said so.
    pub const MIGRATED_BY: &str = "garden.berth.dev/migrated-by";
    /// Label of every object that a member cluster holds for its hub: the name of the seed. An
    /// object without it belongs to another owner.
    pub const CARRIED_FOR: &str = "garden.berth.dev/seed";
    /// Label of a BackupBucket, BackupEntry or BackupStorageLocation that was made for an object of
    /// the hub: the UID of that object. By it the record of an earlier object's end is not taken
    /// for that of a later one of the same name.
    pub const HUB_UID: &str = "garden.berth.dev/hub-uid";
    /// Annotation of a BackupBucket, BackupEntry or BackupStorageLocation that was made for an
    /// object of the hub: a digest of the credentials that it uses, so that new credentials are
    /// noticed.
    pub const CREDENTIALS_DIGEST: &str = "garden.berth.dev/credentials-digest";
    /// Label of a Secret of the hub: it holds keys for the directory of one entry.
    pub const LOCATION_KEYS: &str = "garden.berth.dev/location-keys";
    /// Annotation of a Secret with keys for one directory: the credentials by which the keys were
    /// made.
    pub const MADE_FROM: &str = "garden.berth.dev/made-from";
    /// Annotation of a Secret with keys for one directory: when the keys were made.
    pub const MADE_AT: &str = "garden.berth.dev/made-at";
    /// Annotation of a Secret with keys for one directory: when the keys expire.
    pub const EXPIRE_AT: &str = "garden.berth.dev/expire-at";
    /// Label of a Role or RoleBinding in the hub: what the Seed of that name may read.
    pub const SEED_ACCESS: &str = "garden.berth.dev/seed-access";
    /// Annotation of a BackupEntry of the hub: its location becomes the default location of its
    /// cluster, if there is no other.
    pub const DEFAULT_LOCATION: &str = "garden.berth.dev/default-location";
}

/// Annotations of a Backup that only berth writes, because they decide the order of Backups, which
/// of them run together, which commands run in pods, which objects are read, which process runs a
/// Backup and how often, which Schedule it counts for, and whether its files are being removed.
pub const MARKS: [&str; 10] = [
    ENQUEUED_AT,
    RESOLVED_NAMESPACES,
    WAITS_SINCE,
    FROZEN,
    SCOPE,
    RUN,
    RUNS,
    PUBLISHING,
    SCHEDULE_UID,
    FILES_GO,
];

/// Those of [`MARKS`] that say something of a Backup also when it has ended: which pods may still
/// be frozen, which Schedule it counts for, and that its files are being removed.
pub const LASTING_MARKS: [&str; 3] = [FROZEN, SCHEDULE_UID, FILES_GO];

/// `spec.provider` of a BackupStorageLocation that is a folder.
pub const FILESYSTEM_PROVIDER: &str = "berth.dev/filesystem";
/// `status.formatVersion` and the archive's `metadata/version`.
pub const FORMAT_VERSION: &str = "1.1.0";

/// In the hub, the agent of Seed NAME is ServiceAccount NAME of this namespace, or the user of this
/// prefix and NAME.
pub const SEEDS_NAMESPACE: &str = "garden-seeds";
pub const SEED_USER: &str = "garden.berth.dev:seed:";

/// The field manager of every patch, and the reporter of Events.
pub const FIELD_MANAGER: &str = "berth";
pub const REPORTING_COMPONENT: &str = "berth.dev";

/// Does this annotation exist with a value other than `false`?
pub fn is_set(annotations: &BTreeMap<String, String>, key: &str) -> bool {
    annotations.get(key).is_some_and(|value| value != "false")
}

/// A name as a label value: longer than 63 characters, the first 57 and six hexadecimal digits of
/// its hash. `hash` is the SHA-256 of the name in hexadecimal (source: Velero's `pkg/label`).
pub fn label_value(name: &str, sha256_hex: impl FnOnce(&str) -> String) -> String {
    if name.len() <= 63 {
        return name.to_owned();
    }
    let head: String = name.chars().take(57).collect();
    head + sha256_hex(name).get(..6).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::ALL;

    #[test]
    fn every_key_is_there_once_and_says_what_carries_it_and_what_it_means() {
        let all: BTreeSet<&str> = ALL.iter().map(|one| one.key).collect();
        assert_eq!(all.len(), ALL.len());
        for one in ALL {
            let carrier = one.carrier();
            let is_known =
                ["Annotation ", "Label ", "Finalizer "].iter().any(|kind| carrier.starts_with(kind));
            assert!(is_known, "{}: {carrier}", one.key);
            assert!(one.meaning().ends_with('.'), "{}: {}", one.key, one.meaning());
        }
    }
}
