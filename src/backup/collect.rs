//! All objects of a backup: which lists to ask for, and which of what they hold to take. What those need besides is
//! taken in `follow`.

mod follow;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use berth_api::parse::Wanted;
use berth_core::label::Selector;
use berth_core::selection::{Fate, ResourceType, Selection};
use berth_core::violation::tellable;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use super::archive::{Batch, Item};
use super::asked::Asked;
use super::ledger::{Ledger, Names, PageId, Position};
use super::list::{Found, ListError, Lister, Progress, REQUESTS_AT_ONCE, Taker};
use super::log::{About, BackupLog};
use super::related::{References, key};
use crate::telemetry::{chain, few};

/// Objects on their way to a worker at one time, in bytes.
const BATCH: usize = 256 * 1024;
const BATCH_ITEMS: usize = 256;
/// Velero's restore writes each object to a file `NAME.json`, and gives everything up where it cannot: file systems take 255 bytes.
const LONGEST_NAME: usize = 250;
/// Up to so many namespaces are asked one by one: a page of the whole cluster would mostly hold what others own.
pub const FEW_NAMESPACES: usize = 4;
/// A namespace of the cluster, as it was when the backup began.
#[derive(Clone)]
pub struct Namespace {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub json: Bytes,
    pub lacks_type: bool,
    pub deleting: bool,
    /// It carries the label that keeps it out of backups.
    pub excluded: bool,
}

/// Where the objects go, and how many there are.
pub struct Counters {
    /// Objects known of so far: taken, or announced by the server.
    pub total: AtomicU64,
    pub done: Arc<AtomicU64>,
    /// What pods among them ask for in vain.
    pub asked: Asked,
}

/// What a backup takes and where from; shared by its lists.
pub struct Collector<'a> {
    pub lister: Lister,
    pub wanted: &'a Wanted,
    pub selection: &'a Selection,
    pub types: &'a [ResourceType],
    /// Those that the backup may take: the few that it names, or every one of the cluster.
    pub namespaces: &'a [Namespace],
    /// Names of those that the backup takes.
    pub resolved: &'a HashSet<String>,
    pub log: &'a BackupLog,
    pub counters: &'a Counters,
    /// What is stored, of this run and of the one that it goes on from.
    pub ledger: &'a Ledger,
    pub batches: mpsc::Sender<Batch>,
}

/// What was taken: `<apiVersion>/<Kind>` to sorted `namespace/name` or `name`.
pub type ResourceList = BTreeMap<String, BTreeSet<String>>;

/// What one type brought.
struct Taken {
    kind: Arc<ResourceType>,
    names: BTreeSet<String>,
    /// What an earlier run has stored, and no list has brought yet.
    stored: BTreeSet<String>,
    /// Where the lists of that run have come to.
    position: Option<Position>,
    /// Its lists were through.
    is_through: bool,
    /// Which of the backup's selectors is being listed.
    selector: usize,
    namespaces: HashSet<String>,
    /// What these need that no list brings.
    references: References,
    /// It may not be read.
    forbidden: bool,
    /// How many objects could not be read, and why not the first of them.
    unreadable: Option<(u64, serde_json::Error)>,
    /// How many objects have names that no file can have, and the first of these.
    unstorable: Option<(u64, String)>,
}

impl Taken {
    fn of(kind: &Arc<ResourceType>, references: References) -> Self {
        let kind = Arc::clone(kind);
        Self {
            kind,
            names: BTreeSet::new(),
            stored: BTreeSet::new(),
            position: None,
            is_through: false,
            selector: 0,
            namespaces: HashSet::new(),
            references,
            forbidden: false,
            unreadable: None,
            unstorable: None,
        }
    }
}

impl Collector<'_> {
    /// Takes everything. What one type refuses is an error in the log; what concerns all ends the backup.
    ///
    /// # Errors
    /// When the API server is gone, or nobody takes the objects any more.
    pub async fn run(self) -> Result<ResourceList, ListError> {
        let chosen: Vec<Arc<ResourceType>> = self
            .types
            .iter()
            .filter(|kind| !kind.is_namespaces() && self.selection.fate(kind) == Fate::Listed)
            .map(|kind| Arc::new(kind.clone()))
            .collect();
        let mut taken: Vec<Taken> = futures::stream::iter(chosen)
            .map(|kind| self.take_type(kind))
            .buffer_unordered(REQUESTS_AT_ONCE)
            .try_collect()
            .await?;
        self.tell_forbidden(&taken);
        self.follow(&mut taken).await?;
        let mut list = resource_list(self.types, self.ledger.rest());
        for mut one in taken {
            // What is no more was stored before it went.
            one.names.append(&mut one.stored);
            if !one.names.is_empty() {
                list.entry(heading(&one.kind)).or_default().extend(one.names);
            }
        }
        Ok(list)
    }

    async fn take_type(&self, kind: Arc<ResourceType>) -> Result<Taken, ListError> {
        let mut taken = self.none_of(&kind);
        if taken.is_through {
            return Ok(taken);
        }
        let position = taken.position.take();
        let first = position.as_ref().map_or(0, |position| position.selector);
        let everything = [Selector::default()];
        let selectors =
            if self.wanted.selectors.is_empty() { &everything[..] } else { &self.wanted.selectors };
        for (index, selector) in selectors.iter().enumerate().skip(first) {
            taken.selector = index;
            let behind = position.as_ref().filter(|_| index == first);
            let mut read = self.take_selected(&kind, &selector.query(), behind, &mut taken).await;
            // Another API server may not know where the one before it had come to.
            if behind.is_some() && read.as_ref().is_err_and(|error| error.code() == Some(400)) {
                read = self.take_selected(&kind, &selector.query(), None, &mut taken).await;
            }
            match read {
                Ok(()) => {}
                Err(error) if error.is_about_type() => {
                    let message = format!(
                        "failed to list {}, objects of it are missing: {}; {}",
                        kind.qualified(),
                        chain(&error),
                        error.way_out(&kind)
                    );
                    self.log.error(&About::Cluster, &kind.qualified(), &message);
                    taken.forbidden |= error.is_forbidden();
                    // Another selector would wait as long for the same.
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        self.tell_missing(&mut taken);
        if !taken.names.is_empty() {
            self.log.info(&format!("took {} of {}", taken.names.len(), kind.qualified()));
        }
        self.ledger.whole(&kind, taken.forbidden);
        Ok(taken)
    }

    /// Once for what came since the last time.
    fn tell_missing(&self, taken: &mut Taken) {
        let name = taken.kind.qualified();
        if let Some((count, why)) = taken.unreadable.take() {
            let why: String = why.to_string().chars().take(200).collect();
            let message = format!(
                "{count} objects of {name} are missing: they cannot be read, the first one because of {why}; `kubectl get {name} -A -o json` shows them"
            );
            self.log.error(&About::Cluster, &name, &message);
        }
        if let Some((count, first)) = taken.unstorable.take() {
            let message = format!(
                "{count} objects of {name} are missing: a restore makes a file of each, and no file can have such a name, the first one {}; give them names of at most {LONGEST_NAME} bytes without control characters",
                tellable(&first)
            );
            self.log.error(&About::Cluster, &name, &message);
        }
    }

    /// Besides the error of each: what they have in common is a missing right.
    fn tell_forbidden(&self, taken: &[Taken]) {
        let forbidden = taken.iter().filter(|one| one.forbidden);
        let mut names: Vec<String> = forbidden.map(|one| one.kind.qualified()).collect();
        if names.is_empty() {
            return;
        }
        names.sort_unstable();
        let message = format!(
            "berth may not list {} of the {} types that were asked for, and they are missing: {}; where it was installed with --engine-rights=listed, `berth install` again gives it the right",
            names.len(),
            taken.len(),
            few(&names)
        );
        self.log.warning(&About::Cluster, "", &message);
    }

    async fn take_selected(
        &self,
        kind: &Arc<ResourceType>,
        selector: &str,
        behind: Option<&Position>,
        taken: &mut Taken,
    ) -> Result<(), ListError> {
        let begun = behind.map_or_else(Progress::default, |behind| Progress::behind(&behind.token));
        let namespace = behind.and_then(|behind| behind.namespace.as_ref());
        if !kind.namespaced || (behind.is_some() && namespace.is_none()) {
            return self.take_list(kind, None, selector, begun, taken).await;
        }
        if behind.is_none() && self.resolved.len() > FEW_NAMESPACES {
            // One page of the whole cluster often says it all. Where it does not, asking each namespace costs
            // a request per namespace, going on costs a request per page.
            let mut progress = Progress::default();
            self.take_page(kind, None, selector, &mut progress, taken).await?;
            let pages = progress.remaining / u64::from(self.lister.page_size) + 1;
            if progress.is_done() || self.resolved.len() as u64 >= pages {
                return self.take_list(kind, None, selector, progress, taken).await;
            }
        }
        // In an order, so that another process knows which of them are through.
        let mut namespaces: Vec<&String> =
            self.resolved.iter().filter(|name| Some(*name) >= namespace).collect();
        namespaces.sort_unstable();
        let mut begun = Some(begun).filter(|_| namespaces.first().copied() == namespace);
        for namespace in namespaces {
            let progress = begun.take().unwrap_or_default();
            self.take_list(kind, Some(namespace), selector, progress, taken).await?;
        }
        Ok(())
    }

    async fn take_list(
        &self,
        kind: &Arc<ResourceType>,
        namespace: Option<&str>,
        selector: &str,
        mut progress: Progress,
        taken: &mut Taken,
    ) -> Result<(), ListError> {
        while !progress.is_done() {
            let announced = self.announce(&progress);
            let taken_page = self.take_page(kind, namespace, selector, &mut progress, taken).await;
            self.counters.total.fetch_sub(announced, Ordering::Relaxed);
            taken_page?;
        }
        Ok(())
    }

    async fn take_page(
        &self,
        kind: &Arc<ResourceType>,
        namespace: Option<&str>,
        selector: &str,
        progress: &mut Progress,
        taken: &mut Taken,
    ) -> Result<(), ListError> {
        let mut pending = Pending::new(self, taken);
        let read = self.lister.page(kind, namespace, selector, progress, &mut pending).await;
        // What has come is counted and named already, whatever became of the rest.
        pending.flush().await?;
        let page = pending.page;
        // What is odd is counted and told at the end, by whoever is there then.
        let is_odd = read.is_err() || taken.unreadable.is_some() || taken.unstorable.is_some();
        let position = || Position {
            selector: taken.selector,
            namespace: namespace.map(str::to_owned),
            token: progress.token().to_owned(),
        };
        self.ledger.close(page, (!is_odd).then(position));
        read
    }

    /// Adds what the server says is still to come to the total; it is counted again as it comes.
    fn announce(&self, progress: &Progress) -> u64 {
        let remaining = if progress.is_done() { 0 } else { progress.remaining };
        self.counters.total.fetch_add(remaining, Ordering::Relaxed);
        remaining
    }
}

/// What is stored, as readers want it.
pub(super) fn resource_list(types: &[ResourceType], names: Names) -> ResourceList {
    let mut list = ResourceList::new();
    for (place, names) in names.into_iter().filter(|(_, names)| !names.is_empty()) {
        if let Some(kind) = types.get(place) {
            list.entry(heading(kind)).or_default().extend(names);
        }
    }
    list
}

/// How the resource list names a type.
fn heading(kind: &ResourceType) -> String {
    format!("{}/{}", kind.api_version(), kind.kind)
}

/// Objects gathered for the next batch.
struct Pending<'c, 'a> {
    collector: &'c Collector<'a>,
    taken: &'c mut Taken,
    page: PageId,
    items: Vec<Item>,
    size: usize,
}

impl<'c, 'a> Pending<'c, 'a> {
    fn new(collector: &'c Collector<'a>, taken: &'c mut Taken) -> Self {
        let page = collector.ledger.open(&taken.kind);
        Self { collector, taken, page, items: Vec::new(), size: 0 }
    }

    async fn add(&mut self, found: Found) -> Result<(), ListError> {
        if found.excluded || found.deleting {
            return Ok(());
        }
        if let Some(namespace) = &found.namespace {
            if !self.collector.resolved.contains(namespace) {
                return Ok(());
            }
            if !self.taken.namespaces.contains(namespace) {
                self.taken.namespaces.insert(namespace.clone());
            }
        }
        if found.name.len() > LONGEST_NAME || found.name.contains(char::is_control) {
            self.taken.unstorable.get_or_insert((0, found.name)).0 += 1;
            return Ok(());
        }
        // Another selector, a page that was cut off, or another object that needs it may have brought it already.
        let key = key(found.namespace.as_deref(), &found.name);
        let is_stored = self.taken.stored.remove(&key);
        if !self.taken.names.insert(key) {
            return Ok(());
        }
        if let Err(error) = self.taken.references.read(&found) {
            let about = found.namespace.as_deref().map_or(About::Cluster, About::Namespace);
            let message = format!("what {} refers to cannot be read: {}", found.name, chain(&error));
            self.collector.log.error(&about, &self.taken.kind.qualified(), &message);
        }
        self.collector.counters.asked.note(&self.taken.kind, &found);
        if is_stored {
            return Ok(());
        }
        self.collector.counters.total.fetch_add(1, Ordering::Relaxed);
        self.size += found.json.len();
        self.items.push(Item {
            namespace: found.namespace,
            name: found.name,
            json: found.json,
            lacks_type: found.lacks_type,
        });
        if self.size >= BATCH || self.items.len() >= BATCH_ITEMS { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), ListError> {
        if self.items.is_empty() {
            return Ok(());
        }
        let (kind, page, items) = (Arc::clone(&self.taken.kind), self.page, std::mem::take(&mut self.items));
        self.collector.ledger.handed(page, items.len());
        let batch = Batch { kind, page, items };
        self.size = 0;
        self.collector.batches.send(batch).await.map_err(|_| ListError::NobodyTakes)
    }
}

impl Taker for Pending<'_, '_> {
    async fn take(&mut self, found: Found) -> Result<(), ListError> {
        self.add(found).await
    }

    fn unreadable(&mut self, error: serde_json::Error) -> Result<(), ListError> {
        self.taken.unreadable.get_or_insert((0, error)).0 += 1;
        Ok(())
    }
}
