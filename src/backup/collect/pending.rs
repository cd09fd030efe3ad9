//! Objects on their way into the archive: which are admitted, and how they are batched.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use berth_core::limits;
use berth_core::policy::filters::TypeFilters;
use berth_core::volume::Moment;
use tokio::sync::oneshot;

use super::Collector;
use super::taken::CollectedType;
use crate::backup::actions;
use crate::backup::archive::{ArchiveItem, Batch};
use crate::backup::ledger::PageId;
use crate::backup::list::{ListError, ListedObject, ObjectSink};
use crate::backup::log::ResultsHeading;
use crate::backup::related::{Origin, PodReferences, Related, key, labels};
use crate::backup::volumes::files::FilePod;
use crate::text::chain;

/// Most bytes of objects in one batch to a packer.
const BATCH: usize = 256 * 1024;
const BATCH_ITEMS: usize = 256;
/// Velero's restore writes each object to a file `NAME.json` and fails as a whole if it cannot:
/// file systems allow 255 bytes.
pub(super) const LONGEST_NAME: usize = 250;

/// Whether a file may have the name of this object. The API server admits no other, except for long
/// names; an aggregated server may admit whatever it likes.
fn may_name_file(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.contains('/')
        && !name.contains(char::is_control)
}

impl From<ListedObject> for ArchiveItem {
    fn from(found: ListedObject) -> Self {
        let ListedObject { json, namespace, name, lacks_type, .. } = found;
        Self { namespace, name, json, lacks_type }
    }
}

/// Collects objects for the next batch. Every object enters the archive through here.
pub(super) struct Pending<'c, 'a> {
    collector: &'c Collector<'a>,
    pub(super) taken: &'c mut CollectedType,
    pub(super) page: PageId,
    /// Why the objects that come now are taken.
    pub(super) origin: Origin,
    /// The resource policy's filter for objects of this type.
    pub(super) filter: Option<TypeFilters<'a>>,
    /// Each batch must be in the archive before the next one.
    pub(super) in_order: bool,
    items: Vec<ArchiveItem>,
    size: usize,
}

impl<'c, 'a> Pending<'c, 'a> {
    /// For objects that no list of the type brings.
    pub(super) fn new(collector: &'c Collector<'a>, taken: &'c mut CollectedType, origin: Origin) -> Self {
        let filter = collector.filters.of(&taken.kind);
        let page = collector.ledger.beside(&taken.kind);
        Self { collector, taken, page, origin, filter, in_order: false, items: Vec::new(), size: 0 }
    }

    /// Whether the backup takes this object (contract 4.3, "Items").
    fn admits(&mut self, found: &ListedObject) -> bool {
        if found.deleting || self.origin == Origin::Required {
            return !found.deleting;
        }
        let namespace = found.namespace.as_deref();
        if found.excluded || namespace.is_some_and(|name| !self.collector.resolved.contains(name)) {
            return false;
        }
        let Some(filter) = &self.filter else { return true };
        if self.origin == Origin::Needed {
            return filter.takes_needed(namespace, &found.name);
        }
        match labels(&found.json) {
            Ok(labels) => {
                filter.takes_listed(namespace, &found.name, &labels, &self.collector.wanted.selectors)
            }
            Err(error) => {
                self.tell_odd(found, "its labels cannot be read, and it is missing", &error);
                false
            }
        }
    }

    fn tell_odd(&mut self, found: &ListedObject, what: &str, error: &serde_json::Error) {
        self.taken.is_odd = true;
        if !self.taken.is_news(found, what) {
            return;
        }
        let about = found.namespace.as_deref().map_or(ResultsHeading::Cluster, ResultsHeading::Namespace);
        let message = format!("{}: {what}: {}", found.name, chain(error));
        self.collector.log.error(&about, &self.taken.kind.qualified(), &message);
    }

    /// Runs the item action of the object's type. `None`: the object is left out. Else why the
    /// objects that it needs are taken.
    fn act(&mut self, found: &mut ListedObject) -> Option<Origin> {
        let Some(of) = self.taken.action else { return Some(Origin::Needed) };
        let acted = match actions::act(of, &found.json, self.collector.backup) {
            Ok(acted) => acted,
            Err(error) => {
                self.tell_odd(found, "it is stored as it is, because no action can read it", &error);
                return Some(Origin::Needed);
            }
        };
        if acted.skips {
            self.taken.skipped += u64::from(self.taken.is_news(found, "is left out"));
            return None;
        }
        if let Some(json) = acted.json {
            found.json = json;
        }
        Some(if acted.requires { Origin::Required } else { Origin::Needed })
    }

    /// The object to store, and why the objects that it needs are taken. `None`: the backup does
    /// not take it, or it is stored or on its way.
    pub(super) fn let_in(&mut self, found: ListedObject) -> Option<(ListedObject, Origin)> {
        let (found, needs, is_stored) = self.look_at(found)?;
        (!is_stored).then_some((found, needs))
    }

    /// As [`Pending::let_in`], but also returns what an earlier run has stored, once: its data may
    /// not be stored yet.
    fn look_at(&mut self, mut found: ListedObject) -> Option<(ListedObject, Origin, bool)> {
        if !self.admits(&found) {
            return None;
        }
        if !may_name_file(&found.name) {
            if self.taken.is_news(&found, "cannot be stored") {
                self.taken.unstorable.get_or_insert((0, found.name)).0 += 1;
            }
            return None;
        }
        let needs = self.act(&mut found)?;
        // Another selector, an interrupted page, or another object that needs it may have brought
        // it already.
        let key = key(found.namespace.as_deref(), &found.name);
        let is_stored = self.taken.stored.contains(&key);
        let is_left_out = self.collector.holder.has_left_out(&self.taken.kind, &key);
        if !self.taken.names.insert(key) {
            return None;
        }
        if let Err(error) = self.taken.references.read(&found, needs) {
            self.tell_odd(&found, "what it refers to cannot be read", &error);
        }
        self.collector.volumes.note(&self.taken.kind, &found);
        // The decision of its hooks in an earlier run stands, too.
        if is_left_out {
            return None;
        }
        if !is_stored {
            self.collector.counters.total.fetch_add(1, Ordering::Relaxed);
        }
        Some((found, needs, is_stored))
    }

    pub(super) async fn add(&mut self, found: ListedObject) -> Result<(), ListError> {
        let Some((found, needs, is_stored)) = self.look_at(found) else { return Ok(()) };
        let collector = self.collector;
        let is_pod = Related::Pod.is(&self.taken.kind);
        let files = if is_pod { Box::pin(collector.volumes.plan_pod(&found)).await? } else { None };
        if is_stored {
            let is_past = is_pod && collector.holder.has_hooks_before(&found);
            if is_past && let Ok(pod) = PodReferences::parse(&found.json) {
                let claims = pod.claims.get(..limits::BLOCK_CLAIMS).unwrap_or(&pod.claims);
                collector.volumes.note_past(found.namespace.as_deref(), &found.name, claims);
            }
            let moment = if is_past { Moment::Past } else { Moment::Any };
            return match files {
                Some(files) => Box::pin(collector.volumes.take_later(FilePod { moment, ..files })).await,
                None => Ok(()),
            };
        }
        if let Some(hooked) = collector.holder.hooked(&self.taken.kind, &found) {
            if self.in_order {
                // Objects before the pod must be in the archive first.
                self.flush().await?;
            }
            let mut used = collector.take_along(&found, needs, &mut self.taken.along, self.in_order).await?;
            used.files = files.map(|files| FilePod { moment: Moment::Still, ..files });
            return collector
                .holder
                .hold(&self.taken.kind, self.page, found, hooked, used, self.in_order)
                .await;
        }
        if let Some(files) = files {
            Box::pin(collector.volumes.take_later(files)).await?;
        }
        if Related::Claim.is(&self.taken.kind)
            && let Some(planned) =
                Box::pin(collector.volumes.plan_claim(&self.taken.kind, self.page, &found)).await?
        {
            return Box::pin(collector.volumes.take_claim(planned)).await;
        }
        self.size += found.json.len();
        self.items.push(found.into());
        if self.size >= BATCH || self.items.len() >= BATCH_ITEMS { self.flush().await } else { Ok(()) }
    }

    pub(super) async fn flush(&mut self) -> Result<(), ListError> {
        if self.items.is_empty() {
            return Ok(());
        }
        let (packed, is_packed) = if self.in_order {
            let (packed, is_packed) = oneshot::channel();
            (Some(packed), Some(is_packed))
        } else {
            (None, None)
        };
        let (kind, page, items) = (Arc::clone(&self.taken.kind), self.page, std::mem::take(&mut self.items));
        self.collector.ledger.handed(page, items.len());
        let batch = Batch { kind, page, items, packed };
        self.size = 0;
        self.collector.batches.send(batch).await.map_err(|_| ListError::NobodyTakes)?;
        match is_packed {
            Some(is_packed) => is_packed.await.map_err(|_| ListError::NobodyTakes),
            None => Ok(()),
        }
    }
}

impl ObjectSink for Pending<'_, '_> {
    async fn take(&mut self, found: ListedObject) -> Result<(), ListError> {
        self.add(found).await
    }

    async fn ready(&mut self) -> Result<(), ListError> {
        self.taken.regain().await
    }

    fn is_ready(&self) -> bool {
        self.taken.lent.is_none()
    }

    fn unreadable(&mut self, error: serde_json::Error) -> Result<(), ListError> {
        self.taken.unreadable.get_or_insert((0, error)).0 += 1;
        Ok(())
    }
}
