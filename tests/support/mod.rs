//! The real thing for tests and the demo: etcd and kube-apiserver, berth on top of them, kubectl.
//!
//! Nothing here needs an async runtime that outlives a call, so that tests with runtimes of their own can share
//! one control plane. Whatever is started is ended by `janitor`, however this process ends.
#![allow(dead_code)] // The tests and the demo use different parts.

pub mod backup;
pub mod berth;
pub mod binaries;
pub mod clouds;
pub mod control_plane;
pub mod courier;
pub mod csi;
pub mod http;
pub mod janitor;
pub mod kubectl;
pub mod lag;
pub mod log;
pub mod manifest;
pub mod moto;
pub mod movers;
pub mod network;
pub mod node_agent;
pub mod peers;
pub mod pods;
pub mod port;
pub mod process;
pub mod refusal;
pub mod wait;

pub use backup::backup;
pub use berth::{Berth, Options};
pub use control_plane::ControlPlane;
pub use kubectl::Kubectl;
pub use process::Process;
pub use wait::{wait_for, wait_until};

use std::path::Path;

/// The project's folder.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
