//! Flags of `berth node-agent`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::{ClusterArgs, FolderArgs, Output, ReportArgs, folder};

#[derive(ClapArgs)]
#[command(subcommand_negates_reqs = true)]
pub struct NodeAgentArgs {
    #[command(flatten)]
    pub target: ClusterArgs,
    #[command(flatten)]
    pub server: NodeAgentServerArgs,
    #[command(subcommand)]
    pub command: Option<NodeAgentCommand>,
}

/// What the agent of a node runs with.
#[derive(ClapArgs, Clone)]
pub struct NodeAgentServerArgs {
    /// Node on which this process runs: it takes the files of this node's pods, and of no others.
    #[arg(long, env = "NODE_NAME", required = true)]
    pub node_name: Option<String>,
    /// Folder where the kubelet's folder of pods is mounted. Nothing outside it is read or written,
    /// whatever links in it say.
    #[arg(long, default_value = "/host_pods", value_parser = folder)]
    pub host_pods_path: PathBuf,
    /// Leave the files of volumes to data mover pods, one for each PodVolumeBackup and
    /// PodVolumeRestore, which the leader makes. The agent itself then needs nothing of its node:
    /// neither that folder nor root.
    #[arg(long)]
    pub files_by_movers: bool,
    /// Read a volume also where nothing is mounted on its folder, which may mean that
    /// the volume is not there. For kubelets that mount in another way than all known ones.
    #[arg(long)]
    pub allow_unmounted: bool,
    /// How many volumes of this node are backed up or restored at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub pod_volume_concurrency: u16,
    /// ConfigMap of Velero's node-agents whose loadConcurrency says that instead, by the labels of
    /// this node. It is read live.
    #[arg(long)]
    pub node_agent_configmap: Option<String>,
    /// Secret whose key repository-password is the password of all repositories, such as Velero's
    /// velero-repo-credentials. Default: each repository has a Secret of its own, with a random
    /// password.
    #[arg(long)]
    pub repository_secret: Option<String>,
    /// Move the data of one DataUpload, DataDownload, PodVolumeBackup or PodVolumeRestore
    /// (KIND/NAME/UID) in its data mover pod, and end. The leader gives this flag to the pods that
    /// it makes.
    #[arg(long, hide = true)]
    pub carry: Option<String>,
    #[command(flatten)]
    pub folders: FolderArgs,
    #[command(flatten)]
    pub reports: ReportArgs,
}

#[derive(Subcommand)]
pub enum NodeAgentCommand {
    /// Show on which nodes the data movers of each StorageClass may run, and why. Example: berth
    /// node-agent check
    ///
    /// Lists nodes and StorageClasses, which takes an admin's rights. Exit code 0: every class has
    /// a node; 1: a class has none, or the configuration cannot be read; 2: the check itself
    /// failed.
    Check {
        /// ConfigMap of the same namespace to check. Default: the one that the node-agents'
        /// DaemonSet names.
        #[arg(long)]
        node_agent_configmap: Option<String>,
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
}
