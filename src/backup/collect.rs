//! All objects of a backup: which lists to ask for, and which of what they hold to take. What those need besides is
//! taken in `follow`.

mod along;
mod follow;
mod ordered;
mod unmet;

use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use berth_api::keys;
use berth_api::parse::Wanted;
use berth_core::label::Selector;
use berth_core::policy::filters::{Filters, OfType};
use berth_core::revision::Apart;
use berth_core::selection::{Fate, ResourceType, Selection};
use berth_core::violation::tellable;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::{mpsc, oneshot};

use super::actions;
use super::archive::{Batch, Item};
use super::asked::Asked;
use super::hold::Holder;
use super::ledger::{Ledger, PageId, Position, Stored};
use super::list::{Found, ListError, Lister, Progress, REQUESTS_AT_ONCE, Taker};
use super::log::{About, BackupLog};
use super::names::{Names, ResourceList, in_order};
use super::related::{Origin, References, Related, key, labels};
use crate::text::{chain, few};
use along::{Borrowed, Loan};

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
    /// What a policy says of objects.
    pub filters: &'a Filters,
    /// Name of the Backup.
    pub backup: &'a str,
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
    pub holder: Holder<'a>,
}

/// What one type brought.
struct Taken {
    kind: Arc<ResourceType>,
    names: Names,
    /// What an earlier run has stored. Where that has to be looked at again, none of it is among `names` until it has been.
    stored: Names,
    /// Where the lists of that run have come to.
    position: Option<Position>,
    /// Its lists were through.
    is_through: bool,
    /// Which of the backup's selectors is being listed.
    selector: usize,
    /// What these need that no list brings.
    references: References,
    /// It may not be read.
    forbidden: bool,
    /// Something was told of one of its objects.
    is_odd: bool,
    /// Of which of them, and what: several pods may bring the same claim, and then its list does.
    told: HashSet<u64>,
    /// How many objects could not be read, and why not the first of them.
    unreadable: Option<(u64, serde_json::Error)>,
    /// How many objects have names that no file can have, and the first of these.
    unstorable: Option<(u64, String)>,
    /// How many objects say of themselves, to the action that looks at them, that they are left out.
    skipped: u64,
    /// The action that looks at objects of this type, if there is one.
    action: Option<Related>,
    /// All of this stands in for what pods have: it comes back this way.
    lent: Option<oneshot::Receiver<Self>>,
    /// Of pods: what goes along with those that have hooks.
    along: Vec<Borrowed>,
}

impl Taken {
    fn of(kind: &Arc<ResourceType>, references: References) -> Self {
        let action = Related::of(kind).filter(|of| actions::applies(*of));
        let kind = Arc::clone(kind);
        Self {
            kind,
            names: Names::default(),
            stored: Names::default(),
            position: None,
            is_through: false,
            selector: 0,
            references,
            forbidden: false,
            is_odd: false,
            told: HashSet::new(),
            unreadable: None,
            unstorable: None,
            skipped: 0,
            action,
            lent: None,
            along: Vec::new(),
        }
    }
}

impl Taken {
    /// Is it stored, or on its way there?
    fn holds(&self, key: &str) -> bool {
        self.names.contains(key) || self.stored.contains(key)
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.stored.is_empty()
    }

    /// Is this said of the object for the first time?
    fn is_news(&mut self, found: &Found, what: &str) -> bool {
        // A name that no file can have may be as long as an address.
        let mark = self.told.hasher().hash_one((&found.namespace, &found.name, what));
        self.told.insert(mark)
    }

    fn namespaces(&self) -> HashSet<String> {
        let mut namespaces = self.names.namespaces();
        namespaces.extend(self.stored.namespaces());
        namespaces
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
        let loans = Loan::of(&chosen);
        let mut taken: Vec<Taken> = futures::stream::iter(chosen.into_iter().zip(loans))
            .map(|(kind, loan)| self.take_type(kind, loan))
            .buffer_unordered(REQUESTS_AT_ONCE)
            .try_collect()
            .await?;
        self.tell_forbidden(&taken);
        let along = taken.iter_mut().flat_map(|one| std::mem::take(&mut one.along));
        let along: Vec<Taken> = along.map(|one| one.taken).collect();
        for mut one in along {
            self.tell_missing(&mut one);
            taken.push(one);
        }
        self.follow(&mut taken).await?;
        let mut list = resource_list(self.types, self.ledger.rest());
        for mut one in taken {
            // What is no more was stored before it went.
            let met = one.names.len();
            one.names.extend(one.stored);
            self.tell_unmet(&one.kind, one.names.len() - met);
            if !one.names.is_empty() {
                list.entry(heading(&one.kind)).or_default().extend(one.names);
            }
        }
        Ok(list)
    }

    async fn take_type(&self, kind: Arc<ResourceType>, loan: Loan) -> Result<Taken, ListError> {
        let mut taken = self.none_of(&kind);
        if taken.is_through {
            return Ok(taken);
        }
        let lender = match loan {
            Loan::None => None,
            Loan::Lends(lender) => Some(lender),
            Loan::Borrows(borrowers) => {
                taken.along = self.borrow(borrowers).await;
                None
            }
        };
        self.take_ordered(&mut taken).await?;
        if let Some(lender) = lender {
            taken = lender.lend(taken);
        }
        let filter = self.filters.of(&kind);
        let everything = [Selector::default()];
        // A filter has selectors of its own for some of the objects, so that all of them are looked at here.
        let is_open = self.wanted.selectors.is_empty() || filter.is_some();
        let selectors = if is_open { &everything[..] } else { &self.wanted.selectors };
        let mut places = in_order(self.resolved);
        places.retain(|name| filter.as_ref().is_none_or(|filter| !filter.leaves(name)));
        let position = taken.position.take().filter(|position| position.selector < selectors.len());
        if position.as_ref().is_some_and(|position| !position.token.is_empty()) {
            self.lister.note(&kind, Apart::Earlier);
        }
        let first = position.as_ref().map_or(0, |position| position.selector);
        for (index, selector) in selectors.iter().enumerate().skip(first) {
            taken.selector = index;
            let behind = position.as_ref().filter(|_| index == first);
            let query = selector.query();
            let mut read = self.take_selected(&kind, &places, &query, behind, &mut taken).await;
            // Another API server may not know where the one before it had come to.
            if behind.is_some() && read.as_ref().is_err_and(|error| error.code() == Some(400)) {
                read = self.take_selected(&kind, &places, &query, None, &mut taken).await;
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
        // Be it that nothing came.
        taken.regain().await?;
        if Related::Pod.is(&kind) {
            self.holder.release().await?;
            taken.give_back();
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
        let skipped = std::mem::take(&mut taken.skipped);
        if skipped > 0 {
            let mark = keys::SKIP_FROM_BACKUP;
            self.log.info(&format!("left out {skipped} of {name}: their annotation {mark} says so"));
        }
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
        places: &[&str],
        selector: &str,
        behind: Option<&Position>,
        taken: &mut Taken,
    ) -> Result<(), ListError> {
        let begun = behind.map_or_else(Progress::default, |behind| Progress::behind(&behind.token));
        let namespace = behind.and_then(|behind| behind.namespace.as_ref());
        if !kind.namespaced || (behind.is_some() && namespace.is_none()) {
            return self.take_list(kind, None, selector, begun, taken).await;
        }
        if behind.is_none() && places.len() > FEW_NAMESPACES {
            // One page of the whole cluster often says it all. Where it does not, asking each namespace costs
            // a request per namespace, going on costs a request per page.
            let mut progress = Progress::default();
            self.take_page(kind, None, selector, &mut progress, taken).await?;
            let pages = progress.remaining / u64::from(self.lister.page_size) + 1;
            if progress.is_done() || places.len() as u64 >= pages {
                return self.take_list(kind, None, selector, progress, taken).await;
            }
        }
        // In their order, so that another process knows which of them are through.
        let at = namespace.and_then(|namespace| places.iter().position(|place| *place == namespace));
        let mut begun = Some(begun).filter(|_| at.is_some());
        for namespace in places.iter().skip(at.unwrap_or(0)) {
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
        let mut pending = Pending::new(self, taken, Origin::Listed);
        pending.page = self.ledger.open(kind);
        let read = self.lister.page(kind, namespace, selector, progress, &mut pending).await;
        // What has come is counted and named already, whatever became of the rest.
        pending.flush().await?;
        let page = pending.page;
        // What is odd is told again by whoever reads it again, or counted and told at the end by whoever is there then.
        let is_odd =
            read.is_err() || taken.is_odd || taken.unreadable.is_some() || taken.unstorable.is_some();
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
pub(super) fn resource_list(types: &[ResourceType], names: Stored) -> ResourceList {
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

impl From<Found> for Item {
    fn from(found: Found) -> Self {
        let Found { json, namespace, name, lacks_type, .. } = found;
        Self { namespace, name, json, lacks_type }
    }
}

/// Objects gathered for the next batch: the one door into the archive.
struct Pending<'c, 'a> {
    collector: &'c Collector<'a>,
    taken: &'c mut Taken,
    page: PageId,
    /// Why those are taken that come now.
    origin: Origin,
    /// What a policy says of objects of this type.
    filter: Option<OfType<'a>>,
    /// Each batch is in the archive before the next one is.
    in_order: bool,
    items: Vec<Item>,
    size: usize,
}

impl<'c, 'a> Pending<'c, 'a> {
    /// Of what no list of the type brings.
    fn new(collector: &'c Collector<'a>, taken: &'c mut Taken, origin: Origin) -> Self {
        let filter = collector.filters.of(&taken.kind);
        let page = collector.ledger.beside(&taken.kind);
        Self { collector, taken, page, origin, filter, in_order: false, items: Vec::new(), size: 0 }
    }

    /// Is it one that the backup takes? (Contract 4.3, "Items".)
    fn admits(&mut self, found: &Found) -> bool {
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

    fn tell_odd(&mut self, found: &Found, what: &str, error: &serde_json::Error) {
        self.taken.is_odd = true;
        if !self.taken.is_news(found, what) {
            return;
        }
        let about = found.namespace.as_deref().map_or(About::Cluster, About::Namespace);
        let message = format!("{}: {what}: {}", found.name, chain(error));
        self.collector.log.error(&about, &self.taken.kind.qualified(), &message);
    }

    /// Lets the action of its type look at an object. `None`: it is left out. Else, why what it needs is taken.
    fn act(&mut self, found: &mut Found) -> Option<Origin> {
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

    /// What is to be stored, and why what it needs is taken. `None`: the backup does not take it, or it is stored, or on its way there.
    fn let_in(&mut self, mut found: Found) -> Option<(Found, Origin)> {
        if !self.admits(&found) {
            return None;
        }
        if found.name.len() > LONGEST_NAME || found.name.contains(char::is_control) {
            if self.taken.is_news(&found, "cannot be stored") {
                self.taken.unstorable.get_or_insert((0, found.name)).0 += 1;
            }
            return None;
        }
        let needs = self.act(&mut found)?;
        // Another selector, a page that was cut off, or another object that needs it may have brought it already.
        let key = key(found.namespace.as_deref(), &found.name);
        let is_stored = self.taken.stored.contains(&key);
        let is_left_out = self.collector.holder.has_left_out(&self.taken.kind, &key);
        if !self.taken.names.insert(key) {
            return None;
        }
        if let Err(error) = self.taken.references.read(&found, needs) {
            self.tell_odd(&found, "what it refers to cannot be read", &error);
        }
        self.collector.counters.asked.note(&self.taken.kind, &found);
        // A verdict on its hooks stands, too.
        if is_stored || is_left_out {
            return None;
        }
        self.collector.counters.total.fetch_add(1, Ordering::Relaxed);
        Some((found, needs))
    }

    async fn add(&mut self, found: Found) -> Result<(), ListError> {
        let Some((found, needs)) = self.let_in(found) else { return Ok(()) };
        let collector = self.collector;
        if let Some(hooked) = collector.holder.hooked(&self.taken.kind, &found) {
            if self.in_order {
                // What came before it is to be in the archive before it is.
                self.flush().await?;
            }
            let used = collector.take_along(&found, needs, &mut self.taken.along).await?;
            return collector
                .holder
                .hold(&self.taken.kind, self.page, found, hooked, used, self.in_order)
                .await;
        }
        self.size += found.json.len();
        self.items.push(found.into());
        if self.size >= BATCH || self.items.len() >= BATCH_ITEMS { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), ListError> {
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

impl Taker for Pending<'_, '_> {
    async fn take(&mut self, found: Found) -> Result<(), ListError> {
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
