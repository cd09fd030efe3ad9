//! Flags of `berth queue`.

use clap::{Args as ClapArgs, Subcommand};

use super::{Output, Target};

#[derive(ClapArgs)]
pub struct QueueArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(subcommand)]
    pub command: QueueCommand,
}

#[derive(Subcommand)]
pub enum QueueCommand {
    /// What runs and what waits, in order, with exact places.
    List {
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
    /// The list again whenever something changes. Ends with Ctrl-C.
    Watch {
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
    /// Everything that is in the way of one Backup, and what must end first.
    Explain {
        name: String,
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
    /// The data movers that have not ended, in the order in which they get places; who has one, and what the others wait for.
    Movers {
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
    /// Let Backups wait until they are released. They are in nobody's way meanwhile. With --location: whatever goes
    /// there, now or later.
    Hold(Which),
    /// Let held Backups take part again, at their old places.
    Release(Which),
    /// End Backups, waiting or running: phase Failed, nothing of them stays in the store.
    Cancel(Which),
    /// Move Backups to the front: of several, the one named first goes first.
    First(Which),
}

/// Backups by name, or all that wait; of `cancel`, those that berth runs as well.
#[derive(ClapArgs)]
pub struct Which {
    #[arg(required_unless_present_any = ["all", "location"])]
    pub names: Vec<String>,
    /// All that wait; of `cancel`, those that berth runs as well.
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// The same, as far as they go to this storage location.
    #[arg(long, conflicts_with_all = ["names", "all"])]
    pub location: Option<String>,
}
