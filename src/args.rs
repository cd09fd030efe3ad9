//! Flags as people type them.

pub mod garden;
mod hub;
mod member;
mod movers;
mod reviews;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use berth_api::GoDuration;
use berth_core::queue::{FairShare, Order};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

use crate::settings::{Certificates, EngineRights, Executor, LogFormat};

pub use hub::HubArgs;
pub use member::MemberArgs;
pub use movers::MoverArgs;
pub use reviews::{ANYWHERE, ReviewArgs};

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
    /// Workers of each running backup: pods in which its hooks run at one time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub item_block_worker_count: u16,
    /// Where /healthz, /readyz and /metrics are served, plain HTTP.
    #[arg(long, default_value = "[::]:8085")]
    pub health_address: SocketAddr,
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or tracing's filter syntax.
    #[arg(long, env = "BERTH_LOG", default_value = "info")]
    pub log_level: String,
    /// Who runs the backups that are started.
    #[arg(long, value_enum, default_value = "berth")]
    pub executor: Executor,
    #[command(flatten)]
    pub order: OrderArgs,
    /// Secret that holds the webhook's certificate.
    #[arg(long, default_value = "berth-webhook-certs")]
    pub certificate_secret: String,
    /// Namespace of the hub with the credentials of shared buckets' stores.
    #[arg(long, default_value = berth_api::garden::GARDEN_NAMESPACE)]
    pub garden_namespace: String,
    /// ConfigMap of the node-agents. Default: what their DaemonSet names.
    #[arg(long)]
    pub node_agent_configmap: Option<String>,
    #[command(flatten)]
    pub movers: MoverArgs,
}

/// What becomes of a backup whose run ended before it did. One that this happens to three times is Failed, whatever is set.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum AfterInterruption {
    /// The next leader goes on from the last checkpoint in the store; where there is none, it begins the backup anew.
    Resume,
    /// The next leader begins it anew. Where its store or the API server failed, it is Failed.
    Restart,
    /// It is Failed.
    Fail,
}

impl From<AfterInterruption> for berth_core::run::AfterInterruption {
    fn from(wanted: AfterInterruption) -> Self {
        match wanted {
            AfterInterruption::Resume => Self::Resume,
            AfterInterruption::Restart => Self::Restart,
            AfterInterruption::Fail => Self::Fail,
        }
    }
}

/// How the queue is ordered. Without any of these: by arrival.
#[derive(ClapArgs, Clone)]
pub struct OrderArgs {
    /// Priority classes and their head starts, as in high=1h,low=-1h: such a backup counts as having arrived that
    /// much earlier or later. A backup names its class by the annotation or label berth.dev/priority-class.
    #[arg(long, value_delimiter = ',', value_parser = berth_api::order::parse_class)]
    pub priority_classes: Vec<(String, SignedDuration)>,
    /// Let tenants that used much lately let others pass: a second back for each worker-second.
    #[arg(long)]
    pub fair_share: bool,
    /// Label of a Backup that names its tenant.
    #[arg(long, default_value = berth_api::keys::SCHEDULE, requires = "fair_share")]
    pub fair_share_label: String,
    /// Time after which a worker-second counts half.
    #[arg(long, default_value = "24h", value_parser = duration, requires = "fair_share")]
    pub fair_share_half_life: Duration,
    /// The furthest that a tenant is put back.
    #[arg(long, default_value = "1h", value_parser = duration, requires = "fair_share")]
    pub fair_share_limit: Duration,
}

impl CommonArgs {
    pub fn order(&self) -> Order {
        self.order.order(self.item_block_worker_count)
    }
}

impl OrderArgs {
    fn order(&self, workers: u16) -> Order {
        let signed = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let share = FairShare {
            label: self.fair_share_label.clone(),
            workers,
            half_life: signed(self.fair_share_half_life),
            most: signed(self.fair_share_limit),
        };
        Order {
            classes: self.priority_classes.iter().cloned().collect(),
            share: self.fair_share.then_some(share),
        }
    }
}

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

#[derive(ClapArgs)]
pub struct ControllerArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// How long backups are kept that do not say.
    #[arg(long, default_value = "720h", value_parser = duration)]
    pub default_backup_ttl: Duration,
    /// How long a read that fails is tried again. Then the backup goes on without that type, and is PartiallyFailed; where the
    /// API server itself is gone its run ends: it is run again from its checkpoint, and Failed where there is none.
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
    /// Who keeps the webhooks' certificates.
    #[arg(long, value_enum, default_value = "self-managed")]
    pub certificates: Certificates,
    /// How long a new authority stands in caBundle before anything that it signed is served: longer than the slowest
    /// API server takes to notice.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub ca_lead_time: Duration,
    /// How long running backups may go on once a stop was asked for, before the next leader has them. Without: it has them at once.
    /// A pod needs a terminationGracePeriodSeconds that is longer.
    #[arg(long, value_parser = duration)]
    pub drain_timeout: Option<Duration>,
    /// What becomes of a backup whose controller was killed, lost its Lease or was asked to stop, or whose store failed, while it ran.
    #[arg(long, value_enum, default_value = "resume")]
    pub after_interruption: AfterInterruption,
    /// How long a leader that went silent keeps the others waiting.
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub lease_duration: Duration,
    #[command(flatten)]
    pub folders: FolderArgs,
    #[command(flatten)]
    pub hub: HubArgs,
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
pub struct InstallArgs {
    #[command(flatten)]
    pub target: Target,
    /// Image of the Deployments. Default: that of this version, from where it is installed from.
    #[arg(long)]
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
