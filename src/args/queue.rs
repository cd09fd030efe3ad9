//! Flags of `berth queue`.

use clap::{Args as ClapArgs, Subcommand};

use super::{ClusterArgs, Output};

#[derive(ClapArgs)]
pub struct QueueArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    #[command(subcommand)]
    pub command: QueueCommand,
}

#[derive(Subcommand)]
pub enum QueueCommand {
    /// List running and waiting Backups in order, with exact positions, and those whose data is
    /// still moved. Example: berth queue list
    List {
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
    /// Show the list again at every change, until Ctrl-C. Example: berth queue watch
    Watch {
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
    /// Show everything that blocks one Backup, and what must end first. Example: berth queue
    /// explain nightly
    Explain {
        /// Name of the Backup.
        name: String,
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
    /// List unfinished data movers in the order in which they get places: which have one, and what
    /// the others wait for. Example: berth queue movers
    Movers {
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
    /// Hold Backups until they are released. Example: berth queue hold nightly
    ///
    /// Held Backups block no other one. With --location: also
    /// every later Backup to it.
    Hold(BackupSelectionArgs),
    /// Release held Backups, at their old positions. Example: berth queue release
    /// nightly
    Release(BackupSelectionArgs),
    /// Cancel waiting or running Backups: their phase becomes Failed, and the store keeps nothing
    /// of them. Example: berth queue cancel nightly
    Cancel(BackupSelectionArgs),
    /// Move Backups to the front, in the order in which they are named. Example: berth queue first
    /// nightly
    First(BackupSelectionArgs),
}

/// Which Backups a command acts on.
#[derive(ClapArgs)]
pub struct BackupSelectionArgs {
    /// Names. Default: none; then --all or --location chooses.
    #[arg(required_unless_present_any = ["all", "location"])]
    pub names: Vec<String>,
    /// All waiting Backups; with `cancel` also those that berth runs.
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// The same, limited to Backups to this storage location.
    #[arg(long, conflicts_with_all = ["names", "all"])]
    pub location: Option<String>,
}
