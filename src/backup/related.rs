//! References from an object to others that its restore needs, read from the object's bytes as it
//! passes.

mod snapshots;

use std::collections::{BTreeMap, BTreeSet};

use berth_core::selection::ResourceType;
use serde::Deserialize;

use super::list::ListedObject;

/// Most references to one type that are kept, each some hundred bytes. Further ones are reported as
/// missing.
const MOST: usize = 250_000;
/// Most references of one object that are kept.
const MOST_OF_ONE: usize = 1000;
/// Longest name that an object can have.
const LONGEST: usize = 253;

/// Types that refer to each other.
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
    Snapshot,
    SnapshotContent,
    SnapshotClass,
    Secret,
}

/// Why an object is taken, from the weakest reason to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// It is in a list of what the backup chooses.
    Listed,
    /// Another object needs it.
    Needed,
    /// Another object needs it and overrides the filters.
    Required,
}

impl Related {
    const ALL: [Self; 12] = [
        Self::Pod,
        Self::Claim,
        Self::Volume,
        Self::PriorityClass,
        Self::Account,
        Self::Binding,
        Self::ClusterRole,
        Self::Definition,
        Self::Snapshot,
        Self::SnapshotContent,
        Self::SnapshotClass,
        Self::Secret,
    ];

    pub fn of(kind: &ResourceType) -> Option<Self> {
        Self::ALL.into_iter().find(|related| related.is(kind))
    }

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
            Self::Snapshot => ("snapshot.storage.k8s.io", "volumesnapshots"),
            Self::SnapshotContent => ("snapshot.storage.k8s.io", "volumesnapshotcontents"),
            Self::SnapshotClass => ("snapshot.storage.k8s.io", "volumesnapshotclasses"),
            Self::Secret => ("", "secrets"),
        };
        kind.group == group && kind.resource == resource
    }

    /// The types that objects of this type name. A claim names the other claims of its group.
    /// Bindings name accounts, not the other way round: see [`BindingReferences`].
    pub fn names(self) -> &'static [Self] {
        match self {
            Self::Pod => &[Self::Claim, Self::PriorityClass],
            Self::Claim => &[Self::Volume, Self::Claim],
            Self::Snapshot => &[Self::SnapshotContent, Self::SnapshotClass],
            Self::SnapshotContent | Self::SnapshotClass => &[Self::Secret],
            _ => &[],
        }
    }
}

/// References from the objects of one type, by [`key`]. Only references that are followed are read.
#[derive(Debug, Default)]
pub struct References {
    of: Option<Related>,
    followed: Vec<Related>,
    /// Label of claims: claims with the same value form a group.
    group_key: String,
    names: BTreeMap<Related, BTreeMap<String, Origin>>,
    count: usize,
    /// Groups of claims: namespace and value of that label.
    groups: BTreeSet<String>,
    /// The groups that were not looked up yet.
    new_groups: Vec<String>,
    /// Number of references for which there was no room.
    pub lost: usize,
    /// Number of references to names that no object can have.
    pub impossible: usize,
}

impl References {
    /// `followed`: the types whose objects are taken when they are named.
    pub fn of(kind: &ResourceType, followed: Vec<Related>, group_key: &str) -> Self {
        Self { of: Related::of(kind), followed, group_key: group_key.to_owned(), ..Self::default() }
    }

    /// Reads the references of an object. With [`Origin::Required`] all of them are followed.
    ///
    /// # Errors
    /// When the object is not of its type.
    pub fn read(&mut self, found: &ListedObject, origin: Origin) -> Result<(), serde_json::Error> {
        let is_required = origin == Origin::Required;
        let Some(of) = self.of.filter(|_| is_required || !self.followed.is_empty()) else { return Ok(()) };
        let origin = origin.max(Origin::Needed);
        let followed = |list: &[Related], related| is_required || list.contains(&related);
        let namespace = found.namespace.as_deref();
        match of {
            Related::Pod => {
                let pod = PodReferences::parse(&found.json)?;
                if followed(&self.followed, Related::Claim) {
                    for name in pod.claims.iter().take(MOST_OF_ONE) {
                        self.note(Related::Claim, origin, namespace, name);
                    }
                    // One pod must not take the room of all others.
                    self.lost += pod.claims.len().saturating_sub(MOST_OF_ONE);
                }
                if let Some(class) = pod.priority_class
                    && followed(&self.followed, Related::PriorityClass)
                {
                    self.note(Related::PriorityClass, origin, None, &class);
                }
            }
            Related::Claim => {
                let claim = ClaimReferences::parse(&found.json)?;
                // An unbound claim has no volume that must be stored with others.
                let Some(volume) = claim.volume else { return Ok(()) };
                if followed(&self.followed, Related::Volume) {
                    self.note(Related::Volume, origin, None, &volume);
                }
                // Other claims of the group pass the filters as usual.
                if self.followed.contains(&Related::Claim)
                    && let Some(group) = claim.labels.get(&self.group_key).filter(|group| !group.is_empty())
                {
                    self.note_group(key(namespace, group));
                }
            }
            // Bindings name the account; they are read later.
            Related::Account if is_required => self.note(Related::Account, origin, namespace, &found.name),
            Related::Snapshot | Related::SnapshotContent | Related::SnapshotClass => {
                for (related, namespace, name) in snapshots::named(of, &found.json)? {
                    if followed(&self.followed, related) {
                        self.note(related, origin, namespace.as_deref(), &name);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn note(&mut self, related: Related, origin: Origin, namespace: Option<&str>, name: &str) {
        if !is_name(name) || namespace.is_some_and(|namespace| !is_name(namespace)) {
            self.impossible += 1;
            return;
        }
        let names = self.names.entry(related).or_default();
        let key = key(namespace, name);
        if let Some(known) = names.get_mut(&key) {
            *known = origin.max(*known);
        } else if self.count < MOST {
            self.count += 1;
            names.insert(key, origin);
        } else {
            self.lost += 1;
        }
    }

    fn note_group(&mut self, group: String) {
        if self.groups.contains(&group) {
            return;
        }
        if self.groups.len() >= MOST {
            self.lost += 1;
            return;
        }
        self.groups.insert(group.clone());
        self.new_groups.push(group);
    }

    /// Removes and returns the names of this type.
    pub fn take(&mut self, related: Related) -> BTreeMap<String, Origin> {
        let names = self.names.remove(&related).unwrap_or_default();
        self.count -= names.len();
        names
    }

    /// Removes and returns the new groups: namespace and value of the label.
    pub fn take_groups(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.new_groups).into_iter().collect()
    }
}

/// The key of an object among those of its type.
pub fn key(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

/// Whether a name may stand in a path of the API. Users choose the names in a claim, and nothing
/// validates them. Wider than a DNS subdomain, because names of roles contain colons.
pub fn is_name(name: &str) -> bool {
    (1..=LONGEST).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.contains(['/', '%'])
        && !name.contains(char::is_control)
}

/// What a backup reads of a pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PodReferences {
    pub is_running: bool,
    pub priority_class: Option<String>,
    /// Names of claims in its namespace. Claims of ephemeral volumes are not among them.
    pub claims: Vec<String>,
}

impl PodReferences {
    /// # Errors
    /// When this is no pod.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct PodVolumesSpec {
            priority_class_name: Option<String>,
            volumes: Option<Vec<PodSpecVolume>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct PodSpecVolume {
            persistent_volume_claim: Option<ClaimVolumeSource>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ClaimVolumeSource {
            claim_name: String,
        }
        let object: RelatedObject<PodVolumesSpec> = serde_json::from_slice(json)?;
        let is_running = object.is_in("Running");
        let Some(spec) = object.spec else { return Ok(Self { is_running, ..Self::default() }) };
        let volumes = spec.volumes.unwrap_or_default().into_iter();
        let claims = volumes.filter_map(|volume| Some(volume.persistent_volume_claim?.claim_name));
        let priority_class = spec.priority_class_name.filter(|name| !name.is_empty());
        Ok(Self { is_running, priority_class, claims: claims.collect() })
    }
}

/// What a backup reads of a claim.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ClaimReferences {
    /// The volume that it is bound to.
    pub volume: Option<String>,
    pub labels: BTreeMap<String, String>,
}

impl ClaimReferences {
    /// # Errors
    /// When this is no claim.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct BoundClaimSpec {
            volume_name: Option<String>,
        }
        let claim: RelatedObject<BoundClaimSpec> = serde_json::from_slice(json)?;
        let is_bound = claim.is_in("Bound");
        let volume = claim.spec.and_then(|spec| spec.volume_name).filter(|name| !name.is_empty());
        let labels = claim.metadata.and_then(|metadata| metadata.labels).unwrap_or_default();
        Ok(Self { volume: volume.filter(|_| is_bound), labels })
    }
}

/// Reads the labels of an object of any type.
///
/// # Errors
/// When this is no object.
pub fn labels(json: &[u8]) -> Result<BTreeMap<String, String>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Labelled {
        metadata: Option<RelatedMetadata>,
    }
    let object: Labelled = serde_json::from_slice(json)?;
    Ok(object.metadata.and_then(|metadata| metadata.labels).unwrap_or_default())
}

#[derive(Deserialize)]
struct RelatedObject<S> {
    metadata: Option<RelatedMetadata>,
    spec: Option<S>,
    status: Option<RelatedStatus>,
}

#[derive(Deserialize)]
struct RelatedMetadata {
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct RelatedStatus {
    phase: Option<String>,
}

impl<S> RelatedObject<S> {
    fn is_in(&self, phase: &str) -> bool {
        self.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
    }
}

/// What a backup reads of a ClusterRoleBinding.
#[derive(Debug, PartialEq, Eq)]
pub struct BindingReferences {
    pub role: String,
    /// Keys of the service accounts that it names one by one. Groups are not followed, as in
    /// Velero.
    pub accounts: Vec<String>,
}

impl BindingReferences {
    /// # Errors
    /// When this is no binding.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Bound {
            role_ref: Role,
            subjects: Option<Vec<BindingSubject>>,
        }
        #[derive(Deserialize)]
        struct Role {
            name: String,
        }
        #[derive(Deserialize)]
        struct BindingSubject {
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
mod tests;
