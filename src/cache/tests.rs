use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::*;

/// A version of an object as tests tell it: UID and resourceVersion.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    uid: &'static str,
    version: &'static str,
    is_gone: bool,
}

impl Versioned for Version {
    fn uid(&self) -> &str {
        self.uid
    }

    fn resource_version(&self) -> &str {
        self.version
    }

    fn is_gone(&self) -> bool {
        self.is_gone
    }
}

impl Indexer<Version> for BTreeSet<Version> {
    fn insert(&mut self, value: &Version) {
        assert!(BTreeSet::insert(self, value.clone()), "{value:?} was there");
    }

    fn remove(&mut self, value: &Version) {
        assert!(BTreeSet::remove(self, value), "{value:?} was not there");
    }
}

type Versions = Cache<String, Version, BTreeSet<Version>>;

fn version(uid: &'static str, version: &'static str) -> Version {
    Version { uid, version, is_gone: false }
}

fn gone(uid: &'static str, version: &'static str) -> Version {
    Version { uid, version, is_gone: true }
}

fn passed(uid: &str, version: &str) -> Observed<Version> {
    Observed::Passed { uid: uid.to_owned(), resource_version: version.to_owned() }
}

/// The object `one` in version 5.
fn known() -> Versions {
    let mut cache = Versions::default();
    cache.relist([("one".to_owned(), version("u", "5"))]);
    cache
}

/// What is known of `one`, as UID and version. The index has just what the cache has.
fn shown(cache: &Versions) -> String {
    assert!(cache.values().eq(cache.index()), "{:?}", cache.index());
    cache.get("one").map_or_else(|| "-".to_owned(), |one| format!("{}{}", one.uid, one.version))
}

#[test]
fn a_newer_version_wins_whoever_brings_it() {
    for (seen, expected) in [
        (version("u", "4"), "u5"),
        (version("u", "5"), "u5"),
        (version("u", "6"), "u6"),
        // Numbers, not texts.
        (version("u", "10"), "u10"),
        // The next object of that name, and what is no number.
        (version("v", "4"), "v4"),
        (version("u", "x"), "ux"),
    ] {
        let mut caches: [Versions; 4] = std::array::from_fn(|_| known());
        caches[0].apply("one".to_owned(), seen.clone());
        caches[1].assume("one".to_owned(), seen.clone());
        caches[2].relist([("one".to_owned(), seen.clone())]);
        caches[3].observe(WatchEvent::Applied(("one".to_owned(), seen.clone())));
        assert_eq!(caches.each_ref().map(shown), [expected; 4], "{seen:?}");
    }
}

#[test]
fn of_a_version_that_is_passed_nothing_is_kept_unless_a_newer_one_is_known() {
    for (seen, expected) in [(("u", "4"), "u5"), (("u", "6"), "-"), (("v", "6"), "-")] {
        let mut caches: [Versions; 3] = std::array::from_fn(|_| known());
        caches[0].apply("one".to_owned(), passed(seen.0, seen.1));
        caches[1].assume("one".to_owned(), passed(seen.0, seen.1));
        caches[2].relist([("one".to_owned(), passed(seen.0, seen.1))]);
        assert_eq!(caches.each_ref().map(shown), [expected; 3], "{seen:?}");
    }
}

#[test]
fn an_object_without_its_last_finalizer_is_gone_by_an_answer_and_not_by_the_watch() {
    for (seen, by_watch, by_answer) in [
        (gone("u", "6"), "u6", "-"),
        // The watch may show the next object of that name before the answer comes.
        (gone("t", "4"), "t4", "u5"),
    ] {
        let (mut watched, mut answered) = (known(), known());
        watched.apply("one".to_owned(), seen.clone());
        answered.assume("one".to_owned(), seen);
        assert_eq!((&*shown(&watched), &*shown(&answered)), (by_watch, by_answer));
    }
    let mut empty = Versions::default();
    empty.assume("one".to_owned(), gone("u", "6"));
    assert_eq!(shown(&empty), "-", "the watch has said so before");
}

#[test]
fn an_object_is_gone_that_is_deleted_and_has_no_finalizer() {
    let object = |deleted: bool, finalizers: Option<&[&str]>| {
        let finalizers = finalizers.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
        let deletion_timestamp = deleted.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
        let metadata = ObjectMeta { deletion_timestamp, finalizers, ..ObjectMeta::default() };
        Arc::new(ConfigMap { metadata, ..ConfigMap::default() })
    };
    for (deleted, finalizers, expected) in [
        (false, None, false),
        (false, Some(&["f"][..]), false),
        (true, Some(&["f"][..]), false),
        (true, Some(&[][..]), true),
        (true, None, true),
    ] {
        assert_eq!(object(deleted, finalizers).is_gone(), expected, "{deleted} {finalizers:?}");
    }
}

#[test]
fn what_a_list_does_not_have_is_gone_also_when_it_was_assumed() {
    let mut cache = known();
    cache.assume("one".to_owned(), version("u", "9"));
    cache.assume("two".to_owned(), version("w", "8"));
    cache.relist([("one".to_owned(), version("u", "7"))]);
    assert_eq!(shown(&cache), "u9", "the list is older than the answer");
    assert!(cache.get("two").is_none(), "the watch from that list on will show it");
    cache.observe(WatchEvent::Replaced(Vec::new()));
    assert_eq!(shown(&cache), "-");
}

#[test]
fn an_answer_does_not_bring_back_what_is_known_to_have_ended() {
    for (answer, is_known, expected) in
        [(version("u", "6"), true, "u6"), (version("u", "4"), true, "u5"), (version("t", "6"), false, "u5")]
    {
        let mut cache = known();
        assert_eq!(cache.assume_known("one".to_owned(), answer), is_known);
        assert_eq!(shown(&cache), expected);
        cache.remove("one");
        assert!(!cache.assume_known("one".to_owned(), version("u", "7")));
        assert_eq!(shown(&cache), "-");
    }
}

/// For objects that are created here, too: the answer to a write came behind the end that the watch
/// had shown, and the object stood in the cache for ever.
#[test]
fn an_answer_does_not_bring_back_an_object_whose_end_was_seen() {
    let removed: fn(&mut Versions) = |cache| cache.remove("one");
    for end in [removed, |cache| cache.relist::<Version>([]), |cache| cache.forget("one", "u")] {
        let mut cache = known();
        end(&mut cache);
        cache.assume("one".to_owned(), version("u", "6"));
        assert_eq!(shown(&cache), "-");
        cache.assume("one".to_owned(), version("v", "7"));
        assert_eq!(shown(&cache), "v7", "the next object of that name");
    }
    // A list was older than the answer to its creation, and the watch has shown it since.
    let mut cache = known();
    cache.relist::<Version>([]);
    cache.apply("one".to_owned(), version("u", "6"));
    cache.assume("one".to_owned(), version("u", "7"));
    assert_eq!(shown(&cache), "u7");
}

#[test]
fn only_the_object_that_is_gone_is_forgotten() {
    for (uid, expected) in [("u", "-"), ("t", "u5")] {
        let mut cache = known();
        cache.forget("one", uid);
        assert_eq!(shown(&cache), expected, "{uid}");
    }
}

#[test]
fn a_cache_is_synced_by_a_list_and_by_nothing_else() {
    let mut cache = Versions::default();
    cache.observe(WatchEvent::Applied(("one".to_owned(), version("u", "1"))));
    cache.observe(WatchEvent::Deleted("one".to_owned()));
    cache.assume("one".to_owned(), version("u", "1"));
    assert!(!cache.is_synced());
    cache.observe(WatchEvent::Replaced(Vec::new()));
    assert!(cache.is_synced());
}

#[test]
fn a_silent_write_wakes_nobody() {
    let shared = SharedCache::<Versions>::default();
    let changed = shared.changed();
    shared.write_silently(|cache| cache.assume("one".to_owned(), version("u", "1")));
    assert!(!changed.has_changed().unwrap());
    shared.write(|cache| cache.remove("one"));
    assert!(changed.has_changed().unwrap());
    assert!(!shared.changed().has_changed().unwrap(), "of what comes after the call");
}
