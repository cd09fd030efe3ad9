//! Flags of `berth install` and `berth uninstall`.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::{ClusterArgs, MOST_CONCURRENT_BACKUPS, MemberArgs, ReviewArgs, duration};
use crate::image;
use crate::settings::{Certificates, EngineRights, Executor};

#[derive(ClapArgs)]
pub struct InstallArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    /// Image of the Deployments, best with its digest: NAME:TAG@sha256:…. Default: the image of
    /// this version, from the repository that the installed one came from.
    #[arg(long, value_parser = image::checked)]
    pub image: Option<String>,
    /// Program that runs started Backups. Default: as it is installed, else berth.
    #[arg(long, value_enum)]
    pub executor: Option<Executor>,
    /// Velero is installed in the namespace: install no Velero definitions, leave the namespace
    /// unchanged, and use its service account as Velero's. Default: detected.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub beside_velero: Option<bool>,
    /// Switch off the Velero controllers that berth replaces. The difference is shown first; `berth
    /// uninstall` switches them on again.
    #[arg(long, conflicts_with = "output")]
    pub adjust_velero: bool,
    /// Program that issues the webhooks' certificates. Default: as it is installed, else
    /// self-managed.
    #[arg(long, value_enum)]
    pub certificates: Option<Certificates>,
    /// Velero's service account, which may delete, expire and sync finished Backups. Default: the
    /// one of Velero's Deployment; without a Deployment, as it is installed if that is not velero,
    /// else none.
    #[arg(long)]
    pub velero_service_account: Option<String>,
    /// Which types the engine may read for backups. Default: as it is installed, else all.
    #[arg(long, value_enum)]
    pub engine_rights: Option<EngineRights>,
    /// How many Backups may run at the same time. Default: as it is installed.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_CONCURRENT_BACKUPS)))]
    pub concurrent_backups: Option<u16>,
    /// How many pods the hooks of each running Backup run in at the same time. Default: as it is
    /// installed.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub item_block_worker_count: Option<u16>,
    #[command(flatten)]
    pub reviews: ReviewArgs,
    #[command(flatten)]
    pub member: MemberArgs,
    /// Have berth read the files of volumes: install its node agent (`berth node-agent`) on every
    /// Linux node, and the agent's definitions unless they exist. =false removes the agents, and
    /// leaves the repositories and their passwords. Not with --executor=velero. Default: as it is
    /// installed.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub pod_volumes: Option<bool>,
    /// Have each of these volumes read and restored by a data mover pod on its node, which berth
    /// makes and removes. The agents then see nothing of their nodes, and do not run as root. Not
    /// without --pod-volumes. Default: as it is installed, else false.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub files_by_movers: Option<bool>,
    /// Take over existing objects with berth's names that no `berth install` created. Default: list
    /// them, and change nothing.
    #[arg(long, conflicts_with = "output")]
    pub adopt: bool,
    /// Let the API server validate every object (server-side dry run), and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Show what would change, and write nothing.
    #[arg(long)]
    pub diff: bool,
    /// Print the objects instead of applying them, for GitOps. No cluster is contacted, except for
    /// its served types with --engine-rights=listed, so set --beside-velero where it applies.
    #[arg(long, short, value_enum, conflicts_with_all = ["dry_run", "diff"])]
    pub output: Option<Printed>,
    /// How long to wait until berth is ready, and for running Backups to end where --executor
    /// changes.
    #[arg(long, default_value = "2m", value_parser = duration)]
    pub timeout: Duration,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum Printed {
    Yaml,
}

#[derive(ClapArgs)]
pub struct UninstallArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    /// Show what would be removed, and remove nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// How long to wait until berth's pods have ended. Running Backups are not waited for: they
    /// stay InProgress until a later `berth install` resumes them.
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
}
