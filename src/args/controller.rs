//! Flags of `berth controller`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use berth_core::schedule::{FirstRun, ScheduleSettings};
use clap::{Args as ClapArgs, ValueEnum};

use super::{CommonArgs, FolderArgs, HubArgs, duration, duration_or_zero, folder};
use crate::settings::{Certificates, Controller};

#[derive(ClapArgs)]
pub struct ControllerArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// How long to keep Backups that set no ttl.
    #[arg(long, default_value = "720h", value_parser = duration)]
    pub default_backup_ttl: Duration,
    /// Whether Backups that set no defaultVolumesToFsBackup back up the files of all volumes of
    /// pods.
    #[arg(long)]
    pub default_volumes_to_fs_backup: bool,
    /// Whether Backups that set no snapshotMoveData move the data of snapshots into their storage
    /// location.
    #[arg(long)]
    pub default_snapshot_move_data: bool,
    /// How long all file-system backups of one Backup may take together, unless the Backup's
    /// annotation velero.io/pod-volume-timeout says otherwise. What a Backup asks for beyond this
    /// and beyond four hours, in that annotation or in csiSnapshotTimeout, is not given, because it
    /// holds a place of the queue meanwhile.
    #[arg(long, default_value = "4h", value_parser = duration)]
    pub fs_backup_timeout: Duration,
    /// How long to retry a failing read of the API server. After that the Backup goes on without
    /// that type and becomes PartiallyFailed. If the API server itself is unreachable the run ends:
    /// the Backup resumes from its checkpoint, or is Failed if it has none.
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub list_retry_timeout: Duration,
    /// Objects per page of a list request.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub client_page_size: u32,
    /// How often to check storage locations that set no validationFrequency.
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub store_validation_frequency: Duration,
    /// How often to begin a small upload to storage locations that are not ReadOnly, and to give it
    /// up: one that cannot be written is Unavailable before a backup needs it. 0: never.
    #[arg(long, default_value = "0s", value_parser = duration_or_zero)]
    pub store_write_check_frequency: Duration,
    /// How often to sync storage locations that set no backupSyncPeriod: Backups that the store has
    /// are created, those that it no longer has are removed. 0: never.
    #[arg(long, default_value = "1m", value_parser = duration_or_zero)]
    pub backup_sync_period: Duration,
    /// Most namespaces with a metric of their own that says when their last good backup ended. 0:
    /// none.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub namespace_metrics: u32,
    /// Service in front of the webhooks. Its DNS names are in the certificate.
    #[arg(long, default_value = "berth-webhook")]
    pub webhook_service: String,
    /// Further DNS name or IP address of the webhooks, for the certificate. May be given more than
    /// once.
    #[arg(long = "webhook-name")]
    pub webhook_names: Vec<String>,
    /// Name of both webhook configurations whose caBundle is kept current.
    #[arg(long, default_value = "berth")]
    pub webhook_configuration: String,
    /// Program that issues the webhooks' certificates.
    #[arg(long, value_enum, default_value = "self-managed")]
    pub certificates: Certificates,
    /// How long a new authority is in caBundle before a certificate that it signed is served. Must
    /// be longer than the slowest API server takes to read the change.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub ca_lead_time: Duration,
    /// How long running Backups may go on after SIGTERM before the next leader takes them over.
    /// Default: the next leader takes them over at once. The pod's terminationGracePeriodSeconds
    /// must be longer.
    #[arg(long, value_parser = duration)]
    pub drain_timeout: Option<Duration>,
    /// What happens to a running Backup when its controller is killed, stopped or loses its Lease,
    /// or when its store fails.
    #[arg(long, value_enum, default_value = "resume")]
    pub after_interruption: AfterInterruptionArg,
    /// Lease duration: how long other replicas wait for a leader that stopped renewing.
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub lease_duration: Duration,
    /// Controllers that do not run here, for example because a Velero runs them: a comma-separated
    /// list.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub disable_controllers: Vec<Controller>,
    /// When a new Schedule has its first Backup: at the first time of its expression, as in today's
    /// Velero, or at once.
    #[arg(long, value_enum, default_value = "next-tick")]
    pub schedule_first_run: ScheduleFirstRun,
    /// Whether Schedules that say nothing of skipImmediately skip what is due when they are first
    /// seen. Each of them is set to false then.
    #[arg(long)]
    pub schedule_skip_immediately: bool,
    /// Where to serve downloads from locations that are folders, which nobody else serves. Every
    /// replica does. Default: not at all, so that DownloadRequests for such locations get no link.
    #[arg(long, requires = "download_url")]
    pub download_address: Option<SocketAddr>,
    /// URL by which people reach --download-address, as in https://HOST:PORT. With https it is
    /// served with the webhooks' certificate, in which its host is named then; with http in plain
    /// text, for a proxy in front of it.
    #[arg(long, requires = "download_address", value_parser = base_url)]
    pub download_url: Option<String>,
    /// Secret whose key repository-password is the password of all of berth's restic repositories,
    /// where berth's node agents have this flag, too. Default: each repository has a Secret of its
    /// own.
    #[arg(long)]
    pub repository_secret: Option<String>,
    /// Folder of each node in which the kubelet keeps its pods. Data mover pods that read or
    /// restore files of volumes see there the volumes of one pod.
    #[arg(long, default_value = "/var/lib/kubelet/pods", value_parser = folder)]
    pub host_pods_folder: PathBuf,
    #[command(flatten)]
    pub folders: FolderArgs,
    #[command(flatten)]
    pub hub: HubArgs,
}

impl ControllerArgs {
    pub fn schedule(&self) -> ScheduleSettings {
        let first_run = match self.schedule_first_run {
            ScheduleFirstRun::NextTick => FirstRun::NextTick,
            ScheduleFirstRun::AtOnce => FirstRun::AtOnce,
        };
        ScheduleSettings { first_run, skip_immediately: self.schedule_skip_immediately }
    }
}

/// When a new Schedule has its first Backup.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum ScheduleFirstRun {
    /// At the first time of its expression.
    NextTick,
    /// When it is created.
    AtOnce,
}

/// A URL of a host, and perhaps a path, to which paths are appended.
fn base_url(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.contains(['?', '#', '@', ' ']) => Ok(text.to_owned()),
        _ => Err("must be https://HOST:PORT or http://HOST:PORT".to_owned()),
    }
}

/// What happens to a Backup whose run ended early. After three such runs a Backup is Failed,
/// whatever is set.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum AfterInterruptionArg {
    /// The next leader resumes the Backup from the last checkpoint in the store, or restarts it if
    /// there is none.
    Resume,
    /// The next leader restarts the Backup. If its store or the API server failed, the Backup is
    /// Failed.
    Restart,
    /// The Backup is Failed.
    Fail,
}

impl From<AfterInterruptionArg> for berth_core::run::AfterInterruption {
    fn from(wanted: AfterInterruptionArg) -> Self {
        match wanted {
            AfterInterruptionArg::Resume => Self::Resume,
            AfterInterruptionArg::Restart => Self::Restart,
            AfterInterruptionArg::Fail => Self::Fail,
        }
    }
}
