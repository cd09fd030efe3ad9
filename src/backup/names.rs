//! The names of what was taken of one type: each object once, in order, in a few bytes each.
//!
//! The API server lists objects in the order of their keys, so names are packed block by block as
//! they come. A key out of order (a page requested twice, another selector, an aggregated server
//! with an order of its own) is looked up in its block; a new one waits in a set beside and is put
//! in its place from time to time.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use berth_core::selection::ResourceType;
use libdeflater::{CompressionLvl, Compressor, Decompressor};
use parking_lot::Mutex;
use serde::{Serialize, Serializer};

/// Keys of a block. Blocks are small, because a lookup unpacks a whole block.
const BLOCK: usize = 256;
/// Out-of-order keys that wait at least, and the share of all keys that may wait, because each time
/// everything is packed again.
const ASIDE: usize = 256;
const ASIDE_OF: usize = 16;

/// The resource list: `<apiVersion>/<Kind>` to sorted `namespace/name` or `name`.
pub type ResourceList = BTreeMap<String, PackedNames>;

/// A set of keys that takes little memory, best filled in order.
#[derive(Default)]
pub struct PackedNames {
    blocks: Vec<Block>,
    /// Keys behind all blocks, in order. Never empty if there are blocks.
    open: Vec<String>,
    /// Keys before the last key of `open` that came out of order.
    aside: BTreeSet<String>,
    len: usize,
    is_mixed: bool,
    /// The block that was unpacked last, because keys that are looked up are mostly neighbours.
    seen: Mutex<Option<(usize, Vec<String>)>>,
}

/// Some keys in order.
struct Block {
    first: String,
    packed: Box<[u8]>,
    /// Size of the unpacked bytes.
    size: usize,
}

impl Block {
    /// `None`: the keys cannot be packed, which does not happen.
    fn of(keys: &[String]) -> Option<Self> {
        let text = serde_json::to_vec(keys).ok()?;
        let mut compressor = Compressor::new(CompressionLvl::default());
        let mut packed = vec![0; compressor.deflate_compress_bound(text.len())];
        let size = compressor.deflate_compress(&text, &mut packed).ok()?;
        packed.truncate(size);
        Some(Self { first: keys.first()?.clone(), packed: packed.into_boxed_slice(), size: text.len() })
    }

    fn keys(&self) -> Vec<String> {
        let mut text = vec![0; self.size];
        let unpacked = Decompressor::new().deflate_decompress(&self.packed, &mut text);
        // Neither fails for what this process has packed itself.
        unpacked.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }
}

impl PackedNames {
    /// `false`: the key was there already.
    pub fn insert(&mut self, key: String) -> bool {
        if self.open.last().is_none_or(|last| *last < key) {
            self.append(key);
        } else if self.contains(&key) {
            return false;
        } else {
            self.aside.insert(key);
            self.is_mixed = true;
        }
        self.len += 1;
        if self.aside.len() > ASIDE.max(self.len / ASIDE_OF) {
            self.sort();
        }
        true
    }

    fn append(&mut self, key: String) {
        if self.open.len() >= BLOCK
            && let Some(block) = Block::of(&self.open)
        {
            self.blocks.push(block);
            self.open.clear();
        }
        self.open.push(key);
    }

    /// Packs all keys in order again.
    fn sort(&mut self) {
        let mut sorted = Self { len: self.len, is_mixed: self.is_mixed, ..Self::default() };
        for key in self.iter() {
            sorted.append(key);
        }
        *self = sorted;
    }

    pub fn contains(&self, key: &str) -> bool {
        let is_behind = self.open.first().is_some_and(|first| first.as_str() <= key);
        let is_sorted = if is_behind { holds(&self.open, key) } else { self.is_packed(key) };
        is_sorted || self.aside.contains(key)
    }

    fn is_packed(&self, key: &str) -> bool {
        let behind = self.blocks.partition_point(|block| block.first.as_str() <= key);
        let Some(at) = behind.checked_sub(1) else { return false };
        let mut seen = self.seen.lock();
        if let Some((_, keys)) = seen.as_ref().filter(|(known, _)| *known == at) {
            return holds(keys, key);
        }
        let keys = self.blocks.get(at).map(Block::keys).unwrap_or_default();
        let is_there = holds(&keys, key);
        *seen = Some((at, keys));
        is_there
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The last key, if all keys came in order: a list of the type as of the same revision may skip
    /// everything up to it.
    pub fn last(&self) -> Option<&str> {
        self.open.last().filter(|_| !self.is_mixed).map(String::as_str)
    }

    /// All keys, in order.
    pub fn iter(&self) -> impl Iterator<Item = String> + '_ {
        let packed = self.blocks.iter().flat_map(Block::keys);
        let mut sorted = packed.chain(self.open.iter().cloned()).peekable();
        let mut aside = self.aside.iter().cloned().peekable();
        std::iter::from_fn(move || match (sorted.peek(), aside.peek()) {
            (Some(key), Some(other)) if key < other => sorted.next(),
            (_, Some(_)) => aside.next(),
            (_, None) => sorted.next(),
        })
    }

    /// The namespaces of all keys.
    pub fn namespaces(&self) -> HashSet<String> {
        let mut namespaces = HashSet::new();
        for key in self.iter() {
            if let Some((namespace, _)) = key.split_once('/')
                && !namespaces.contains(namespace)
            {
                namespaces.insert(namespace.to_owned());
            }
        }
        namespaces
    }

    /// Removes these keys. Packs everything again, so use it once for a few keys.
    pub fn remove(&mut self, keys: &BTreeSet<String>) {
        let mut left = Self { is_mixed: self.is_mixed, ..Self::default() };
        for key in self.iter().filter(|key| !keys.contains(key)) {
            left.append(key);
            left.len += 1;
        }
        *self = left;
    }

    /// Adds the keys of another set.
    pub fn extend(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
        } else {
            for key in other.iter() {
                self.insert(key);
            }
        }
    }
}

/// The resource list file: what is stored, by type. `names`: by the place of the type in `types`.
pub fn resource_list(
    types: &[ResourceType],
    names: impl IntoIterator<Item = (usize, PackedNames)>,
) -> ResourceList {
    let mut list = ResourceList::new();
    for (place, names) in names.into_iter().filter(|(_, names)| !names.is_empty()) {
        if let Some(kind) = types.get(place) {
            list.entry(heading(kind)).or_default().extend(names);
        }
    }
    list
}

/// The name of a type in the resource list.
pub fn heading(kind: &ResourceType) -> String {
    format!("{}/{}", kind.api_version(), kind.kind)
}

/// A JSON list, in order.
impl Serialize for PackedNames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

fn holds(sorted: &[String], key: &str) -> bool {
    sorted.binary_search_by(|known| known.as_str().cmp(key)).is_ok()
}

/// Sorts namespaces as the API server lists their objects: a key is the namespace, a slash, and the
/// name.
pub fn in_order<'a>(namespaces: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
    let mut sorted: Vec<&str> = namespaces.into_iter().map(String::as_str).collect();
    sorted.sort_unstable_by(|a, b| a.bytes().chain([b'/']).cmp(b.bytes().chain([b'/'])));
    sorted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Numbers as keys of that order.
    fn key(number: u32) -> String {
        format!("namespace-{}/object-{:04}", number / 1000, number % 1000)
    }

    fn ordered(count: u32) -> PackedNames {
        let mut names = PackedNames::default();
        assert!((0..count).all(|i| names.insert(key(i))));
        names
    }

    #[test]
    fn names_in_order_take_a_few_bytes_each() {
        let names = ordered(9_000);
        let packed: usize = names.blocks.iter().map(|block| block.packed.len() + block.first.len()).sum();
        assert!(packed < 4 * names.len() && names.open.len() <= BLOCK, "{packed}");
        assert_eq!((names.len(), names.last()), (9_000, Some(key(8_999).as_str())));
        assert!(names.iter().eq((0..9_000).map(key)));
    }

    #[test]
    fn a_list_that_is_read_twice_brings_nothing_new_and_stays_in_order() {
        let mut names = ordered(2_000);
        assert!((0..2_000).rev().chain(0..2_000).all(|i| !names.insert(key(i))));
        assert_eq!((names.len(), names.aside.len()), (2_000, 0));
        assert_eq!(names.last(), Some(key(1_999).as_str()));
    }

    #[test]
    fn what_comes_out_of_order_waits_beside_for_a_while_only() {
        let mut names = PackedNames::default();
        assert!((0..9_000).rev().all(|i| names.insert(key(i))));
        assert!(names.aside.len() <= 9_000 / ASIDE_OF, "{}", names.aside.len());
        assert_eq!((names.len(), names.last()), (9_000, None));
        assert!(names.iter().eq((0..9_000).map(key)));
    }

    #[test]
    fn what_is_taken_out_is_gone_and_the_rest_stays_in_order() {
        let mut names = ordered(600);
        assert!(names.insert("a".to_owned()));
        names.remove(&BTreeSet::from([key(0), key(300), key(599), "unknown".to_owned()]));
        assert_eq!(names.len(), 598);
        let left: Vec<String> = names.iter().collect();
        let wanted = (1..599).filter(|i| *i != 300).map(key);
        assert_eq!(left, ["a".to_owned()].into_iter().chain(wanted).collect::<Vec<_>>());
        assert!(!names.contains(&key(300)) && names.contains(&key(301)));
    }

    fn of(keys: &[&str]) -> PackedNames {
        let mut names = PackedNames::default();
        for key in keys {
            names.insert((*key).to_owned());
        }
        names
    }

    #[test]
    fn two_types_of_one_heading_are_one_list() {
        let mut names = PackedNames::default();
        names.extend(of(&["b", "d"]));
        assert_eq!(names.last(), Some("d"));
        names.extend(of(&["a", "b", "e"]));
        assert_eq!(serde_json::to_value(&names).unwrap(), json!(["a", "b", "d", "e"]));
    }

    #[test]
    fn namespaces_are_known_by_the_keys_and_asked_in_their_order() {
        let names = of(&["a-b/x", "a/x", "a/y", "cluster-scoped"]);
        assert_eq!(names.last(), Some("cluster-scoped"));
        let namespaces = names.namespaces();
        assert_eq!(namespaces, HashSet::from(["a".to_owned(), "a-b".to_owned()]));
        assert_eq!(in_order(&namespaces), ["a-b", "a"]);
    }

    /// Pieces of a list, from here on so many, some of them the wrong way round.
    fn pieces() -> impl Strategy<Value = Vec<u32>> {
        let piece =
            (0_u32..3_000, 1_u32..600, prop::bool::weighted(0.2)).prop_map(|(from, count, is_turned)| {
                let keys: Vec<u32> = (from..from + count).collect();
                if is_turned { keys.into_iter().rev().collect() } else { keys }
            });
        prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_comes_counts_once_and_the_list_is_that_of_a_set(numbers in pieces(), probes in prop::collection::vec(0_u32..4_000, 8)) {
            let (mut names, mut set, mut is_ordered) = (PackedNames::default(), BTreeSet::<String>::new(), true);
            for number in numbers {
                let key = key(number);
                is_ordered &= set.contains(&key) || set.last().is_none_or(|last| *last < key);
                prop_assert_eq!(names.insert(key.clone()), set.insert(key));
            }
            for probe in probes.into_iter().map(key) {
                prop_assert_eq!(names.contains(&probe), set.contains(&probe));
            }
            prop_assert_eq!(names.len(), set.len());
            prop_assert_eq!(names.last(), set.last().filter(|_| is_ordered).map(String::as_str));
            prop_assert!(names.iter().eq(set));
        }

        #[test]
        fn any_text_is_a_key(keys in prop::collection::vec(any::<String>(), 0..40)) {
            let (mut names, mut set) = (PackedNames::default(), BTreeSet::<String>::new());
            for key in keys {
                prop_assert_eq!(names.insert(key.clone()), set.insert(key));
            }
            names.sort();
            prop_assert!(names.iter().eq(set));
        }
    }
}
