//! The engine: runs one backup from ReadyToStart to its end, written in Velero's format.
//!
//! [`runner`] starts a [`run`] for each ReadyToStart Backup while this process leads, with what every run needs ([`engine`]). From its claim on `conduct` has it
//! `take` what the backup takes, while `progress` goes to the Backup; `interruption` says what becomes of it when it ends early, and `ending` how a Backup fails. A run asks what it
//! must know (`survey`: types by [`discovery`], what it amounts to by [`prepare`]), lists ([`collect`], [`list`], [`split`]; what fails is
//! tried again by [`reading`], and all of it is as of one [`revision`] where that can be had: types that other `servers` keep are not) and takes
//! what the objects of these need (`related`),
//! lets [`actions`] change the few that Velero changes, and hands batches of raw objects to its own worker pool ([`archive`]), which sends gzip
//! members to the store ([`upload`]; what these tell each other is in [`messages`]). Pods that have hooks (`hooks`) are held back (`hold`), with what they use, and go there by way of `blocks`, which run commands in them ([`exec`]) and have on
//! record what may be frozen (`frozen`). Whose the folder in the store is, and what becomes of what lies in it, says `publication`. What of it is
//! stored so far the `ledger` knows and the `keeper` writes down, as a `checkpoint`; `recover` looks at the `scene`, has `thaw` undo what a dead leader has frozen, and
//! goes on from there with what it left, by [`turns`].

pub mod actions;
pub mod archive;
pub mod asked;
mod begun;
mod blocks;
mod checkpoint;
pub mod collect;
mod conduct;
pub mod discovery;
mod ending;
pub mod engine;
pub mod exec;
mod frozen;
mod hold;
mod hooks;
mod inputs;
mod interruption;
mod keeper;
mod ledger;
pub mod list;
pub mod log;
pub mod messages;
pub mod metrics;
pub mod names;
mod noted;
mod policy;
pub mod prepare;
mod progress;
mod publication;
pub mod reading;
mod recover;
mod related;
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
pub mod upload;
mod uploads;
