//! Names of shared buckets: `<profile>-<region>-<first five of the profile's UID>`, and from the
//! second one of a region on `-<ordinal>` after that. A name is known to the whole world for as
//! long as the bucket is there, and maybe longer. And of the records of entries that are no more.

use super::store::{AZURE, GCP, ProviderRegion};

/// What stores and the label of a Kubernetes object allow (source: S3's rules for buckets; RFC
/// 1123).
pub const LONGEST: usize = 63;
/// What the name of a Kubernetes object may have (source: RFC 1123's subdomains).
const LONGEST_OF_AN_OBJECT: usize = 253;
const UID: usize = 5;
const HASH: usize = 6;

/// What some stores do not take though it is a label (sources: Azure's rules for containers,
/// Google's for buckets).
pub fn name_fault(provider: &str, name: &str) -> Option<&'static str> {
    match provider {
        AZURE if name.contains("--") => Some("provider \"azure\" takes no name with two - in a row"),
        GCP if name.starts_with("goog") || name.contains("google") => {
            Some("provider \"gcp\" takes no name that begins with goog or has google in it")
        }
        _ => None,
    }
}

/// What all names of a profile's buckets in one region have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stem<'a> {
    pub profile: &'a str,
    /// Of the buckets.
    pub provider: &'a str,
    pub region: &'a str,
    /// The profile's. Its first five characters tell profiles of one name from one another.
    pub uid: &'a str,
}

impl<'a> Stem<'a> {
    pub fn new(profile: &'a str, place: &'a ProviderRegion, uid: &'a str) -> Self {
        Self { profile, provider: &place.provider, region: &place.region, uid }
    }

    /// The name of the bucket with this number, from 1: a DNS label. What is too long, or holds
    /// what a label cannot, is shortened and gets six digits of its hash; the region before the
    /// profile, the UID and the number never.
    pub fn name(&self, ordinal: u32) -> String {
        let tail = match (plain(self.uid).get(..UID), ordinal) {
            (uid, 0 | 1) => format!("-{}", uid.unwrap_or_default()),
            (uid, more) => format!("-{}-{more}", uid.unwrap_or_default()),
        };
        let room = LONGEST.saturating_sub(tail.len() + 1);
        // A hash, and a letter by which to know it.
        let least = HASH + 2;
        let profile = fitted(self.provider, self.profile, room.saturating_sub(least));
        let region = fitted(self.provider, self.region, room.saturating_sub(profile.len()));
        format!("{profile}-{region}{tail}")
    }

    /// The number of the bucket that has this name. `None`: it is none of these.
    pub fn ordinal(&self, name: &str) -> Option<u32> {
        let last = name.rsplit('-').next().and_then(|digits| digits.parse().ok());
        [Some(1), last].into_iter().flatten().find(|ordinal| self.name(*ordinal) == name)
    }
}

/// Of the record of an entry that is no more. The whole UID tells it from those of other entries of
/// the name; an entry's name that is too long for that is cut.
pub fn tombstone(entry: &str, uid: &str) -> String {
    let room = LONGEST_OF_AN_OBJECT.saturating_sub("tombstone--".len() + uid.len());
    let entry = entry.get(..room).unwrap_or(entry);
    format!("tombstone-{}-{uid}", entry.trim_end_matches(['-', '.']))
}

/// `text` with nothing but what a label may hold.
fn plain(text: &str) -> String {
    let allowed = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_lowercase() || c.is_ascii_digit() => c,
        _ => '-',
    };
    text.chars().map(allowed).collect()
}

/// At most `room` long; as it is, if that is possible.
fn fitted(provider: &str, text: &str, room: usize) -> String {
    let mut label = plain(text);
    let is_label = label == text && !label.starts_with('-') && !label.ends_with('-');
    // Of no region, two hyphens would be left that meet.
    let is_taken = name_fault(provider, &label).is_none() && !(label.is_empty() && provider == AZURE);
    if is_label && label.len() <= room && is_taken {
        return label;
    }
    match provider {
        AZURE => label = label.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-"),
        GCP if label.contains("goog") => label = label.replace("oo", "o-"),
        _ => {}
    }
    label.truncate(room.saturating_sub(HASH + 1));
    let label = label.trim_matches('-');
    let hash = format!("{:016x}", hash(text));
    let hash = hash.get(..HASH).unwrap_or_default();
    if label.is_empty() { hash.to_owned() } else { format!("{label}-{hash}") }
}

/// FNV-1a (source: RFC 9923): names only have to differ, and to be the same with every version of
/// berth.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::store::{AWS, FILESYSTEM};
    use super::*;

    const UID: &str = "3ef4219a-5058-11e9-b5a6-5e696cab3bc8";

    fn stem<'a>(profile: &'a str, region: &'a str) -> Stem<'a> {
        Stem { profile, provider: AWS, region, uid: UID }
    }

    #[test]
    fn names_are_as_written() {
        let plain = stem("packet", "eu-west-1");
        assert_eq!(plain.name(1), "packet-eu-west-1-3ef42");
        assert_eq!(plain.name(2), "packet-eu-west-1-3ef42-2");
        let long = "a-region-with-a-name-that-nobody-would-like-to-type-twice";
        assert_eq!(
            stem("packet", long).name(1),
            "packet-a-region-with-a-name-that-nobody-would-like-f353cd-3ef42"
        );
        let fits = "a-region-with-a-name-that-fills-what-there-is-left";
        assert_eq!(stem("packet", fits).name(1), format!("packet-{fits}-3ef42"));
        assert_eq!(stem("packet", fits).name(1).len(), LONGEST);
        assert_eq!(
            stem("packet", fits).name(12),
            "packet-a-region-with-a-name-that-fills-what-the-5a9372-3ef42-12"
        );
        let spaced = stem("azure.eu", "West Europe").name(1);
        assert!(spaced.starts_with("azure-eu-") && spaced.ends_with("-3ef42"), "{spaced}");
        assert_ne!(spaced, stem("azure-eu", "west-europe").name(1));
    }

    #[test]
    fn a_store_that_would_not_take_a_name_gets_another() {
        let name = |provider, profile, region| Stem { provider, ..stem(profile, region) }.name(1);
        assert_eq!(name(AZURE, "packet", "westeurope"), "packet-westeurope-3ef42");
        assert_eq!(name(AWS, "a--b", "eu"), "a--b-eu-3ef42");
        assert!(name(AZURE, "a--b", "eu").starts_with("a-b-"));
        assert_ne!(name(AZURE, "a--b", "eu"), name(AZURE, "a-b", "eu"));
        assert!(name(GCP, "google-eu", "europe-west1").starts_with("go-gle-eu-"));
        assert_eq!(name(GCP, "packet", "europe-west1"), "packet-europe-west1-3ef42");
    }

    #[test]
    fn each_entry_has_a_record_of_its_own() {
        assert_eq!(tombstone("ship--1", UID), format!("tombstone-ship--1-{UID}"));
        let alike = UID.replace("b5a6", "b5a7");
        assert_ne!(tombstone("ship--1", UID), tombstone("ship--1", &alike));
        for long in ["a".repeat(253), "a.".repeat(126) + "a", "-".repeat(252) + "a"] {
            let name = tombstone(&long, UID);
            assert!(name.len() <= LONGEST_OF_AN_OBJECT && name.ends_with(&format!("-{UID}")), "{name}");
            assert!(!name.contains(".-"), "{name}");
        }
    }

    #[test]
    fn of_a_uid_of_digits_no_part_is_taken_for_a_number() {
        let digits = Stem { profile: "p", provider: AWS, region: "r", uid: "12345678-0000" };
        assert_eq!(digits.name(1), "p-r-12345");
        assert_eq!(digits.ordinal("p-r-12345"), Some(1));
        assert_eq!(digits.ordinal("p-r-12345-7"), Some(7));
        assert_eq!(digits.ordinal("p-r-12345-1"), None);
        assert_eq!(digits.ordinal("p-x-12345"), None);
    }

    proptest! {
        #[test]
        fn every_name_is_a_label_and_tells_its_number(
            profile in "(goog)?[a-z0-9]([a-z0-9.-]{0,100}[a-z0-9])?", region in "(\\PC|-|goo|gle){0,80}",
            provider in prop::sample::select(vec![AWS, AZURE, GCP, FILESYSTEM]), ordinal in 1u32..
        ) {
            let stem = Stem { provider, ..stem(&profile, &region) };
            let name = stem.name(ordinal);
            prop_assert!(name.len() <= LONGEST, "{name}");
            prop_assert_eq!(name_fault(provider, &name), None, "{}", name);
            prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{name}");
            prop_assert!(!name.starts_with('-') && !name.ends_with('-'), "{name}");
            let end = if ordinal == 1 { "-3ef42".to_owned() } else { format!("-3ef42-{ordinal}") };
            prop_assert!(name.ends_with(&end), "{name}");
            prop_assert_eq!(stem.ordinal(&name), Some(ordinal));
        }

        #[test]
        fn regions_and_numbers_have_names_of_their_own(
            a in "[a-z][a-z0-9-]{0,70}", b in "[a-z][a-z0-9-]{0,70}", n in 1u32..200, m in 1u32..200
        ) {
            let one = stem("packet", &a).name(n);
            let other = stem("packet", &b).name(m);
            prop_assert_eq!(one == other, a == b && n == m, "{}", one);
        }
    }
}
