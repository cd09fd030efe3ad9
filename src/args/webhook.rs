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
    /// Address that answers admission reviews over HTTPS.
    #[arg(long, default_value = "[::]:9443")]
    pub listen: SocketAddr,
    /// PEM file with the authority that signs the API server's client certificate: reviews are then
    /// accepted from no other client. Read once, at the start. Default: reviews are accepted from
    /// every client that reaches --listen.
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// How long to answer reviews after SIGTERM, until every API server has noticed. The replica is
    /// not ready meanwhile.
    #[arg(long, value_parser = duration)]
    pub shutdown_delay: Option<Duration>,
    /// Name of both webhook configurations. A certificate is served only once its CA is in their
    /// caBundle.
    #[arg(long, default_value = "berth")]
    pub webhook_configuration: String,
    /// User name that may place Backups and make them ReadyToStart. May be given more than once.
    /// Default: service account berth-controller of the namespace.
    #[arg(long = "queue-identity")]
    pub queue_identities: Vec<String>,
    /// User name that may run Backups. May be given more than once. Default: service account
    /// berth-controller of the namespace, or velero with --executor=velero.
    #[arg(long = "executor-identity")]
    pub executor_identities: Vec<String>,
    /// User name that may delete and expire finished Backups. May be given more than once.
    /// Default: service account velero of the namespace, or nobody with --without-velero.
    #[arg(long = "lifecycle-identity")]
    pub lifecycle_identities: Vec<String>,
    /// No Velero is installed in the namespace: a service account named velero has no special
    /// rights.
    #[arg(long)]
    pub without_velero: bool,
}
