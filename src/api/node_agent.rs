//! The ConfigMap of Velero's node-agent: how many data movers run, and on which nodes.
//!
//! Velero reads it once at the start of a node-agent. It fails on malformed JSON and wrong types,
//! and ignores all other faults. [`parse`] returns the configuration that Velero uses, and reports
//! the faults.

mod json;
mod reader;
mod resources;
mod selector;
mod tolerations;

use std::collections::BTreeMap;

use berth_core::affinity::{LoadAffinityRule, TolerationRule};
use berth_core::label::Selector;
use berth_core::violation::{Field, Violations};

use json::Json;
use reader::Reader;
pub use resources::PodResources;

const TOP: [&str; 11] = [
    "loadConcurrency",
    "loadAffinity",
    "loadTolerations",
    "backupPVC",
    "restorePVC",
    "podResources",
    "priorityClassName",
    "privilegedFsBackup",
    "cachePVC",
    "podAnnotations",
    "podLabels",
];

/// The settings for the claim that Velero creates to back up a volume of one StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupClaim {
    /// `None`: the class of the source volume.
    pub storage_class: Option<String>,
    pub read_only: bool,
    /// The volume keeps its SELinux labels, which only a volume that is read alone may.
    pub no_relabeling: bool,
    pub annotations: BTreeMap<String, String>,
}

/// What the pods of data movers have of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoverPods {
    pub resources: Option<PodResources>,
    pub priority_class: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Those that read or restore the files of a pod's volumes are privileged.
    pub privileged_for_files: bool,
}

/// The settings that node-agents use, and that berth applies for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAgentConfig {
    pub load_affinity: Vec<LoadAffinityRule>,
    /// A field of berth's own, which Velero ignores.
    pub load_tolerations: Vec<TolerationRule>,
    /// By the StorageClass of the source volume.
    pub backup_pvc: BTreeMap<String, BackupClaim>,
    pub ignore_delay_binding: bool,
    pub pods: MoverPods,
    /// Number of concurrent movers on a node without an entry in [`Self::per_node`].
    pub global_config: u32,
    /// If several entries match a node, the smallest number applies.
    pub per_node: Vec<(Selector, u32)>,
    /// Number of movers that may be prepared at the same time; `None`: any number.
    pub prepare_queue_length: Option<usize>,
    /// Every StorageClass that the configuration names.
    classes: Vec<NamedClass>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedClass {
    at: Field,
    name: String,
    /// Named for a cache. Velero refuses classes whose volumes outlive their claims there.
    for_cache: bool,
}

/// The reclaim policy of a StorageClass: what happens to a volume when its claim is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimPolicy {
    Delete,
    Retain,
}

impl Default for NodeAgentConfig {
    fn default() -> Self {
        Self {
            load_affinity: Vec::new(),
            load_tolerations: Vec::new(),
            backup_pvc: BTreeMap::new(),
            ignore_delay_binding: false,
            pods: MoverPods::default(),
            global_config: 1,
            per_node: Vec::new(),
            prepare_queue_length: None,
            classes: Vec::new(),
        }
    }
}

impl NodeAgentConfig {
    /// The StorageClass that `backupPVC` uses instead of that of the source.
    pub fn mapped_class(&self, source: &str) -> Option<&str> {
        self.backup_pvc.get(source)?.storage_class.as_deref()
    }
}

/// A configuration that Velero can read, with the faults that it has nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    pub config: NodeAgentConfig,
    pub violations: Violations,
}

/// Parses the data of the ConfigMap by Velero's rules. The violations include what Velero ignores.
/// A selector or toleration that Kubernetes would refuse in a pod is dropped.
///
/// # Errors
/// Velero cannot read the configuration either. Every fault is reported, including those that
/// Velero would ignore.
pub fn parse(data: &BTreeMap<String, String>) -> Result<Parsed, Violations> {
    let (mut reader, at) = (Reader::default(), Field::root("data"));
    let mut entries = data.iter();
    let (Some((key, text)), None) = (entries.next(), entries.next()) else {
        let message = match data.len() {
            0 => "must have one key, with JSON as its value: there is none".to_owned(),
            _ => {
                let keys: Vec<&str> = data.keys().map(String::as_str).collect();
                format!("must have one key and no more, there are {}: leave one", keys.join(", "))
            }
        };
        reader.unreadable(&at, message);
        return Err(reader.finish());
    };
    let at = at.key(key);
    let config = match serde_json::from_str::<Json>(text) {
        Ok(json) => read(&json, &at, &mut reader),
        Err(error) => {
            reader.unreadable(&at, format!("is not JSON: {error}"));
            NodeAgentConfig::default()
        }
    };
    if reader.is_unreadable() {
        Err(reader.finish())
    } else {
        Ok(Parsed { config, violations: reader.finish() })
    }
}

/// Parses the data of a ConfigMap that is about to be written.
///
/// # Errors
/// Every fault, each with its field path, whether or not Velero ignores it.
pub fn check(data: &BTreeMap<String, String>) -> Result<NodeAgentConfig, Violations> {
    let Parsed { config, violations } = parse(data)?;
    violations.into_result(config)
}

/// Reports every StorageClass in the configuration that the cluster does not have, or that is
/// unsuitable.
pub fn check_classes(config: &NodeAgentConfig, known: &BTreeMap<String, ReclaimPolicy>) -> Violations {
    let mut found = Violations::default();
    for NamedClass { at, name, for_cache } in &config.classes {
        let reclaims = known.get(name);
        found.require(reclaims.is_some(), at, format!("there is no StorageClass {name:?}"));
        found.require(
            !(*for_cache && reclaims == Some(&ReclaimPolicy::Retain)),
            at,
            format!(
                "StorageClass {name:?} must have the reclaimPolicy Delete, or Velero ignores all of cachePVC"
            ),
        );
    }
    found
}

fn read(json: &Json, at: &Field, reader: &mut Reader) -> NodeAgentConfig {
    let mut config = NodeAgentConfig::default();
    let top = reader.object(Some(json), at, &TOP);
    concurrency(top.get("loadConcurrency"), &at.child("loadConcurrency"), reader, &mut config);
    affinity(top.get("loadAffinity"), &at.child("loadAffinity"), reader, &mut config);
    tolerations::read(top.get("loadTolerations"), &at.child("loadTolerations"), reader, &mut config);
    backup_claims(top.get("backupPVC"), &at.child("backupPVC"), reader, &mut config);

    let restore_at = at.child("restorePVC");
    let restore = reader.object(
        top.get("restorePVC"),
        &restore_at,
        &["ignoreDelayBinding", "secretNames", "configMapNames"],
    );
    config.ignore_delay_binding =
        reader.boolean(restore.get("ignoreDelayBinding"), &restore_at.child("ignoreDelayBinding"));
    for names in ["secretNames", "configMapNames"] {
        reader.texts(restore.get(names), &restore_at.child(names));
    }

    cache_claim(top.get("cachePVC"), &at.child("cachePVC"), reader, &mut config);
    config.pods.resources = resources::read(top.get("podResources"), &at.child("podResources"), reader);
    let priority_class = reader.text(top.get("priorityClassName"), &at.child("priorityClassName"));
    config.pods.priority_class = Some(priority_class).filter(|class| !class.is_empty());
    config.pods.privileged_for_files =
        reader.boolean(top.get("privilegedFsBackup"), &at.child("privilegedFsBackup"));
    config.pods.annotations = reader.map(top.get("podAnnotations"), &at.child("podAnnotations"));
    config.pods.labels = selector::pod_labels(top.get("podLabels"), &at.child("podLabels"), reader);
    config
}

fn named(at: &Field, name: &str) -> NamedClass {
    NamedClass { at: at.clone(), name: name.to_owned(), for_cache: false }
}

/// Records the name of a class for [`check_classes`].
fn class(
    json: Option<&Json>,
    at: &Field,
    reader: &mut Reader,
    config: &mut NodeAgentConfig,
) -> Option<String> {
    let class = Some(reader.text(json, at)).filter(|class| !class.is_empty());
    config.classes.extend(class.iter().map(|class| named(at, class)));
    class
}

fn concurrency(json: Option<&Json>, at: &Field, reader: &mut Reader, config: &mut NodeAgentConfig) {
    let object = reader.object(json, at, &["globalConfig", "perNodeConfig", "prepareQueueLength"]);
    let global_at = at.child("globalConfig");
    if let Some(number) = reader.number(object.get("globalConfig"), &global_at) {
        reader.found.require(number > 0, &global_at, format!("must be above 0, is {number}: Velero takes 1"));
        config.global_config = if number > 0 { u32::try_from(number).unwrap_or(u32::MAX) } else { 1 };
    }
    let length = reader.number(object.get("prepareQueueLength"), &at.child("prepareQueueLength"));
    config.prepare_queue_length = length.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);

    let rules_at = at.child("perNodeConfig");
    for (i, rule) in reader.list(object.get("perNodeConfig"), &rules_at).iter().enumerate() {
        let at = rules_at.index(i);
        let rule = reader.object(Some(rule), &at, &["nodeSelector", "number"]);
        let selector = selector::read(rule.get("nodeSelector"), &at.child("nodeSelector"), reader);
        let number_at = at.child("number");
        let number = reader.number(rule.get("number"), &number_at).unwrap_or_default();
        let message = format!("must be above 0, is {number}: Velero ignores the rule");
        reader.found.require(number > 0, &number_at, message);
        if let Some(selector) = selector.filter(|_| number > 0) {
            config.per_node.push((selector, u32::try_from(number).unwrap_or(u32::MAX)));
        }
    }
}

fn affinity(json: Option<&Json>, at: &Field, reader: &mut Reader, config: &mut NodeAgentConfig) {
    let mut rules: Vec<(Field, LoadAffinityRule)> = Vec::new();
    for (i, element) in reader.list(json, at).iter().enumerate() {
        let at = at.index(i);
        if *element == Json::Null {
            reader.unreadable(&at, "must be an object, is null: Velero fails at each data mover");
            continue;
        }
        let element = reader.object(Some(element), &at, &["nodeSelector", "storageClass"]);
        let storage_class = class(element.get("storageClass"), &at.child("storageClass"), reader, config);
        let selector = selector::read(element.get("nodeSelector"), &at.child("nodeSelector"), reader);
        rules.extend(selector.map(|selector| (at, LoadAffinityRule { storage_class, selector })));
    }
    selector::compare(&rules, &mut reader.found);
    config.load_affinity = rules.into_iter().map(|(_, rule)| rule).collect();
}

fn backup_claims(json: Option<&Json>, at: &Field, reader: &mut Reader, config: &mut NodeAgentConfig) {
    const KEYS: [&str; 6] =
        ["storageClass", "readOnly", "spcNoRelabeling", "annotations", "secretNames", "configMapNames"];
    for (source, claim) in reader.entries(json, at) {
        let at = at.key(source);
        let object = reader.object(Some(claim), &at, &KEYS);
        if !source.is_empty() {
            config.classes.push(named(&at, source));
        }
        let storage_class = class(object.get("storageClass"), &at.child("storageClass"), reader, config);
        let read_only = reader.boolean(object.get("readOnly"), &at.child("readOnly"));
        let no_relabeling_at = at.child("spcNoRelabeling");
        let no_relabeling = reader.boolean(object.get("spcNoRelabeling"), &no_relabeling_at);
        let message = "goes with readOnly only: set that too, or Velero ignores this";
        reader.found.require(!no_relabeling || read_only, &no_relabeling_at, message);
        let annotations = reader.map(object.get("annotations"), &at.child("annotations"));
        for names in ["secretNames", "configMapNames"] {
            reader.texts(object.get(names), &at.child(names));
        }
        let no_relabeling = no_relabeling && read_only;
        let claim = BackupClaim { storage_class, read_only, no_relabeling, annotations };
        if config.backup_pvc.insert(source.to_owned(), claim).is_some() {
            reader.found.push(at, "stands here twice, and only the last one counts: remove one");
        }
    }
}

fn cache_claim(json: Option<&Json>, at: &Field, reader: &mut Reader, config: &mut NodeAgentConfig) {
    let Some(json) = json else { return };
    let object = reader.object(Some(json), at, &["storageClass", "residentThresholdInMB"]);
    let class_at = at.child("storageClass");
    let class = class(object.get("storageClass"), &class_at, reader, config);
    let message = "is missing: name a StorageClass, or Velero ignores all of cachePVC";
    reader.found.require(class.is_some(), &class_at, message);
    if let (Some(_), Some(named)) = (class, config.classes.last_mut()) {
        named.for_cache = true;
    }
    reader.number(object.get("residentThresholdInMB"), &at.child("residentThresholdInMB"));
}

#[cfg(test)]
mod tests;
