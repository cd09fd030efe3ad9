//! Who a container's program is and what it may do, from the security contexts of pod and
//! container.

use anyhow::ensure;
use k8s_openapi::api::core::v1::{Container, PodSpec};

/// What container engines leave to root by default.
const DEFAULT: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

pub struct Identity {
    pub user: i64,
    group: i64,
    groups: Vec<i64>,
    /// That it can ever have.
    capabilities: Vec<String>,
    may_gain: bool,
    pub is_sealed: bool,
}

impl Identity {
    /// Images name no user here, so a container that names none runs as root.
    pub fn of(pod: &PodSpec, container: &Container) -> Self {
        let whole = pod.security_context.clone().unwrap_or_default();
        let own = container.security_context.clone().unwrap_or_default();
        let changes = own.capabilities.unwrap_or_default();
        let (add, drop) = (changes.add.unwrap_or_default(), changes.drop.unwrap_or_default());
        let drops_all = drop.iter().any(|name| name == "ALL");
        let kept = DEFAULT.into_iter().filter(|name| !drops_all && !drop.iter().any(|d| d == name));
        let groups = whole.supplemental_groups.into_iter().flatten().chain(whole.fs_group);
        Self {
            user: own.run_as_user.or(whole.run_as_user).unwrap_or_default(),
            group: own.run_as_group.or(whole.run_as_group).unwrap_or_default(),
            groups: groups.collect(),
            capabilities: kept.map(str::to_owned).chain(add).collect(),
            may_gain: own.allow_privilege_escalation.unwrap_or(true),
            is_sealed: own.read_only_root_filesystem == Some(true),
        }
    }

    /// # Errors
    /// When it is root, and must not be.
    pub fn ensure_allowed(&self, pod: &PodSpec, container: &Container) -> anyhow::Result<()> {
        let own = container.security_context.as_ref().and_then(|context| context.run_as_non_root);
        let whole = pod.security_context.as_ref().and_then(|context| context.run_as_non_root);
        let must_not_be_root = own.or(whole) == Some(true);
        ensure!(
            !must_not_be_root || self.user != 0,
            "it must not run as root (runAsNonRoot), but has no other user (runAsUser)"
        );
        Ok(())
    }

    /// As setpriv has it.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec![format!("--reuid={}", self.user), format!("--regid={}", self.group)];
        let groups: Vec<String> = self.groups.iter().map(i64::to_string).collect();
        flags.push(if groups.is_empty() {
            "--clear-groups".to_owned()
        } else {
            format!("--groups={}", groups.join(","))
        });
        let kept = self.capabilities.iter().map(|name| format!(",+{}", name.to_lowercase()));
        flags.push(format!("--bounding-set=-all{}", kept.collect::<String>()));
        flags.push("--inh-caps=-all".to_owned());
        if !self.may_gain {
            flags.push("--no-new-privs".to_owned());
        }
        flags
    }
}
