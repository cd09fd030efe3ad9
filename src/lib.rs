//! berth: a place in line for Kubernetes backups. This package holds the effects; what is decided is decided
//! in `berth-core`, what is on the wire is in `berth-api`, admission is `berth-webhooks`, keys are `berth-certs`.
//!
//! The way of a Backup: the webhook queues it ([`commands::webhook`]) → the leader ([`leader`]) starts it when its
//! turn comes ([`queue`]) → the engine runs it ([`backup`]) → the store holds it ([`storage`]). Volume data goes by data
//! movers ([`movers`]): where their pods may run, and who may prepare next. Buckets that clusters share: [`garden`].

pub mod args;
pub mod backup;
pub mod cache;
pub mod certificates;
pub mod check;
pub mod client;
pub mod commands;
pub mod events;
pub mod garden;
pub mod health;
pub mod image;
pub mod install;
pub mod leader;
pub mod listen;
pub mod metrics;
pub mod movers;
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
