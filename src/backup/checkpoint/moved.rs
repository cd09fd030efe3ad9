//! In which namespaces a backup has data in repositories, as its checkpoint says: those of its
//! movements, and those of pods whose files were read.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use berth_core::sync::is_name;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::backup::movement::MOST_MOVEMENTS;
use crate::backup::volumes::outcomes::MOST_NOTED;

/// The part of [`super::Remembered`] that is read to forget what is in repositories.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DataNamespaces {
    #[serde(deserialize_with = "read_moved")]
    operations: BTreeSet<String>,
    volumes: FileNamespaces,
}

impl DataNamespaces {
    pub fn all(self) -> BTreeSet<String> {
        let Self { mut operations, volumes } = self;
        operations.extend(volumes.file_namespaces);
        operations
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FileNamespaces {
    #[serde(deserialize_with = "read_noted")]
    file_namespaces: BTreeSet<String>,
}

/// All of a movement that is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct MovedNamespace {
    namespace: String,
}

impl From<MovedNamespace> for String {
    fn from(MovedNamespace { namespace }: MovedNamespace) -> Self {
        namespace
    }
}

fn read_moved<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<String>, D::Error> {
    from.deserialize_seq(BoundedList::<MovedNamespace> { most: MOST_MOVEMENTS, of: PhantomData })
}

fn read_noted<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<String>, D::Error> {
    from.deserialize_seq(BoundedList::<String> { most: MOST_NOTED, of: PhantomData })
}

/// Reading stops at the first one that is too many, because anybody who may write to the store may
/// have written them. What cannot be the name of a namespace is not kept.
struct BoundedList<T> {
    most: usize,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de> + Into<String>> Visitor<'de> for BoundedList<T> {
    type Value = BTreeSet<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} of them", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<BTreeSet<String>, A::Error> {
        let (mut namespaces, mut count) = (BTreeSet::new(), 0);
        while let Some(one) = all.next_element::<T>()? {
            count += 1;
            if count > self.most {
                return Err(A::Error::invalid_length(count, &self));
            }
            let namespace = one.into();
            if is_name(&namespace) {
                namespaces.insert(namespace);
            }
        }
        Ok(namespaces)
    }
}
