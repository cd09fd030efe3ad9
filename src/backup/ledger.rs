//! What of the lists of a run is stored: from this a later run knows what need not be listed, or taken, again.
//!
//! A list is read page by page, its objects go through several workers, and these write gzip members that reach the store in parts. So
//! each page is followed: when all that it brought is stored, and so is all of the pages before it, a later run may go on behind it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::{BufReader, Read as _};

use anyhow::ensure;
use berth_core::selection::ResourceType;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::log::gzip_json;
use super::names::Names;
use super::related::Related;

/// Of the names that a checkpoint holds, as text.
const MOST_NAMES: u64 = 1 << 30;

/// A page of a list, or whatever else brings objects of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageId {
    /// Which type, in the order of the backup's.
    kind: usize,
    /// 0: none of a list.
    page: u64,
}

impl PageId {
    /// For objects of the same type that no page has to wait for: a list does not bring them, or a later run lists all of their type
    /// again.
    #[must_use]
    pub fn beside(self) -> Self {
        Self { page: 0, ..self }
    }
}

/// Objects of one page in one gzip member, by their keys.
#[derive(Debug, PartialEq, Eq)]
pub struct Contents {
    pub page: PageId,
    pub names: Vec<String>,
}

/// Where the list of a type goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Which of the backup's selectors.
    pub selector: usize,
    /// `None`: a list of the whole cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// For going on; empty: this list is through.
    pub token: String,
}

/// How far the list of one type is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Extent {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Position>,
    /// All of it, or what could be read of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_whole: bool,
    /// It may not be listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_forbidden: bool,
}

/// What an earlier run has stored of a type.
#[derive(Default)]
pub struct Earlier {
    pub extent: Extent,
    pub names: Names,
}

/// Types by their place among those of the backup.
pub type Extents = BTreeMap<usize, Extent>;
pub type Stored = BTreeMap<usize, Names>;

/// Everything that is stored, as a checkpoint says it.
pub struct Balance {
    pub extents: Extents,
    /// Gzip members of JSON, each a map from types to keys.
    pub names: Vec<Bytes>,
    /// Objects.
    pub count: u64,
}

#[derive(Default)]
struct OfType {
    steps: VecDeque<Step>,
    extent: Extent,
    /// Something was odd on one of its pages, which has to be read again for that.
    is_frozen: bool,
}

enum Step {
    Page {
        id: u64,
        /// Objects that are not stored yet.
        left: usize,
        /// `None`: it is still being read.
        end: Option<End>,
    },
    /// Its lists are through.
    Whole { is_forbidden: bool },
}

/// Where the list goes on behind a page.
enum End {
    At(Position),
    /// Where it stood before: no list brought this one.
    Ahead,
    /// Something on it has to be read again, and so has all that comes behind it.
    Again,
}

#[derive(Default)]
struct State {
    types: Vec<OfType>,
    pages: u64,
    /// Stored since the names were written down last.
    fresh: BTreeMap<usize, Vec<String>>,
    names: Vec<Bytes>,
    count: u64,
    kept: u64,
    earlier: BTreeMap<usize, Earlier>,
}

/// Written to by the lists of a run, and by its upload.
#[derive(Default)]
pub struct Ledger {
    places: HashMap<String, usize>,
    /// Those that a later run lists again.
    again: HashSet<usize>,
    state: Mutex<State>,
}

impl Ledger {
    pub fn new(types: &[ResourceType]) -> Self {
        let places = types.iter().enumerate().map(|(place, kind)| (kind.qualified(), place)).collect();
        let listed_again = types.iter().enumerate().filter(|(_, kind)| tells_of_others(kind));
        let again = listed_again.map(|(place, _)| place).collect();
        let state = State { types: types.iter().map(|_| OfType::default()).collect(), ..State::default() };
        Self { places, again, state: Mutex::new(state) }
    }

    /// Of a run that goes on from what is stored.
    ///
    /// # Errors
    /// When the names cannot be read, or are not what they should be.
    pub fn again(types: &[ResourceType], balance: Balance) -> anyhow::Result<Self> {
        let Balance { extents, names, count } = balance;
        let ledger = Self::new(types);
        let stored = read_names(&names)?;
        ensure!(stored.values().map(Names::len).sum::<usize>() as u64 == count, "names are missing");
        let is_known = |place: &usize| *place < types.len();
        ensure!(stored.keys().chain(extents.keys()).all(is_known), "it has types that the backup has not");
        {
            let state = &mut *ledger.state.lock();
            for (place, names) in stored {
                state.earlier.entry(place).or_default().names = names;
            }
            for (place, extent) in extents {
                // What the objects of these say has to be read again.
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
        }
        Ok(ledger)
    }

    /// Do the objects that an earlier run has stored, as far as others are looked for by their names, lie in these namespaces?
    pub fn lies_in(&self, types: &[ResourceType], namespaces: &HashSet<String>) -> bool {
        let leads = |place: &usize| {
            self.again.contains(place) && types.get(*place).is_some_and(|kind| kind.namespaced)
        };
        let state = self.state.lock();
        let mut leading = state.earlier.iter().filter(|(place, _)| leads(place));
        leading.all(|(_, earlier)| earlier.names.namespaces().is_subset(namespaces))
    }

    /// What is stored already of a type: asked once.
    pub fn earlier(&self, kind: &ResourceType) -> Earlier {
        let place = self.place(kind);
        self.state.lock().earlier.remove(&place).unwrap_or_default()
    }

    /// Of the types that nobody has asked for.
    pub fn rest(&self) -> Stored {
        let earlier = std::mem::take(&mut self.state.lock().earlier);
        earlier.into_iter().map(|(place, earlier)| (place, earlier.names)).collect()
    }

    /// How many objects are stored.
    pub fn count(&self) -> u64 {
        self.state.lock().count
    }

    /// A checkpoint stands that has all that is stored now.
    pub fn keep(&self) {
        let state = &mut *self.state.lock();
        state.kept = state.count;
    }

    /// Objects in the checkpoint of this run that stands; 0: none does.
    pub fn kept(&self) -> u64 {
        self.state.lock().kept
    }

    /// For objects of this type that no list brings.
    pub fn beside(&self, kind: &ResourceType) -> PageId {
        PageId { kind: self.place(kind), page: 0 }
    }

    /// A page of a list of this type begins.
    pub fn open(&self, kind: &ResourceType) -> PageId {
        let kind = self.place(kind);
        let state = &mut *self.state.lock();
        state.pages += 1;
        let page = PageId { kind, page: state.pages };
        if let Some(of_type) = state.types.get_mut(kind) {
            of_type.steps.push_back(Step::Page { id: page.page, left: 0, end: None });
        }
        page
    }

    /// So many objects of it are on their way to the store.
    pub fn handed(&self, page: PageId, count: usize) {
        let state = &mut *self.state.lock();
        if let Some(left) = state.types.get_mut(page.kind).and_then(|of_type| of_type.left(page)) {
            *left += count;
        }
    }

    /// It is read. `position`: where the list goes on, if nothing on this page has to be read again.
    pub fn close(&self, page: PageId, position: Option<Position>) {
        self.end(page, position.map_or(End::Again, End::At));
    }

    /// All of it has come that goes ahead of the lists of its type. None of these goes on behind it; but until it is stored, the type
    /// is not.
    pub fn close_ahead(&self, page: PageId) {
        self.end(page, End::Ahead);
    }

    fn end(&self, page: PageId, found: End) {
        let state = &mut *self.state.lock();
        let Some(of_type) = state.types.get_mut(page.kind) else { return };
        let of_page = of_type.steps.iter_mut().find_map(|step| match step {
            Step::Page { id, end, .. } if *id == page.page => Some(end),
            Step::Page { .. } | Step::Whole { .. } => None,
        });
        if let Some(end) = of_page {
            *end = Some(found);
        }
        of_type.advance();
    }

    /// All lists of this type are through, and what was to be said of them is said.
    pub fn whole(&self, kind: &ResourceType, is_forbidden: bool) {
        let place = self.place(kind);
        if let Some(of_type) = self.state.lock().types.get_mut(place) {
            of_type.steps.push_back(Step::Whole { is_forbidden });
            of_type.advance();
        }
    }

    /// These are stored.
    pub fn stored(&self, contents: Vec<Contents>) {
        let state = &mut *self.state.lock();
        for Contents { page, names } in contents {
            state.count += names.len() as u64;
            if let Some(of_type) = state.types.get_mut(page.kind) {
                if let Some(left) = of_type.left(page) {
                    *left = left.saturating_sub(names.len());
                }
                of_type.advance();
            }
            state.fresh.entry(page.kind).or_default().extend(names);
        }
    }

    /// # Errors
    /// Never in practice: memory does not refuse writes.
    pub fn balance(&self) -> std::io::Result<Balance> {
        let state = &mut *self.state.lock();
        if !state.fresh.is_empty() {
            state.names.push(gzip_json(&state.fresh)?.into());
            state.fresh.clear();
        }
        let extents = state.types.iter().map(|of_type| &of_type.extent).enumerate();
        let extents = extents.filter(|(_, extent)| **extent != Extent::default());
        Ok(Balance {
            extents: extents.map(|(place, extent)| (place, extent.clone())).collect(),
            names: state.names.clone(),
            count: state.count,
        })
    }

    /// Need the type of this qualified name not be listed again, by these extents?
    pub fn is_through(&self, name: &str, extents: &Extents) -> bool {
        let place = self.places.get(name);
        let is_whole = place.and_then(|place| extents.get(place)).is_some_and(|extent| extent.is_whole);
        is_whole && !place.is_some_and(|place| self.again.contains(place))
    }

    /// One that the backup does not have is nowhere.
    fn place(&self, kind: &ResourceType) -> usize {
        self.places.get(&kind.qualified()).copied().unwrap_or(usize::MAX)
    }
}

impl OfType {
    fn left(&mut self, page: PageId) -> Option<&mut usize> {
        self.steps.iter_mut().find_map(|step| match step {
            Step::Page { id, left, .. } if *id == page.page => Some(left),
            Step::Page { .. } | Step::Whole { .. } => None,
        })
    }

    /// Over everything that is stored, up to the first page that is not.
    fn advance(&mut self) {
        while let Some(step) = self.steps.front() {
            match step {
                Step::Page { left: 0, end: Some(end), .. } => match end {
                    End::At(position) if !self.is_frozen => self.extent.at = Some(position.clone()),
                    End::Again => self.is_frozen = true,
                    End::At(_) | End::Ahead => {}
                },
                Step::Whole { is_forbidden } => {
                    self.extent = Extent { at: None, is_whole: true, is_forbidden: *is_forbidden };
                }
                Step::Page { .. } => return,
            }
            self.steps.pop_front();
        }
    }
}

/// Does the backup have to see the objects of this type, because they name others that come along, are asked for by others whatever the
/// filters say, have hooks, or ask for something? Those are listed again by a run that goes on, and what is stored of them is only
/// looked at.
pub fn tells_of_others(kind: &ResourceType) -> bool {
    match Related::of(kind) {
        // Volumes are what policies decide on.
        Some(Related::Pod | Related::Claim | Related::Volume | Related::Account) => true,
        Some(related) => !related.names().is_empty(),
        None => false,
    }
}

/// # Errors
/// When they are no names, or too many.
pub fn read_names(names: &[Bytes]) -> anyhow::Result<Stored> {
    let mut all = Stored::new();
    for members in names.iter().filter(|members| !members.is_empty()) {
        let text = BufReader::new(MultiGzDecoder::new(&members[..]).take(MOST_NAMES));
        let maps = serde_json::Deserializer::from_reader(text).into_iter::<BTreeMap<usize, Vec<String>>>();
        for map in maps {
            for (place, mut names) in map? {
                // What comes in order is packed as it comes.
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
