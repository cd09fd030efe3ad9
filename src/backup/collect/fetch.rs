//! Reads objects that are wanted by their keys, or for a reason that their list shows: one by one
//! where they are few, from the list of their type otherwise.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use berth_core::selection::ResourceType;
use futures::StreamExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::Collector;
use super::pending::Pending;
use super::taken::CollectedType;
use crate::backup::list::{
    FEW_NAMESPACES, ListError, ListProgress, ListedObject, Lister, ObjectSink, REQUESTS_AT_ONCE,
};
use crate::backup::log::ResultsHeading;
use crate::backup::related::{Origin, Related, is_name, key};
use crate::text::chain;

/// Up to this many objects are got one by one; for more the whole type is listed.
pub(super) const FEW_NAMES: usize = 64;
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
    /// Removes what was taken of a type so far from `taken`; the caller puts it back.
    pub(super) fn take_out(&self, kind: &Arc<ResourceType>, taken: &mut Vec<CollectedType>) -> CollectedType {
        match taken.iter().position(|one| one.kind == *kind) {
            Some(at) => taken.swap_remove(at),
            None => self.none_of(kind),
        }
    }

    /// Takes objects by their keys, except those taken before. Returns the keys that no object has.
    pub(super) async fn take_by_name(
        &self,
        kind: &Arc<ResourceType>,
        mut names: BTreeMap<String, Origin>,
        taken: &mut Vec<CollectedType>,
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
        held: &mut CollectedType,
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
                    self.log.error(&ResultsHeading::Cluster, &kind.qualified(), &message);
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
        held: &mut CollectedType,
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
    pub(super) async fn take_wanted(
        &self,
        kind: &Arc<ResourceType>,
        namespaces: &HashSet<String>,
        selector: &str,
        held: &mut CollectedType,
        wants: impl FnMut(&ListedObject) -> Option<Origin> + Send,
    ) -> Result<(), ListError> {
        let mut wanting = Wanting { pending: Pending::new(self, held, Origin::Needed), wants };
        let places: Vec<Option<&str>> = match namespaces.len() {
            1..=FEW_NAMESPACES => namespaces.iter().map(|name| Some(name.as_str())).collect(),
            _ => vec![None],
        };
        let mut read = Ok(());
        for namespace in places {
            let mut progress = ListProgress::default();
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
    pub(super) fn tell(&self, kind: &ResourceType, read: Result<(), ListError>) -> Result<(), ListError> {
        match read {
            Err(error) if error.is_about_type() => {
                let message = format!(
                    "what others refer to is missing, because it cannot be read: {}; {}",
                    chain(&error),
                    error.way_out(kind)
                );
                self.log.error(&ResultsHeading::Cluster, &kind.qualified(), &message);
                Ok(())
            }
            read => read,
        }
    }
}
