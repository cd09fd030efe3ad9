//! What each rule is for, and how its absence shows.

use super::Symptom;

/// A rule of a role.
#[derive(Clone, Copy)]
pub struct Need {
    pub kind: &'static str,
    pub role: &'static str,
    pub rule: usize,
    /// For the documentation.
    pub needed_for: &'static str,
    pub symptom: Symptom,
}

impl Need {
    /// What backs everything up may read everything: only without it can be seen what else reads.
    pub fn is_seen_beside_velero(&self) -> bool {
        matches!(self.symptom, Symptom::Blind(_) | Symptom::OnlyLogged(_) | Symptom::CannotAskVelero)
            || (self.kind, self.role, self.rule) == ("ClusterRole", "berth-controller", 1)
            || self.role == "berth-certificates"
    }

    /// Whose service account has it, and which log tells of its absence.
    pub fn duty(&self) -> &'static str {
        if self.role.starts_with("berth-webhook") { "webhook" } else { "controller" }
    }
}

/// A role, and its rules in their order.
struct Role {
    kind: &'static str,
    name: &'static str,
    rules: &'static [(&'static str, Symptom)],
}

const ROLES: &[Role] = &[
    Role {
        kind: "Role",
        name: "berth-webhook",
        rules: &[
            ("answering from the queue as it is: without, never ready", Symptom::NotReady),
            (
                "Events about a foreign queue, certificates, and data movers that no node fits",
                Symptom::NoForeignQueueEvent,
            ),
            (
                "knowing whose volume a data mover's pod is for; waking those that were refused when nobody grants any more",
                Symptom::Blind("DataUpload"),
            ),
            (
                "knowing where node-agents run, how they are configured, and whether places are granted",
                Symptom::Blind("Pod"),
            ),
            ("finding the node-agents' configuration", Symptom::Blind("DaemonSet")),
            ("its certificate: without, never ready", Symptom::NotReady),
            ("telling who creates a Schedule what others take at its times", Symptom::Blind("Schedule")),
        ],
    },
    Role {
        kind: "ClusterRole",
        name: "berth-webhook",
        rules: &[
            (
                "letting Backups through where the definition is too old",
                Symptom::OnlyLogged("definition of Backups"),
            ),
            ("serving a certificate only when its authority is in `caBundle`", Symptom::NotReady),
            ("knowing where data movers could run", Symptom::Blind("Node")),
            (
                "telling who creates a Backup that no snapshot can be taken of its volumes",
                Symptom::Blind("VolumeSnapshotClass"),
            ),
            (
                "the StorageClass and the place of the volume that a data mover is for",
                Symptom::OnlyLogged("PersistentVolumeClaim data cannot be read"),
            ),
        ],
    },
    Role {
        kind: "ClusterRole",
        name: "berth-webhook-garden",
        rules: &[
            ("knowing what depends on what in the hub", Symptom::Blind("CloudProfile")),
            ("knowing which buckets clusters share, in a member", Symptom::Blind("BackupBucket")),
        ],
    },
    Role {
        kind: "Role",
        name: "berth-webhook-garden",
        rules: &[(
            "telling that the credentials are missing which a profile names",
            Symptom::OnlyLogged("a Secret with credentials cannot be read"),
        )],
    },
    Role {
        kind: "Role",
        name: "berth-controller",
        rules: &[
            ("seeing Backups, moving them", Symptom::NotRun),
            ("held locations, and whether one can be used", Symptom::LocationUnknown),
            ("seeing data movers, granting them places", Symptom::Blind("DataUpload")),
            ("knowing where node-agents run; removing the pod that one left behind", Symptom::Blind("Pod")),
            (
                "removing the claim that a node-agent left behind",
                Symptom::OnlyLogged("PersistentVolumeClaim lost cannot be removed"),
            ),
            ("reading the node-agents' configuration, whatever its name is", Symptom::Blind("ConfigMap")),
            (
                "making the ledger of grants where there was none",
                Symptom::OnlyLogged("the ledger of grants cannot be written"),
            ),
            ("keeping the ledger of grants", Symptom::OnlyLogged("the ledger of grants cannot be read")),
            ("finding the node-agents' configuration", Symptom::Blind("DaemonSet")),
            ("becoming leader where there was none", Symptom::NotReady),
            ("staying leader", Symptom::LosesLead),
        ],
    },
    Role {
        kind: "ClusterRole",
        name: "berth-controller",
        rules: &[
            ("noticing a definition that is too old", Symptom::OnlyLogged("definition of Backups")),
            ("noticing another berth; knowing what caBundle lacks", Symptom::NotReady),
            ("knowing where data movers could run", Symptom::Blind("Node")),
            (
                "the node of the pod that a restore is for; whether a snapshot is still there; telling of pods that no webhook saw",
                Symptom::OnlyLogged("could not read the node of its pod"),
            ),
            ("Events", Symptom::NoEvent),
            ("knowing what people and members say of shared buckets", Symptom::Blind("CloudProfile")),
            ("making shared buckets, giving them up", Symptom::OfHub("a BackupBucket could not be made")),
            (
                "telling an entry its bucket",
                Symptom::OfHub("a decision could not be written kind=BackupEntry"),
            ),
            (
                "who acts on shared buckets, and what becomes of them",
                Symptom::OfHub("a decision could not be written kind=BackupBucket"),
            ),
        ],
    },
    Role {
        kind: "Role",
        name: "berth-controller-garden",
        rules: &[
            (
                "keeping credentials as long as a bucket needs them, and making keys for one directory each",
                Symptom::OfHub("the watch was interrupted kind=Secret"),
            ),
            (
                "records of what was deleted, and whose data was left",
                Symptom::OfHub("the watch was interrupted kind=ConfigMap"),
            ),
            (
                "saying which of the credentials each Seed may read",
                Symptom::OfHub("the watch was interrupted kind=Role"),
            ),
        ],
    },
    Role {
        kind: "ClusterRole",
        name: "berth-engine",
        rules: &[("backing up everything that there is", Symptom::NotRun)],
    },
    Role {
        kind: "ClusterRole",
        name: "berth-hooks",
        rules: &[("running hooks in pods: without, each one is an error of its backup", Symptom::NoHooks)],
    },
    Role {
        kind: "ClusterRole",
        name: "berth-volumes",
        rules: &[
            ("taking CSI snapshots: without, claims are stored without their data", Symptom::NoData),
            ("knowing when snapshots are cut, and keeping them in their storage", Symptom::NoData),
        ],
    },
    Role {
        kind: "Role",
        name: "berth-volumes",
        rules: &[
            (
                "having node-agents back up files: without, each one is an error of its backup",
                Symptom::NoData,
            ),
            ("making sure that there is a repository for files", Symptom::NoData),
        ],
    },
    Role {
        kind: "Role",
        name: "berth-beside-velero",
        rules: &[("asking Velero whether it is there", Symptom::CannotAskVelero)],
    },
    Role {
        kind: "Role",
        name: "berth-certificates",
        rules: &[
            ("making the webhooks' certificate", Symptom::NotReady),
            ("renewing and repairing it", Symptom::NotReady),
        ],
    },
    Role {
        kind: "ClusterRole",
        name: "berth-certificates",
        rules: &[("writing caBundle", Symptom::NotReady)],
    },
];

pub fn needs() -> impl Iterator<Item = Need> {
    let of = |role: &'static Role| {
        role.rules.iter().enumerate().map(|(rule, &(needed_for, symptom))| Need {
            kind: role.kind,
            role: role.name,
            rule,
            needed_for,
            symptom,
        })
    };
    ROLES.iter().flat_map(of)
}
