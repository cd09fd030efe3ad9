//! The real thing for tests, demo and bench: etcd and kube-apiserver, berth on top of them,
//! kubectl.
//!
//! Nothing here needs an async runtime that outlives a call, so that tests with runtimes of their
//! own can share one control plane. Whatever is started is ended by `janitor`, however this process
//! ends.

pub mod backup;
pub mod berth;
pub mod binaries;
pub mod clouds;
pub mod control_plane;
pub mod courier;
pub mod csi;
pub mod http;
mod in_process;
pub mod janitor;
pub mod kubectl;
pub mod kwok;
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
pub mod seen;
pub mod shared;
pub mod times;
pub mod wait;

pub use backup::backup;
pub use berth::{Berth, Options};
pub use control_plane::ControlPlane;
pub use kubectl::Kubectl;
pub use process::Process;
pub use wait::{PATIENCE, wait_for, wait_until};

use std::path::{Path, PathBuf};

/// The project's folder.
pub fn project() -> &'static Path {
    // This package lies in tests/support.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// The value of that variable, if it is set: `make test-large` sets larger numbers.
///
/// # Panics
/// When its value is no number, because the test would be smaller than intended.
pub fn number<N: std::str::FromStr>(variable: &str, usual: N) -> N {
    let Ok(text) = std::env::var(variable) else { return usual };
    let number = text.parse().ok();
    assert!(number.is_some(), "{variable}: a number is wanted, not {text:?}");
    number.unwrap_or(usual)
}

/// Cargo's folder for what it makes, in which this program lies.
pub fn target() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let made = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    made.map_or_else(|| project().join("target"), Path::to_path_buf)
}
