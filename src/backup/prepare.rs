//! What a Backup becomes when it starts: the effective spec, as Velero's server would write it.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use berth_api::keys;
use berth_api::parse::ValidatedBackupSpec;
use berth_api::velero::{Backup, BackupStatus, BackupStorageLocation};
use berth_api::{GoDuration, parse};
use berth_core::glob::Glob;
use berth_core::location::{Location, choose};
use berth_core::policy::Policies;
use berth_core::policy::filters::{CLUSTER, Filters};
use berth_core::selection::{
    ResourceFilter, ResourceType, SNAPSHOT_CONTENTS, SNAPSHOTS, Selection, TypeSelection, by_name,
};
use berth_core::violation::{Field, Violations};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::list::Namespace;
use super::log::{BackupLog, ResultsHeading};
use super::operations::moves_data;
use crate::patch::{digest, kept_until, merge_into};
use crate::text::few;

/// Velero's defaults (contract: its server flags).
const CSI_SNAPSHOT_TIMEOUT: &str = "10m0s";
const ITEM_OPERATION_TIMEOUT: &str = "4h0m0s";
const RESOURCE_TIMEOUT: &str = "10m0s";
/// Most bytes of resolved namespaces that are pinned; beyond this the patterns themselves keep
/// conflicting.
const MOST_PINNED: usize = 64 * 1024;

/// What the start is decided on.
pub struct StartInput<'a> {
    pub backup: &'a Backup,
    pub locations: &'a [BackupStorageLocation],
    pub namespaces: &'a [Namespace],
    /// In the order of discovery.
    pub types: &'a [ResourceType],
    /// The resource policy, or what is wrong with it. Empty if the backup names none.
    pub policies: &'a Result<Policies, Violations>,
    pub server: &'a Info,
    pub default_ttl: Duration,
    /// `defaultVolumesToFsBackup` and `snapshotMoveData` of Backups that do not say it.
    pub default_files: bool,
    pub default_moves: bool,
    pub now: Timestamp,
}

/// A backup that may start.
pub struct Prepared {
    pub wanted: ValidatedBackupSpec,
    /// Which types are taken, of those that the cluster serves now.
    pub selection: Selection,
    /// The resource policy's filters, resolved for the same types.
    pub filters: Filters,
    /// The whole resource policy, whatever types and namespaces exist.
    pub policies: Policies,
    /// Digest of the resource policy.
    pub policy: String,
    pub location: BackupStorageLocation,
    /// Namespaces that it takes, of those that exist now.
    pub resolved: HashSet<String>,
    /// Namespaces that the spec names and that do not exist.
    pub missing: Vec<String>,
    /// Patterns that match none of the namespaces that it takes.
    idle: Vec<String>,
    /// Types of `orderedResources` of which it takes none.
    idle_order: Vec<String>,
    /// Types with a rule in the policy of which the backup takes none, whatever the rule says.
    left_out: Vec<String>,
    /// The backup may have operations that go on after its objects are stored.
    pub moves_data: bool,
    /// Merge patch that sets phase InProgress.
    pub patch: Value,
}

impl Prepared {
    /// Warns of what the backup asks for and the cluster does not have, because it may be a typo.
    pub fn warn(&self, log: &BackupLog) {
        if !self.idle.is_empty() {
            let message = format!(
                "spec.includedNamespaces: no namespace that may be backed up matches {}",
                few(&self.idle)
            );
            log.warning(&ResultsHeading::Velero, "", &message);
        }
        for (field, entries) in &self.selection.idle {
            let message = format!("{field} names no type that this cluster has there: {}", few(entries));
            log.warning(&ResultsHeading::Velero, "", &message);
        }
        for (section, kinds) in &self.filters.idle {
            let scope = if *section == CLUSTER { "kinds without namespaces" } else { "kinds in namespaces" };
            let message = format!(
                "{section} names kinds that this cluster does not have, or not in that scope ({scope}), or that another one of its rules has: {}",
                few(kinds)
            );
            log.warning(&ResultsHeading::Velero, "", &message);
        }
        for (types, message, way_out) in [
            (
                &self.left_out,
                "namespacedFilterPolicies has rules for types that the backup leaves out, and they say nothing",
                ": include these types in the Backup, or remove the rules",
            ),
            (
                &self.idle_order,
                "spec.orderedResources names no type of the cluster (as in pods, deployments.apps), or one of which the backup takes none",
                "",
            ),
        ] {
            if !types.is_empty() {
                log.warning(&ResultsHeading::Velero, "", &format!("{message}: {}{way_out}", few(types)));
            }
        }
    }
}

/// Puts the qualified names of types in place of how the spec names them. Returns the entries that
/// stand for none of which the backup takes objects.
fn resolve_order(
    ordered: &mut BTreeMap<String, Vec<String>>,
    types: &[ResourceType],
    selection: &Selection,
) -> Vec<String> {
    let mut idle = Vec::new();
    for (entry, names) in std::mem::take(ordered) {
        match by_name(&entry, types).filter(|kind| selection.fate(kind) == TypeSelection::Listed) {
            Some(kind) => ordered.entry(kind.qualified()).or_default().extend(names),
            None => idle.push(entry),
        }
    }
    idle
}

/// # Errors
/// Everything that makes the backup FailedValidation.
pub fn prepare(situation: &StartInput<'_>) -> Result<Prepared, Violations> {
    let spec = &situation.backup.spec;
    let (wanted, mut found) = match parse::backup(spec) {
        Ok(wanted) => (Some(wanted), Violations::default()),
        Err(violations) => (None, violations),
    };
    let location = location(situation, &mut found);
    let includes = spec.included_namespaces.as_deref().unwrap_or_default();
    for (i, name) in includes.iter().enumerate() {
        let labelled = situation.namespaces.iter().any(|ns| ns.excluded && ns.name == *name);
        let field = Field::root("spec").child("includedNamespaces").index(i);
        let message = format!(
            "namespace {name} carries the label {}=true: remove one of the two",
            keys::EXCLUDE_FROM_BACKUP
        );
        found.require(!labelled, &field, message);
    }
    let is_old_style =
        wanted.as_ref().is_some_and(|wanted| matches!(wanted.resources, ResourceFilter::Old { .. }));
    match situation.policies {
        Ok(policies) => {
            let message = "its includeExcludePolicy, clusterScopedFilterPolicy and namespacedFilterPolicies go with the scoped filters only: use these in place of includedResources, excludedResources and includeClusterResources";
            found.require(
                !(is_old_style && policies.chooses()),
                &Field::root("spec").child("resourcePolicy"),
                message,
            );
        }
        Err(faults) => found.append(faults.clone()),
    }
    let (Some(mut wanted), Some(location), Ok(policies)) = (wanted, location, situation.policies) else {
        return Err(found);
    };
    if !found.is_empty() {
        return Err(found);
    }
    if let ResourceFilter::Scoped { policy, .. } = &mut wanted.resources {
        *policy = policies.types.clone().unwrap_or_default();
    }
    let takes = |ns: &&Namespace| !ns.excluded && wanted.namespaces.contains(&ns.name);
    let resolved: HashSet<String> =
        situation.namespaces.iter().filter(takes).map(|ns| ns.name.clone()).collect();
    let existing: HashSet<&str> = situation.namespaces.iter().map(|ns| ns.name.as_str()).collect();
    let missing = wanted.namespaces.literals().filter(|n| !existing.contains(n)).map(str::to_owned).collect();
    let is_idle = |glob: &&Glob| !resolved.iter().any(|name| glob.matches(name));
    let idle = wanted.namespaces.patterns().filter(is_idle).map(|glob| glob.as_str().to_owned()).collect();
    // The label keeps these namespaces out whatever the spec says. berth adds them to the spec's
    // excludes itself, so such an exclude filters nothing.
    let labelled: HashSet<&str> =
        situation.namespaces.iter().filter(|ns| ns.excluded).map(|ns| ns.name.as_str()).collect();
    let all_namespaces = wanted.namespaces.takes_all_but(|name| labelled.contains(name));
    let selection = wanted.resources.resolve(situation.types, all_namespaces);
    let filters = Filters::resolve(policies, situation.types, resolved.iter().map(String::as_str));
    let is_named =
        |kind: &&ResourceType| filters.names(kind) && selection.fate(kind) <= TypeSelection::Unnamed;
    let left_out = situation.types.iter().filter(is_named).map(ResourceType::qualified).collect();
    let idle_order = resolve_order(&mut wanted.ordered, situation.types, &selection);
    let patch = patch(situation, &wanted, location, &resolved);
    Ok(Prepared {
        selection,
        filters,
        policy: digest(&format!("{policies:?}")),
        policies: policies.clone(),
        location: location.clone(),
        missing,
        idle,
        idle_order,
        left_out,
        moves_data: patch.pointer("/spec/snapshotMoveData") == Some(&json!(true))
            || moves_data(&situation.backup.spec),
        patch,
        wanted,
        resolved,
    })
}

fn location<'a>(situation: &StartInput<'a>, found: &mut Violations) -> Option<&'a BackupStorageLocation> {
    let at = Field::root("spec").child("storageLocation");
    let wanted = situation.backup.spec.storage_location.as_deref().unwrap_or_default();
    let known: Vec<Location> = situation.locations.iter().map(BackupStorageLocation::decided).collect();
    let Some(chosen) = choose(&known, wanted) else {
        found.push(at, format!("BackupStorageLocation {wanted:?} does not exist"));
        return None;
    };
    found.require(!chosen.read_only, &at, format!("location {} is read-only", chosen.name));
    situation.locations.iter().find(|location| location.name_any() == chosen.name)
}

fn patch(
    situation: &StartInput<'_>,
    wanted: &ValidatedBackupSpec,
    location: &BackupStorageLocation,
    resolved: &HashSet<String>,
) -> Value {
    let (backup, now) = (situation.backup, situation.now);
    let ttl = wanted.ttl.unwrap_or(situation.default_ttl);
    let mut annotations = json!({
        keys::SOURCE_GIT_VERSION: situation.server.git_version,
        keys::SOURCE_MAJOR_VERSION: situation.server.major,
        keys::SOURCE_MINOR_VERSION: situation.server.minor,
        keys::RESOURCE_TIMEOUT: RESOURCE_TIMEOUT,
        // Clear the annotation, because users may have written it before.
        keys::RESOLVED_NAMESPACES: null,
    });
    let patterns = !wanted.namespaces.is_literal()
        && backup.spec.included_namespaces.as_ref().is_some_and(|n| !n.is_empty() && n != &["*"]);
    if patterns {
        let mut names: Vec<&str> = resolved.iter().map(String::as_str).collect();
        names.sort_unstable();
        let text = names.join(",");
        if text.len() <= MOST_PINNED {
            annotations[keys::RESOLVED_NAMESPACES] = Value::from(text);
        }
    }
    let mut patch = json!({
        "metadata": {"annotations": annotations},
        "spec": effective_spec(situation, location, ttl),
        "status": BackupStatus::running(now),
    });
    merge_into(&mut patch, kept_until(&location.name_any(), ttl, now));
    patch
}

/// Only the fields that change: all other fields of the spec stay as they are.
fn effective_spec(situation: &StartInput<'_>, location: &BackupStorageLocation, ttl: Duration) -> Value {
    let spec = &situation.backup.spec;
    let mut changed = Map::new();
    let mut default = |key: &str, is_set: bool, value: Value| {
        if !is_set {
            changed.insert(key.to_owned(), value);
        }
    };
    let is_long = |d: &Option<GoDuration>| d.as_ref().is_some_and(|d| d.get().is_ok_and(|d| d.is_some()));
    default("ttl", is_long(&spec.ttl), json!(GoDuration::from_duration(ttl)));
    default("csiSnapshotTimeout", is_long(&spec.csi_snapshot_timeout), json!(CSI_SNAPSHOT_TIMEOUT));
    default("itemOperationTimeout", is_long(&spec.item_operation_timeout), json!(ITEM_OPERATION_TIMEOUT));
    let group_key = spec.volume_group_snapshot_label_key.as_deref().is_some_and(|k| !k.is_empty());
    default("volumeGroupSnapshotLabelKey", group_key, json!(keys::VOLUME_GROUP));
    let to_fs = spec.default_volumes_to_fs_backup.is_some();
    let files = spec.default_volumes_to_restic == Some(true) || situation.default_files;
    default("defaultVolumesToFsBackup", to_fs, json!(files));
    default("snapshotMoveData", spec.snapshot_move_data.is_some(), json!(situation.default_moves));
    default("storageLocation", false, json!(location.name_any()));
    let includes = spec.included_namespaces.as_deref().unwrap_or_default();
    default("includedNamespaces", !includes.is_empty(), json!(["*"]));
    let labelled = situation.namespaces.iter().filter(|ns| ns.excluded).map(|ns| ns.name.as_str());
    let lists = (&spec.included_namespaces, &spec.excluded_namespaces);
    add(&mut changed, "excludedNamespaces", lists, labelled);
    let old_style = spec.include_cluster_resources.is_some()
        || [&spec.included_resources, &spec.excluded_resources].into_iter().flatten().any(|l| !l.is_empty());
    if old_style {
        let lists = (&spec.included_resources, &spec.excluded_resources);
        add(&mut changed, "excludedResources", lists, [SNAPSHOTS, SNAPSHOT_CONTENTS].into_iter());
    } else {
        let lists = (&spec.included_namespace_scoped_resources, &spec.excluded_namespace_scoped_resources);
        add(&mut changed, "excludedNamespaceScopedResources", lists, [SNAPSHOTS].into_iter());
        let lists = (&spec.included_cluster_scoped_resources, &spec.excluded_cluster_scoped_resources);
        add(&mut changed, "excludedClusterScopedResources", lists, [SNAPSHOT_CONTENTS].into_iter());
    }
    Value::Object(changed)
}

/// Adds the names that a list of excludes lacks; `*` covers every name. A name that the spec
/// includes is left out all the same, but must not stand in both lists.
fn add<'n>(
    changed: &mut Map<String, Value>,
    key: &str,
    (includes, excludes): (&Option<Vec<String>>, &Option<Vec<String>>),
    more: impl Iterator<Item = &'n str>,
) {
    let mut entries = excludes.clone().unwrap_or_default();
    let before = entries.len();
    for name in more {
        let is_included = includes.iter().flatten().any(|entry| entry == name);
        if !is_included && !entries.iter().any(|entry| entry == name || entry == "*") {
            entries.push(name.to_owned());
        }
    }
    if entries.len() > before {
        changed.insert(key.to_owned(), json!(entries));
    }
}

#[cfg(test)]
mod tests;
