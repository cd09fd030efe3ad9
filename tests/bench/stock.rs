//! The same work by stock Velero, in a namespace of its own.

use anyhow::Context as _;
use berth_test_support::peers::{S3, Velero, install_definitions, prepare};
use berth_test_support::{ControlPlane, binaries};
use kube::Client;
use tokio::runtime::Runtime;

use crate::engine::{Done, back_up};
use crate::system;

const NAMESPACE: &str = "stock";

pub struct Stock {
    pub done: Done,
    pub peak_mib: f64,
}

/// Builds what is missing: minutes, that are better spent before anything is timed.
///
/// # Errors
/// When it cannot be built.
pub fn find() -> anyhow::Result<()> {
    binaries::get(["velero", "velero-crds", "velero-plugin-for-aws"]).map(drop)
}

/// One backup. Its settings are the stock ones: a queue with one slot, one worker.
///
/// # Errors
/// When it does not end well.
pub fn run(
    runtime: &Runtime,
    plane: &ControlPlane,
    client: &Client,
    s3: &S3,
    included: &[String],
) -> anyhow::Result<Stock> {
    install_definitions(plane)?;
    prepare(plane, NAMESPACE, s3, NAMESPACE)?;
    let velero = Velero::start(plane, NAMESPACE, s3, &[], &[])?;
    let done = runtime.block_on(back_up(client, s3, NAMESPACE, "default", "stock", included));
    let done = done.with_context(|| berth_test_support::log::tail(velero.log(), 20))?;
    let peak_mib = system::peak_mib(velero.process.id())?;
    Ok(Stock { done, peak_mib })
}
