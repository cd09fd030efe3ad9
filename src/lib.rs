//! berth: a place in line for Kubernetes backups. This package has the effects: API clients,
//! stores, processes. Decisions are in `berth-core`, wire types in `berth-api`, admission in
//! `berth-webhooks`, certificates in `berth-certs`.
//!
//! The way of a Backup: the webhook queues it ([`commands::webhook`]), the leader ([`leader`])
//! starts it when its turn comes ([`queue`]), the engine runs it ([`backup`]), and the store holds
//! it ([`storage`]). Data movers carry volume data ([`movers`]): where their pods may run, and
//! which of them may prepare next. Buckets that clusters share: [`garden`].

// `cli::print` has what prints, because these macros panic where nobody reads the output.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod admission;
pub mod args;
pub mod backup;
pub mod cache;
pub mod certificates;
pub mod check;
pub mod cli;
pub mod client;
pub mod commands;
pub mod data_movement;
pub mod events;
pub mod garden;
pub mod guarded;
pub mod health;
pub mod image;
pub mod install;
pub mod leader;
pub mod lean;
pub mod lifecycle;
pub mod listen;
pub mod metrics;
pub mod movers;
pub mod node_agent;
pub mod objects;
pub mod pace;
pub mod patch;
pub mod queue;
pub mod reference;
pub mod settings;
pub mod shutdown;
pub mod storage;
pub mod telemetry;
pub mod text;
pub mod watch;
pub mod write;
