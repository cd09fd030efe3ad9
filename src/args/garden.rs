//! Flags of `berth garden`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};

use super::hub::limit;
use super::{ClusterArgs, FolderArgs, Output, ReportArgs, duration};

#[derive(ClapArgs)]
pub struct GardenArgs {
    #[command(subcommand)]
    pub command: GardenCommand,
}

#[derive(Subcommand)]
pub enum GardenCommand {
    /// Run the agent of a member cluster: it creates buckets and deletes data as Gardener's
    /// BackupBuckets and BackupEntries ask; with --hub-kubeconfig it also syncs the hub's objects
    /// for this cluster. Run two: one leads. Example: berth garden agent --namespace velero
    Agent(Box<AgentArgs>),
    /// List the hub's buckets: how full they are, which seed acts on them, and what is wrong.
    /// Example: berth garden buckets -o json
    Buckets(HubTarget),
    /// List the hub's entries: their bucket, their cluster, what is wrong, and until when deleted
    /// data is kept. Example: berth garden entries -o json
    Entries(HubTarget),
    /// Show what a hub would do with the objects in these files. No cluster is contacted.
    /// Example: berth garden plan -f hub.yaml
    Plan(PlanArgs),
    /// Move a cluster's backups from its own bucket into its directory of a shared bucket. Progress
    /// is recorded in the shared bucket, so run it again after an interruption. Backups to the
    /// location wait during the last listing. Example: berth garden migrate --from default
    /// --to-entry shoot--web --dry-run
    Migrate(MigrateArgs),
}

#[derive(ClapArgs)]
pub struct AgentArgs {
    /// Namespace of the Lease, and of the BackupStorageLocations that the agent creates.
    #[arg(long, short, env = "VELERO_NAMESPACE", default_value = berth_api::keys::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Kubeconfig file. Default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig file of the hub. Default: none, and the agent acts on this cluster's objects
    /// only.
    #[arg(long, requires = "seed")]
    pub hub_kubeconfig: Option<PathBuf>,
    /// Name of this cluster's Seed in the hub.
    #[arg(long, requires = "hub_kubeconfig")]
    pub seed: Option<String>,
    /// Namespace of the stores' credentials, in the hub and in this cluster.
    #[arg(long, default_value = berth_garden_api::GARDEN_NAMESPACE)]
    pub garden_namespace: String,
    #[command(flatten)]
    pub reports: ReportArgs,
    /// Lease duration: how long other replicas wait for a leader that stopped renewing.
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub lease_duration: Duration,
    #[command(flatten)]
    pub folders: FolderArgs,
}

/// Flags of commands that list a hub's objects.
#[derive(ClapArgs)]
pub struct HubTarget {
    /// Kubeconfig file of the hub. Default: KUBECONFIG, ~/.kube/config, or the pod's service
    /// account.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    #[arg(long, short, value_enum, default_value = "table")]
    pub output: Output,
}

#[derive(ClapArgs)]
pub struct PlanArgs {
    /// YAML file with CloudProfiles, Seeds, BackupEntries, and existing BackupBuckets; `-` is
    /// standard input. May be given more than once.
    #[arg(long = "filename", short = 'f', required = true)]
    pub files: Vec<PathBuf>,
    /// Most entries in one bucket of a provider, as in aws=100. Default: no limit. May be given
    /// more than once.
    #[arg(long = "bucket-quota", value_delimiter = ',', value_parser = limit)]
    pub bucket_quotas: Vec<(String, u32)>,
    #[arg(long, short, value_enum, default_value = "table")]
    pub output: Output,
}

#[derive(ClapArgs)]
pub struct MigrateArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    /// BackupStorageLocation whose backups to move. It keeps its name.
    #[arg(long, value_name = "LOCATION")]
    pub from: String,
    /// BackupEntry of this cluster to move the backups to.
    #[arg(long, value_name = "ENTRY")]
    pub to_entry: String,
    /// Show what would be done, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// At the end, delete the copied objects from the old bucket. Default: they stay until a later
    /// run with --retire.
    #[arg(long, conflicts_with = "dry_run")]
    pub retire: bool,
    /// How many objects are copied at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub at_once: u16,
    /// How long to wait for running Backups to end, and for the moved location to become Available.
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub folders: FolderArgs,
}
