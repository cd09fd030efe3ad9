//! Flags as people type them.

mod common;
mod controller;
pub mod garden;
mod hub;
mod install;
mod member;
mod movers;
mod queue;
mod reviews;
mod webhook;

use std::path::PathBuf;
use std::time::Duration;

use berth_api::GoDuration;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

pub use common::{CommonArgs, OrderArgs};
pub use controller::{AfterInterruption, ControllerArgs};
pub use hub::HubArgs;
pub use install::{InstallArgs, Printed, UninstallArgs};
pub use member::MemberArgs;
pub use movers::MoverArgs;
pub use queue::{QueueArgs, QueueCommand, Which};
pub use reviews::{ANYWHERE, ReviewArgs};
pub use webhook::WebhookArgs;

/// A place in line for Kubernetes backups.
#[derive(Parser)]
// The last one of a kind counts: what an installation sets can be set anew after it.
#[command(name = "berth", version, args_override_self = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Answer admission reviews: queue Backups as they are created. Run two or more.
    Webhook(Box<WebhookArgs>),
    /// Start queued Backups and run them. Run two: one leads.
    Controller(Box<ControllerArgs>),
    /// See what waits and why, and move it.
    Queue(QueueArgs),
    /// Read one Backup.
    Backup(BackupArgs),
    /// Install berth into a cluster, or bring an installation up to date.
    Install(Box<InstallArgs>),
    /// Remove berth from a cluster. Backups, locations and archives stay.
    Uninstall(UninstallArgs),
    /// Is everything as it should be? Before an installation and after it.
    Check(CheckArgs),
    /// Where data movers may run.
    NodeAgent(NodeAgentArgs),
    /// The webhooks' certificates.
    Certificates(CertificatesArgs),
    /// Backup buckets that many clusters share.
    Garden(garden::GardenArgs),
    /// Print CustomResourceDefinitions, or write them to a folder.
    Crd {
        /// Which.
        #[arg(long, value_enum, default_value = "velero")]
        of: Definitions,
        /// Write one file per definition here instead of printing.
        #[arg(long)]
        write: Option<PathBuf>,
    },
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
    /// Shared buckets, in the cluster that decides.
    Garden,
    /// Shared buckets, in a member cluster without Gardener.
    GardenMember,
}

/// Where folders may be stores (provider `berth.dev/filesystem`).
#[derive(ClapArgs, Clone)]
pub struct FolderArgs {
    /// Folder of this machine in which those may lie that locations and buckets of provider berth.dev/filesystem name. May be
    /// given more than once. Default: none, and no folder is a store.
    #[arg(long = "filesystem-root", value_name = "FOLDER", value_parser = folder)]
    pub filesystem_roots: Vec<PathBuf>,
}

/// What every command of a person takes.
#[derive(ClapArgs)]
pub struct Target {
    /// Namespace of the Backups.
    #[arg(long, short, env = "VELERO_NAMESPACE", default_value = berth_api::keys::DEFAULT_NAMESPACE, global = true)]
    pub namespace: String,
    /// Kubeconfig file. Default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long, global = true)]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(ClapArgs)]
pub struct CheckArgs {
    #[command(flatten)]
    pub target: Target,
    #[arg(long, short, value_enum, default_value = "table")]
    pub output: Output,
}

#[derive(ClapArgs)]
pub struct NodeAgentArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(subcommand)]
    pub command: NodeAgentCommand,
}

#[derive(Subcommand)]
pub enum NodeAgentCommand {
    /// On which nodes the movers of each StorageClass may run, and why. Lists nodes and StorageClasses: for an admin. Exit
    /// code 0: every class has a node; 1: one has none, or the configuration cannot be read; 2: it could not be looked at.
    Check {
        /// ConfigMap to judge by, of the same namespace. Default: that of the node-agents.
        #[arg(long)]
        node_agent_configmap: Option<String>,
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
}

#[derive(ClapArgs)]
pub struct CertificatesArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(subcommand)]
    pub command: CertificatesCommand,
}

#[derive(Subcommand)]
pub enum CertificatesCommand {
    /// Issue a new certificate now. No admission is lost meanwhile.
    Rotate {
        /// The authority, too. Webhooks go on trusting the old one until nothing it signed is valid any more.
        #[arg(long)]
        ca: bool,
        /// And end trust in every older authority, once the new certificate is served: for when a key may have leaked.
        #[arg(long, requires = "ca")]
        revoke: bool,
    },
}

#[derive(ClapArgs)]
pub struct BackupArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(subcommand)]
    pub command: BackupCommand,
}

#[derive(Subcommand)]
pub enum BackupCommand {
    /// One Backup: phase, place in the queue and what it waits for, progress, faults.
    Describe { name: String },
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
