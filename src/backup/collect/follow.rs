//! What the taken objects need: a claim needs its volume and the claims of its group, a pod its
//! claims and its priority class, a service account its cluster roles, a snapshot its class and its
//! content, these their Secrets, a custom object its definition, every object its namespace. These
//! are taken unless the backup excludes them; if the object that needs them requires it, whatever
//! the backup excludes. Each object is taken once.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use berth_core::revision::Apart;
use berth_core::selection::{Fate, ResourceType};
use futures::StreamExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::pending::Pending;
use super::taken::Taken;
use super::{Collector, FEW_NAMESPACES};
use crate::backup::ledger::{Earlier, tells_of_others};
use crate::backup::list::{ListError, ListedObject, Lister, ObjectSink, Progress, REQUESTS_AT_ONCE};
use crate::backup::log::About;
use crate::backup::related::{Binding, Claim, Origin, Pod, References, Related, is_name, key};
use crate::text::{chain, few};

/// Up to this many objects are got one by one; for more the whole type is listed.
const FEW_NAMES: usize = 64;
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
/// Bytes that need no escape in a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// Takes the objects of a list for which `wants` gives a reason.
struct Wanting<'c, 'a, F> {
    pending: Pending<'c, 'a>,
    wants: F,
}

impl<F: FnMut(&ListedObject) -> Option<Origin> + Send> ObjectSink for Wanting<'_, '_, F> {
    async fn take(&mut self, found: ListedObject) -> Result<(), ListError> {
        let Some(origin) = (self.wants)(&found) else { return Ok(()) };
        self.pending.origin = origin;
        self.pending.add(found).await
    }

    fn unreadable(&mut self, error: serde_json::Error) -> Result<(), ListError> {
        self.pending.unreadable(error)
    }
}

impl Collector<'_> {
    /// What is taken of a type at its beginning: what an earlier run has stored. Objects that name
    /// others are read once more.
    pub(super) fn none_of(&self, kind: &Arc<ResourceType>) -> Taken {
        let named = Related::of(kind).map_or(&[] as &[Related], Related::names).iter().copied();
        let followed = named.filter(|related| self.open(*related).is_some()).collect();
        let mut taken = Taken::of(kind, References::of(kind, followed, &self.wanted.group_key));
        let Earlier { extent, names } = self.ledger.earlier(kind);
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
    pub(super) async fn follow(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
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
            Fate::Listed => !self.wanted.selectors.is_empty() || self.filters.of(&kind).is_some(),
            Fate::Needed => true,
            Fate::Unnamed | Fate::Excluded => false,
        };
        is_open.then_some(kind)
    }

    /// Takes claims and pods in turn. With a selector, a pod that matches needs its claims whatever
    /// their labels are, and a claim needs those of its group and the running pods that use it.
    async fn take_pods_and_claims(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
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
        self.log.error(&About::Cluster, "persistentvolumeclaims", message);
        Ok(())
    }

    async fn take_groups(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
        let Some(kind) = self.open(Related::Claim) else { return Ok(()) };
        let mut held = self.take_out(&kind, taken);
        let groups = held.references.take_groups();
        if !groups.is_empty() {
            let label = self.wanted.group_key.as_str();
            let namespaces = groups.iter().filter_map(|group| group.split_once('/'));
            let namespaces = namespaces.map(|(namespace, _)| namespace.to_owned()).collect();
            let wants = |found: &ListedObject| {
                // An unreadable claim is reported when it is listed.
                let claim = Claim::parse(&found.json).ok()?;
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
        taken: &mut Vec<Taken>,
    ) -> Result<(), ListError> {
        let mut pods = self.take_out(kind, taken);
        if let Some(claims) = taken.iter().find(|one| Related::Claim.is(&one.kind)) {
            let uses = |found: &ListedObject| {
                let claim = |name: &String| claims.holds(&key(found.namespace.as_deref(), name));
                // An unreadable pod is reported when it is listed.
                let pod = Pod::parse(&found.json).ok()?;
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
    async fn take_made_snapshots(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
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
            self.log.error(&About::Cluster, &kind.qualified(), &message);
        }
        Ok(())
    }

    /// Takes the objects of a type that the taken objects name.
    async fn take_named(&self, related: Related, taken: &mut Vec<Taken>) -> Result<(), ListError> {
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
    async fn take_cluster_roles(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
        let (bindings, roles) = (self.open(Related::Binding), self.open(Related::ClusterRole));
        let required: BTreeMap<String, Origin> =
            taken.iter_mut().flat_map(|one| one.references.take(Related::Account)).collect();
        let is_open = bindings.is_some() || roles.is_some() || !required.is_empty();
        let Some(kind) = self.served(Related::Binding).filter(|_| is_open) else { return Ok(()) };
        let mut held = self.take_out(&kind, taken);
        let mut names: BTreeMap<String, Origin> = BTreeMap::new();
        let accounts = taken.iter().find(|one| Related::Account.is(&one.kind));
        if let Some(accounts) = accounts.filter(|one| !one.is_empty()) {
            let wants = |found: &ListedObject| match Binding::parse(&found.json) {
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
                    self.log.error(&About::Cluster, &kind.qualified(), &message);
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
    async fn take_definitions(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
        let Some(kind) = self.served(Related::Definition) else { return Ok(()) };
        let are_all_listed =
            self.selection.fate(&kind) == Fate::Listed && self.open(Related::Definition).is_none();
        if are_all_listed || self.selection.fate(&kind) == Fate::Excluded {
            return Ok(());
        }
        let is_custom = |one: &&Taken| {
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
    async fn take_namespaces(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
        let Some(kind) = self.types.iter().find(|kind| kind.is_namespaces()) else { return Ok(()) };
        if self.selection.fate(kind) != Fate::Listed {
            return Ok(());
        }
        let mut held = self.none_of(&Arc::new(kind.clone()));
        let mut batch = Pending::new(self, &mut held, Origin::Needed);
        let selectors = &self.wanted.selectors;
        let mut holding = HashSet::new();
        if self.selection.all_namespaces && !selectors.is_empty() {
            let namespaced = taken.iter().filter(|one| one.kind.namespaced);
            holding.extend(namespaced.flat_map(Taken::namespaces));
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
            self.lister.note(&held.kind, Apart::Before);
        }
        taken.push(held);
        Ok(())
    }

    /// Removes what was taken of a type so far from `taken`; the caller puts it back.
    fn take_out(&self, kind: &Arc<ResourceType>, taken: &mut Vec<Taken>) -> Taken {
        match taken.iter().position(|one| one.kind == *kind) {
            Some(at) => taken.swap_remove(at),
            None => self.none_of(kind),
        }
    }

    /// Takes objects by their keys, except those taken before. Returns the keys that no object has.
    async fn take_by_name(
        &self,
        kind: &Arc<ResourceType>,
        mut names: BTreeMap<String, Origin>,
        taken: &mut Vec<Taken>,
    ) -> Result<Vec<String>, ListError> {
        let mut held = self.take_out(kind, taken);
        names.retain(|name, _| !held.names.contains(name));
        // These are newer than the lists, so no list has them.
        let is_made = Related::Snapshot.is(kind) || Related::SnapshotContent.is(kind);
        let made = if is_made && !names.is_empty() { self.volumes.made() } else { BTreeSet::new() };
        let (made, names): (BTreeMap<_, _>, BTreeMap<_, _>) =
            names.into_iter().partition(|(name, _)| made.contains(name));
        let mut gone =
            if made.is_empty() { Vec::new() } else { self.take_one_by_one(kind, made, &mut held).await? };
        // Few Secrets are named, and a namespace may have many.
        let are_many = names.len() > FEW_NAMES || (kind.namespaced && !Related::Secret.is(kind));
        gone.extend(if names.is_empty() {
            Vec::new()
        } else if are_many {
            self.take_from_list(kind, names, &mut held).await?
        } else {
            self.take_one_by_one(kind, names, &mut held).await?
        });
        // An earlier run has stored these before they were deleted.
        gone.retain(|name| !held.stored.contains(name));
        taken.push(held);
        Ok(gone)
    }

    async fn take_one_by_one(
        &self,
        kind: &Arc<ResourceType>,
        names: BTreeMap<String, Origin>,
        held: &mut Taken,
    ) -> Result<Vec<String>, ListError> {
        let mut gone = Vec::new();
        let mut pending = Pending::new(self, held, Origin::Needed);
        let get = |(name, origin): (String, Origin)| async move {
            let answer = self.get(kind, &name).await;
            (name, origin, answer)
        };
        let mut answers = futures::stream::iter(names).map(get).buffer_unordered(REQUESTS_AT_ONCE);
        while let Some((name, origin, answer)) = answers.next().await {
            match answer {
                Ok(Some(found)) if !found.deleting => {
                    pending.origin = origin;
                    pending.add(found).await?;
                }
                // An object that is being deleted is not stored, and only this warns of it.
                Ok(_) => gone.push(name),
                Err(error) if error.is_about_type() => {
                    let message = format!(
                        "failed to get {name}, it is missing: {}; {}",
                        chain(&error),
                        error.way_out(kind)
                    );
                    self.log.error(&About::Cluster, &kind.qualified(), &message);
                }
                Err(error) => return Err(error),
            }
        }
        pending.flush().await?;
        gone.sort_unstable();
        Ok(gone)
    }

    /// Gets one object by its key; `None` if there is none, or no object can have that key.
    pub(super) async fn get(
        &self,
        kind: &ResourceType,
        wanted: &str,
    ) -> Result<Option<ListedObject>, ListError> {
        self.get_by(&self.lister, kind, wanted).await
    }

    pub(super) async fn get_by(
        &self,
        lister: &Lister,
        kind: &ResourceType,
        wanted: &str,
    ) -> Result<Option<ListedObject>, ListError> {
        let (namespace, name) = match wanted.split_once('/') {
            Some((namespace, name)) if kind.namespaced => (Some(namespace), name),
            None if !kind.namespaced => (None, wanted),
            _ => return Ok(None),
        };
        if !is_name(name) || !namespace.is_none_or(is_name) {
            return Ok(None);
        }
        let in_path = |part: &str| utf8_percent_encode(part, PLAIN).to_string();
        let found = lister.get(kind, namespace.map(in_path).as_deref(), &in_path(name)).await?;
        Ok(found.filter(|found| key(found.namespace.as_deref(), &found.name) == wanted))
    }

    async fn take_from_list(
        &self,
        kind: &Arc<ResourceType>,
        mut names: BTreeMap<String, Origin>,
        held: &mut Taken,
    ) -> Result<Vec<String>, ListError> {
        let in_namespaces = names.keys().filter_map(|name| name.split_once('/')).map(|(ns, _)| ns.to_owned());
        let namespaces: HashSet<String> =
            if kind.namespaced { in_namespaces.collect() } else { HashSet::new() };
        let wants = |found: &ListedObject| names.remove(&key(found.namespace.as_deref(), &found.name));
        let read = self.take_wanted(kind, &namespaces, "", held, wants).await;
        let is_whole = read.is_ok();
        self.tell(kind, read)?;
        // If the list failed it is not known which keys have no object.
        Ok(if is_whole { names.into_keys().collect() } else { Vec::new() })
    }

    /// Takes the objects of a type for which `wants` gives a reason, from a few namespaces or from
    /// the whole cluster. `selector`: a label selector that all of them match.
    async fn take_wanted(
        &self,
        kind: &Arc<ResourceType>,
        namespaces: &HashSet<String>,
        selector: &str,
        held: &mut Taken,
        wants: impl FnMut(&ListedObject) -> Option<Origin> + Send,
    ) -> Result<(), ListError> {
        let mut wanting = Wanting { pending: Pending::new(self, held, Origin::Needed), wants };
        let places: Vec<Option<&str>> = match namespaces.len() {
            1..=FEW_NAMESPACES => namespaces.iter().map(|name| Some(name.as_str())).collect(),
            _ => vec![None],
        };
        let mut read = Ok(());
        for namespace in places {
            let mut progress = Progress::default();
            while read.is_ok() && !progress.is_done() {
                read = self.lister.page(kind, namespace, selector, &mut progress, &mut wanting).await;
            }
        }
        // Objects that came before a failure are taken.
        wanting.pending.flush().await?;
        self.tell_missing(held);
        read
    }

    /// Logs an error of this type as an error of the backup; returns one of the whole API server.
    fn tell(&self, kind: &ResourceType, read: Result<(), ListError>) -> Result<(), ListError> {
        match read {
            Err(error) if error.is_about_type() => {
                let message = format!(
                    "what others refer to is missing, because it cannot be read: {}; {}",
                    chain(&error),
                    error.way_out(kind)
                );
                self.log.error(&About::Cluster, &kind.qualified(), &message);
                Ok(())
            }
            read => read,
        }
    }

    fn tell_gone(&self, kind: &ResourceType, gone: &[String]) {
        if !gone.is_empty() {
            let message = format!(
                "{} that others refer to do not exist, or are being deleted, and are missing: {}",
                gone.len(),
                few(gone)
            );
            self.log.warning(&About::Cluster, &kind.qualified(), &message);
        }
    }

    fn tell_lost(&self, taken: &[Taken]) {
        for one in taken {
            let references = &one.references;
            if references.lost > 0 {
                let message = format!(
                    "these refer to {} objects more than can be followed, which may be missing: use several Backups",
                    references.lost
                );
                self.log.error(&About::Cluster, &one.kind.qualified(), &message);
            }
            if references.impossible > 0 {
                let message = format!("{} of these refer to what no object is called", references.impossible);
                self.log.warning(&About::Cluster, &one.kind.qualified(), &message);
            }
        }
    }
}

#[cfg(test)]
mod tests;
