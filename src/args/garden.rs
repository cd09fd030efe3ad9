//! Flags of `berth garden`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};

use super::hub::limit;
use super::{FolderArgs, Output, Target, duration};
use crate::settings::LogFormat;

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
    /// The hub's buckets: how full, who acts on them, what is wrong.
    Buckets(HubTarget),
    /// The hub's entries: where, whose, what is wrong, until when deleted data stays.
    Entries(HubTarget),
    /// What a hub would make of these files. No cluster is asked.
    Plan(PlanArgs),
    /// Move a cluster's backups from a bucket of its own into its directory of a shared one. What is done is on record in the
    /// shared bucket: run it again after an interruption. Backups of the location wait during the last listing.
    Migrate(MigrateArgs),
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
    #[command(flatten)]
    pub folders: FolderArgs,
}

/// What is asked of a hub.
#[derive(ClapArgs)]
pub struct HubTarget {
    /// Kubeconfig file of the hub. Default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    #[arg(long, short, value_enum, default_value = "table")]
    pub output: Output,
}

#[derive(ClapArgs)]
pub struct PlanArgs {
    /// YAML file with CloudProfiles, Seeds, BackupEntries, and BackupBuckets that are there already; `-` is standard input.
    /// May be given more than once.
    #[arg(long = "filename", short = 'f', required = true)]
    pub files: Vec<PathBuf>,
    /// Entries that a bucket takes, as in aws=100. A provider without one: any number. May be given more than once.
    #[arg(long = "bucket-quota", value_delimiter = ',', value_parser = limit)]
    pub bucket_quotas: Vec<(String, u32)>,
    #[arg(long, short, value_enum, default_value = "table")]
    pub output: Output,
}

#[derive(ClapArgs)]
pub struct MigrateArgs {
    #[command(flatten)]
    pub target: Target,
    /// BackupStorageLocation whose backups are moved. It keeps its name.
    #[arg(long, value_name = "LOCATION")]
    pub from: String,
    /// BackupEntry of this cluster that they are moved to.
    #[arg(long, value_name = "ENTRY")]
    pub to_entry: String,
    /// Say what there is to do, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// In the end, remove at the old place what was copied. Without: it stays until this is run again with it.
    #[arg(long, conflicts_with = "dry_run")]
    pub retire: bool,
    /// Objects that are copied at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub at_once: u16,
    /// How long to wait for backups that run, and for the location at its new place.
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub folders: FolderArgs,
}
