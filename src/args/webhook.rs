//! Flags of `berth webhook`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::{CommonArgs, duration};

#[derive(ClapArgs)]
pub struct WebhookArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Where reviews are answered, HTTPS.
    #[arg(long, default_value = "[::]:9443")]
    pub listen: SocketAddr,
    /// File with the certificates (PEM) of the authority that signs what the API server shows to webhooks: reviews are taken
    /// from nobody else then. It is read at the start. Default: reviews are taken from everybody who reaches --listen.
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// How long reviews are still taken once a stop was asked for: until every API server has noticed. Not ready meanwhile.
    #[arg(long, value_parser = duration)]
    pub shutdown_delay: Option<Duration>,
    /// Name of the two webhook configurations: only a certificate that they believe is served.
    #[arg(long, default_value = "berth")]
    pub webhook_configuration: String,
    /// User name that may place Backups and make them ReadyToStart. May be given more than once.
    /// Default: service account berth-controller of the namespace.
    #[arg(long = "queue-identity")]
    pub queue_identities: Vec<String>,
    /// User name that may run Backups. May be given more than once.
    /// Default: service account berth-controller of the namespace, or velero with --executor=velero.
    #[arg(long = "executor-identity")]
    pub executor_identities: Vec<String>,
    /// User name that may delete and expire finished Backups. May be given more than once.
    /// Default: service account velero of the namespace, or nobody with --without-velero.
    #[arg(long = "lifecycle-identity")]
    pub lifecycle_identities: Vec<String>,
    /// No Velero is installed in the namespace: a service account of its name is nobody's in particular.
    #[arg(long)]
    pub without_velero: bool,
}
