//! Every test that needs more than one package: on a real control plane, with berth as processes of its own.

#![allow(clippy::unwrap_used, clippy::panic)] // A test ends where something is not as it should be.

mod support;

mod admission;
mod archive;
mod certificates;
mod cluster;
mod crash;
mod engine;
mod failure;
mod garden;
mod guard;
mod install;
mod manifests;
mod movers;
mod pods;
mod pressure;
mod queue;
mod rights;
mod steering;
mod velero;
