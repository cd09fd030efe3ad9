//! Every test that needs more than one package: on a real control plane, with berth as processes of its own.

mod support;

mod admission;
mod archive;
mod engine;
mod failure;
mod manifests;
mod queue;
