//! The engine: runs one backup from ReadyToStart to its end and writes it in Velero's format.
//!
//! While this process leads, [`runner`] starts a [`run`] for each ReadyToStart Backup. [`engine`]
//! holds what every run needs. `inputs` reads what a run must know before it begins: the types that
//! the cluster serves ([`discovery`]) and the effective spec ([`prepare`]).
//!
//! `conduct` leads a run from its claim on a folder to its end: `take` stores the objects,
//! `progress` writes the progress to the Backup, `interruption` decides what becomes of a run that
//! ends early, and `ending` writes how a Backup fails.
//!
//! Objects are listed by [`collect`], [`list`] and [`split`]. [`reading`] says how a failed read is
//! tried again. All lists are as of one [`revision`], except those of types that other `servers`
//! keep. `related` finds the objects that the listed ones need, and [`actions`] changes the few
//! objects that Velero changes. Batches of raw objects go to the worker pool ([`archive`]), which
//! sends gzip members to the [`upload`]; the types of the channels between them are in
//! [`messages`]. The [`index`] says where in the archive which objects are.
//!
//! Pods with hooks (`hooks`) are held back (`hold`) together with the claims and volumes that they
//! use, and are stored in `blocks`, which run commands in them ([`exec`]) and record on the Backup
//! which pods may be frozen (`frozen`).
//!
//! The data of volumes is taken by [`volumes`]: snapshots by CSI drivers, files by node-agents;
//! what belongs to a pod with hooks between its hooks.
//!
//! `publication` decides who owns the folder in the store and what becomes of its files. The
//! `ledger` counts what is stored, and the `keeper` writes it down as a `checkpoint`.
//! Data of snapshots that is still moved when all objects are stored is followed by [`operations`],
//! which also completes such a backup.
//!
//! A [`rehearsal`] tells what a backup would store: the same lists and decisions, without an
//! archive.
//!
//! When a leader is gone, `recover` reads what its run left (`scene`), runs the hooks that are
//! still due (`thaw`), and continues the backup; [`turns`] bounds how much of that happens at one
//! time.

pub mod actions;
mod agent_pods;
pub mod archive;
mod begun;
mod blocks;
mod checkpoint;
pub mod collect;
mod conduct;
pub mod discovery;
mod ending;
pub mod engine;
pub mod exec;
mod folder;
mod frozen;
mod hold;
mod hooks;
pub mod index;
mod inputs;
mod insist;
mod interruption;
mod keeper;
mod ledger;
pub mod list;
pub mod live_log;
pub mod log;
pub mod messages;
pub mod metrics;
pub mod movement;
pub mod names;
mod noted;
pub mod operations;
mod policy;
mod predecessor;
pub mod prepare;
mod progress;
mod publication;
pub mod reading;
mod recover;
pub mod rehearsal;
mod related;
pub mod removals;
pub mod revision;
pub mod run;
pub mod runner;
mod scene;
mod servers;
pub mod split;
pub mod status;
mod take;
mod thaw;
pub mod turns;
mod unremoved;
pub mod upload;
mod uploads;
pub mod volumes;
