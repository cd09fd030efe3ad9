//! Flags of `berth backup-location`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::backup::{DeleteArgs, GetArgs, MadeArgs};
use super::{ClusterArgs, ColourArgs};
use crate::args::value::{GoTime, Pairs, Tristate, boolean, go_time, pairs, tristate};

#[derive(ClapArgs)]
pub struct LocationArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    #[command(flatten)]
    pub colours: ColourArgs,
    #[command(subcommand)]
    pub command: LocationCommand,
}

#[derive(Subcommand)]
pub enum LocationCommand {
    /// Create a BackupStorageLocation. Example: berth backup-location create s3 --provider aws
    /// --bucket backups --config region=eu-central-1
    Create(Box<CreateLocationArgs>),
    /// Delete locations; what they store stays. Example: berth backup-location delete s3
    Delete(DeleteArgs),
    /// List locations. Example: berth backup-location get
    Get(GetLocationArgs),
    /// Change a location. Example: berth backup-location set s3 --default
    Set(SetLocationArgs),
}

#[derive(ClapArgs)]
pub struct CreateLocationArgs {
    /// Name of the location.
    pub name: String,
    /// Provider of the store: aws, azure, gcp, or berth.dev/filesystem.
    #[arg(long)]
    pub provider: Option<String>,
    /// Bucket or container.
    #[arg(long)]
    pub bucket: Option<String>,
    /// Secret with the credentials, and its key, as in cloud-credentials=cloud. Default: the
    /// server's own.
    #[arg(long, value_name = "SECRET=KEY", value_parser = pairs)]
    pub credential: Vec<Pairs>,
    /// Make it the default location.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub default: bool,
    /// Folder in the bucket below which everything is stored.
    #[arg(long)]
    pub prefix: Option<String>,
    /// How often to sync the backups of other clusters from the store. 0s: never. Default: the
    /// server's.
    #[arg(long, allow_hyphen_values = true, value_parser = go_time)]
    pub backup_sync_period: Option<GoTime>,
    /// How often to check the store. 0s: once. Default: the server's.
    #[arg(long, allow_hyphen_values = true, value_parser = go_time)]
    pub validation_frequency: Option<GoTime>,
    /// Settings of the provider, as in region=eu-central-1,s3ForcePathStyle=true.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pairs)]
    pub config: Vec<Pairs>,
    /// Labels of the location.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pairs)]
    pub labels: Vec<Pairs>,
    /// PEM file with the authority of the store's certificate.
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Whether backups may be stored there.
    #[arg(long, value_enum, default_value = "ReadWrite")]
    pub access_mode: AccessModeArg,
    #[command(flatten)]
    pub made: MadeArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum AccessModeArg {
    #[value(name = "ReadWrite")]
    ReadWrite,
    #[value(name = "ReadOnly")]
    ReadOnly,
}

#[derive(ClapArgs)]
pub struct GetLocationArgs {
    #[command(flatten)]
    pub get: GetArgs,
    /// Only the default location.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_parser = boolean)]
    pub default: bool,
}

#[derive(ClapArgs)]
pub struct SetLocationArgs {
    /// Name of the location.
    pub name: String,
    /// Make it the default location; with =false, no longer.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = tristate)]
    pub default: Option<Tristate>,
    /// Secret with the credentials, and its key, as in cloud-credentials=cloud.
    #[arg(long, value_name = "SECRET=KEY", value_parser = pairs)]
    pub credential: Vec<Pairs>,
    /// PEM file with the authority of the store's certificate.
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
}
