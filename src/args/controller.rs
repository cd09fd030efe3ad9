//! Flags of `berth controller`.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::{CommonArgs, FolderArgs, HubArgs, duration};
use crate::settings::Certificates;

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
