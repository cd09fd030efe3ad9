//! Records which listed objects are stored, so that a later run knows what it need not list or
//! store again.
//!
//! A list is read page by page, its objects go through several packers, and the packers write gzip
//! members that reach the store in parts. The ledger follows each page: when everything from it and
//! from all pages before it is stored, a later run may continue behind it.

mod extent;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufReader, Read as _};
use std::sync::Arc;

use anyhow::ensure;
use berth_core::selection::ResourceType;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parking_lot::Mutex;

use super::index::{ArchiveIndex, ByteRange};
use super::log::gzip_json;
use super::names::PackedNames;
use super::related::Related;
use extent::{ListStep, PageEnd, TypeLedger};

pub use extent::{ListExtent, Position};

/// Most bytes of names, as text, that a checkpoint may hold.
const MOST_NAMES: u64 = 1 << 30;
/// Names that are kept as they came until they are packed for the next checkpoint: a name as text
/// takes ten times as much memory, and checkpoints may be far apart.
const UNPACKED: usize = 10_000;

/// Identifies a page of a list, or another source of objects of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageId {
    /// Index of the type among the types of the backup.
    kind: usize,
    /// 0: the object came by no list.
    page: u64,
}

impl PageId {
    /// The ID for objects of the same type that no page waits for, because no list brings them or
    /// because a later run lists the type again.
    #[must_use]
    pub fn beside(self) -> Self {
        Self { page: 0, ..self }
    }
}

/// Objects of one page in one gzip member, by their keys.
#[derive(Debug, PartialEq, Eq)]
pub struct Contents {
    pub page: PageId,
    /// Qualified name of their type.
    pub resource: Arc<str>,
    pub names: Vec<String>,
    /// The member in the archive, once the upload has it.
    pub at: Option<ByteRange>,
}

/// What an earlier run has stored of a type.
#[derive(Default)]
pub struct EarlierObjects {
    pub extent: ListExtent,
    pub names: PackedNames,
}

/// By index of the type among the types of the backup.
pub type Extents = BTreeMap<usize, ListExtent>;
pub type StoredNames = BTreeMap<usize, PackedNames>;

/// Everything that is stored, as a checkpoint records it.
#[derive(Default)]
pub struct Balance {
    pub extents: Extents,
    /// Gzip members of JSON; each is a map from type index to keys.
    pub names: Vec<Bytes>,
    /// Number of objects.
    pub count: u64,
    pub index: ArchiveIndex,
}

#[derive(Default)]
struct LedgerState {
    types: Vec<TypeLedger>,
    pages: u64,
    /// Names stored since names were packed last, and their number.
    fresh: BTreeMap<usize, Vec<String>>,
    unpacked: usize,
    names: Vec<Bytes>,
    count: u64,
    kept: u64,
    earlier: BTreeMap<usize, EarlierObjects>,
    index: ArchiveIndex,
}

/// Shared by the lists of a run, which open and close pages, and its upload, which reports what is
/// stored.
#[derive(Default)]
pub struct ObjectLedger {
    places: HashMap<String, usize>,
    /// Types that a later run lists again.
    again: HashSet<usize>,
    state: Mutex<LedgerState>,
}

impl ObjectLedger {
    pub fn new(types: &[ResourceType]) -> Self {
        let places = types.iter().enumerate().map(|(place, kind)| (kind.qualified(), place)).collect();
        let listed_again = types.iter().enumerate().filter(|(_, kind)| tells_of_others(kind));
        let again = listed_again.map(|(place, _)| place).collect();
        let state = LedgerState {
            types: types.iter().map(|_| TypeLedger::default()).collect(),
            ..LedgerState::default()
        };
        Self { places, again, state: Mutex::new(state) }
    }

    /// The ledger of a run that continues from a checkpoint.
    ///
    /// # Errors
    /// When the names cannot be read, their number is wrong, or a type is not one of the backup's.
    pub fn again(types: &[ResourceType], balance: Balance) -> anyhow::Result<Self> {
        let Balance { extents, names, count, index } = balance;
        let ledger = Self::new(types);
        let stored = read_names(&names)?;
        ensure!(
            stored.values().map(PackedNames::len).sum::<usize>() as u64 == count,
            "it names fewer objects than it counts, or more"
        );
        let is_known = |place: &usize| *place < types.len();
        ensure!(
            stored.keys().chain(extents.keys()).all(is_known),
            "it names types that are not the backup's"
        );
        {
            let state = &mut *ledger.state.lock();
            for (place, names) in stored {
                state.earlier.entry(place).or_default().names = names;
            }
            for (place, extent) in extents {
                // These types are listed again, because their objects name others.
                if ledger.again.contains(&place) {
                    continue;
                }
                state.earlier.entry(place).or_default().extent = extent.clone();
                if let Some(of_type) = state.types.get_mut(place) {
                    of_type.extent = extent;
                }
            }
            state.names = names;
            state.count = count;
            state.index = index.counted();
        }
        Ok(ledger)
    }

    /// Whether the stored objects that lead to others are all in these namespaces. A checkpoint
    /// could be forged.
    pub fn lies_in(&self, types: &[ResourceType], namespaces: &HashSet<String>) -> bool {
        let leads = |place: &usize| {
            self.again.contains(place) && types.get(*place).is_some_and(|kind| kind.namespaced)
        };
        let state = self.state.lock();
        let mut leading = state.earlier.iter().filter(|(place, _)| leads(place));
        leading.all(|(_, earlier)| earlier.names.namespaces().is_subset(namespaces))
    }

    /// Whether an earlier run has stored the object with this key. To be asked before
    /// [`ObjectLedger::earlier`] of its type.
    pub fn has_stored(&self, kind: &ResourceType, key: &str) -> bool {
        let place = self.place(kind);
        self.state.lock().earlier.get(&place).is_some_and(|earlier| earlier.names.contains(key))
    }

    /// What an earlier run has stored of a type. Removes it, so each type is asked for once.
    pub fn earlier(&self, kind: &ResourceType) -> EarlierObjects {
        let place = self.place(kind);
        self.state.lock().earlier.remove(&place).unwrap_or_default()
    }

    /// What is stored of the types that `earlier` was not called for.
    pub fn rest(&self) -> StoredNames {
        let earlier = std::mem::take(&mut self.state.lock().earlier);
        earlier.into_iter().map(|(place, earlier)| (place, earlier.names)).collect()
    }

    /// Where in the archive everything is that is stored.
    pub fn index(&self) -> ArchiveIndex {
        self.state.lock().index.clone()
    }

    /// Number of stored objects.
    pub fn count(&self) -> u64 {
        self.state.lock().count
    }

    /// Notes that a checkpoint with everything stored so far was written.
    pub fn keep(&self) {
        let state = &mut *self.state.lock();
        state.kept = state.count;
    }

    /// Number of objects in this run's last written checkpoint; 0 if there is none.
    pub fn kept(&self) -> u64 {
        self.state.lock().kept
    }

    /// The ID for objects that have no names in the ledger.
    pub fn nowhere() -> PageId {
        PageId { kind: usize::MAX, page: 0 }
    }

    /// The ID for objects of this type that no list brings.
    pub fn beside(&self, kind: &ResourceType) -> PageId {
        PageId { kind: self.place(kind), page: 0 }
    }

    /// Begins a page of a list of this type.
    pub fn open(&self, kind: &ResourceType) -> PageId {
        let kind = self.place(kind);
        let state = &mut *self.state.lock();
        state.pages += 1;
        let page = PageId { kind, page: state.pages };
        if let Some(of_type) = state.types.get_mut(kind) {
            of_type.steps.push_back(ListStep::Page { id: page.page, left: 0, end: None });
        }
        page
    }

    /// Notes that `count` more objects of the page are on their way to the store.
    pub fn handed(&self, page: PageId, count: usize) {
        let state = &mut *self.state.lock();
        if let Some(left) = state.types.get_mut(page.kind).and_then(|of_type| of_type.left(page)) {
            *left += count;
        }
    }

    /// Notes that the page has been read. `position`: where the list continues, or `None` if
    /// something on the page must be read again.
    pub fn close(&self, page: PageId, position: Option<Position>) {
        self.end(page, position.map_or(PageEnd::Again, PageEnd::At));
    }

    /// Notes that all objects that go ahead of the lists of a type have been read. No list
    /// continues behind this page, but the type is not complete until the page is stored.
    pub fn close_ahead(&self, page: PageId) {
        self.end(page, PageEnd::Ahead);
    }

    fn end(&self, page: PageId, found: PageEnd) {
        let state = &mut *self.state.lock();
        let Some(of_type) = state.types.get_mut(page.kind) else { return };
        let of_page = of_type.steps.iter_mut().find_map(|step| match step {
            ListStep::Page { id, end, .. } if *id == page.page => Some(end),
            ListStep::Page { .. } | ListStep::Whole { .. } => None,
        });
        if let Some(end) = of_page {
            *end = Some(found);
        }
        of_type.advance();
    }

    /// Notes that all lists of this type are complete and their errors are logged.
    pub fn whole(&self, kind: &ResourceType, is_forbidden: bool) {
        let place = self.place(kind);
        if let Some(of_type) = self.state.lock().types.get_mut(place) {
            of_type.steps.push_back(ListStep::Whole { is_forbidden });
            of_type.advance();
        }
    }

    /// Notes that these objects are stored.
    pub fn stored(&self, contents: Vec<Contents>) {
        let state = &mut *self.state.lock();
        state.locate(&contents);
        for Contents { page, names, .. } in contents {
            // An object beside the types of the backup has no names here.
            if page.kind >= state.types.len() {
                continue;
            }
            state.count += names.len() as u64;
            if let Some(of_type) = state.types.get_mut(page.kind) {
                if let Some(left) = of_type.left(page) {
                    *left = left.saturating_sub(names.len());
                }
                of_type.advance();
            }
            state.unpacked += names.len();
            state.fresh.entry(page.kind).or_default().extend(names);
        }
        if state.unpacked >= UNPACKED {
            // Writing to memory does not fail; if it did, the next checkpoint would tell.
            let _ = state.pack();
        }
    }

    /// Notes where these objects are in the archive, and nothing else: of a run that writes no
    /// checkpoints.
    pub fn located(&self, contents: &[Contents]) {
        self.state.lock().locate(contents);
    }

    /// # Errors
    /// Never in practice: memory does not refuse writes.
    pub fn balance(&self) -> std::io::Result<Balance> {
        let state = &mut *self.state.lock();
        state.pack()?;
        let extents = state.types.iter().map(|of_type| &of_type.extent).enumerate();
        let extents = extents.filter(|(_, extent)| **extent != ListExtent::default());
        Ok(Balance {
            extents: extents.map(|(place, extent)| (place, extent.clone())).collect(),
            names: state.names.clone(),
            count: state.count,
            index: state.index.clone(),
        })
    }

    /// Whether, by these extents, the type with this qualified name need not be listed again.
    pub fn is_through(&self, name: &str, extents: &Extents) -> bool {
        let place = self.places.get(name);
        let is_whole = place.and_then(|place| extents.get(place)).is_some_and(|extent| extent.is_whole);
        is_whole && !place.is_some_and(|place| self.again.contains(place))
    }

    /// A type that is not the backup's gets an index that no type has.
    fn place(&self, kind: &ResourceType) -> usize {
        self.places.get(&kind.qualified()).copied().unwrap_or(usize::MAX)
    }
}

impl LedgerState {
    fn pack(&mut self) -> std::io::Result<()> {
        if !self.fresh.is_empty() {
            self.names.push(gzip_json(&self.fresh)?.into());
            self.fresh.clear();
            self.unpacked = 0;
        }
        Ok(())
    }

    fn locate(&mut self, contents: &[Contents]) {
        for Contents { resource, names, at, .. } in contents {
            match at {
                Some(piece) => self.index.note(resource, names, *piece),
                None => self.index = ArchiveIndex::void(),
            }
        }
    }
}

/// Whether the backup must see the objects of this type because they name other objects, are
/// required by others whatever the filters say, have hooks, or ask for volume data. A run that
/// continues lists these types again; objects that are stored already are only read, not stored.
pub fn tells_of_others(kind: &ResourceType) -> bool {
    match Related::of(kind) {
        // Volume policies decide by volumes.
        Some(Related::Pod | Related::Claim | Related::Volume | Related::Account) => true,
        Some(related) => !related.names().is_empty(),
        None => false,
    }
}

/// # Errors
/// When the bytes are no names, or too many.
pub fn read_names(names: &[Bytes]) -> anyhow::Result<StoredNames> {
    let mut all = StoredNames::new();
    for members in names.iter().filter(|members| !members.is_empty()) {
        let text = BufReader::new(MultiGzDecoder::new(&members[..]).take(MOST_NAMES));
        let maps = serde_json::Deserializer::from_reader(text).into_iter::<BTreeMap<usize, Vec<String>>>();
        for map in maps {
            for (place, mut names) in map? {
                // Sorted names are packed as they come.
                names.sort_unstable();
                let all = all.entry(place).or_default();
                for name in names {
                    all.insert(name);
                }
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
