//! Flags of `berth backup`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{ClusterArgs, ColourArgs};
use crate::args::listed::{ListOutput, ListOutputs};
use crate::args::value::{
    GoTime, List, Ordered, Pairs, Selectors, Tristate, boolean, go_time, list, list_selector, or_selector,
    ordered, pairs, quoted_list, selector, tristate, whole_number,
};

#[derive(ClapArgs)]
pub struct BackupArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    #[command(flatten)]
    pub colours: ColourArgs,
    #[command(subcommand)]
    pub command: BackupCommand,
}

#[derive(Subcommand)]
pub enum BackupCommand {
    /// Create a Backup. Example: berth backup create nightly --include-namespaces web --wait
    ///
    /// With --wait the exit code tells the outcome: 0 Completed, 3 PartiallyFailed, 4 Failed, 5
    /// FailedValidation, 6 canceled, 7 deleted; 1 and 2 mean that the command itself failed.
    Create(Box<CreateArgs>),
    /// Delete Backups with everything that is stored of them. Example: berth backup delete nightly
    Delete(DeleteArgs),
    /// Show everything about Backups. Example: berth backup describe nightly --details
    Describe(DescribeArgs),
    /// Download the stored objects of a Backup. Example: berth backup download nightly -o n.tar.gz
    Download(DownloadArgs),
    /// List Backups. Example: berth backup get -o wide
    Get(GetArgs),
    /// Print the log of a Backup. Example: berth backup logs nightly
    Logs(LogsArgs),
    /// List the objects that a Backup stored, or print one. Example: berth backup contents nightly
    /// --grep web
    Contents(ContentsArgs),
    /// Show which stored objects differ between two Backups. Example: berth backup diff monday
    /// tuesday
    Diff(DiffArgs),
}

/// What a Backup takes, and what is done with it: the flags that `backup create` and `schedule
/// create` have in common.
#[derive(ClapArgs, Clone, Debug, Default)]
pub struct SpecArgs {
    /// How long to keep the backup, as in 720h. Default: the server's.
    #[arg(long, allow_hyphen_values = true, value_parser = go_time)]
    pub ttl: Option<GoTime>,
    /// Namespaces to take, by name or pattern, comma separated. `*`: all.
    #[arg(long, value_parser = list, default_value = "*")]
    pub include_namespaces: Option<List>,
    /// Namespaces to leave out, by name or pattern, comma separated.
    #[arg(long, value_parser = list)]
    pub exclude_namespaces: Option<List>,
    /// Resource types to take, as in deployments.apps, comma separated. `*`: all. Not together with
    /// the flags of cluster-scoped and namespace-scoped resources.
    #[arg(long, value_parser = list)]
    pub include_resources: Option<List>,
    /// Resource types to leave out, comma separated. Not together with the flags of cluster-scoped
    /// and namespace-scoped resources.
    #[arg(long, value_parser = list)]
    pub exclude_resources: Option<List>,
    /// Cluster-scoped resource types to take, comma separated. `*`: all.
    #[arg(long, value_parser = list)]
    pub include_cluster_scoped_resources: Option<List>,
    /// Cluster-scoped resource types to leave out, comma separated.
    #[arg(long, value_parser = list)]
    pub exclude_cluster_scoped_resources: Option<List>,
    /// Namespaced resource types to take, comma separated. `*`: all.
    #[arg(long, value_parser = list)]
    pub include_namespace_scoped_resources: Option<List>,
    /// Namespaced resource types to leave out, comma separated.
    #[arg(long, value_parser = list)]
    pub exclude_namespace_scoped_resources: Option<List>,
    /// Labels of the object that is created, as in team=web,tier=1.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pairs)]
    pub labels: Vec<Pairs>,
    /// Annotations of the object that is created, as in note=weekly.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pairs)]
    pub annotations: Vec<Pairs>,
    /// BackupStorageLocation that stores the backup. Default: the default one.
    #[arg(long)]
    pub storage_location: Option<String>,
    /// VolumeSnapshotLocations, comma separated.
    #[arg(long, value_parser = quoted_list)]
    pub volume_snapshot_locations: Vec<List>,
    /// Take only objects that match this label selector, as in app=web or tier in (a,b).
    #[arg(long, short = 'l', value_parser = selector)]
    pub selector: Option<LabelSelector>,
    /// Take objects that match one of several label selectors, separated by ` or `, as in "app=web
    /// or app=db".
    #[arg(long, value_parser = or_selector)]
    pub or_selector: Option<Selectors>,
    /// Objects that go first within their type, as in
    /// pods=ns1/pod1,ns1/pod2;persistentvolumes=pv4.
    #[arg(long, value_parser = ordered)]
    pub ordered_resources: Option<Ordered>,
    /// How long to wait for a CSI snapshot. Default: the server's.
    #[arg(long, allow_hyphen_values = true, value_parser = go_time)]
    pub csi_snapshot_timeout: Option<GoTime>,
    /// How long to wait for an asynchronous operation. Default: the server's.
    #[arg(long, allow_hyphen_values = true, value_parser = go_time)]
    pub item_operation_timeout: Option<GoTime>,
    /// Snapshot persistent volumes. Default: where possible.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = tristate)]
    pub snapshot_volumes: Option<Tristate>,
    /// Move the data of snapshots into the storage location. Default: the server's.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = tristate)]
    pub snapshot_move_data: Option<Tristate>,
    /// Take cluster-scoped resources. Default: those that the others need.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = tristate)]
    pub include_cluster_resources: Option<Tristate>,
    /// Back up all pod volumes through the file system. Default: the server's.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = tristate)]
    pub default_volumes_to_fs_backup: Option<Tristate>,
    /// ConfigMap with resource policies.
    #[arg(long)]
    pub resource_policies_configmap: Option<String>,
    /// Program that moves the data of snapshots: berth, velero, or another one. Default: berth
    /// where its node agents run and none of Velero's, else velero.
    #[arg(long)]
    pub data_mover: Option<String>,
    /// How many files of a volume Velero's node-agents upload at the same time. 0: their default.
    #[arg(long, allow_hyphen_values = true, value_parser = whole_number)]
    pub parallel_files_upload: Option<i64>,
}

#[derive(ClapArgs)]
pub struct CreateArgs {
    /// Name of the Backup. Optional with --from-schedule, where it is the schedule's name and the
    /// time.
    pub name: Option<String>,
    #[command(flatten)]
    pub spec: SpecArgs,
    /// Schedule whose template to use. All flags that say what is taken are ignored then; labels
    /// and annotations count.
    #[arg(long)]
    pub from_schedule: Option<String>,
    /// Wait until the backup ends, and show what happens meanwhile.
    #[arg(long, short, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub wait: bool,
    #[command(flatten)]
    pub made: MadeArgs,
}

/// How a command that creates an object prints it, and whether it creates it at all.
#[derive(ClapArgs, Clone)]
pub struct MadeArgs {
    /// Print the object, and do not create it.
    #[arg(long, short, value_enum)]
    pub output: Option<MadeOutput>,
    /// Create nothing. `client`: check and print the object here. `server`: have the API server and
    /// berth check it, and show its place in the queue and the warnings. `plan`, of Backups only:
    /// also read what the backup would store, with your own rights, and show objects, volumes,
    /// hooks, and what it would wait for.
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "client")]
    pub dry_run: Option<DryRun>,
    /// Labels to show as columns of `--output table`, comma separated.
    #[arg(long, short = 'L', value_delimiter = ',')]
    pub label_columns: Vec<String>,
    /// Show all labels in the last column of `--output table`.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub show_labels: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum MadeOutput {
    Table,
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum DryRun {
    Client,
    Server,
    Plan,
}

/// Which objects a command acts on: exactly one of names, --all and --selector.
#[derive(ClapArgs, Clone)]
#[group(required = true, multiple = false)]
pub struct SelectArgs {
    /// Names. Default: none; then --all or --selector chooses.
    pub names: Vec<String>,
    /// All of them.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub all: bool,
    /// Those that match this label selector.
    #[arg(long, short = 'l', value_parser = selector)]
    pub selector: Option<LabelSelector>,
}

#[derive(ClapArgs)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub which: SelectArgs,
    /// Delete without asking.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub confirm: bool,
}

/// What a `get` lists, and how.
#[derive(ClapArgs, Clone)]
pub struct GetArgs {
    /// Names. Default: all.
    pub names: Vec<String>,
    /// Only those that match this label selector.
    #[arg(long, short = 'l', value_parser = list_selector)]
    pub selector: Option<String>,
    #[command(flatten)]
    pub output: ListedArgs,
}

#[derive(ClapArgs, Clone)]
pub struct ListedArgs {
    /// How to print. jsonpath=TEMPLATE: as kubectl does, but for `..` and lists of indexes.
    /// custom-columns=HEAD:PATH,…: a table of these paths.
    #[arg(long, short, default_value = "table", value_parser = ListOutputs)]
    pub output: ListOutput,
    /// Labels to show as columns, comma separated.
    #[arg(long, short = 'L', value_delimiter = ',')]
    pub label_columns: Vec<String>,
    /// Show all labels in the last column.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub show_labels: bool,
}

/// How artifacts are downloaded from the store.
#[derive(ClapArgs, Clone)]
pub struct FetchArgs {
    /// How long the download may take in all.
    #[arg(long, default_value = "1m", value_parser = go_time)]
    pub timeout: GoTime,
    #[command(flatten)]
    pub tls: TlsArgs,
}

#[derive(ClapArgs, Clone, Default)]
pub struct TlsArgs {
    /// PEM file with the authority of the store's certificate. Default: that of the
    /// BackupStorageLocation, and those of this machine.
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Accept any certificate of the store. Whoever is between may then read and change what is
    /// downloaded.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub insecure_skip_tls_verify: bool,
}

#[derive(ClapArgs)]
pub struct DescribeArgs {
    /// Names. Default: all.
    pub names: Vec<String>,
    /// Only those that match this label selector.
    #[arg(long, short = 'l', value_parser = list_selector)]
    pub selector: Option<String>,
    /// Also show each stored object, volume and operation.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub details: bool,
    #[arg(long, short, value_enum, default_value = "plaintext")]
    pub output: DescribeOutput,
    #[command(flatten)]
    pub tls: TlsArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum DescribeOutput {
    #[value(alias = "table")]
    Plaintext,
    /// Of exactly one Backup.
    Json,
    /// Of exactly one Backup.
    Yaml,
}

#[derive(ClapArgs)]
pub struct DownloadArgs {
    /// Name of the Backup.
    pub name: String,
    /// File to write. Default: NAME-data.tar.gz in the current folder. A new file can be read by
    /// its owner only.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace the file if it is there.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub force: bool,
    #[command(flatten)]
    pub fetch: FetchArgs,
}

#[derive(ClapArgs)]
pub struct LogsArgs {
    /// Name of the Backup.
    pub name: String,
    /// While the backup runs, print what its checkpoints have of its log, and show on standard
    /// error what happens; print the rest when it has ended. The exit code tells how it ended, as
    /// that of `backup create --wait`.
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    pub fetch: FetchArgs,
}

#[derive(ClapArgs)]
pub struct ContentsArgs {
    /// Name of the Backup.
    pub name: String,
    /// Stored object to print, as `contents` lists it: deployments.apps/web/frontend, or
    /// persistentvolumes/pv1. Default: list all of them.
    pub object: Option<String>,
    /// List only objects whose line contains this text.
    #[arg(long, conflicts_with = "object")]
    pub grep: Option<String>,
    #[arg(long, short, value_enum, default_value = "yaml")]
    pub output: TextOutput,
    /// How long the download may take in all.
    #[arg(long, default_value = "10m", value_parser = go_time)]
    pub timeout: GoTime,
    #[command(flatten)]
    pub tls: TlsArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum TextOutput {
    Yaml,
    Json,
}

#[derive(ClapArgs)]
pub struct DiffArgs {
    /// The older Backup.
    pub old: String,
    /// The newer Backup.
    pub new: String,
    /// How long both downloads may take in all.
    #[arg(long, default_value = "10m", value_parser = go_time)]
    pub timeout: GoTime,
    #[command(flatten)]
    pub tls: TlsArgs,
}
