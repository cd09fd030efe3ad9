//! Commands and flags of the program, as clap reads them.

pub mod backup;
mod common;
mod controller;
pub mod garden;
mod hub;
mod install;
pub mod jsonpath;
pub mod listed;
pub mod location;
mod member;
mod movers;
mod node_agent;
mod queue;
mod reviews;
pub mod schedule;
pub mod value;
mod webhook;

use std::path::PathBuf;
use std::time::Duration;

use berth_api::GoDuration;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

pub use common::{CommonArgs, MOST_CONCURRENT_BACKUPS, OrderArgs, ReportArgs};
pub use controller::{AfterInterruptionArg, ControllerArgs};
pub use hub::HubArgs;
pub use install::{InstallArgs, Printed, UninstallArgs};
pub use member::MemberArgs;
pub use movers::MoverArgs;
pub use node_agent::{NodeAgentArgs, NodeAgentCommand, NodeAgentServerArgs};
pub use queue::{BackupSelectionArgs, QueueArgs, QueueCommand};
pub use reviews::{ANYWHERE, ReviewArgs};
pub use webhook::WebhookArgs;

use crate::client::KubeconfigSource;

/// A place in line for Kubernetes backups.
#[derive(Parser)]
// Of a flag that is given twice the last one counts, so that a Deployment's flags can be overridden
// by more flags after them.
#[command(name = "berth", version, args_override_self = true, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Answer admission reviews: queue Backups as they are created. Run two or more. Example: berth
    /// webhook --namespace velero
    Webhook(Box<WebhookArgs>),
    /// Start queued Backups and run them. Run two: one leads. Example: berth controller --namespace
    /// velero
    Controller(Box<ControllerArgs>),
    /// Show which Backups wait and why, and change their order.
    Queue(QueueArgs),
    /// Create, list, describe, download and delete Backups.
    #[command(alias = "backups")]
    Backup(backup::BackupArgs),
    /// Create, list, pause and delete Schedules.
    #[command(alias = "schedules")]
    Schedule(schedule::ScheduleArgs),
    /// Create, list, change and delete BackupStorageLocations.
    #[command(aliases = ["backup-locations", "bsl"])]
    BackupLocation(location::LocationArgs),
    /// Show the version of this program, and of the server in the cluster. Example: berth version
    Version(VersionArgs),
    /// Print a script that completes commands, flags and names. Example: source <(berth completion
    /// bash)
    Completion {
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the names that complete a command line, for the scripts of `berth completion`.
    #[command(hide = true)]
    CompleteNames {
        /// The words before the one that is typed, without the program.
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Print what completes the words behind `kubectl berth`, for kubectl.
    #[command(hide = true)]
    CompleteWords {
        /// The words behind the plugin's name. The last one is being typed.
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Install berth into a cluster, or bring an installation up to date. Example: berth install
    /// --namespace velero
    Install(Box<InstallArgs>),
    /// Remove berth from a cluster. Backups, locations and archives stay. Example: berth uninstall
    /// --namespace velero
    Uninstall(UninstallArgs),
    /// Check a cluster before an installation, and an installation afterwards. Example: berth check
    /// --namespace velero
    Check(CheckArgs),
    /// Take the files of volumes of one node's pods into restic repositories, and bring them back.
    /// Run one on each node. Example: berth node-agent --node-name node-1
    NodeAgent(Box<NodeAgentArgs>),
    /// Manage the webhooks' certificates.
    Certificates(CertificatesArgs),
    /// Manage backup buckets that many clusters share.
    Garden(garden::GardenArgs),
    /// Print CustomResourceDefinitions, or write them to a folder. Example: berth crd --of velero
    Crd {
        /// Which definitions.
        #[arg(long, value_enum, default_value = "velero")]
        of: Definitions,
        /// Folder to write one file per definition to, instead of printing them.
        #[arg(long)]
        write: Option<PathBuf>,
    },
    /// Show the help of a command, or what several have in common. Example: berth help topics
    Help {
        /// A command, or a topic. Default: all commands.
        words: Vec<String>,
    },
    /// Write manual pages, one for each command. Example: berth man --write man1
    Man {
        /// Folder for the pages.
        #[arg(long)]
        write: PathBuf,
    },
    /// Print the manifest for krew, kubectl's plugin manager (`manifests/krew`).
    #[command(hide = true)]
    Krew,
    /// Write the reference (`docs/reference`) from this program.
    #[command(hide = true)]
    Reference {
        /// Folder for its pages.
        #[arg(long)]
        write: PathBuf,
    },
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum Definitions {
    /// Velero's kinds, for a cluster without Velero.
    Velero,
    /// Velero's kinds for the files of volumes, for a cluster with berth's node agents and no
    /// Velero.
    PodVolumes,
    /// Shared buckets, for the hub.
    Garden,
    /// Shared buckets, for a member cluster without Gardener.
    GardenMember,
}

/// Folders that may hold stores of provider `berth.dev/filesystem`.
#[derive(ClapArgs, Clone)]
pub struct FolderArgs {
    /// Folder of this machine that may hold the stores which locations and buckets of provider
    /// berth.dev/filesystem name. May be given more than once. Default: none, so that no folder can
    /// be a store.
    #[arg(long = "filesystem-root", value_name = "FOLDER", value_parser = folder)]
    pub filesystem_roots: Vec<PathBuf>,
}

/// Under this heading the help has the flags of every command, behind those of the command itself.
const GLOBAL: &str = "Global options";

/// Flags of every command that a person runs against a cluster.
#[derive(ClapArgs)]
pub struct ClusterArgs {
    /// Namespace of the Backups. Commands of a velero user also read it from Velero's
    /// ~/.config/velero/config.json, which outranks the environment.
    #[arg(long, short, env = "VELERO_NAMESPACE", default_value = berth_api::keys::DEFAULT_NAMESPACE, global = true, help_heading = GLOBAL)]
    pub namespace: String,
    /// Kubeconfig file. Default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, alias = "kubecontext", global = true, help_heading = GLOBAL)]
    pub context: Option<String>,
}

impl ClusterArgs {
    /// Where the API server is found.
    pub fn source(&self) -> KubeconfigSource<'_> {
        KubeconfigSource { kubeconfig: self.kubeconfig.as_deref(), context: self.context.as_deref() }
    }
}

/// Whether the commands of a velero user print colours.
#[derive(ClapArgs)]
pub struct ColourArgs {
    /// Print colours where the output is a terminal. Default: what Velero's configuration file
    /// says, else true.
    #[arg(long, global = true, help_heading = GLOBAL, value_parser = value::tristate)]
    pub colorized: Option<value::Tristate>,
}

#[derive(ClapArgs)]
pub struct VersionArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    #[command(flatten)]
    pub colours: ColourArgs,
    /// Do not ask for the server's.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = value::boolean)]
    pub client_only: bool,
    /// How long to wait for the server's answer.
    #[arg(long, default_value = "5s", value_parser = value::go_time)]
    pub timeout: value::GoTime,
}

/// Shells for which there is a completion.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

#[derive(ClapArgs)]
pub struct CheckArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    /// Remove what backups that are gone have left in the cluster (VolumeSnapshots, their contents,
    /// DataUploads, claims of data movers), after asking, and check nothing else.
    #[arg(long)]
    pub clean: bool,
    /// Remove without asking.
    #[arg(long, requires = "clean")]
    pub confirm: bool,
    #[arg(long, short, value_enum, default_value = "table")]
    pub output: Output,
}

#[derive(ClapArgs)]
pub struct CertificatesArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    #[command(subcommand)]
    pub command: CertificatesCommand,
}

#[derive(Subcommand)]
pub enum CertificatesCommand {
    /// Issue a new certificate now. The webhooks answer all the time. Example: berth certificates
    /// rotate --ca
    Rotate {
        /// Replace the certificate authority, too. The old one stays in caBundle until every
        /// certificate that it signed has expired.
        #[arg(long)]
        ca: bool,
        /// Also remove every older authority from caBundle once the new certificate is served. Use
        /// it when a key may have leaked.
        #[arg(long, requires = "ca")]
        revoke: bool,
    },
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum Output {
    Table,
    Json,
    Yaml,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = GoDuration(text.to_owned()).get().map_err(|error| error.to_string())?;
    duration.ok_or_else(|| "must be more than 0".to_owned())
}

/// A duration that may be 0.
fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let duration = GoDuration(text.to_owned()).get().map_err(|error| error.to_string())?;
    Ok(duration.unwrap_or_default())
}

fn folder(text: &str) -> Result<PathBuf, String> {
    let folder = PathBuf::from(text);
    if folder.is_absolute() { Ok(folder) } else { Err("must be the absolute path of a folder".to_owned()) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        super::Args::command().debug_assert();
    }
}
