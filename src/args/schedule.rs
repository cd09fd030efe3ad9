//! Flags of `berth schedule`.

use clap::{Args as ClapArgs, Subcommand};

use super::backup::{DeleteArgs, DescribeOutput, GetArgs, MadeArgs, SelectArgs, SpecArgs};
use super::{ClusterArgs, ColourArgs};
use crate::args::value::{Tristate, boolean, list_selector, tristate};

#[derive(ClapArgs)]
pub struct ScheduleArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    #[command(flatten)]
    pub colours: ColourArgs,
    #[command(subcommand)]
    pub command: ScheduleCommand,
}

#[derive(Subcommand)]
pub enum ScheduleCommand {
    /// Create a Schedule. Example: berth schedule create daily --schedule "0 1 * * *"
    Create(Box<CreateScheduleArgs>),
    /// Delete Schedules; their Backups stay. Example: berth schedule delete daily
    Delete(DeleteArgs),
    /// Show everything about Schedules. Example: berth schedule describe daily
    Describe(DescribeScheduleArgs),
    /// List Schedules. Example: berth schedule get
    Get(GetArgs),
    /// Pause Schedules: they create no Backup until they are unpaused. Example: berth schedule
    /// pause daily
    Pause(PauseArgs),
    /// Unpause Schedules. Example: berth schedule unpause daily
    Unpause(PauseArgs),
}

#[derive(ClapArgs)]
pub struct CreateScheduleArgs {
    /// Name of the Schedule.
    pub name: String,
    /// When to create a Backup, in UTC: five fields (minute, hour, day of month, month, day of
    /// week) as in "0 */6 * * *", or @every 6h, @daily and the like.
    #[arg(long, value_name = "CRON")]
    pub schedule: Option<String>,
    #[command(flatten)]
    pub spec: SpecArgs,
    /// Let the Schedule own its Backups: if it is deleted, they are deleted too.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub use_owner_references_in_backup: bool,
    /// Create it paused.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub paused: bool,
    /// Whether to skip the backup that is due at once: true or false. Default: the server's.
    #[arg(long, value_parser = tristate)]
    pub skip_immediately: Option<Tristate>,
    #[command(flatten)]
    pub made: MadeArgs,
}

#[derive(ClapArgs)]
pub struct DescribeScheduleArgs {
    /// Names. Default: all.
    pub names: Vec<String>,
    /// Only those that match this label selector.
    #[arg(long, short = 'l', value_parser = list_selector)]
    pub selector: Option<String>,
    #[arg(long, short, value_enum, default_value = "plaintext")]
    pub output: DescribeOutput,
}

#[derive(ClapArgs)]
pub struct PauseArgs {
    #[command(flatten)]
    pub which: SelectArgs,
    /// Whether to skip the backup that is due then: true or false. Default: the server's.
    #[arg(long, value_parser = tristate)]
    pub skip_immediately: Option<Tristate>,
}
