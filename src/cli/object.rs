//! From flags to the objects that they ask for. They are the objects that Velero's command line
//! sends, durations and empty fields included.

mod fault;
mod location;

pub use fault::check;
pub use location::{change, location};

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::velero::backup::{BackupHooks, LocalObject, TemplateMetadata, UploaderConfig};
use berth_api::velero::{Backup, BackupSpec, Schedule, ScheduleSpec};
use berth_api::{GoDuration, keys};
use berth_core::glob::is_subdomain;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::backup::{CreateArgs, SpecArgs};
use crate::args::schedule::CreateScheduleArgs;
use crate::args::value::{GoTime, List, Pairs, Tristate, go_text};

/// The spec that the flags ask for.
pub fn spec(flags: &SpecArgs) -> BackupSpec {
    let list = |list: &Option<List>| list.as_ref().map(|list| list.0.clone()).filter(|list| !list.is_empty());
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let flag = |flag: Option<Tristate>| flag.and_then(|flag| flag.0);
    let duration = |time: Option<GoTime>| Some(go(time.map_or(Duration::ZERO, |time| time.0)));
    let locations: Vec<String> =
        flags.volume_snapshot_locations.iter().flat_map(|list| list.0.iter().cloned()).collect();
    let ordered = flags.ordered_resources.as_ref().filter(|ordered| !ordered.0.is_empty());
    let policy = text(&flags.resource_policies_configmap);
    let parallel = flags.parallel_files_upload.filter(|files| *files > 0);
    BackupSpec {
        metadata: Some(TemplateMetadata::default()),
        included_namespaces: list(&flags.include_namespaces).or_else(|| Some(vec!["*".to_owned()])),
        excluded_namespaces: list(&flags.exclude_namespaces),
        included_resources: list(&flags.include_resources),
        excluded_resources: list(&flags.exclude_resources),
        included_cluster_scoped_resources: list(&flags.include_cluster_scoped_resources),
        excluded_cluster_scoped_resources: list(&flags.exclude_cluster_scoped_resources),
        included_namespace_scoped_resources: list(&flags.include_namespace_scoped_resources),
        excluded_namespace_scoped_resources: list(&flags.exclude_namespace_scoped_resources),
        label_selector: flags.selector.clone(),
        or_label_selectors: flags.or_selector.as_ref().map(|selectors| selectors.0.clone()),
        snapshot_volumes: flag(flags.snapshot_volumes),
        ttl: duration(flags.ttl),
        volume_group_snapshot_label_key: None,
        include_cluster_resources: flag(flags.include_cluster_resources),
        hooks: Some(BackupHooks::default()),
        storage_location: text(&flags.storage_location),
        volume_snapshot_locations: Some(locations).filter(|locations| !locations.is_empty()),
        default_volumes_to_restic: None,
        default_volumes_to_fs_backup: flag(flags.default_volumes_to_fs_backup),
        ordered_resources: ordered.map(|ordered| ordered.0.iter().cloned().collect()),
        csi_snapshot_timeout: duration(flags.csi_snapshot_timeout),
        item_operation_timeout: duration(flags.item_operation_timeout),
        resource_policy: policy.map(|name| LocalObject {
            api_group: None,
            kind: "configmap".to_owned(),
            name,
        }),
        snapshot_move_data: flag(flags.snapshot_move_data),
        datamover: text(&flags.data_mover),
        uploader_config: parallel.map(|files| UploaderConfig { parallel_files_upload: Some(files) }),
    }
}

fn go(duration: Duration) -> GoDuration {
    GoDuration(go_text(duration))
}

/// The keys and values of a flag that may be given more than once: the last one counts.
pub fn map(pairs: &[Pairs]) -> BTreeMap<String, String> {
    pairs.iter().flat_map(|pairs| pairs.0.iter().cloned()).collect()
}

fn some(map: BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    Some(map).filter(|map| !map.is_empty())
}

/// The Backup that `backup create NAME` asks for.
pub fn backup(namespace: &str, name: &str, flags: &SpecArgs) -> Backup {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: some(map(&flags.labels)),
        annotations: some(map(&flags.annotations)),
        ..ObjectMeta::default()
    };
    Backup { metadata, spec: spec(flags), status: None }
}

/// The Backup that `backup create --from-schedule` asks for: the one that the schedule would create
/// now, under another name if one is given. Labels and annotations of the flags
/// outrank those of the Schedule.
pub fn backup_of_schedule(
    namespace: &str,
    name: Option<&str>,
    schedule: &Schedule,
    flags: &SpecArgs,
    now: Timestamp,
) -> Backup {
    let mut backup = schedule.backup(now);
    let metadata = &mut backup.metadata;
    // Only what berth makes by itself is the Schedule's own.
    let mut annotations = metadata.annotations.take().unwrap_or_default();
    annotations.remove(keys::SCHEDULE_UID);
    metadata.annotations = some(annotations);
    metadata.namespace = Some(namespace.to_owned());
    if let Some(name) = name {
        metadata.name = Some(name.to_owned());
    }
    metadata.labels.get_or_insert_default().extend(map(&flags.labels));
    let annotations = map(&flags.annotations);
    if !annotations.is_empty() {
        metadata.annotations.get_or_insert_default().extend(annotations);
    }
    backup
}

/// The Schedule that `schedule create NAME` asks for. Unlike Velero's command line, it carries the
/// annotations of the flags.
pub fn schedule(namespace: &str, args: &CreateScheduleArgs) -> Schedule {
    let metadata = ObjectMeta {
        name: Some(args.name.clone()),
        namespace: Some(namespace.to_owned()),
        labels: some(map(&args.spec.labels)),
        annotations: some(map(&args.spec.annotations)),
        ..ObjectMeta::default()
    };
    let spec = ScheduleSpec {
        template: spec(&args.spec),
        schedule: args.schedule.clone().unwrap_or_default(),
        use_owner_references_in_backup: Some(args.use_owner_references_in_backup),
        paused: args.paused.then_some(true),
        skip_immediately: args.skip_immediately.and_then(|skip| skip.0),
    };
    Schedule { metadata, spec, status: None }
}

/// What is wrong with the flags of `backup create`.
pub fn backup_faults(args: &CreateArgs) -> Vec<String> {
    let mut faults = Vec::new();
    if args.from_schedule.as_deref().is_some_and(|schedule| schedule.trim().is_empty()) {
        faults.push("--from-schedule is empty: name a Schedule, or leave the flag out".to_owned());
    } else if args.name.is_none() && args.from_schedule.is_none() {
        let way_out =
            "a backup name is required: berth backup create NAME. Only --from-schedule makes up a name";
        faults.push(way_out.to_owned());
    }
    faults.extend(args.name.iter().filter_map(|name| bad_name("Backup", name)));
    faults.extend(check(&spec(&args.spec)));
    faults
}

/// What is wrong with the flags of `schedule create`.
pub fn schedule_faults(args: &CreateScheduleArgs) -> Vec<String> {
    let mut faults: Vec<String> = bad_name("Schedule", &args.name).into_iter().collect();
    if args.schedule.as_ref().is_none_or(String::is_empty) {
        let way_out =
            "--schedule is missing: say when, as in --schedule \"0 1 * * *\" or --schedule \"@every 6h\"";
        faults.push(way_out.to_owned());
    }
    faults.extend(check(&spec(&args.spec)));
    faults
}

/// A name becomes a part of a URL.
pub fn bad_name(kind: &str, name: &str) -> Option<String> {
    if is_subdomain(name) {
        return None;
    }
    // As `kubectl get -o name` prints it: backup.velero.io/web.
    let is_kind = |of: &str| {
        let of = of.split('.').next().unwrap_or_default().to_lowercase();
        of.strip_suffix('s').unwrap_or(&of) == kind.to_lowercase()
    };
    let way_out = match name.split_once('/') {
        Some((of, alone)) if is_kind(of) && is_subdomain(alone) => {
            format!("leave the kind out, and give {alone}")
        }
        _ => "lower case letters, digits, '-' and '.', at most 253 of them".to_owned(),
    };
    Some(format!("{name:?} is no name of a {kind}: {way_out}"))
}

/// The object as JSON, without fields that only a server writes.
pub fn json(object: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|key, value| key != "status" || !(value.is_null() || *value == json!({})));
    }
    value
}
