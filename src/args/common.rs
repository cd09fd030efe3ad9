//! Flags that the webhook and the controller have in common.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use berth_core::queue::{FairShare, QueueOrder};
use clap::Args as ClapArgs;
use jiff::SignedDuration;

use super::{MoverArgs, duration};
use crate::settings::{Executor, LogFormat};

/// The runtime has threads for so many running Backups.
pub const MOST_CONCURRENT_BACKUPS: u16 = 1000;

/// Flags of every server process.
#[derive(ClapArgs, Clone)]
pub struct CommonArgs {
    /// Namespace of the Backups.
    #[arg(long, short, env = "VELERO_NAMESPACE", default_value = berth_api::keys::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Kubeconfig file. Default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// How many Backups may run at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_CONCURRENT_BACKUPS)))]
    pub concurrent_backups: u16,
    /// Workers of each running Backup: how many pods its hooks run in at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub item_block_worker_count: u16,
    #[command(flatten)]
    pub reports: ReportArgs,
    /// Program that runs started Backups.
    #[arg(long, value_enum, default_value = "berth")]
    pub executor: Executor,
    #[command(flatten)]
    pub order: OrderArgs,
    /// Secret that holds the webhook's certificate.
    #[arg(long, default_value = "berth-webhook-certs")]
    pub certificate_secret: String,
    /// Namespace of the hub that holds the credentials of shared buckets.
    #[arg(long, default_value = berth_garden_api::GARDEN_NAMESPACE)]
    pub garden_namespace: String,
    /// ConfigMap of the node-agents. Default: the one that their DaemonSet names.
    #[arg(long)]
    pub node_agent_configmap: Option<String>,
    #[command(flatten)]
    pub movers: MoverArgs,
}

/// Where a server process reports how it is.
#[derive(ClapArgs, Clone)]
pub struct ReportArgs {
    /// Address that serves /healthz, /readyz and /metrics over plain HTTP.
    #[arg(long, default_value = "[::]:8085")]
    pub health_address: SocketAddr,
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Log level (error, warn, info, debug, trace), or a filter in tracing's syntax.
    #[arg(long, env = "BERTH_LOG", default_value = "info")]
    pub log_level: String,
}

/// How the queue is ordered. Without any of these flags: by time of arrival.
#[derive(ClapArgs, Clone)]
pub struct OrderArgs {
    /// Priority classes and their head starts, as in high=1h,low=-1h: a Backup of a class is
    /// ordered as if it had arrived that much earlier or later. A Backup names its class by the
    /// annotation or label berth.dev/priority-class.
    #[arg(long, value_delimiter = ',', value_parser = berth_api::order::parse_class)]
    pub priority_classes: Vec<(String, SignedDuration)>,
    /// Fair sharing: move a tenant back one second in the queue for each worker-second that it used
    /// recently.
    #[arg(long)]
    pub fair_share: bool,
    /// Label of a Backup whose value is its tenant.
    #[arg(long, default_value = berth_api::keys::SCHEDULE, requires = "fair_share")]
    pub fair_share_label: String,
    /// Half-life of used worker-seconds: after this time they count half.
    #[arg(long, default_value = "24h", value_parser = duration, requires = "fair_share")]
    pub fair_share_half_life: Duration,
    /// The most that a tenant is moved back.
    #[arg(long, default_value = "1h", value_parser = duration, requires = "fair_share")]
    pub fair_share_limit: Duration,
}

impl CommonArgs {
    pub fn order(&self) -> QueueOrder {
        self.order.order(self.item_block_worker_count)
    }
}

impl OrderArgs {
    fn order(&self, workers: u16) -> QueueOrder {
        let signed = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let share = FairShare {
            label: self.fair_share_label.clone(),
            workers,
            half_life: signed(self.fair_share_half_life),
            most: signed(self.fair_share_limit),
        };
        QueueOrder {
            classes: self.priority_classes.iter().cloned().collect(),
            share: self.fair_share.then_some(share),
        }
    }
}
