//! Flags of `berth garden`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};

use super::{LogFormat, duration};

#[derive(ClapArgs)]
pub struct GardenArgs {
    #[command(subcommand)]
    pub command: GardenCommand,
}

#[derive(Subcommand)]
pub enum GardenCommand {
    /// Act in a member cluster: make buckets and remove data, as Gardener's BackupBuckets and BackupEntries say; with
    /// --hub-kubeconfig, carry what a hub gave to this cluster. Run two: one leads.
    Agent(Box<AgentArgs>),
}

#[derive(ClapArgs)]
pub struct AgentArgs {
    /// Namespace of the Lease, and of the BackupStorageLocations that are made.
    #[arg(long, short, env = "VELERO_NAMESPACE", default_value = berth_api::keys::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Kubeconfig file. Default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig file of the hub. Without: only what is in this cluster is acted on.
    #[arg(long, requires = "seed")]
    pub hub_kubeconfig: Option<PathBuf>,
    /// Name of the hub's Seed that this cluster is.
    #[arg(long, requires = "hub_kubeconfig")]
    pub seed: Option<String>,
    /// Namespace with the stores' credentials, in the hub and here.
    #[arg(long, default_value = berth_api::garden::GARDEN_NAMESPACE)]
    pub garden_namespace: String,
    /// Where /healthz, /readyz and /metrics are served, plain HTTP.
    #[arg(long, default_value = "[::]:8085")]
    pub health_address: SocketAddr,
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or tracing's filter syntax.
    #[arg(long, env = "BERTH_LOG", default_value = "info")]
    pub log_level: String,
    /// How long a leader that went silent keeps the others waiting.
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub lease_duration: Duration,
}
