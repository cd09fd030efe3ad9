//! From flags to the objects that they ask for. They are the objects that Velero's command line
//! sends, durations and empty fields included.

mod fault;
mod location;

pub use fault::check;
pub use location::{change, location};

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::velero::backup::{BackupHooks, LocalObject, TemplateMetadata, UploaderConfig};
use berth_api::velero::{Backup, BackupSpec};
use berth_api::{GoDuration, keys};
use berth_core::glob::is_subdomain;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Serialize;
use serde_json::{Value, json};

use super::kinds::{Schedule, ScheduleSpec};
use super::value::{GoTime, List, Pairs, Tristate, go_text};
use crate::args::backup::{CreateArgs, SpecArgs};
use crate::args::schedule::CreateScheduleArgs;

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

/// The Backup that `backup create --from-schedule` asks for. Labels and annotations of the flags
/// outrank those of the Schedule.
pub fn backup_of_schedule(
    namespace: &str,
    name: Option<&str>,
    schedule: &Schedule,
    flags: &SpecArgs,
    now: Timestamp,
) -> Backup {
    let of = schedule.metadata.name.clone().unwrap_or_default();
    let name = name.map_or_else(|| timestamped(&of, now), str::to_owned);
    let template = &schedule.spec.template;
    let own = template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
    let mut labels = own.or_else(|| schedule.metadata.labels.clone()).unwrap_or_default();
    labels.insert(keys::SCHEDULE.to_owned(), of.clone());
    labels.extend(map(&flags.labels));
    let mut annotations = schedule.metadata.annotations.clone().unwrap_or_default();
    annotations.extend(map(&flags.annotations));
    let owner = schedule.spec.use_owner_references_in_backup == Some(true);
    let owner = owner.then(|| {
        vec![OwnerReference {
            api_version: "velero.io/v1".to_owned(),
            kind: "Schedule".to_owned(),
            name: of,
            uid: schedule.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        }]
    });
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: some(labels),
        annotations: some(annotations),
        owner_references: owner,
        ..ObjectMeta::default()
    };
    let mut spec = template.clone();
    spec.metadata.get_or_insert_default();
    spec.hooks.get_or_insert_default();
    for duration in [&mut spec.ttl, &mut spec.csi_snapshot_timeout, &mut spec.item_operation_timeout] {
        duration.get_or_insert_with(|| go(Duration::ZERO));
    }
    if let Some(policy) = &mut spec.resource_policy {
        *policy = LocalObject { api_group: None, kind: "configmap".to_owned(), name: policy.name.clone() };
    }
    Backup { metadata, spec, status: None }
}

/// `SCHEDULE-20261125160230`.
fn timestamped(schedule: &str, now: Timestamp) -> String {
    format!("{schedule}-{}", now.to_zoned(TimeZone::UTC).strftime("%Y%m%d%H%M%S"))
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
        paused: args.paused,
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
    let way_out = "lower case letters, digits, '-' and '.', at most 253 of them";
    (!is_subdomain(name)).then(|| format!("{name:?} is no name of a {kind}: {way_out}"))
}

/// The object as JSON, without fields that only a server writes.
pub fn json(object: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|key, value| key != "status" || !(value.is_null() || *value == json!({})));
    }
    value
}
