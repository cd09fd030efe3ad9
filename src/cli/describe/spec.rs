//! The spec of a Backup, or of the Backups of a Schedule.

use berth_api::GoDuration;
use berth_api::velero::BackupSpec;
use berth_api::velero::backup::{BackupResourceHook, HookErrorMode, ResourceHook};

use super::{NONE, Text, joined, one_line};
use crate::args::value::{go_text, selector_text};

/// Does the spec use the filters that know no scope?
pub fn is_old_style(spec: &BackupSpec) -> bool {
    let has = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
    has(&spec.included_resources) || has(&spec.excluded_resources) || spec.include_cluster_resources.is_some()
}

pub(super) fn three<'a>(value: Option<bool>, no: &'a str, yes: &'a str, auto: &'a str) -> &'a str {
    match value {
        Some(true) => yes,
        Some(false) => no,
        None => auto,
    }
}

pub(super) fn duration(duration: Option<&GoDuration>) -> String {
    match duration.map(GoDuration::get) {
        Some(Ok(duration)) => go_text(duration.unwrap_or_default()),
        None => "0s".to_owned(),
        Some(Err(_)) => duration.map(|duration| duration.0.clone()).unwrap_or_default(),
    }
}

pub fn describe(text: &mut Text, spec: &BackupSpec) {
    text.line("Namespaces:");
    text.row("\tIncluded", &joined(spec.included_namespaces.as_ref(), "*"));
    text.row("\tExcluded", &joined(spec.excluded_namespaces.as_ref(), NONE));
    text.blank();
    text.line("Resources:");
    if is_old_style(spec) {
        text.row("\tIncluded", &joined(spec.included_resources.as_ref(), "*"));
        text.row("\tExcluded", &joined(spec.excluded_resources.as_ref(), NONE));
        text.row("\tCluster-scoped", three(spec.include_cluster_resources, "excluded", "included", "auto"));
    } else {
        for (name, list, none) in [
            ("\tIncluded cluster-scoped", &spec.included_cluster_scoped_resources, NONE),
            ("\tExcluded cluster-scoped", &spec.excluded_cluster_scoped_resources, NONE),
            ("\tIncluded namespace-scoped", &spec.included_namespace_scoped_resources, "*"),
            ("\tExcluded namespace-scoped", &spec.excluded_namespace_scoped_resources, NONE),
        ] {
            text.row(name, &joined(list.as_ref(), none));
        }
    }
    text.blank();
    text.row("Label selector", &selector_text(spec.label_selector.as_ref()));
    text.blank();
    let either: Vec<String> =
        spec.or_label_selectors.iter().flatten().map(|one| selector_text(Some(one))).collect();
    text.row(
        "Or label selector",
        if either.is_empty() { NONE.to_owned() } else { either.join(" or ") }.as_str(),
    );
    text.blank();
    text.row("Storage Location", spec.storage_location.as_deref().unwrap_or_default());
    text.blank();
    text.row("Velero-Native Snapshot PVs", three(spec.snapshot_volumes, "false", "true", "auto"));
    if let Some(value) = spec.default_volumes_to_fs_backup {
        text.row("File System Backup (Default)", three(Some(value), "false", "true", ""));
    }
    text.row("Snapshot Move Data", three(spec.snapshot_move_data, "false", "true", "auto"));
    let mover = spec.datamover.as_deref().filter(|mover| !mover.is_empty()).unwrap_or("velero");
    text.row("Data Mover", mover);
    text.blank();
    text.row("TTL", &duration(spec.ttl.as_ref()));
    text.blank();
    text.row("CSISnapshotTimeout", &duration(spec.csi_snapshot_timeout.as_ref()));
    text.row("ItemOperationTimeout", &duration(spec.item_operation_timeout.as_ref()));
    text.blank();
    let hooks: Vec<&BackupResourceHook> =
        spec.hooks.iter().flat_map(|hooks| hooks.resources.iter().flatten()).collect();
    if hooks.is_empty() {
        text.row("Hooks", NONE);
    } else {
        text.line("Hooks:");
        text.line("\tResources:");
        hooks.into_iter().for_each(|hook| describe_hook(text, hook));
    }
    if let Some(ordered) = spec.ordered_resources.as_ref().filter(|ordered| !ordered.is_empty()) {
        text.blank();
        text.line("OrderedResources:");
        for (kind, names) in ordered {
            text.line(&format!("\t{}: {}", one_line(kind), one_line(names)));
        }
    }
}

fn describe_hook(text: &mut Text, hook: &BackupResourceHook) {
    text.line(&format!("\t\t{}:", one_line(&hook.name)));
    for (name, included, excluded) in [
        ("Namespaces", &hook.included_namespaces, &hook.excluded_namespaces),
        ("Resources", &hook.included_resources, &hook.excluded_resources),
    ] {
        text.line(&format!("\t\t\t{name}:"));
        text.row("\t\t\t\tIncluded", &joined(included.as_ref(), "*"));
        text.row("\t\t\t\tExcluded", &joined(excluded.as_ref(), NONE));
        text.blank();
    }
    text.row("\t\t\tLabel selector", &selector_text(hook.label_selector.as_ref()));
    for (name, hooks) in [("Pre Exec Hook", &hook.pre), ("Post Exec Hook", &hook.post)] {
        for ResourceHook { exec } in hooks.iter().flatten() {
            text.blank();
            text.line(&format!("\t\t\t{name}:"));
            text.row("\t\t\t\tContainer", exec.container.as_deref().unwrap_or_default());
            text.row("\t\t\t\tCommand", &exec.command.join(" "));
            let on_error = match exec.on_error {
                Some(HookErrorMode::Continue) => "Continue",
                Some(HookErrorMode::Fail) => "Fail",
                None => "",
            };
            text.row("\t\t\t\tOn Error", on_error);
            text.row("\t\t\t\tTimeout", &duration(exec.timeout.as_ref()));
        }
    }
}
