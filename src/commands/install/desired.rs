//! What is to be installed: the settings by the flags, or else as installed.

use anyhow::bail;
use kube::ResourceExt as _;

use crate::args::InstallArgs;
use crate::cli::print::say;
use crate::image::image_of;
use crate::install::cluster::Presence;
use crate::install::hub::HubAccess;
use crate::install::render::VELERO_ACCOUNT;
use crate::install::{ClusterFindings, InstallSettings, MemberParts, Reviews, pod_volumes};
use crate::settings::{Certificates, Executor};

/// The settings by the flags, or else as installed.
pub(super) fn settings(
    args: &InstallArgs,
    access: Option<&HubAccess>,
    found: Option<&ClusterFindings>,
) -> InstallSettings {
    let installed = found.and_then(|found| found.installed.as_ref());
    let mut flags = Vec::new();
    let mut keep = |flag: &str, said: Option<u16>| {
        let value = said.map(|n| n.to_string()).or_else(|| installed?.flag(flag));
        flags.extend(value.map(|value| format!("{flag}={value}")));
    };
    keep("--concurrent-backups", args.concurrent_backups);
    keep("--item-block-worker-count", args.item_block_worker_count);
    let image = || Some(image_of(env!("CARGO_PKG_VERSION"), installed?.image()?));
    let velero = found.and_then(|found| found.velero.as_ref());
    let account = || {
        let spec = velero?.spec.as_ref()?.template.spec.as_ref()?;
        spec.service_account_name.clone()
    };
    let known = || account().or_else(|| installed?.velero_account(&args.target.namespace));
    // Without a Velero no account is trusted, because anybody who may create service accounts could
    // create one of its name.
    let of_velero = || match args.beside_velero.unwrap_or(velero.is_some()) {
        true => Some(known().unwrap_or_else(|| VELERO_ACCOUNT.to_owned())),
        false => known().filter(|_| args.beside_velero.is_none()),
    };
    let agents = || installed?.agents.as_ref();
    let pod_volumes = args.pod_volumes.unwrap_or_else(|| agents().is_some());
    InstallSettings {
        executor: args.executor.or_else(|| Some(installed?.executor)).unwrap_or(Executor::Berth),
        certificates: args
            .certificates
            .or_else(|| Some(installed?.certificates))
            .unwrap_or(Certificates::SelfManaged),
        image: args.image.clone().or_else(image),
        velero_account: args.velero_service_account.clone().or_else(of_velero),
        args: flags,
        reviews: Reviews::wanted(&args.reviews, None),
        member: MemberParts::wanted(
            &args.member,
            access,
            installed.and_then(|installed| installed.member.as_ref()),
        ),
        pod_volumes,
        files_by_movers: args
            .files_by_movers
            .unwrap_or_else(|| pod_volumes && agents().is_some_and(pod_volumes::leaves_files)),
        ..InstallSettings::new(&args.target.namespace)
    }
}

/// The message about the account that policies treat as Velero where no Velero was found.
pub(super) fn tell_account(settings: &InstallSettings, found: &ClusterFindings, args: &InstallArgs) {
    let is_said = args.velero_service_account.is_some() || args.beside_velero.is_some();
    let (None, Some(installed), false) = (&found.velero, &found.installed, is_said) else { return };
    let namespace = &settings.namespace;
    match &settings.velero_account {
        Some(account) => say!(
            "no Velero was found in namespace {namespace}: service account {account} stays trusted with its part, as it is installed; --beside-velero=false takes that back"
        ),
        None if settings.executor == Executor::Berth && !installed.trusts_no_velero() => say!(
            "no Velero was found in namespace {namespace}: no service account is trusted with its part any more. If there is one, say --velero-service-account"
        ),
        None => {}
    }
}

/// Leaves out objects that exist already or belong to another installation.
pub(super) fn fit(
    settings: &mut InstallSettings,
    found: &ClusterFindings,
    args: &InstallArgs,
) -> anyhow::Result<()> {
    let beside = args.beside_velero.unwrap_or(found.velero.is_some());
    settings.bring_definitions = match found.definition {
        Presence::Ours => true,
        Presence::Absent => !beside,
        Presence::Foreign => false,
    };
    settings.bring_namespace = match found.namespace {
        Presence::Ours => true,
        Presence::Absent => !beside,
        Presence::Foreign => false,
    };
    settings.foreign.clone_from(&found.foreign);
    if beside && found.definition == Presence::Absent {
        bail!(
            "--beside-velero: there is no Velero here, not even its definitions; leave the flag out, or install Velero first"
        );
    }
    if args.beside_velero.is_none()
        && let Some(velero) = &found.velero
    {
        say!("found Velero (Deployment {}): installing beside it", velero.name_any());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::{Value, json};

    use super::*;
    use crate::args::{Args, Command};
    use crate::install::Installed;

    fn deployment(name: &str, pod: &Value) -> Deployment {
        let object = json!({"metadata": {"name": name}, "spec": {"selector": {}, "template": {"spec": pod}}});
        serde_json::from_value(object).unwrap()
    }

    fn found(velero: Option<Deployment>, webhook: &[&str]) -> ClusterFindings {
        let args = json!({"containers": [{"name": "berth", "args": webhook}]});
        ClusterFindings {
            version: String::new(),
            minor: None,
            has_policies: true,
            has_cert_manager: false,
            velero,
            namespace: Presence::Ours,
            definition: Presence::Ours,
            foreign: Vec::new(),
            definition_fault: None,
            called: None,
            installed: Some(Installed {
                executor: Executor::Berth,
                certificates: Certificates::SelfManaged,
                member: None,
                agents: None,
                deployments: vec![deployment("berth-webhook", &args)],
            }),
            helm_release: None,
        }
    }

    #[test]
    fn veleros_account_stays_as_it_was_said_until_a_velero_says_otherwise() {
        const SAID: &str = "--lifecycle-identity=system:serviceaccount:velero:velero-server";
        const ELSEWHERE: &str = "--lifecycle-identity=system:serviceaccount:elsewhere:velero-server";
        for (flag, velero, before, expected) in [
            (None, None, &["webhook", SAID][..], Some("velero-server")),
            (None, Some("ark"), &["webhook", SAID], Some("ark")),
            (Some("--velero-service-account=ark"), None, &["webhook", SAID], Some("ark")),
            (Some("--beside-velero"), None, &["webhook", SAID], Some("velero-server")),
            (Some("--beside-velero=false"), None, &["webhook", SAID], None),
            (Some("--beside-velero"), None, &["webhook"], Some("velero")),
            // Without a flag no account is trusted where no Velero is.
            (None, None, &["webhook"], None),
            (None, None, &["webhook", "--without-velero"], None),
            (None, None, &["webhook", ELSEWHERE], None),
        ] {
            let line = ["berth", "install", "--namespace=velero"].into_iter().chain(flag);
            let Command::Install(args) = Args::try_parse_from(line).unwrap().command else {
                panic!("{flag:?}")
            };
            let velero = velero.map(|account| {
                deployment("velero", &json!({"serviceAccountName": account, "containers": []}))
            });
            let account = settings(&args, None, Some(&found(velero, before))).velero_account;
            assert_eq!(account.as_deref(), expected, "{flag:?} {before:?}");
        }
    }
}
