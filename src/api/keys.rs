//! Labels, annotations and well-known names, once.

use std::collections::BTreeMap;

/// Namespace that Velero and berth serve unless told otherwise.
pub const DEFAULT_NAMESPACE: &str = "velero";

/// When the backup got its place: RFC 3339 with microseconds. Set once, by the webhook or the controller.
pub const ENQUEUED_AT: &str = "berth.dev/enqueued-at";
/// Namespaces that a started backup's patterns resolved to, comma separated: what it holds while it runs.
pub const RESOLVED_NAMESPACES: &str = "berth.dev/resolved-namespaces";
/// Which run of a controller has a Backup that is InProgress: only that one writes it. Whoever takes up what a dead one left takes
/// it over by this.
pub const RUN: &str = "berth.dev/run";
/// How often a Backup that is InProgress was run: each time that its leader was gone, the next one runs it again.
pub const RUNS: &str = "berth.dev/runs";
/// The run that had stored everything and got leave to publish: from then on the backup is whole, whoever writes its last file.
pub const PUBLISHING: &str = "berth.dev/publishing";
/// Pods in which hooks of its run have begun and those after them were not tried yet (see `berth_core::hook`): written before
/// anything is frozen in them, so that whoever takes up what a dead run left knows what to thaw.
pub const FROZEN: &str = "berth.dev/frozen";
/// Digest of what a started backup takes, types and namespaces, as the checkpoints of its run say it: written before there is one, because
/// whoever may write to the store could otherwise say what is read.
pub const SCOPE: &str = "berth.dev/scope";
/// When the first of those arrived whose place it took by [`SUPERSEDE`]: RFC 3339 with microseconds. Set by the controller.
pub const WAITS_SINCE: &str = "berth.dev/waits-since";

/// Annotations by which people steer a Backup; `berth queue` writes them. Whoever may change it may hold and cancel it; what
/// lets it pass others or ends them, here and below, wants `update` on `backups/queue`.
/// Any value but `false`: it waits, and is in nobody's way.
pub const HOLD: &str = "berth.dev/hold";
/// RFC 3339: it goes to the front; of several, the last one goes first.
pub const FIRST: &str = "berth.dev/first";
/// Any value but `false`: it ends, waiting or running.
pub const CANCEL: &str = "berth.dev/cancel";
/// Annotation or label of a Backup: its priority class, one of those that are configured.
pub const PRIORITY_CLASS: &str = "berth.dev/priority-class";
/// Annotation of a Backup, which Velero copies from its Schedule. Any value but `false`: older ones of the schedule
/// that still wait end when this one arrives.
pub const SUPERSEDE: &str = "berth.dev/supersede";

/// Annotations of the leader's Lease: its `--concurrent-backups`, how it orders (see [`crate::order`]), and why it
/// starts nothing, where that is so.
pub const CONCURRENT_BACKUPS: &str = "berth.dev/concurrent-backups";
pub const QUEUE_ORDER: &str = "berth.dev/queue-order";
pub const STOPPED: &str = "berth.dev/stopped";
/// Annotation of the leader's Lease: UIDs of Backups whose every write the API server refuses, comma separated; the first few.
pub const UNWRITABLE: &str = "berth.dev/unwritable";
/// Annotation of the leader's Lease: its `--node-agent-configmap`. Empty: it takes what the node-agents name.
pub const NODE_AGENT_CONFIGMAP: &str = "berth.dev/node-agent-configmap";
/// Annotation of the leader's Lease: who runs what it starts, `berth` or `velero`.
pub const EXECUTOR: &str = "berth.dev/executor";

/// Annotation of a Backup, a DataUpload or a DataDownload: when berth last woke a Velero that let it lie.
pub const NUDGED_AT: &str = "berth.dev/nudged-at";

/// Annotation of the node-agents' ConfigMap: faults are warnings when it is written.
pub const UNCHECKED: &str = "berth.dev/unchecked";
/// Annotation of a data mover: it may be accepted. Any value but `false`; written by the leader, who counts.
pub const GRANTED: &str = "berth.dev/granted";

/// Annotation of a data mover: how often it was put back to New because a node-agent was gone.
pub const BEGUN_ANEW: &str = "berth.dev/begun-anew";

/// Annotation of the webhooks' Secret: `leaf` or `ca` is to be issued anew. Taken away when that is done.
pub const ROTATE: &str = "berth.dev/rotate";
/// Annotation of the same: all authorities but the newest are to be revoked. Taken away when that is done.
pub const REVOKE: &str = "berth.dev/revoke";

/// Label of a Backup that a schedule made: the schedule's name.
pub const SCHEDULE: &str = "velero.io/schedule-name";

/// Label of a Backup: its location's name, shortened by [`label_value`].
pub const STORAGE_LOCATION: &str = "velero.io/storage-location";
/// Label of any object, namespaces included: `"true"` keeps it out of every backup.
pub const EXCLUDE_FROM_BACKUP: &str = "velero.io/exclude-from-backup";
/// Annotations of a Backup: the version of the cluster that it was taken from.
pub const SOURCE_GIT_VERSION: &str = "velero.io/source-cluster-k8s-gitversion";
pub const SOURCE_MAJOR_VERSION: &str = "velero.io/source-cluster-k8s-major-version";
pub const SOURCE_MINOR_VERSION: &str = "velero.io/source-cluster-k8s-minor-version";
/// Annotation of a Backup: how long item actions may wait for a resource.
pub const RESOURCE_TIMEOUT: &str = "velero.io/resource-timeout";
/// Default key of volume groups, written into the effective spec.
pub const VOLUME_GROUP: &str = "velero.io/volume-group";

/// Annotation of an object that an item action has looked at: it is left out, whatever the value.
pub const SKIP_FROM_BACKUP: &str = "velero.io/skip-from-backup";
/// Annotation of the same. `"true"`: what it needs comes along whatever the filters say. It is not stored.
pub const MUST_INCLUDE: &str = "backup.velero.io/must-include-additional-items";
/// Labels of what a restore made: by which Restore.
pub const RESTORE_NAME: &str = "velero.io/restore-name";
pub const RESTORE_UID: &str = "velero.io/restore-uid";
/// Label: the Backup that it was made for.
pub const BACKUP_NAME: &str = "velero.io/backup-name";
/// Label and annotation of a claim: the snapshot that an earlier backup took of it, or that it was restored from.
pub const VOLUME_SNAPSHOT_NAME: &str = "velero.io/volume-snapshot-name";
/// Annotation of a claim in an archive: the data movement of that backup.
pub const DATA_UPLOAD_NAME: &str = "velero.io/data-upload-name";
/// Annotations of a VolumeSnapshot in an archive, by which a restore finds the snapshot in its storage again.
pub const SNAPSHOT_HANDLE: &str = "velero.io/csi-volumesnapshot-handle";
pub const SNAPSHOT_RESTORE_SIZE: &str = "velero.io/csi-volumesnapshot-restore-size";
pub const SNAPSHOT_DRIVER: &str = "velero.io/csi-driver-name";
pub const SNAPSHOT_DELETION_POLICY: &str = "velero.io/csi-vsc-deletion-policy";
pub const GROUP_SNAPSHOT_HANDLE: &str = "velero.io/csi-volumegroupsnapshot-handle";

/// Provider of a location that is a folder.
pub const FILESYSTEM_PROVIDER: &str = "berth.dev/filesystem";
/// `status.formatVersion` and the archive's `metadata/version`.
pub const FORMAT_VERSION: &str = "1.1.0";

/// Shared buckets. Finalizers: of the hub's objects, of a Secret with the credentials of buckets, and of a member
/// cluster's objects and their Secrets (the last two are Gardener's).
pub const GARDEN_FINALIZER: &str = "garden.berth.dev/backup";
pub const CREDENTIALS_FINALIZER: &str = "garden.berth.dev/backupbucket";
pub const EXTENSION_BUCKET_FINALIZER: &str = "extensions.gardener.cloud/backupbucket";
pub const EXTENSION_ENTRY_FINALIZER: &str = "extensions.gardener.cloud/backupentry";
/// Annotations of Gardener's: what is asked for (`reconcile`, `migrate`, `restore`), when, and leave to delete.
pub const OPERATION: &str = "gardener.cloud/operation";
pub const OPERATION_TIMESTAMP: &str = "gardener.cloud/timestamp";
pub const CONFIRM_DELETION: &str = "confirmation.gardener.cloud/deletion";
/// Annotation of a BackupEntry of the hub: what its cluster is for; decides how long deleted data stays.
pub const PURPOSE: &str = "garden.berth.dev/purpose";
/// Annotation of a BackupEntry of the hub: the bucket in which it was given its place. Outlives a restore of the hub, which
/// loses finalizers and statuses: such an entry keeps its place though the bucket be full.
pub const PLACED_IN: &str = "garden.berth.dev/placed-in";
/// Annotation of a BackupEntry of the hub: the Seed whose cluster may write there, as `status.seed` says. Outlives a restore of
/// the hub, which loses statuses: by this it knows whom to wait for.
pub const WRITER: &str = "garden.berth.dev/writer";
/// Annotation of a BackupEntry, hub or member: what lies in the directory of its name without an owner's mark is its own. The value is
/// its name. In a hub whoever may write statuses of entries says so.
pub const OWN_DIRECTORY: &str = "garden.berth.dev/own-directory";
/// Annotation of a member's BackupEntry: the namespace of the hub's, to whom its directory belongs.
pub const HUB_NAMESPACE: &str = "garden.berth.dev/hub-namespace";
/// Annotation of a BackupEntry of the hub: its next move does not wait for the cluster that may be writing there. The value is
/// the reason, in words.
pub const TAKE_OVER: &str = "garden.berth.dev/take-over";
/// Annotation of a Seed: UID of the cluster that it is, whichever came first.
pub const CLUSTER: &str = "garden.berth.dev/cluster";
/// Annotation of a BackupBucket of the hub: the CloudProfile that it was made for.
pub const CLOUD_PROFILE: &str = "garden.berth.dev/cloud-profile";
/// Label of a ConfigMap: the record of a BackupEntry that is no more.
pub const TOMBSTONE: &str = "garden.berth.dev/tombstone";
/// Annotation of a BackupEntry of the hub: its data goes without grace. The value is the reason, for the record.
pub const FORCE_DELETION: &str = "garden.berth.dev/force-deletion";
/// Annotation of a BackupEntry or BackupBucket, hub or member: whatever is left in the store stays there, and is recorded. The
/// value is the reason, as above.
pub const FORGET_DATA: &str = "garden.berth.dev/forget-data";
/// Annotation of a BackupBucket, hub or member: its name, so that it is emptied before it is deleted.
pub const EMPTY_BUCKET: &str = "garden.berth.dev/empty-bucket";
/// Annotation of a CloudProfile: another provider without a region is let in, with a warning, and yields no bucket.
pub const ALLOW_CROSS_PROVIDER: &str = "garden.berth.dev/allow-cross-provider";
/// Annotation of a CloudProfile: an endpoint or path by which its buckets are to be found from now on, in the same store.
pub const SAME_STORE: &str = "garden.berth.dev/same-store";
/// Annotation of a BackupBucket, hub or member: its name, so that it is made again though it was lost.
pub const MAKE_ANEW: &str = "garden.berth.dev/make-anew";
/// Label of a BackupStorageLocation or Secret that was made for a BackupEntry: its name.
pub const BACKUP_ENTRY: &str = "garden.berth.dev/backup-entry";
/// Annotation of a BackupStorageLocation: the run of `berth garden migrate` that moves it, and when it last said so.
pub const MIGRATED_BY: &str = "garden.berth.dev/migrated-by";
/// Label of whatever a member cluster holds for its hub: the seed's name. What lacks it is somebody else's.
pub const CARRIED_FOR: &str = "garden.berth.dev/seed";
/// Label of a BackupBucket, BackupEntry or BackupStorageLocation that was made for one of the hub: that one's UID. A record of
/// an earlier one's end, under the same name, is not about this one.
pub const HUB_UID: &str = "garden.berth.dev/hub-uid";
/// Annotation of the same: a digest of the credentials that it goes with, so that new ones are noticed.
pub const CREDENTIALS_DIGEST: &str = "garden.berth.dev/credentials-digest";
/// Label of a Secret of the hub: keys for the directory of one entry. Annotations of the same: by which they were made, when, and
/// when they end.
pub const LOCATION_KEYS: &str = "garden.berth.dev/location-keys";
pub const MADE_FROM: &str = "garden.berth.dev/made-from";
pub const MADE_AT: &str = "garden.berth.dev/made-at";
pub const EXPIRE_AT: &str = "garden.berth.dev/expire-at";
/// In the hub, the agent of Seed NAME is ServiceAccount NAME of this namespace, or the user of this prefix and NAME.
pub const SEEDS_NAMESPACE: &str = "garden-seeds";
pub const SEED_USER: &str = "garden.berth.dev:seed:";
/// Label of a Role or RoleBinding in the hub: what the Seed in its name may read.
pub const SEED_ACCESS: &str = "garden.berth.dev/seed-access";
/// Annotation of a BackupEntry of the hub: its location is the default one of its cluster, if there is no other.
pub const DEFAULT_LOCATION: &str = "garden.berth.dev/default-location";

/// Who writes: the field manager of every patch; and who reports Events.
pub const FIELD_MANAGER: &str = "berth";
pub const REPORTING_COMPONENT: &str = "berth.dev";

/// Is this annotation there, and not `false`?
pub fn is_set(annotations: &BTreeMap<String, String>, key: &str) -> bool {
    annotations.get(key).is_some_and(|value| value != "false")
}

/// A name as a label value: longer than 63 characters, the first 57 and six hexadecimal digits of its hash.
/// `hash` is the SHA-256 of the name in hexadecimal (source: Velero's `pkg/label`).
pub fn label_value(name: &str, sha256_hex: impl FnOnce(&str) -> String) -> String {
    if name.len() <= 63 {
        return name.to_owned();
    }
    let head: String = name.chars().take(57).collect();
    head + sha256_hex(name).get(..6).unwrap_or_default()
}
