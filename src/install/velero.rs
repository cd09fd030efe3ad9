//! A Velero server beside berth: which of its controllers must be switched off, and how they are
//! switched on again.

use std::collections::BTreeSet;

use anyhow::Context as _;
use berth_api::keys;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::INSTALLER;
use crate::settings::Executor;

const FLAG: &str = "--disable-controllers";
/// Velero's controller that runs the backups.
const BACKUP: &str = "backup";

/// The controllers that must be switched off beside berth.
pub fn to_switch_off(executor: Executor) -> &'static [&'static str] {
    match executor {
        // The last two complete backups whose data was moved, which berth does for its own.
        Executor::Berth => &["backup-queue", BACKUP, "backup-operations", "backup-finalizer"],
        Executor::Velero => &["backup-queue"],
    }
}

/// A change of Velero's Deployment.
#[derive(Debug, PartialEq, Eq)]
pub struct DeploymentChange {
    pub before: Vec<String>,
    pub after: Vec<String>,
    /// The controllers that berth has switched off after the change.
    switched_off: BTreeSet<String>,
}

/// The change after which berth has switched off exactly `wanted`; `None` when nothing has to
/// change. Controllers that an admin switched off stay off.
pub fn change(deployment: &Deployment, wanted: &[&str]) -> Option<DeploymentChange> {
    let before = args(deployment)?;
    let ours: BTreeSet<String> =
        deployment.annotations().get(keys::SWITCHED_OFF).map_or_else(BTreeSet::new, |text| names(text));
    let (rest, off) = take_flag(&before);
    let theirs: Vec<String> = off.iter().filter(|name| !ours.contains(*name)).cloned().collect();
    let switched_off: BTreeSet<String> = wanted
        .iter()
        .filter(|name| !theirs.iter().any(|one| one == *name))
        .map(|name| (*name).to_owned())
        .collect();
    let all: Vec<String> = theirs.into_iter().chain(switched_off.iter().cloned()).collect();
    let is_off: BTreeSet<&String> = off.iter().collect();
    if is_off == all.iter().collect() && ours == switched_off {
        return None;
    }
    let mut after = rest;
    if !all.is_empty() {
        after.push(format!("{FLAG}={}", all.join(",")));
    }
    Some(DeploymentChange { before, after, switched_off })
}

/// The controllers in `wanted` that are on.
pub fn still_on<'w>(deployment: &Deployment, wanted: &[&'w str]) -> Vec<&'w str> {
    let off = args(deployment).map(|args| take_flag(&args).1).unwrap_or_default();
    wanted.iter().filter(|name| !off.iter().any(|one| one == *name)).copied().collect()
}

/// Does it run with `--restore-only`, without the controllers that write to stores?
pub fn restores_only(deployment: &Deployment) -> bool {
    let args = args(deployment).unwrap_or_default();
    args.iter().any(|arg| arg == "--restore-only" || arg == "--restore-only=true")
}

/// Why nothing runs the backups that Velero should run, and the way out: its controller `backup` is
/// off. `None`: it is on, or berth runs them.
pub fn runs_nothing(deployment: &Deployment, executor: Executor) -> Option<(&'static str, String)> {
    let (_, off) = take_flag(&args(deployment)?);
    if executor != Executor::Velero || !off.iter().any(|name| name == BACKUP) {
        return None;
    }
    let ours =
        deployment.annotations().get(keys::SWITCHED_OFF).is_some_and(|text| names(text).contains(BACKUP));
    let way_out = if ours {
        "berth install --executor=velero --adjust-velero".to_owned()
    } else {
        format!("take {BACKUP} out of {FLAG} of Deployment {}", deployment.name_any())
    };
    Some(("Velero's controller backup is switched off, so nothing runs the backups", way_out))
}

impl DeploymentChange {
    /// Does Velero run backups after it?
    pub fn switches_on_backups(&self) -> bool {
        !take_flag(&self.after).1.iter().any(|name| name == BACKUP)
    }

    /// Writes the change, on the resourceVersion that was read.
    ///
    /// # Errors
    /// When the API server refuses the write.
    pub async fn write(&self, client: &Client, deployment: &Deployment) -> anyhow::Result<()> {
        let namespace = deployment.namespace().unwrap_or_default();
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let name = server(deployment).map(|container| container.name.clone()).unwrap_or_default();
        let mark: Vec<&str> = self.switched_off.iter().map(String::as_str).collect();
        let mark = if mark.is_empty() { json!(null) } else { json!(mark.join(",")) };
        let patch = json!({
            "metadata": {"resourceVersion": deployment.resource_version(), "annotations": {keys::SWITCHED_OFF: mark}},
            "spec": {"template": {"spec": {"containers": [{"name": name, "args": self.after}]}}},
        });
        let params = PatchParams { field_manager: Some(INSTALLER.to_owned()), ..PatchParams::default() };
        api.patch(&deployment.name_any(), &params, &Patch::Strategic(patch))
            .await
            .with_context(|| format!("Velero's Deployment {} cannot be changed", deployment.name_any()))?;
        Ok(())
    }
}

/// Did berth switch off any controller?
pub fn is_adjusted(deployment: &Deployment) -> bool {
    deployment.annotations().contains_key(keys::SWITCHED_OFF)
}

fn server(deployment: &Deployment) -> Option<&k8s_openapi::api::core::v1::Container> {
    let containers = &deployment.spec.as_ref()?.template.spec.as_ref()?.containers;
    containers.iter().find(|container| container.name == "velero").or(containers.first())
}

fn args(deployment: &Deployment) -> Option<Vec<String>> {
    Some(server(deployment)?.args.clone().unwrap_or_default())
}

fn names(text: &str) -> BTreeSet<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The arguments without the flag, and its values, in both spellings.
fn take_flag(args: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut rest, mut off) = (Vec::new(), Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = match arg.strip_prefix(FLAG) {
            Some("") => args.next().map(String::as_str),
            Some(value) => value.strip_prefix('='),
            None => None,
        };
        match value {
            Some(value) => off.extend(names(value)),
            None => rest.push(arg.clone()),
        }
    }
    (rest, off)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(args: &[&str], mark: Option<&str>) -> Deployment {
        let annotations = mark.map(|mark| json!({keys::SWITCHED_OFF: mark}));
        serde_json::from_value(json!({
            "metadata": {"name": "velero", "annotations": annotations},
            "spec": {"selector": {}, "template": {"spec": {"containers": [
                {"name": "sidecar"}, {"name": "velero", "args": args},
            ]}}},
        }))
        .unwrap_or_default()
    }

    fn after(args: &[&str], mark: Option<&str>, wanted: &[&str]) -> Option<(Vec<String>, String)> {
        let change = change(&deployment(args, mark), wanted)?;
        Some((change.after, change.switched_off.into_iter().collect::<Vec<_>>().join(",")))
    }

    fn said(args: &[&str], mark: &str) -> Option<(Vec<String>, String)> {
        Some((args.iter().map(|arg| (*arg).to_owned()).collect(), mark.to_owned()))
    }

    #[test]
    fn what_has_to_be_off_is_added_and_everything_else_stays() {
        let both = ["backup-queue", "backup"];
        assert_eq!(
            after(&["server", "--features="], None, &both),
            said(
                &["server", "--features=", "--disable-controllers=backup,backup-queue"],
                "backup,backup-queue"
            )
        );
        assert_eq!(
            after(&["server", "--disable-controllers", "gc,backup"], None, &both),
            said(&["server", "--disable-controllers=backup,gc,backup-queue"], "backup-queue")
        );
        assert_eq!(after(&["server", "--disable-controllers=backup,backup-queue"], None, &both), None);
    }

    #[test]
    fn there_is_a_way_back_and_a_way_over() {
        let both = "backup,backup-queue";
        let args = ["server", "--disable-controllers=gc,backup,backup-queue"];
        assert_eq!(after(&args, Some(both), &[]), said(&["server", "--disable-controllers=gc"], ""));
        assert_eq!(
            after(&["server", "--disable-controllers=backup,backup-queue"], Some(both), &[]),
            said(&["server"], "")
        );
        assert_eq!(
            after(&args, Some(both), &["backup-queue"]),
            said(&["server", "--disable-controllers=gc,backup-queue"], "backup-queue")
        );
        assert_eq!(after(&args, Some(both), &["backup-queue", "backup"]), None);
    }

    #[test]
    fn what_is_still_on_is_named() {
        let on = |args: &[&str]| still_on(&deployment(args, None), &["backup-queue", "backup"]);
        assert_eq!(on(&["server"]), ["backup-queue", "backup"]);
        assert_eq!(on(&["server", "--disable-controllers=backup-queue"]), ["backup"]);
    }

    /// Before: nobody was told, and every Backup stayed ReadyToStart.
    #[test]
    fn a_velero_that_is_to_run_the_backups_and_does_not_is_told_of() {
        let way_out = |executor, args: &[&str], mark: Option<&str>| {
            runs_nothing(&deployment(args, mark), executor).map(|(_, way_out)| way_out)
        };
        let off = ["server", "--disable-controllers=backup-queue,backup"];
        assert_eq!(
            way_out(Executor::Velero, &off, None).as_deref(),
            Some("take backup out of --disable-controllers of Deployment velero")
        );
        assert_eq!(
            way_out(Executor::Velero, &off, Some("backup,backup-queue")).as_deref(),
            Some("berth install --executor=velero --adjust-velero")
        );
        assert_eq!(way_out(Executor::Velero, &["server", "--disable-controllers=backup-queue"], None), None);
        assert_eq!(way_out(Executor::Berth, &off, None), None, "berth runs them");
    }
}
