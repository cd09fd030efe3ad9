//! Which stored objects of two archives differ. Of each object two digests are held, so that
//! hundreds of thousands fit into little memory.

use std::collections::HashMap;
use std::io::Read;

use anyhow::ensure;
use ring::digest::{Context, SHA256};
use serde_json::Value;

use super::archive::{ArchiveControl, LARGEST_OBJECT, StoredObject, parsed, text, visit};

type Digest = [u8; 16];

/// Objects of one archive at most.
const MOST: usize = 500_000;

/// The digests of an archive, and which of its objects the other archive has too.
#[derive(Default)]
pub struct Digests(HashMap<Digest, (Digest, bool)>);

/// How an object differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectDifference {
    Added,
    Changed,
    Removed,
}

impl ObjectDifference {
    /// As in a diff.
    pub fn sign(self) -> char {
        match self {
            Self::Added => '+',
            Self::Changed => '~',
            Self::Removed => '-',
        }
    }
}

impl Digests {
    /// Reads the older archive.
    ///
    /// # Errors
    /// When it cannot be read, or holds too much.
    pub fn read(tar: impl Read) -> anyhow::Result<Self> {
        let mut digests = HashMap::new();
        visit(tar, |stored, size, body| {
            ensure!(
                digests.len() < MOST,
                "the archive has more than {MOST} objects, which is more than this command compares"
            );
            digests.insert(digest(stored.to_string().as_bytes()), (content(&stored, size, body)?, false));
            Ok(ArchiveControl::Go)
        })?;
        Ok(Self(digests))
    }

    /// Reads the newer archive; tells `found` what it adds and changes.
    ///
    /// # Errors
    /// When it cannot be read, or `found` fails.
    pub fn compare(
        &mut self,
        tar: impl Read,
        mut found: impl FnMut(ObjectDifference, &StoredObject) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        visit(tar, |stored, size, body| {
            let is = content(&stored, size, body)?;
            match self.0.get_mut(&digest(stored.to_string().as_bytes())) {
                None => found(ObjectDifference::Added, &stored)?,
                Some((was, seen)) => {
                    *seen = true;
                    if *was != is {
                        found(ObjectDifference::Changed, &stored)?;
                    }
                }
            }
            Ok(ArchiveControl::Go)
        })
    }

    /// How many objects of the older archive the newer one lacks.
    pub fn removed(&self) -> usize {
        self.0.values().filter(|(_, seen)| !seen).count()
    }

    /// Reads the older archive once more, for the names of what the newer one lacks.
    ///
    /// # Errors
    /// When it cannot be read, or `found` fails.
    pub fn name_removed(
        &self,
        tar: impl Read,
        mut found: impl FnMut(ObjectDifference, &StoredObject) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        visit(tar, |stored, _, _| {
            let known = self.0.get(&digest(stored.to_string().as_bytes()));
            if known.is_some_and(|(_, seen)| !seen) {
                found(ObjectDifference::Removed, &stored)?;
            }
            Ok(ArchiveControl::Go)
        })
    }
}

fn digest(bytes: &[u8]) -> Digest {
    short(ring::digest::digest(&SHA256, bytes).as_ref())
}

fn short(digest: &[u8]) -> Digest {
    digest.get(..16).and_then(|half| half.try_into().ok()).unwrap_or_default()
}

/// Of an object without its status, what an API server counts up with every write, and the version
/// of the API by which it was read: an upgrade of the cluster changes that of all objects of a
/// type. One that is very large, or has very many values, counts as it stands.
fn content(stored: &StoredObject, size: u64, body: &mut dyn Read) -> anyhow::Result<Digest> {
    if size > LARGEST_OBJECT {
        let mut context = Context::new(&SHA256);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = body.read(&mut buffer)?;
            if read == 0 {
                return Ok(short(context.finish().as_ref()));
            }
            context.update(buffer.get(..read).unwrap_or_default());
        }
    }
    let text = text(stored, size, body)?;
    let Some(mut value) = parsed(stored, &text)? else { return Ok(digest(&text)) };
    if let Some(fields) = value.as_object_mut() {
        for field in ["status", "apiVersion"] {
            fields.remove(field);
        }
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["resourceVersion", "managedFields", "generation"] {
            metadata.remove(field);
        }
    }
    Ok(digest(&serde_json::to_vec(&value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, text) in [("metadata/version", "1.1.0\n")].iter().chain(files) {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            builder.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn what_was_added_changed_and_removed_is_told() {
        let old = archive(&[
            (
                "resources/pods/namespaces/web/same.json",
                r#"{"metadata":{"resourceVersion":"1","name":"same"},"status":{"a":1}}"#,
            ),
            ("resources/pods/namespaces/web/changed.json", r#"{"spec":1}"#),
            ("resources/pods/namespaces/web/removed.json", "{}"),
        ]);
        let new = archive(&[
            ("resources/pods/namespaces/web/added.json", "{}"),
            ("resources/pods/namespaces/web/changed.json", r#"{"spec":2}"#),
            (
                "resources/pods/namespaces/web/same.json",
                r#"{"status":{"a":2},"metadata":{"name":"same","resourceVersion":"2"}}"#,
            ),
        ]);
        let mut digests = Digests::read(old.as_slice()).unwrap();
        let mut found = Vec::new();
        let mut tell = |change: ObjectDifference, stored: &StoredObject| {
            found.push(format!("{} {stored}", change.sign()));
            Ok(())
        };
        digests.compare(new.as_slice(), &mut tell).unwrap();
        assert_eq!(digests.removed(), 1);
        digests.name_removed(old.as_slice(), &mut tell).unwrap();
        assert_eq!(found, ["+ pods/web/added", "~ pods/web/changed", "- pods/web/removed"]);
    }

    /// It is not taken apart, so its status counts as well.
    #[test]
    fn an_object_of_very_many_values_is_compared_as_it_stands() {
        let heavy =
            |status: u32| format!(r#"{{"spec":[{}0],"status":{status}}}"#, r#"{"":0},"#.repeat(200_000));
        let archives = [heavy(1), heavy(2)]
            .map(|object| archive(&[("resources/pods/namespaces/web/heavy.json", object.as_str())]));
        let mut digests = Digests::read(archives[0].as_slice()).unwrap();
        let mut found = Vec::new();
        let mut tell = |change: ObjectDifference, _: &StoredObject| {
            found.push(change);
            Ok(())
        };
        digests.compare(archives[0].as_slice(), &mut tell).unwrap();
        digests.compare(archives[1].as_slice(), &mut tell).unwrap();
        assert_eq!(found, [ObjectDifference::Changed]);
    }

    #[test]
    fn an_object_that_was_read_by_another_version_of_its_api_is_no_other() {
        let named = |version: &str, spec: u32| {
            format!(
                r#"{{"apiVersion":"autoscaling/{version}","kind":"HorizontalPodAutoscaler","spec":{spec}}}"#
            )
        };
        let of = |version: &str, spec: u32| {
            let (same, other) = (named(version, 1), named(version, spec));
            // Velero stores further versions beside the preferred one, if it is asked to.
            archive(&[
                ("resources/hpas.autoscaling/namespaces/web/same.json", &same),
                ("resources/hpas.autoscaling/v2-preferredversion/namespaces/web/same.json", &same),
                ("resources/hpas.autoscaling/v1/namespaces/web/same.json", "{}"),
                ("resources/hpas.autoscaling/namespaces/web/changed.json", &other),
            ])
        };
        let mut found = Vec::new();
        let mut digests = Digests::read(of("v2beta2", 1).as_slice()).unwrap();
        let tell = |change: ObjectDifference, stored: &StoredObject| {
            found.push(format!("{} {stored}", change.sign()));
            Ok(())
        };
        digests.compare(of("v2", 2).as_slice(), tell).unwrap();
        assert_eq!((found, digests.removed()), (vec!["~ hpas.autoscaling/web/changed".to_owned()], 0));
    }
}
