//! Flags of `berth install` and `berth uninstall`.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::{MemberArgs, ReviewArgs, Target, duration};
use crate::image;
use crate::settings::{Certificates, EngineRights, Executor};

#[derive(ClapArgs)]
pub struct InstallArgs {
    #[command(flatten)]
    pub target: Target,
    /// Image of the Deployments, best with its digest: NAME:TAG@sha256:…. Default: that of this version, from where it is
    /// installed from.
    #[arg(long, value_parser = image::checked)]
    pub image: Option<String>,
    /// Who runs the backups that are started. Default: as it is installed, else berth.
    #[arg(long, value_enum)]
    pub executor: Option<Executor>,
    /// Velero is installed there: bring no definitions, leave the namespace as it is, and take its service account for
    /// Velero. Default: found out.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub beside_velero: Option<bool>,
    /// Switch off those controllers of Velero that berth takes the place of. The difference is shown first; `berth
    /// uninstall` switches them on again.
    #[arg(long, conflicts_with = "output")]
    pub adjust_velero: bool,
    /// Who keeps the webhooks' certificates. Default: as it is installed, else berth itself.
    #[arg(long, value_enum)]
    pub certificates: Option<Certificates>,
    /// Velero's service account, which may delete, expire and copy finished Backups. Default: that of its Deployment; where
    /// none is found, the one that is installed, if that was said to be another one than velero, else none.
    #[arg(long)]
    pub velero_service_account: Option<String>,
    /// What the engine may read to back it up. Default: as it is installed, else all.
    #[arg(long, value_enum)]
    pub engine_rights: Option<EngineRights>,
    /// Backups that may run at the same time. Default: as it is installed.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub concurrent_backups: Option<u16>,
    /// Pods of each running backup in which hooks run at one time. Default: as it is installed.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub item_block_worker_count: Option<u16>,
    #[command(flatten)]
    pub reviews: ReviewArgs,
    #[command(flatten)]
    pub member: MemberArgs,
    /// Take over objects of berth's names that no `berth install` brought. Without, they are named, and nothing is changed.
    #[arg(long, conflicts_with = "output")]
    pub adopt: bool,
    /// Let the API server judge everything, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Show what would change, and write nothing.
    #[arg(long)]
    pub diff: bool,
    /// Print the objects instead of applying them, for GitOps. No cluster is asked (but with --engine-rights=listed what it
    /// serves): say --beside-velero where it applies.
    #[arg(long, short, value_enum, conflicts_with_all = ["dry_run", "diff"])]
    pub output: Option<Printed>,
    /// How long to wait until berth is ready, and for running backups to end where another one is to run them.
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
    pub target: Target,
    /// Say what would be removed, and remove nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// How long to wait until berth's pods have ended. Backups that run are not waited for: they stay InProgress, until a
    /// later `berth install` goes on with them.
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
}
