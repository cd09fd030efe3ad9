//! What an object says of others that a restore of it needs: read from its bytes as it passes.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::selection::ResourceType;
use serde::Deserialize;

use super::list::Found;

/// References that are kept of one type at most, each some hundred bytes. What is beyond is told as missing.
const MOST: usize = 250_000;
/// Of these, references that are kept of one object.
const MOST_OF_ONE: usize = 1000;
/// Longest name that an object can have.
const LONGEST: usize = 253;

/// Types that know something of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Related {
    Pod,
    Claim,
    Volume,
    PriorityClass,
    Account,
    Binding,
    ClusterRole,
    Definition,
}

impl Related {
    pub fn is(self, kind: &ResourceType) -> bool {
        let (group, resource) = match self {
            Self::Pod => ("", "pods"),
            Self::Claim => ("", "persistentvolumeclaims"),
            Self::Volume => ("", "persistentvolumes"),
            Self::PriorityClass => ("scheduling.k8s.io", "priorityclasses"),
            Self::Account => ("", "serviceaccounts"),
            Self::Binding => ("rbac.authorization.k8s.io", "clusterrolebindings"),
            Self::ClusterRole => ("rbac.authorization.k8s.io", "clusterroles"),
            Self::Definition => ("apiextensions.k8s.io", "customresourcedefinitions"),
        };
        kind.group == group && kind.resource == resource
    }

    /// What objects of a type name. Bindings name accounts, not the other way round: see [`Binding`].
    pub fn named_by(kind: &ResourceType) -> &'static [Self] {
        if Self::Pod.is(kind) {
            &[Self::Claim, Self::PriorityClass]
        } else if Self::Claim.is(kind) {
            &[Self::Volume]
        } else {
            &[]
        }
    }
}

/// What the objects of one type name, by the key of [`key`]: only what is followed is read at all.
#[derive(Debug, Default)]
pub struct References {
    followed: Vec<Related>,
    names: BTreeMap<Related, BTreeSet<String>>,
    count: usize,
    /// For which there was no room.
    pub lost: usize,
    /// That no object can have.
    pub impossible: usize,
}

impl References {
    pub fn following(followed: Vec<Related>) -> Self {
        Self { followed, ..Self::default() }
    }

    /// # Errors
    /// When the object is not what its type says.
    pub fn read(&mut self, found: &Found) -> Result<(), serde_json::Error> {
        let follows = |related: Related| self.followed.contains(&related);
        let (claims, classes, volumes) =
            (follows(Related::Claim), follows(Related::PriorityClass), follows(Related::Volume));
        let namespace = found.namespace.as_deref();
        if claims || classes {
            let pod = Pod::parse(&found.json)?;
            if claims {
                for name in pod.claims.iter().take(MOST_OF_ONE) {
                    self.note(Related::Claim, namespace, name);
                }
                // One pod must not take the room of all others.
                self.lost += pod.claims.len().saturating_sub(MOST_OF_ONE);
            }
            if let Some(class) = pod.priority_class.filter(|_| classes) {
                self.note(Related::PriorityClass, None, &class);
            }
        }
        if volumes && let Some(volume) = volume_of_claim(&found.json)? {
            self.note(Related::Volume, None, &volume);
        }
        Ok(())
    }

    fn note(&mut self, related: Related, namespace: Option<&str>, name: &str) {
        if !is_name(name) {
            self.impossible += 1;
            return;
        }
        let names = self.names.entry(related).or_default();
        let key = key(namespace, name);
        if self.count < MOST {
            self.count += usize::from(names.insert(key));
        } else if !names.contains(&key) {
            self.lost += 1;
        }
    }

    /// Takes out what was named of a type.
    pub fn take(&mut self, related: Related) -> BTreeSet<String> {
        let names = self.names.remove(&related).unwrap_or_default();
        self.count -= names.len();
        names
    }
}

/// How an object is called among those of its type.
pub fn key(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

/// May it stand in a path of the API? Whoever writes a claim chooses what it names, and it is not checked for him.
pub fn is_name(name: &str) -> bool {
    (1..=LONGEST).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.contains(['/', '%'])
        && !name.contains(char::is_control)
}

/// What is asked of a pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pod {
    pub is_running: bool,
    pub priority_class: Option<String>,
    /// Names of claims in its namespace. Those that are made for it alone it does not name.
    pub claims: Vec<String>,
}

impl Pod {
    /// # Errors
    /// When this is no pod.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            priority_class_name: Option<String>,
            volumes: Option<Vec<Volume>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Volume {
            persistent_volume_claim: Option<Source>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Source {
            claim_name: String,
        }
        let object: Object<Spec> = serde_json::from_slice(json)?;
        let is_running = object.is_in("Running");
        let Some(spec) = object.spec else { return Ok(Self { is_running, ..Self::default() }) };
        let volumes = spec.volumes.unwrap_or_default().into_iter();
        let claims = volumes.filter_map(|volume| Some(volume.persistent_volume_claim?.claim_name));
        let priority_class = spec.priority_class_name.filter(|name| !name.is_empty());
        Ok(Self { is_running, priority_class, claims: claims.collect() })
    }
}

/// The volume that a claim is bound to.
fn volume_of_claim(json: &[u8]) -> Result<Option<String>, serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        volume_name: Option<String>,
    }
    let claim: Object<Spec> = serde_json::from_slice(json)?;
    let is_bound = claim.is_in("Bound");
    let volume = claim.spec.and_then(|spec| spec.volume_name).filter(|name| !name.is_empty());
    Ok(volume.filter(|_| is_bound))
}

#[derive(Deserialize)]
struct Object<S> {
    spec: Option<S>,
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Status {
    phase: Option<String>,
}

impl<S> Object<S> {
    fn is_in(&self, phase: &str) -> bool {
        self.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
    }
}

/// What is asked of a ClusterRoleBinding.
#[derive(Debug, PartialEq, Eq)]
pub struct Binding {
    pub role: String,
    /// Keys of the service accounts that it names one by one. Groups of them are not followed, as Velero does not.
    pub accounts: Vec<String>,
}

impl Binding {
    /// # Errors
    /// When this is no binding.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Bound {
            role_ref: Role,
            subjects: Option<Vec<Subject>>,
        }
        #[derive(Deserialize)]
        struct Role {
            name: String,
        }
        #[derive(Deserialize)]
        struct Subject {
            kind: String,
            name: String,
            namespace: Option<String>,
        }
        let bound: Bound = serde_json::from_slice(json)?;
        let subjects = bound.subjects.unwrap_or_default().into_iter();
        let accounts = subjects.filter(|subject| subject.kind == "ServiceAccount");
        let accounts = accounts.map(|account| key(account.namespace.as_deref(), &account.name)).collect();
        Ok(Self { role: bound.role_ref.name, accounts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use serde_json::{Value, json};

    fn found(object: &Value) -> Found {
        Found::parse(Bytes::from(object.to_string())).unwrap()
    }

    fn pod(more: &Value) -> Value {
        json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": more, "status": {"phase": "Running"}})
    }

    fn claim(volume: &str, phase: &str) -> Value {
        json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"volumeName": volume}, "status": {"phase": phase}})
    }

    #[test]
    fn a_pod_names_its_claims_and_its_priority_class() {
        let spec = json!({
            "priorityClassName": "first",
            "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "b", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                {"name": "c", "configMap": {"name": "x"}},
            ],
        });
        let mut both = References::following(vec![Related::Claim, Related::PriorityClass]);
        for _ in 0..2 {
            both.read(&found(&pod(&spec))).unwrap();
        }
        assert_eq!(both.take(Related::Claim), BTreeSet::from(["ns/data".to_owned()]));
        assert_eq!(both.take(Related::PriorityClass), BTreeSet::from(["first".to_owned()]));
        assert_eq!((both.take(Related::Claim).len(), both.count), (0, 0));
        let mut one = References::following(vec![Related::PriorityClass]);
        one.read(&found(&pod(&spec))).unwrap();
        assert!(one.take(Related::Claim).is_empty(), "what is not followed is not kept");
        let parsed = Pod::parse(pod(&json!({"volumes": null})).to_string().as_bytes()).unwrap();
        assert_eq!(parsed, Pod { is_running: true, ..Pod::default() });
        assert!(Pod::parse(br#"{"metadata":{"name":"x"}}"#).is_ok_and(|pod| !pod.is_running));
        assert!(Pod::parse(br#"{"spec":{"volumes":"odd"}}"#).is_err());
    }

    #[test]
    fn a_claim_names_its_volume_once_it_is_bound() {
        let mut volumes = References::following(vec![Related::Volume]);
        for (volume, phase) in [("pv-1", "Bound"), ("pv-2", "Pending"), ("", "Bound"), ("pv-3", "Lost")] {
            volumes.read(&found(&claim(volume, phase))).unwrap();
        }
        assert_eq!(volumes.take(Related::Volume), BTreeSet::from(["pv-1".to_owned()]));
        assert_eq!((volumes.lost, volumes.impossible), (0, 0));
    }

    #[test]
    fn a_name_that_would_lead_elsewhere_is_none() {
        let mut volumes = References::following(vec![Related::Volume]);
        let long = "v".repeat(254);
        for odd in ["../namespaces/a/secrets/b", "pv/status", "pv%2fstatus", ".", "..", long.as_str()] {
            volumes.read(&found(&claim(odd, "Bound"))).unwrap();
        }
        assert_eq!((volumes.take(Related::Volume).len(), volumes.impossible), (0, 6));
        assert!(is_name("system:node") && is_name("pv-1.example"));
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let mut full = References::following(vec![Related::Volume]);
        full.note(Related::Volume, None, "known");
        full.count = MOST;
        for name in ["known", "a", "b"] {
            full.read(&found(&claim(name, "Bound"))).unwrap();
        }
        assert_eq!((full.lost, full.names[&Related::Volume].len()), (2, 1));
    }

    #[test]
    fn a_binding_names_accounts_one_by_one() {
        let binding = json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
            "subjects": [
                {"kind": "ServiceAccount", "name": "sa", "namespace": "ns"},
                {"kind": "Group", "name": "system:serviceaccounts:ns"},
                {"kind": "User", "name": "ns/sa"},
            ],
        });
        let expected = Binding { role: "r".to_owned(), accounts: vec!["ns/sa".to_owned()] };
        assert_eq!(Binding::parse(binding.to_string().as_bytes()).unwrap(), expected);
        let nobody = Binding::parse(br#"{"roleRef":{"name":"r"},"subjects":null}"#).unwrap();
        assert!(nobody.accounts.is_empty());
    }
}
