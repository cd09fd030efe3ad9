//! Requests that this engine does not serve, by annotations of pods and by volume policies: counted
//! as objects are taken, logged when all are.

mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::unserved::{WAY_OUT, unserved};
use berth_api::velero::BackupSpec;
use berth_core::policy::volume::VolumePolicy;
use berth_core::selection::ResourceType;
use memchr::memmem;
use parking_lot::Mutex;
use serde::Deserialize;

use super::list::ListedObject;
use super::log::{About, BackupLog};
use volumes::Volumes;

/// The annotation that asks for volume data. Few pods have it.
const VOLUMES: &str = "backup.velero.io/backup-volumes";
/// Most pods of a request that are named in the log.
const NAMED: usize = 5;

/// Counts pods that ask for the data of their volumes.
#[derive(Default)]
pub struct Asked {
    pods: Mutex<Pods>,
    volumes: Volumes,
}

#[derive(Default)]
struct Pods {
    count: usize,
    /// The first few, by name.
    named: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    phase: Option<String>,
}

impl Asked {
    /// With these volume policies.
    pub fn by(policies: Vec<VolumePolicy>) -> Self {
        Self { volumes: Volumes::by(policies), ..Self::default() }
    }

    /// Counts an object that is taken.
    pub fn note(&self, kind: &ResourceType, found: &ListedObject) {
        self.volumes.note(kind, found);
        let is_pod = kind.group.is_empty() && kind.resource == "pods";
        if !is_pod || memmem::find(&found.json, VOLUMES.as_bytes()).is_none() {
            return;
        }
        // An unreadable pod asks for nothing that could be served.
        let Ok(pod) = serde_json::from_slice::<Pod>(&found.json) else { return };
        // Velero does not back up the volumes of a pod that has ended.
        let phase = pod.status.and_then(|status| status.phase);
        if phase.is_some_and(|phase| matches!(phase.as_str(), "Succeeded" | "Failed")) {
            return;
        }
        let annotations = pod.metadata.annotations.unwrap_or_default();
        // With volume policies, the policies decide which volumes are meant.
        if annotations.get(VOLUMES).is_some_and(|value| !value.is_empty()) && !self.volumes.decide() {
            let name = format!("{}/{}", found.namespace.as_deref().unwrap_or_default(), found.name);
            self.pods.lock().add(name);
        }
    }

    /// Logs an error for each kind of request: of the spec, of policies, and of pods. Returns for
    /// how many claims a policy decides.
    pub fn tell(&self, spec: &BackupSpec, log: &BackupLog) -> usize {
        for one in unserved(spec).iter() {
            log.error(&About::Velero, "", &one.to_string());
        }
        let pods = self.pods.lock();
        if pods.count > 0 {
            let who = pods.told();
            let message = format!(
                "{who} asked for the data of their volumes (annotation {VOLUMES}): berth's engine stores objects, and not the data of volumes: {WAY_OUT}; a volume policy `skip` outranks the annotation"
            );
            log.error(&About::Velero, "pods", &message);
        }
        self.volumes.tell(log)
    }
}

impl Pods {
    fn add(&mut self, name: String) {
        self.count += 1;
        self.named.insert(name);
        if self.named.len() > NAMED {
            self.named.pop_last();
        }
    }

    fn told(&self) -> String {
        let named = self.named.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = match self.count.saturating_sub(self.named.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let pods = if self.count == 1 { "pod" } else { "pods" };
        format!("{} {pods} ({named}{more})", self.count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use serde_json::{Value, json};

    use super::*;

    fn kind(resource: &str) -> ResourceType {
        ResourceType {
            group: String::new(),
            version: "v1".into(),
            kind: "Pod".into(),
            resource: resource.into(),
            singular: "pod".into(),
            short_names: Vec::new(),
            namespaced: true,
        }
    }

    fn note(asked: &Asked, resource: &str, name: &str, annotations: Value, phase: &str) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "shop", "annotations": annotations}, "status": {"phase": phase},
        });
        let found = ListedObject::parse(pod.to_string().into()).unwrap_or_else(|e| unreachable!("{e}"));
        asked.note(&kind(resource), &found);
    }

    fn told(asked: &Asked, spec: &Value) -> Vec<String> {
        let log = BackupLog::new("velero/b".into());
        asked.tell(&serde_json::from_value(spec.clone()).unwrap(), &log);
        assert_eq!(log.counts().warnings, 0);
        let (_, results) = log.files().unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&results[..]).read_to_string(&mut text).unwrap();
        let results: Value = serde_json::from_str(&text).unwrap();
        let errors = results["errors"]["velero"].as_array().cloned().unwrap_or_default();
        errors.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn pods_that_ask_are_counted_and_a_few_of_them_named() {
        let asked = Asked::default();
        let volumes = json!({VOLUMES: "data"});
        for i in 0..8 {
            note(&asked, "pods", &format!("db-{i}"), volumes.clone(), "Running");
        }
        note(&asked, "pods", "done", volumes.clone(), "Succeeded");
        note(&asked, "configmaps", "not-a-pod", volumes, "Running");
        note(
            &asked,
            "pods",
            "excludes",
            json!({"backup.velero.io/backup-volumes-excludes": "tmp"}),
            "Running",
        );
        note(&asked, "pods", "hooked", json!({"pre.hook.backup.velero.io/command": "true"}), "Running");
        note(&asked, "pods", "none", json!({VOLUMES: ""}), "Running");
        let told = told(&asked, &json!({}));
        assert_eq!(told.len(), 1, "{told:?}");
        let words = "8 pods (shop/db-0, shop/db-1, shop/db-2, shop/db-3, shop/db-4 and 3 more)";
        assert!(told[0].contains(words) && told[0].contains("--executor=velero"), "{told:?}");
    }

    #[test]
    fn each_field_that_asks_is_an_error_of_its_own() {
        let told = told(&Asked::default(), &json!({"snapshotVolumes": true, "datamover": "velero"}));
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("spec.snapshotVolumes: "), "{told:?}");
    }
}
