//! What was taken needs others: a claim its volume, a pod its claims and its priority class, a service account its cluster
//! roles, a custom object its definition, everything its namespace. They come along unless the backup excludes them, and
//! each is taken once, be it listed, needed, or both.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use berth_core::selection::{Fate, ResourceType};
use futures::StreamExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Collector, FEW_NAMESPACES, Pending, Taken};
use crate::backup::ledger::{Earlier, tells_of_others};
use crate::backup::list::{Found, ListError, Progress, REQUESTS_AT_ONCE, Taker};
use crate::backup::log::About;
use crate::backup::related::{Binding, Pod, References, Related, is_name, key};
use crate::telemetry::{chain, few};

/// Up to so many objects are got one by one: for more the whole type is listed.
const FEW_NAMES: usize = 64;
/// How often pods may lead to claims, and these to other pods. Few pods share claims at all.
const ROUNDS: usize = 16;
/// Groups with a dot in their names that the API server serves itself: their types have no definition.
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
/// What may stand in a path as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// Takes those of a list that somebody wants.
struct Wanting<'c, 'a, F> {
    pending: Pending<'c, 'a>,
    wants: F,
}

impl<F: FnMut(&Found) -> bool + Send> Taker for Wanting<'_, '_, F> {
    async fn take(&mut self, found: Found) -> Result<(), ListError> {
        if (self.wants)(&found) { self.pending.add(found).await } else { Ok(()) }
    }

    fn unreadable(&mut self, error: serde_json::Error) -> Result<(), ListError> {
        self.pending.unreadable(error)
    }
}

impl Collector<'_> {
    /// Nothing of a type yet, but what an earlier run has stored: what tells of others is looked at once more.
    pub(super) fn none_of(&self, kind: &Arc<ResourceType>) -> Taken {
        let named = Related::named_by(kind).iter().copied();
        let followed = named.filter(|related| self.open(*related).is_some()).collect();
        let mut taken = Taken::of(kind, References::following(followed));
        let Earlier { extent, names } = self.ledger.earlier(kind);
        if tells_of_others(kind) {
            taken.stored = names;
            return taken;
        }
        let in_namespaces = names.iter().filter_map(|name| name.split_once('/')).map(|(ns, _)| ns.to_owned());
        if kind.namespaced {
            taken.namespaces = in_namespaces.collect();
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
        self.take_definitions(taken).await?;
        self.take_namespaces(taken).await?;
        self.tell_lost(taken);
        Ok(())
    }

    fn served(&self, related: Related) -> Option<Arc<ResourceType>> {
        self.types.iter().find(|kind| related.is(kind)).map(|kind| Arc::new(kind.clone()))
    }

    /// The type, if it has objects that the backup may take and that no list of it brings.
    fn open(&self, related: Related) -> Option<Arc<ResourceType>> {
        let kind = self.served(related)?;
        let is_open = match self.selection.fate(&kind) {
            Fate::Listed => !self.wanted.selectors.is_empty(),
            Fate::Needed => true,
            Fate::Unnamed | Fate::Excluded => false,
        };
        is_open.then_some(kind)
    }

    /// With a selector: a pod that matches needs its claims whatever their labels are, and a claim the running pods that
    /// write to it.
    async fn take_pods_and_claims(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
        let mut claims = 0;
        for _ in 0..ROUNDS {
            self.take_named(Related::Claim, taken).await?;
            let now = taken.iter().find(|one| Related::Claim.is(&one.kind)).map_or(0, |one| one.names.len());
            let Some(kind) = self.open(Related::Pod).filter(|_| now > claims) else { return Ok(()) };
            claims = now;
            self.take_users_of_claims(&kind, taken).await?;
        }
        let message = "pods and claims lead to more and more of each other: what comes later is missing";
        self.log.error(&About::Cluster, "persistentvolumeclaims", message);
        Ok(())
    }

    async fn take_users_of_claims(
        &self,
        kind: &Arc<ResourceType>,
        taken: &mut Vec<Taken>,
    ) -> Result<(), ListError> {
        let mut pods = self.take_out(kind, taken);
        if let Some(claims) = taken.iter().find(|one| Related::Claim.is(&one.kind)) {
            let uses = |found: &Found| {
                let claim = |name: &String| claims.names.contains(&key(found.namespace.as_deref(), name));
                // What is no pod is told when it is listed.
                Pod::parse(&found.json).is_ok_and(|pod| pod.is_running && pod.claims.iter().any(claim))
            };
            let read = self.take_wanted(kind, &claims.namespaces, &mut pods, uses).await;
            self.tell(kind, read)?;
        }
        taken.push(pods);
        Ok(())
    }

    /// What the objects that were taken name of a type.
    async fn take_named(&self, related: Related, taken: &mut Vec<Taken>) -> Result<(), ListError> {
        let Some(kind) = self.open(related) else { return Ok(()) };
        let mut names = BTreeSet::new();
        for one in taken.iter_mut() {
            names.append(&mut one.references.take(related));
        }
        let gone = self.take_by_name(&kind, names, taken).await?;
        self.tell_gone(&kind, &gone);
        Ok(())
    }

    /// Bindings name accounts, so all of them are looked at.
    async fn take_cluster_roles(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
        let (bindings, roles) = (self.open(Related::Binding), self.open(Related::ClusterRole));
        let Some(kind) = self.served(Related::Binding).filter(|_| bindings.is_some() || roles.is_some())
        else {
            return Ok(());
        };
        let mut held = self.take_out(&kind, taken);
        let mut names = BTreeSet::new();
        let accounts = taken.iter().find(|one| Related::Account.is(&one.kind));
        if let Some(accounts) = accounts.filter(|one| !one.names.is_empty()) {
            let wants = |found: &Found| match Binding::parse(&found.json) {
                Ok(binding) if binding.accounts.iter().any(|account| accounts.names.contains(account)) => {
                    names.insert(binding.role);
                    bindings.is_some()
                }
                Ok(_) => false,
                Err(error) => {
                    let message = format!("{} cannot be read: {}", found.name, chain(&error));
                    self.log.error(&About::Cluster, &kind.qualified(), &message);
                    false
                }
            };
            let read = self.take_wanted(&kind, &HashSet::new(), &mut held, wants).await;
            self.tell(&kind, read)?;
        }
        taken.push(held);
        if let Some(kind) = roles {
            let gone = self.take_by_name(&kind, names, taken).await?;
            self.tell_gone(&kind, &gone);
        }
        Ok(())
    }

    /// The definition of each custom type of which something was taken: a restore needs it first.
    async fn take_definitions(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
        let Some(kind) = self.served(Related::Definition) else { return Ok(()) };
        let are_all_listed = self.selection.fate(&kind) == Fate::Listed && self.wanted.selectors.is_empty();
        if are_all_listed || self.selection.fate(&kind) == Fate::Excluded {
            return Ok(());
        }
        let is_custom = |one: &&Taken| {
            let group = one.kind.group.as_str();
            // The group of a definition has a dot.
            !one.names.is_empty() && group.contains('.') && !BUILT_IN.contains(&group)
        };
        let names = taken.iter().filter(is_custom).map(|one| one.kind.qualified()).collect();
        // Those that are not there are types of the API server itself, or of one behind it.
        self.take_by_name(&kind, names, taken).await?;
        Ok(())
    }

    /// Namespace objects: those of the backup, and, where it takes all namespaces and has selectors, only those that match
    /// one or hold something that was taken.
    async fn take_namespaces(&self, taken: &mut Vec<Taken>) -> Result<(), ListError> {
        let Some(kind) = self.types.iter().find(|kind| kind.is_namespaces()) else { return Ok(()) };
        if self.selection.fate(kind) != Fate::Listed {
            return Ok(());
        }
        let mut held = self.none_of(&Arc::new(kind.clone()));
        let mut batch = Pending::new(self, &mut held);
        let selectors = &self.wanted.selectors;
        for namespace in self.namespaces.iter().filter(|ns| self.resolved.contains(&ns.name)) {
            let is_chosen = !self.selection.all_namespaces
                || selectors.is_empty()
                || selectors.iter().any(|selector| selector.matches(&namespace.labels));
            if is_chosen || taken.iter().any(|one| one.namespaces.contains(&namespace.name)) {
                let found = Found {
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
        taken.push(held);
        Ok(())
    }

    /// What was taken of a type so far; the caller puts it back.
    fn take_out(&self, kind: &Arc<ResourceType>, taken: &mut Vec<Taken>) -> Taken {
        match taken.iter().position(|one| one.kind == *kind) {
            Some(at) => taken.swap_remove(at),
            None => self.none_of(kind),
        }
    }

    /// Objects by their keys, but those that were taken before. Returns the keys that no object has.
    async fn take_by_name(
        &self,
        kind: &Arc<ResourceType>,
        mut names: BTreeSet<String>,
        taken: &mut Vec<Taken>,
    ) -> Result<Vec<String>, ListError> {
        let mut held = self.take_out(kind, taken);
        names.retain(|name| !held.names.contains(name));
        let gone = if names.is_empty() {
            Vec::new()
        } else if kind.namespaced || names.len() > FEW_NAMES {
            self.take_from_list(kind, names, &mut held).await?
        } else {
            self.take_one_by_one(kind, names, &mut held).await?
        };
        taken.push(held);
        Ok(gone)
    }

    async fn take_one_by_one(
        &self,
        kind: &Arc<ResourceType>,
        names: BTreeSet<String>,
        held: &mut Taken,
    ) -> Result<Vec<String>, ListError> {
        let mut gone = Vec::new();
        let mut pending = Pending::new(self, held);
        let get = |name: String| async move {
            let in_path = utf8_percent_encode(&name, PLAIN).to_string();
            let answer = if is_name(&name) { self.lister.get(kind, &in_path).await } else { Ok(None) };
            (name, answer)
        };
        let mut answers = futures::stream::iter(names).map(get).buffer_unordered(REQUESTS_AT_ONCE);
        while let Some((name, answer)) = answers.next().await {
            match answer {
                Ok(Some(found)) if found.name == name => pending.add(found).await?,
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

    async fn take_from_list(
        &self,
        kind: &Arc<ResourceType>,
        mut names: BTreeSet<String>,
        held: &mut Taken,
    ) -> Result<Vec<String>, ListError> {
        let in_namespaces = names.iter().filter_map(|name| name.split_once('/')).map(|(ns, _)| ns.to_owned());
        let namespaces: HashSet<String> =
            if kind.namespaced { in_namespaces.collect() } else { HashSet::new() };
        let wants = |found: &Found| names.remove(&key(found.namespace.as_deref(), &found.name));
        let read = self.take_wanted(kind, &namespaces, held, wants).await;
        let is_whole = read.is_ok();
        self.tell(kind, read)?;
        // Otherwise nobody knows.
        Ok(if is_whole { names.into_iter().collect() } else { Vec::new() })
    }

    /// Those of a type that `wants` says; from a few namespaces, or else from the whole cluster.
    async fn take_wanted(
        &self,
        kind: &Arc<ResourceType>,
        namespaces: &HashSet<String>,
        held: &mut Taken,
        wants: impl FnMut(&Found) -> bool + Send,
    ) -> Result<(), ListError> {
        let mut wanting = Wanting { pending: Pending::new(self, held), wants };
        let places: Vec<Option<&str>> = match namespaces.len() {
            1..=FEW_NAMESPACES => namespaces.iter().map(|name| Some(name.as_str())).collect(),
            _ => vec![None],
        };
        let mut read = Ok(());
        for namespace in places {
            let mut progress = Progress::default();
            while read.is_ok() && !progress.is_done() {
                read = self.lister.page(kind, namespace, "", &mut progress, &mut wanting).await;
            }
        }
        // What came before something failed is taken.
        wanting.pending.flush().await?;
        self.tell_missing(held);
        read
    }

    /// What others need and nobody can read is an error of the backup; what concerns all ends it.
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
            let message =
                format!("{} that others refer to do not exist, and are missing: {}", gone.len(), few(gone));
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
