//! Everything that berth decides. Each public item is a value or a pure function of values: no
//! async, no API client, no clock (`now` is an argument), no randomness, no files, no logging. The
//! package `berth` reads the API objects, builds an immutable view of them, calls a function of
//! this package, and carries out what the function returns.
//!
//! The queue of Backups:
//!
//! - [`queue`]: the total order of waiting Backups, which of them start, why the others wait, and
//!   which queue positions must be written.
//! - [`namespace`]: the set of namespaces that a Backup takes, and whether two such sets overlap.
//! - [`location`]: the BackupStorageLocation that a Backup uses, and whether its Backups must wait.
//! - [`guard`]: who may change which fields of a Backup.
//! - [`limits`]: the largest sizes that berth accepts: list entries, bytes, durations.
//!
//! The contents of a backup:
//!
//! - [`selection`]: the resource types and objects that a Backup takes.
//! - [`policy`]: the filters and volume actions of a Velero resource policy.
//! - [`volume`]: how the data of each volume is backed up, by which VolumeSnapshotClass, and how
//!   long a run waits for it.
//! - [`label`]: label selectors: validation and matching.
//! - [`glob`]: the patterns of Velero: parsing, matching, and whether two of them share a match.
//! - [`hook`]: the commands that run in a pod before and after its data is stored.
//! - [`block`]: groups of pods whose hooks must run together because the pods share volumes.
//! - [`revision`]: the resourceVersion at which lists are read, and why some types cannot be read
//!   at it.
//! - [`reading`]: whether a failed read of the API server is retried, and after which pause.
//!
//! A run that ends early, and its successor:
//!
//! - [`claim`]: which run owns the folder of a backup in the object store.
//! - [`run`]: what happens to a Backup whose run ended before the backup was complete.
//! - [`operation`]: what becomes of a Backup whose objects are stored and whose data is still
//!   moved.
//! - [`upload`]: which run continues a multipart upload, and which run may abort it.
//!
//! Data movers:
//!
//! - [`mover`]: how many of Velero's data movers are prepared at the same time, and which ones.
//! - [`pod_volume`]: what a node agent does with the files of a pod's volume, and where they are.
//! - [`affinity`]: the nodes on which the pod of a data mover can run.
//!
//! Shared buckets have a package of their own, `berth-garden-core`, on top of this one.
//!
//! The life of a backup before and after its run:
//!
//! - [`cron`]: the expressions that say when a Schedule is due.
//! - [`schedule`]: what becomes of a Schedule now: a Backup, a skipped time, or nothing.
//! - [`deletion`]: what the deletion of a Backup does next, and whose the files in the store are.
//! - [`retention`]: which Backups have expired.
//! - [`download`]: which file a DownloadRequest asks for.
//! - [`sync`]: which backups of a store get a Backup in the cluster, and which Backups go because
//!   the store no longer has them.
//! - [`leftover`]: what backups that are gone have left in the cluster, and what of it can be
//!   removed.
//! - [`age`]: how old the last good backup of each namespace is.
//!
//! Used by all of them:
//!
//! - [`bytes`]: numbers of bytes in the unit that fits.
//! - [`duration`]: durations as Go writes them.
//! - [`location_turns`]: what is begun next where storage locations share a small limit.
//! - [`violation`]: every fault of an object at once, each with the path of its field.

pub mod affinity;
pub mod age;
pub mod block;
pub mod bytes;
pub mod claim;
pub mod cron;
pub mod deletion;
pub mod download;
pub mod duration;
pub mod glob;
pub mod guard;
pub mod hook;
pub mod label;
pub mod leftover;
pub mod limits;
pub mod location;
pub mod location_turns;
pub mod mover;
pub mod namespace;
pub mod operation;
pub mod pod_volume;
pub mod policy;
pub mod queue;
pub mod reading;
pub mod retention;
pub mod revision;
pub mod run;
pub mod schedule;
pub mod selection;
pub mod stage;
pub mod sync;
pub mod upload;
pub mod violation;
pub mod volume;
