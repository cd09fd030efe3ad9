//! The engine: runs one backup from ReadyToStart to its end, written in Velero's format.
//!
//! [`executor`] starts a [`run`] for each ReadyToStart Backup while this process leads. A run asks what it
//! must know (`survey`: types by [`discovery`], what it amounts to by [`prepare`]), lists ([`collect`], [`list`], [`split`]; what fails is
//! tried again by [`reading`]) and takes what the objects of these need (`related`), and hands batches of raw objects to its own worker
//! pool ([`archive`]), which sends gzip members to the store ([`upload`]). Whose the folder
//! there is, and what becomes of what lies in it, says `publication`. What of it is stored so far the `ledger` knows and the
//! `keeper` writes down, as a `checkpoint`; `recover` goes on from there with what a dead leader left.

pub mod archive;
pub mod asked;
mod begun;
mod checkpoint;
pub mod collect;
mod conduct;
pub mod discovery;
pub mod executor;
mod keeper;
mod ledger;
pub mod list;
pub mod log;
pub mod metrics;
pub mod prepare;
mod publication;
pub mod reading;
mod recover;
mod related;
pub mod run;
pub mod split;
pub mod status;
mod survey;
pub mod upload;
