//! In which namespaces the movements of a backup were, as its checkpoint says.

use std::collections::BTreeSet;
use std::fmt;

use berth_core::sync::is_name;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::backup::operations::MOST_MOVEMENTS;

/// The part of [`super::Remembered`] that is read to forget what the movements have stored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MovedNamespaces {
    #[serde(deserialize_with = "read_namespaces")]
    pub operations: BTreeSet<String>,
}

/// All of a movement that is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct MovedNamespace {
    namespace: String,
}

/// Reading stops at the first movement that is too many, because anybody who may write to the store
/// may have written them. What cannot be the name of a namespace is not kept.
fn read_namespaces<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<String>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = BTreeSet<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MOST_MOVEMENTS} movements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<BTreeSet<String>, A::Error> {
            let (mut namespaces, mut count) = (BTreeSet::new(), 0);
            while let Some(MovedNamespace { namespace }) = all.next_element()? {
                count += 1;
                if count > MOST_MOVEMENTS {
                    return Err(A::Error::invalid_length(count, &self));
                }
                if is_name(&namespace) {
                    namespaces.insert(namespace);
                }
            }
            Ok(namespaces)
        }
    }
    from.deserialize_seq(Few)
}
