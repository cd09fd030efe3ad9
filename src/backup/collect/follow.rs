//! What the taken objects need: a claim needs its volume and the claims of its group, a pod its
//! claims and its priority class, a service account its cluster roles, a snapshot its class and its
//! content, these their Secrets, a custom object its definition, every object its namespace. These
//! are taken unless the backup excludes them; if the object that needs them requires it, whatever
//! the backup excludes. Each object is taken once.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use berth_core::revision::OtherRevisionReason;
use berth_core::selection::{ResourceType, TypeSelection};

use super::Collector;
use super::pending::Pending;
use super::taken::CollectedType;
use crate::backup::ledger::{EarlierObjects, tells_of_others};
use crate::backup::list::{ListError, ListedObject};
use crate::backup::log::ResultsHeading;
use crate::backup::related::{
    BindingReferences, ClaimReferences, Origin, PodReferences, References, Related, key,
};
use crate::text::{chain, few};

/// How often pods may lead to claims and these to other pods. Few pods share claims at all.
const ROUNDS: usize = 16;
/// Groups with a dot in their names that the API server serves itself: their types have no
/// definition.
const BUILT_IN: [&str; 17] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];
impl Collector<'_> {
    /// What is taken of a type at its beginning: what an earlier run has stored. Objects that name
    /// others are read once more.
    pub(super) fn none_of(&self, kind: &Arc<ResourceType>) -> CollectedType {
        let named = Related::of(kind).map_or(&[] as &[Related], Related::names).iter().copied();
        let followed = named.filter(|related| self.open(*related).is_some()).collect();
        let mut taken = CollectedType::of(kind, References::of(kind, followed, &self.wanted.group_key));
        let EarlierObjects { extent, names } = self.ledger.earlier(kind);
        if tells_of_others(kind) {
            taken.stored = names;
            return taken;
        }
        taken.names = names;
        taken.position = extent.at;
        (taken.is_through, taken.forbidden) = (extent.is_whole, extent.is_forbidden);
        taken
    }

    /// # Errors
    /// As [`Collector::run`].
    pub(super) async fn follow(&self, taken: &mut Vec<CollectedType>) -> Result<(), ListError> {
        self.take_pods_and_claims(taken).await?;
        self.take_named(Related::Volume, taken).await?;
        self.take_named(Related::PriorityClass, taken).await?;
        self.take_cluster_roles(taken).await?;
        Box::pin(self.take_made_snapshots(taken)).await?;
        for related in [Related::SnapshotContent, Related::SnapshotClass, Related::Secret] {
            self.take_named(related, taken).await?;
        }
        self.take_definitions(taken).await?;
        self.take_namespaces(taken).await?;
        self.tell_lost(taken);
        Ok(())
    }

    pub(super) fn served(&self, related: Related) -> Option<Arc<ResourceType>> {
        self.types.iter().find(|kind| related.is(kind)).map(|kind| Arc::new(kind.clone()))
    }

    /// The type, if the backup may take objects of it that no list brings.
    pub(super) fn open(&self, related: Related) -> Option<Arc<ResourceType>> {
        let kind = self.served(related)?;
        let is_open = match self.selection.fate(&kind) {
            TypeSelection::Listed => !self.wanted.selectors.is_empty() || self.filters.of(&kind).is_some(),
            TypeSelection::Needed => true,
            TypeSelection::Unnamed | TypeSelection::Excluded => false,
        };
        is_open.then_some(kind)
    }

    /// Takes claims and pods in turn. With a selector, a pod that matches needs its claims whatever
    /// their labels are, and a claim needs those of its group and the running pods that use it.
    async fn take_pods_and_claims(&self, taken: &mut Vec<CollectedType>) -> Result<(), ListError> {
        let mut claims = 0;
        for _ in 0..ROUNDS {
            self.take_named(Related::Claim, taken).await?;
            self.take_groups(taken).await?;
            let now = taken.iter().find(|one| Related::Claim.is(&one.kind)).map_or(0, |one| one.names.len());
            let Some(kind) = self.open(Related::Pod).filter(|_| now > claims) else { return Ok(()) };
            claims = now;
            self.take_users_of_claims(&kind, taken).await?;
        }
        let message = "pods and claims lead to more and more of each other: what comes later is missing";
        self.log.error(&ResultsHeading::Cluster, "persistentvolumeclaims", message);
        Ok(())
    }

    async fn take_groups(&self, taken: &mut Vec<CollectedType>) -> Result<(), ListError> {
        let Some(kind) = self.open(Related::Claim) else { return Ok(()) };
        let mut held = self.take_out(&kind, taken);
        let groups = held.references.take_groups();
        if !groups.is_empty() {
            let label = self.wanted.group_key.as_str();
            let namespaces = groups.iter().filter_map(|group| group.split_once('/'));
            let namespaces = namespaces.map(|(namespace, _)| namespace.to_owned()).collect();
            let wants = |found: &ListedObject| {
                // An unreadable claim is reported when it is listed.
                let claim = ClaimReferences::parse(&found.json).ok()?;
                let group = key(found.namespace.as_deref(), claim.labels.get(label)?);
                groups.contains(&group).then_some(Origin::Needed)
            };
            let read = self.take_wanted(&kind, &namespaces, label, &mut held, wants).await;
            self.tell(&kind, read)?;
        }
        taken.push(held);
        Ok(())
    }

    async fn take_users_of_claims(
        &self,
        kind: &Arc<ResourceType>,
        taken: &mut Vec<CollectedType>,
    ) -> Result<(), ListError> {
        let mut pods = self.take_out(kind, taken);
        if let Some(claims) = taken.iter().find(|one| Related::Claim.is(&one.kind)) {
            let uses = |found: &ListedObject| {
                let claim = |name: &String| claims.holds(&key(found.namespace.as_deref(), name));
                // An unreadable pod is reported when it is listed.
                let pod = PodReferences::parse(&found.json).ok()?;
                (pod.is_running && pod.claims.iter().any(claim)).then_some(Origin::Needed)
            };
            let read = self.take_wanted(kind, &claims.namespaces(), "", &mut pods, uses).await;
            // Their claims are taken already, or in the next round.
            self.holder.release().await?;
            self.tell(kind, read)?;
        }
        taken.push(pods);
        Ok(())
    }

    /// Takes the snapshots that this backup has made, when all are there: a restore finds the
    /// storage's snapshots by them.
    async fn take_made_snapshots(&self, taken: &mut Vec<CollectedType>) -> Result<(), ListError> {
        self.volumes.settled().await;
        let keys = self.volumes.snapshot_keys();
        let Some(kind) = self.served(Related::Snapshot).filter(|_| !keys.is_empty()) else { return Ok(()) };
        let names = keys.into_iter().map(|name| (name, Origin::Required)).collect();
        let gone = self.take_by_name(&kind, names, taken).await?;
        if !gone.is_empty() {
            let message = format!(
                "{} snapshots of this backup were deleted while it ran, and their claims cannot be restored from them: {}",
                gone.len(),
                few(&gone)
            );
            self.log.error(&ResultsHeading::Cluster, &kind.qualified(), &message);
        }
        Ok(())
    }

    /// Takes the objects of a type that the taken objects name.
    async fn take_named(&self, related: Related, taken: &mut Vec<CollectedType>) -> Result<(), ListError> {
        let Some(kind) = self.served(related) else { return Ok(()) };
        let mut names: BTreeMap<String, Origin> = BTreeMap::new();
        for (name, origin) in taken.iter_mut().flat_map(|one| one.references.take(related)) {
            let known = names.entry(name).or_insert(origin);
            *known = origin.max(*known);
        }
        let gone = self.take_by_name(&kind, names, taken).await?;
        self.tell_gone(&kind, &gone);
        Ok(())
    }

    /// Takes cluster roles by their bindings. Bindings name accounts, so all bindings are read.
    async fn take_cluster_roles(&self, taken: &mut Vec<CollectedType>) -> Result<(), ListError> {
        let (bindings, roles) = (self.open(Related::Binding), self.open(Related::ClusterRole));
        let required: BTreeMap<String, Origin> =
            taken.iter_mut().flat_map(|one| one.references.take(Related::Account)).collect();
        let is_open = bindings.is_some() || roles.is_some() || !required.is_empty();
        let Some(kind) = self.served(Related::Binding).filter(|_| is_open) else { return Ok(()) };
        let mut held = self.take_out(&kind, taken);
        let mut names: BTreeMap<String, Origin> = BTreeMap::new();
        let accounts = taken.iter().find(|one| Related::Account.is(&one.kind));
        if let Some(accounts) = accounts.filter(|one| !one.is_empty()) {
            let wants = |found: &ListedObject| match BindingReferences::parse(&found.json) {
                Ok(binding) => {
                    let of = binding.accounts.iter().filter(|account| accounts.holds(account));
                    let origin = |account: &String| required.get(account).copied().unwrap_or(Origin::Needed);
                    let origin = of.map(origin).max()?;
                    if roles.is_some() || origin == Origin::Required {
                        let known = names.entry(binding.role).or_insert(origin);
                        *known = origin.max(*known);
                    }
                    (bindings.is_some() || origin == Origin::Required).then_some(origin)
                }
                Err(error) => {
                    let message = format!("{} cannot be read: {}", found.name, chain(&error));
                    self.log.error(&ResultsHeading::Cluster, &kind.qualified(), &message);
                    None
                }
            };
            let read = self.take_wanted(&kind, &HashSet::new(), "", &mut held, wants).await;
            self.tell(&kind, read)?;
        }
        taken.push(held);
        if let Some(kind) = self.served(Related::ClusterRole) {
            let gone = self.take_by_name(&kind, names, taken).await?;
            self.tell_gone(&kind, &gone);
        }
        Ok(())
    }

    /// Takes the definition of each custom type of which an object was taken, because a restore
    /// needs it first.
    async fn take_definitions(&self, taken: &mut Vec<CollectedType>) -> Result<(), ListError> {
        let Some(kind) = self.served(Related::Definition) else { return Ok(()) };
        let are_all_listed =
            self.selection.fate(&kind) == TypeSelection::Listed && self.open(Related::Definition).is_none();
        if are_all_listed || self.selection.fate(&kind) == TypeSelection::Excluded {
            return Ok(());
        }
        let is_custom = |one: &&CollectedType| {
            let group = one.kind.group.as_str();
            // The group of a custom type has a dot.
            !one.is_empty() && group.contains('.') && !BUILT_IN.contains(&group)
        };
        let names =
            taken.iter().filter(is_custom).map(|one| (one.kind.qualified(), Origin::Needed)).collect();
        // A missing definition belongs to a type of the API server or of an aggregated server.
        self.take_by_name(&kind, names, taken).await?;
        Ok(())
    }

    /// Takes Namespace objects: those of the backup, or, if it takes all namespaces and has
    /// selectors, only those that match a selector or contain an object that was taken.
    async fn take_namespaces(&self, taken: &mut Vec<CollectedType>) -> Result<(), ListError> {
        let Some(kind) = self.types.iter().find(|kind| kind.is_namespaces()) else { return Ok(()) };
        if self.selection.fate(kind) != TypeSelection::Listed {
            return Ok(());
        }
        let mut held = self.none_of(&Arc::new(kind.clone()));
        let mut batch = Pending::new(self, &mut held, Origin::Needed);
        let selectors = &self.wanted.selectors;
        let mut holding = HashSet::new();
        if self.selection.all_namespaces && !selectors.is_empty() {
            let namespaced = taken.iter().filter(|one| one.kind.namespaced);
            holding.extend(namespaced.flat_map(CollectedType::namespaces));
        }
        for namespace in self.namespaces.iter().filter(|ns| self.resolved.contains(&ns.name)) {
            let is_chosen = !self.selection.all_namespaces
                || selectors.is_empty()
                || selectors.iter().any(|selector| selector.matches(&namespace.labels));
            if is_chosen || holding.contains(&namespace.name) {
                let found = ListedObject {
                    json: namespace.json.clone(),
                    namespace: None,
                    name: namespace.name.clone(),
                    lacks_type: namespace.lacks_type,
                    excluded: namespace.excluded,
                    deleting: namespace.deleting,
                };
                batch.add(found).await?;
            }
        }
        batch.flush().await?;
        let is_wanted =
            |name: &str| !self.selection.all_namespaces || selectors.is_empty() || holding.contains(name);
        self.tell_gone_namespaces(&held, is_wanted);
        if !held.names.is_empty() {
            self.lister.note(&held.kind, OtherRevisionReason::Before);
        }
        taken.push(held);
        Ok(())
    }

    fn tell_gone(&self, kind: &ResourceType, gone: &[String]) {
        if !gone.is_empty() {
            let message = format!(
                "{} that others refer to do not exist, or are being deleted, and are missing: {}",
                gone.len(),
                few(gone)
            );
            self.log.warning(&ResultsHeading::Cluster, &kind.qualified(), &message);
        }
    }

    fn tell_lost(&self, taken: &[CollectedType]) {
        for one in taken {
            let references = &one.references;
            if references.lost > 0 {
                let message = format!(
                    "these refer to {} objects more than can be followed, which may be missing: use several Backups",
                    references.lost
                );
                self.log.error(&ResultsHeading::Cluster, &one.kind.qualified(), &message);
            }
            if references.impossible > 0 {
                let message = format!("{} of these refer to what no object is called", references.impossible);
                self.log.warning(&ResultsHeading::Cluster, &one.kind.qualified(), &message);
            }
        }
    }
}

#[cfg(test)]
mod tests;
