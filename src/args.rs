//! Flags as people type them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use berth_api::GoDuration;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

/// A place in line for Kubernetes backups.
#[derive(Parser)]
#[command(name = "berth", version)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Answer admission reviews: queue Backups as they are created. Run two or more.
    Webhook(WebhookArgs),
    /// Start queued Backups and run them. Run two: one leads.
    Controller(Box<ControllerArgs>),
    /// See what waits and why, and move it.
    Queue(QueueArgs),
    /// Print the CustomResourceDefinitions, or write them to a folder.
    Crd {
        /// Write one file per definition here instead of printing.
        #[arg(long)]
        write: Option<PathBuf>,
    },
}

/// What every server process takes.
#[derive(ClapArgs, Clone)]
pub struct CommonArgs {
    /// Namespace whose Backups are served.
    #[arg(long, short, env = "VELERO_NAMESPACE", default_value = berth_api::keys::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Kubeconfig file. Default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Backups that may run at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub concurrent_backups: u16,
    /// Where /healthz and /readyz are served, plain HTTP.
    #[arg(long, default_value = "0.0.0.0:8085")]
    pub health_address: SocketAddr,
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or tracing's filter syntax.
    #[arg(long, env = "BERTH_LOG", default_value = "info")]
    pub log_level: String,
    /// Secret that holds the webhook's CA and leaf.
    #[arg(long, default_value = "berth-webhook-certs")]
    pub certificate_secret: String,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(ClapArgs)]
pub struct WebhookArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Where reviews are answered, HTTPS.
    #[arg(long, default_value = "0.0.0.0:9443")]
    pub listen: SocketAddr,
    /// User name that may place Backups and make them ReadyToStart. May be given more than once.
    /// Default: service account berth-controller of the namespace.
    #[arg(long = "queue-identity")]
    pub queue_identities: Vec<String>,
    /// User name that may run Backups. May be given more than once.
    /// Default: service account berth-controller of the namespace.
    #[arg(long = "executor-identity")]
    pub executor_identities: Vec<String>,
    /// User name that may delete and expire finished Backups. May be given more than once.
    /// Default: service account velero of the namespace.
    #[arg(long = "lifecycle-identity")]
    pub lifecycle_identities: Vec<String>,
}

#[derive(ClapArgs)]
pub struct ControllerArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Workers of each running backup.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub item_block_worker_count: u16,
    /// How long backups are kept that do not say.
    #[arg(long, default_value = "720h", value_parser = duration)]
    pub default_backup_ttl: Duration,
    /// How long a list that fails is retried before the backup fails.
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub list_retry_timeout: Duration,
    /// Objects asked for with one request.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub client_page_size: u32,
    /// How often a storage location is checked that does not say.
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub store_validation_frequency: Duration,
    /// Service in front of the webhooks: its DNS names stand in the certificate.
    #[arg(long, default_value = "berth-webhook")]
    pub webhook_service: String,
    /// Further name or address under which the webhooks are called. May be given more than once.
    #[arg(long = "webhook-name")]
    pub webhook_names: Vec<String>,
    /// Name of the two webhook configurations whose caBundle is kept current.
    #[arg(long, default_value = "berth")]
    pub webhook_configuration: String,
    /// How long a leader that went silent keeps the others waiting.
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub lease_duration: Duration,
}

#[derive(ClapArgs)]
pub struct QueueArgs {
    /// Namespace of the Backups.
    #[arg(long, short, env = "VELERO_NAMESPACE", default_value = berth_api::keys::DEFAULT_NAMESPACE, global = true)]
    pub namespace: String,
    /// Kubeconfig file. Default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long, global = true)]
    pub kubeconfig: Option<PathBuf>,
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
    /// Everything that is in the way of one Backup.
    Explain { name: String },
    /// Let Backups wait until they are released. They are in nobody's way meanwhile.
    Hold(Which),
    /// Let held Backups take part again, at their old places.
    Release(Which),
    /// End Backups, waiting or running: phase Failed, nothing of them stays in the store.
    Cancel(Which),
    /// Move a Backup to the front.
    First { name: String },
}

/// Backups by name, or all that wait.
#[derive(ClapArgs)]
pub struct Which {
    #[arg(required_unless_present = "all")]
    pub names: Vec<String>,
    /// All that wait.
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum Output {
    Table,
    Json,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = GoDuration(text.to_owned()).get().map_err(|error| error.to_string())?;
    duration.ok_or_else(|| "must be more than 0".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        super::Args::command().debug_assert();
    }
}
