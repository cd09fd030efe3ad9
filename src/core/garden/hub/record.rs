//! Whose data was left in a store, by the records of entries that have ended.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// What the record of an entry says of its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryRecord<'r> {
    /// The record's own.
    pub name: &'r str,
    pub entry: &'r str,
    pub namespace: &'r str,
    /// Empty: the entry named none.
    pub bucket: &'r str,
    /// When it was written.
    pub when: Option<Timestamp>,
    /// Its data is gone. Otherwise it was left in the store.
    pub is_removed: bool,
}

impl<'r> EntryRecord<'r> {
    /// The directory that the record is of, and whose it was.
    fn subject(&self) -> (&'r str, &'r str, &'r str) {
        (self.entry, self.namespace, self.bucket)
    }
}

/// Data of an entry that has ended, which is still in its store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftoverData {
    pub namespace: String,
    /// Empty: unknown.
    pub bucket: String,
    /// The name of its record.
    pub record: String,
}

/// By name of entries. Data that a namespace left is gone if the same namespace later removed that
/// directory.
pub fn left<'r>(records: impl IntoIterator<Item = EntryRecord<'r>>) -> BTreeMap<String, Vec<LeftoverData>> {
    let (removed, kept): (Vec<EntryRecord>, Vec<EntryRecord>) =
        records.into_iter().partition(|record| record.is_removed);
    let mut last: BTreeMap<(&str, &str, &str), Option<Timestamp>> = BTreeMap::new();
    for record in &removed {
        let when = last.entry(record.subject()).or_default();
        *when = record.when.max(*when);
    }
    let mut left: BTreeMap<String, Vec<LeftoverData>> = BTreeMap::new();
    for record in kept {
        // Without a time it is unknown which was first.
        let is_over = record.when.is_some()
            && last.get(&record.subject()).is_some_and(|removed| *removed > record.when);
        if !is_over {
            left.entry(record.entry.to_owned()).or_default().push(LeftoverData {
                namespace: record.namespace.to_owned(),
                bucket: record.bucket.to_owned(),
                record: record.name.to_owned(),
            });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of entry `e`, in `namespace` and `bucket`.
    fn record<'r>(
        name: &'r str,
        namespace: &'r str,
        bucket: &'r str,
        second: i64,
        is_removed: bool,
    ) -> EntryRecord<'r> {
        let when = Timestamp::from_second(second).ok();
        EntryRecord { name, entry: "e", namespace, bucket, when, is_removed }
    }

    #[test]
    fn what_was_left_is_there_until_its_namespace_has_removed_it() {
        let was_left = record("left", "one", "b", 5, false);
        let named = |records: &[EntryRecord<'_>]| -> Vec<String> {
            let left = left(records.iter().copied());
            left.into_values().flatten().map(|left| left.record).collect()
        };
        for (what, other, is_there) in [
            ("removed later", record("r", "one", "b", 6, true), false),
            ("removed before", record("r", "one", "b", 4, true), true),
            ("in the same second", record("r", "one", "b", 5, true), true),
            ("by another namespace", record("r", "two", "b", 6, true), true),
            ("from another bucket", record("r", "one", "c", 6, true), true),
            ("under another name", EntryRecord { entry: "f", ..record("r", "one", "b", 6, true) }, true),
            ("nobody knows when", EntryRecord { when: None, ..record("r", "one", "b", 6, true) }, true),
        ] {
            let expected: &[&str] = if is_there { &["left"] } else { &[] };
            assert_eq!(named(&[was_left, other]), expected, "{what}");
            assert_eq!(named(&[other, was_left]), expected, "{what}, in another order");
        }
        // The last one counts.
        let removed = [record("r", "one", "b", 9, true), record("s", "one", "b", 3, true)];
        assert_eq!(named(&[removed[0], removed[1], was_left]), [""; 0]);
        assert_eq!(named(&[removed[1], was_left, removed[0]]), [""; 0]);
        let again = record("again", "one", "b", 10, false);
        assert_eq!(named(&[removed[0], was_left, again]), ["again"]);
        let timeless = EntryRecord { when: None, ..was_left };
        assert_eq!(named(&[timeless, removed[0]]), ["left"]);
    }
}
