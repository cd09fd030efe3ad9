//! Every test that needs more than one package: on a real control plane, with berth as processes of
//! its own.

#![allow(clippy::unwrap_used, clippy::panic)] // A test ends where something is not as it should be.

use berth_test_support as support;

mod admission;
mod archive;
mod certificates;
mod cli;
mod cluster;
mod compatibility;
mod crash;
mod documentation;
mod engine;
mod failure;
mod garden;
mod guard;
mod hooks;
mod hostile;
mod install;
mod lifecycle;
mod manifests;
mod movers;
mod operations;
mod pod_volumes;
mod pods;
mod pressure;
mod queue;
mod reviews;
mod rights;
mod steering;
mod volumes;
mod waits;
