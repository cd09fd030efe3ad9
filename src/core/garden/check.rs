//! What is refused at admission, kind by kind: each fault with its field and the way out, all of
//! them at once.
//!
//! What is wrong with an object by itself is refused by `manifests/garden/policies.yaml`, too, in
//! the same words and also while berth is away; those functions are called `faults`. What depends
//! on other objects only berth knows.

pub mod bucket;
pub mod entry;
pub mod extension;
pub mod location;
pub mod profile;
pub mod seed;

use std::fmt::Write as _;

use super::store::{SERVED, SecretRef, secret_keys};
use super::view::GardenView;
use berth_core::violation::{Field, Violations};

/// What was found in one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionFindings {
    /// Whatever other objects come later.
    pub faults: Violations,
    /// Faults that depend on other objects, or only count for a new object. They may disappear any
    /// moment.
    pub blamed: Violations,
    /// Warnings, which refuse nothing.
    pub warnings: Vec<String>,
}

impl AdmissionFindings {
    fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }

    fn blame(&mut self, field: Field, message: impl Into<String>) {
        self.blamed.push(field, message);
    }

    /// A restore creates objects in its own order, so others may come later.
    #[must_use]
    pub fn of_a_restore(mut self) -> Self {
        self.warnings.extend(self.blamed.iter().map(ToString::to_string));
        self.blamed = Violations::default();
        self
    }

    /// All that it is refused for.
    pub fn violations(&self) -> Violations {
        let mut all = self.faults.clone();
        all.append(self.blamed.clone());
        all
    }
}

/// A Secret, as it was found a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretLookup {
    /// There, with these of its keys filled.
    Found(Vec<String>),
    Missing,
    /// It is unknown, for this reason.
    Unknown(String),
}

/// Checks a complete reference: is the Secret in the namespace where berth may read, is it there,
/// and has it the needed keys?
fn check_secret(
    parent: &Field,
    provider: &str,
    secret: Option<&SecretRef>,
    credentials: Option<&SecretLookup>,
    view: &GardenView,
    found: &mut AdmissionFindings,
) {
    let Some(SecretRef { name, namespace }) =
        secret.filter(|s| !s.name.is_empty() && !s.namespace.is_empty())
    else {
        return;
    };
    let field = parent.child("secretRef");
    if *namespace != view.garden_namespace {
        let message = format!(
            "credentials are read in namespace \"{}\" alone: put the Secret there",
            view.garden_namespace
        );
        found.faults.push(field.child("namespace"), message);
        return;
    }
    match credentials {
        None => {}
        Some(SecretLookup::Missing) => {
            found.blame(
                field.child("name"),
                format!("Secret {namespace}/{name} does not exist: create it first"),
            );
        }
        Some(SecretLookup::Unknown(why)) => {
            found.warn(format!("whether Secret {namespace}/{name} exists could not be found out: {why}"));
        }
        Some(SecretLookup::Found(keys)) => {
            let lacks = |key: &&str| !keys.iter().any(|one| one == key);
            let missing: Vec<&str> = secret_keys(provider).iter().copied().filter(lacks).collect();
            if !missing.is_empty() {
                found.warn(format!("Secret {namespace}/{name} lacks {}", missing.join(" and ")));
            }
        }
    }
}

/// Data may be given up only with a reason in words. `old`: the annotation's value before.
fn check_reason(key: &str, old: Option<&String>, new: Option<&String>, found: &mut Violations) {
    let is_unsaid = new.is_some_and(|reason| Some(reason) != old && matches!(reason.trim(), "" | "true"));
    found.require(
        !is_unsaid,
        &Field::root("metadata").child("annotations").key(key),
        "must be the reason, in words: it is kept with the record of what was deleted",
    );
}

/// Warns of a provider that berth does not serve.
fn check_provider(provider: &str, found: &mut AdmissionFindings) {
    if !provider.is_empty() && !SERVED.contains(&provider) {
        found.warn(format!(
            "berth itself does not serve \"{provider}\" ({} it does): such buckets come about where an extension in the member cluster serves it",
            listed(&SERVED)
        ));
    }
}

const FORCE_DELETION: &str = "garden.berth.dev/force-deletion";
const FORGET_DATA: &str = "garden.berth.dev/forget-data";

/// As in a sentence.
fn listed(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        words => words.concat(),
    }
}

/// How many entries, and the first few by name.
fn entries<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    some(names, "entry", "entries")
}

/// How many of something, and the first few by name.
fn some<'n>(names: impl IntoIterator<Item = &'n str>, one: &str, more: &str) -> String {
    const MOST: usize = 3;
    let names: Vec<&str> = names.into_iter().collect();
    let mut said = format!("{} (", count(names.len(), one, more));
    for (i, name) in names.iter().take(MOST).enumerate() {
        let _ = write!(said, "{}{name}", if i > 0 { ", " } else { "" });
    }
    said + if names.len() > MOST { ", …)" } else { ")" }
}

fn count(number: usize, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

/// Of something that is being deleted.
fn deletion() -> Field {
    Field::root("metadata").child("deletionTimestamp")
}

fn name() -> Field {
    Field::root("metadata").child("name")
}

#[cfg(test)]
mod tests;
