//! What volume policies say of the volumes of a backup. This engine treats all volumes as the
//! action `skip` does; any other action asks for data that it does not store.

use std::collections::BTreeMap;

use berth_api::quantity::Quantity;
use berth_api::unserved::WAY_OUT;
use berth_core::policy::volume::{Action, Csi, KINDS, Nfs, Volume, VolumePolicy, action};
use berth_core::selection::ResourceType;
use parking_lot::Mutex;
use serde_json::Value;

use super::VOLUMES;
use crate::backup::list::ListedObject;
use crate::backup::log::{About, BackupLog};
use crate::backup::related::{Related, key};
use crate::text::few;

/// Most claims, most volumes and most pods that are kept, some hundred bytes each.
const MOST: usize = 100_000;
/// Most volumes of one pod that are considered.
const MOST_OF_POD: usize = 1000;
/// Kinds of volumes that no backup stores with a pod.
const NEVER: [&str; 5] = ["hostPath", "secret", "configMap", "projected", "downwardAPI"];
/// Prefix of the volume with a service account's token, as older clusters named it.
const TOKEN: &str = "default-token";

/// The claims, volumes and pods of one backup. Without policies nothing is kept.
#[derive(Default)]
pub struct Volumes {
    policies: Vec<VolumePolicy>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    claims: BTreeMap<String, Claim>,
    /// By the volume's name.
    volumes: BTreeMap<String, Volume>,
    /// Pods that ask for the data of volumes which belong to no claim.
    pods: Vec<String>,
    /// Pods, each with a claim whose data it asks for unless a policy decides otherwise.
    wishes: Vec<(String, String)>,
    /// Objects for which there was no room.
    lost: usize,
}

struct Claim {
    /// The volume to which the claim is bound.
    bound: Option<String>,
    /// What the claim alone says of that volume.
    alone: Volume,
}

impl Volumes {
    pub fn by(policies: Vec<VolumePolicy>) -> Self {
        Self { policies, ..Self::default() }
    }

    /// Whether there is any policy.
    pub fn decide(&self) -> bool {
        !self.policies.is_empty()
    }

    /// Notes an object that is taken.
    pub fn note(&self, kind: &ResourceType, found: &ListedObject) {
        if !self.decide() {
            return;
        }
        let of = Related::of(kind).filter(|of| matches!(of, Related::Pod | Related::Claim | Related::Volume));
        let Some(of) = of else { return };
        // An unreadable object is no volume that could be stored.
        let Ok(object) = serde_json::from_slice::<Value>(&found.json) else { return };
        let name = key(found.namespace.as_deref(), &found.name);
        let mut seen = self.seen.lock();
        match of {
            Related::Claim if seen.claims.len() < MOST => {
                seen.claims.insert(name, Claim::read(&object));
            }
            Related::Volume if seen.volumes.len() < MOST => {
                seen.volumes.insert(name, of_volume(&object));
            }
            Related::Pod if seen.pods.len() + seen.wishes.len() < MOST => {
                self.note_pod(name, found.namespace.as_deref(), &object, &mut seen);
            }
            _ => seen.lost += 1,
        }
    }

    fn note_pod(&self, pod: String, namespace: Option<&str>, object: &Value, seen: &mut Seen) {
        // Velero does not back up the volumes of a pod that has ended.
        if matches!(text(&object["status"]["phase"]), "Succeeded" | "Failed") {
            return;
        }
        let wished = text(&object["metadata"]["annotations"][VOLUMES]);
        let is_wished = |volume: &str| wished.split(',').any(|one| one.trim() == volume);
        let mut asks = false;
        for volume in object["spec"]["volumes"].as_array().into_iter().flatten().take(MOST_OF_POD) {
            let name = text(&volume["name"]);
            if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
                if is_wished(name) {
                    seen.wishes.push((pod.clone(), key(namespace, claim)));
                }
                continue;
            }
            let volume = of_source(volume);
            if NEVER.contains(&volume.kind.as_str()) || name.starts_with(TOKEN) {
                continue;
            }
            asks |= match action(&self.policies, &volume) {
                Some(action) => action == Action::FsBackup,
                None => is_wished(name),
            };
        }
        if asks {
            seen.pods.push(pod);
        }
    }

    /// Logs an error for objects that ask for data. Returns for how many claims a policy decides.
    pub fn tell(&self, log: &BackupLog) -> usize {
        let seen = self.seen.lock();
        let decide = |claim: &Claim| {
            let volume = claim.bound.as_ref().and_then(|name| seen.volumes.get(name));
            let mut volume = volume.cloned().unwrap_or_else(|| claim.alone.clone());
            volume.labels.clone_from(&claim.alone.labels);
            volume.phase.clone_from(&claim.alone.phase);
            action(&self.policies, &volume)
        };
        let decided: BTreeMap<&String, Action> =
            seen.claims.iter().filter_map(|(name, claim)| Some((name, decide(claim)?))).collect();
        let asking = decided.iter().filter(|(_, action)| **action != Action::Skip);
        let claims: Vec<String> =
            asking.map(|(name, action)| format!("{name} ({})", action.as_str())).collect();
        let wishing = seen.wishes.iter().filter(|(_, claim)| !decided.contains_key(claim));
        let mut pods: Vec<String> =
            wishing.map(|(pod, _)| pod.clone()).chain(seen.pods.iter().cloned()).collect();
        pods.sort_unstable();
        pods.dedup();
        let lacking = "berth's engine stores objects, and not the data of volumes";
        for (names, who, resource) in [
            (&claims, "claims have a volume policy that asks", "persistentvolumeclaims"),
            (&pods, "pods ask, or a volume policy asks of their own volumes,", "pods"),
        ] {
            if !names.is_empty() {
                let message = format!(
                    "{} {who} for the data of the volumes ({}): {lacking}: {WAY_OUT}",
                    names.len(),
                    few(names)
                );
                log.error(&About::Velero, resource, &message);
            }
        }
        if seen.lost > 0 {
            let message = format!(
                "it is not known whether the volume policies ask for the data of {} pods, claims and volumes: there are too many to check; use several Backups",
                seen.lost
            );
            log.error(&About::Velero, "", &message);
        }
        decided.len()
    }
}

impl Claim {
    fn read(object: &Value) -> Self {
        let phase = text(&object["status"]["phase"]);
        let bound = object["spec"]["volumeName"].as_str().filter(|name| phase == "Bound" && !name.is_empty());
        let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
        let labels = labels.map(|(key, value)| (key.clone(), text(value).to_owned())).collect();
        // As the volume would say it, which may not be in the backup.
        let mut alone = Volume { labels, phase: phase.to_owned(), ..Volume::default() };
        if bound.is_some() {
            alone.capacity = amount(&object["status"]["capacity"]["storage"]);
            alone.storage_class = text(&object["spec"]["storageClassName"]).to_owned();
        }
        Self { bound: bound.map(str::to_owned), alone }
    }
}

/// Reads a PersistentVolume.
fn of_volume(object: &Value) -> Volume {
    let spec = &object["spec"];
    Volume {
        capacity: amount(&spec["capacity"]["storage"]),
        storage_class: text(&spec["storageClassName"]).to_owned(),
        ..of_source(spec)
    }
}

/// Reads the source of a volume.
fn of_source(source: &Value) -> Volume {
    let nfs = source["nfs"].as_object().map(|_| Nfs {
        server: text(&source["nfs"]["server"]).to_owned(),
        path: text(&source["nfs"]["path"]).to_owned(),
    });
    let csi = source["csi"].as_object().map(|csi| {
        let attributes = csi.get("volumeAttributes").and_then(Value::as_object).into_iter().flatten();
        let attributes = attributes.map(|(key, value)| (key.clone(), text(value).to_owned())).collect();
        Csi { driver: text(&source["csi"]["driver"]).to_owned(), attributes }
    });
    let kind = KINDS.into_iter().find(|kind| source[*kind].is_object()).unwrap_or_default();
    Volume { nfs, csi, kind: kind.to_owned(), ..Volume::default() }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn amount(value: &Value) -> i128 {
    Quantity::parse(text(value)).map_or(0, Quantity::billionths)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use berth_core::policy::volume::Conditions;
    use serde_json::json;

    use super::*;

    fn kind(resource: &str) -> ResourceType {
        ResourceType {
            group: String::new(),
            version: "v1".into(),
            kind: "Any".into(),
            resource: resource.into(),
            singular: "any".into(),
            short_names: Vec::new(),
            namespaced: true,
        }
    }

    fn note(volumes: &Volumes, resource: &str, object: Value) {
        let found = ListedObject::parse(object.to_string().into()).unwrap();
        volumes.note(&kind(resource), &found);
    }

    fn claim(name: &str, volume: &str, app: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "ns", "labels": {"app": app}},
            "spec": {"volumeName": volume, "storageClassName": "gp2"},
            "status": {"phase": if volume.is_empty() { "Pending" } else { "Bound" }, "capacity": {"storage": "1Gi"}},
        })
    }

    fn volume(name: &str, source: Value) -> Value {
        let mut volume = json!({
            "metadata": {"name": name}, "spec": {"capacity": {"storage": "1Gi"}, "storageClassName": "gp2"},
        });
        volume["spec"].as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        volume
    }

    fn pod(name: &str, wished: &str, volumes: Value) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "ns", "annotations": {VOLUMES: wished}},
            "spec": {"volumes": volumes}, "status": {"phase": "Running"},
        })
    }

    /// How many claims are decided on, and the errors.
    fn told(volumes: &Volumes) -> (usize, Vec<String>) {
        let log = BackupLog::new(String::new());
        let decided = volumes.tell(&log);
        let (_, results) = log.files().unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&results[..]).read_to_string(&mut text).unwrap();
        let results: Value = serde_json::from_str(&text).unwrap();
        let errors = results["errors"]["velero"].as_array().into_iter().flatten();
        (decided, errors.map(|one| one.as_str().unwrap().to_owned()).collect())
    }

    fn policy(conditions: Conditions, action: Action) -> VolumePolicy {
        VolumePolicy { conditions, action }
    }

    fn nfs() -> Conditions {
        Conditions { nfs: Some(Nfs::default()), ..Conditions::default() }
    }

    fn of_app(app: &str) -> Conditions {
        Conditions { labels: BTreeMap::from([("app".to_owned(), app.to_owned())]), ..Conditions::default() }
    }

    #[test]
    fn what_is_to_be_skipped_is_no_error_and_what_is_to_be_stored_is() {
        let volumes = Volumes::by(vec![
            policy(nfs(), Action::Skip),
            policy(of_app("db"), Action::Snapshot),
            policy(of_app("plugin"), Action::Custom),
            policy(
                Conditions { at_least: 2_000_000_000, storage_classes: vec!["gp2".into()], ..of_app("web") },
                Action::Skip,
            ),
        ]);
        note(&volumes, "persistentvolumeclaims", claim("share", "pv-nfs", "db"));
        note(&volumes, "persistentvolumeclaims", claim("data", "pv-csi", "db"));
        note(&volumes, "persistentvolumeclaims", claim("other", "pv-csi2", "none"));
        // Its volume is not in the backup: class and capacity are known all the same.
        note(&volumes, "persistentvolumeclaims", claim("web", "pv-gone", "web"));
        note(&volumes, "persistentvolumeclaims", claim("plugged", "", "plugin"));
        note(&volumes, "persistentvolumes", volume("pv-nfs", json!({"nfs": {"server": "s", "path": "/"}})));
        note(&volumes, "persistentvolumes", volume("pv-csi", json!({"csi": {"driver": "ebs"}})));
        let (decided, errors) = told(&volumes);
        assert_eq!((decided, errors.len()), (4, 1), "{errors:?}");
        assert!(errors[0].contains("2 claims have a volume policy"), "{errors:?}");
        assert!(errors[0].contains("(ns/data (snapshot), ns/plugged (custom))"), "{errors:?}");
        assert!(errors[0].contains("--executor=velero"), "{errors:?}");
    }

    /// Contract 7.1: a policy that matches decides; the annotation counts where none does.
    #[test]
    fn what_pods_ask_for_is_an_error_unless_a_policy_skips_it() {
        let volumes = Volumes::by(vec![
            policy(nfs(), Action::Skip),
            policy(Conditions { kinds: vec!["emptyDir".into()], ..Conditions::default() }, Action::FsBackup),
            policy(of_app("skipped"), Action::Skip),
        ]);
        let claimed = |claim: &str| json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
        note(&volumes, "persistentvolumeclaims", claim("c1", "pv-1", "skipped"));
        note(&volumes, "persistentvolumeclaims", claim("c2", "pv-2", "kept"));
        note(&volumes, "pods", pod("skips", "data", claimed("c1")));
        note(&volumes, "pods", pod("wishes", "other, data", claimed("c2")));
        note(&volumes, "pods", pod("silent", "", claimed("c2")));
        note(
            &volumes,
            "pods",
            pod("of-nfs", "n", json!([{"name": "n", "nfs": {"server": "s", "path": "/"}}])),
        );
        note(&volumes, "pods", pod("of-rbd", "r", json!([{"name": "r", "rbd": {}}])));
        note(&volumes, "pods", pod("scratch", "", json!([{"name": "e", "emptyDir": {}}])));
        note(
            &volumes,
            "pods",
            pod("never", "s", json!([{"name": "s", "secret": {}}, {"name": "h", "hostPath": {}}])),
        );
        let mut ended = pod("ended", "", json!([{"name": "e", "emptyDir": {}}]));
        ended["status"]["phase"] = json!("Succeeded");
        note(&volumes, "pods", ended);
        let (decided, errors) = told(&volumes);
        assert_eq!((decided, errors.len()), (1, 1), "{errors:?}");
        assert!(
            errors[0].contains("3 pods") && errors[0].contains("(ns/of-rbd, ns/scratch, ns/wishes)"),
            "{errors:?}"
        );
    }

    #[test]
    fn without_a_policy_nothing_is_kept() {
        let volumes = Volumes::default();
        note(&volumes, "persistentvolumeclaims", claim("c", "pv", "db"));
        note(&volumes, "pods", pod("p", "data", json!([])));
        assert!(volumes.seen.lock().claims.is_empty() && !volumes.decide());
        assert_eq!(told(&volumes), (0, Vec::new()));
    }
}
