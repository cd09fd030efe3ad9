//! `berth install --output`: prints the objects for GitOps, without reading the cluster.

use std::io::Write as _;

use super::desired::settings;
use crate::args::InstallArgs;
use crate::cli::print::{say, stdout};
use crate::install::hub::HubAccess;
use crate::install::{BackedUpTypes, MemberParts, pod_volumes, render};

/// # Errors
/// When the manifests in this binary are faulty.
pub(super) fn run(
    args: &InstallArgs,
    access: Option<&HubAccess>,
    engine: Option<BackedUpTypes>,
) -> anyhow::Result<()> {
    let beside = args.beside_velero.unwrap_or_default();
    let mut settings = settings(args, access, None);
    pod_volumes::ensure_fits(settings.pod_volumes, settings.files_by_movers, settings.executor)?;
    settings.engine = engine;
    settings.bring_namespace = !beside;
    settings.bring_definitions = !beside;
    if args.member.beside_gardener {
        settings.foreign =
            berth_garden_api::crd::member().into_iter().filter_map(|one| one.metadata.name).collect();
    }
    if let Some(MemberParts::Courier(hub)) = &mut settings.member {
        // Of what is not printed.
        hub.digest = None;
        say!(
            "# Secret {} is not among these: it holds a credential. To make it:\n#   {}",
            hub.secret,
            hub.recipe(&settings.namespace)
        );
    }
    let mut out = stdout();
    for object in render(&settings)? {
        write!(out, "---\n{}", serde_saphyr::to_string(&object)?)?;
    }
    Ok(())
}
