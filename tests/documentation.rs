//! The pages in `docs/` name what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::support::project;

/// The names of all functions, with the modules of the files that they are in.
fn functions(folder: &Path, found: &mut BTreeMap<String, Vec<PathBuf>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split_once('('));
            let module = path.strip_prefix(project()).unwrap().with_extension("");
            for (name, _) in names {
                found.entry(name.to_owned()).or_default().push(module.clone());
            }
        }
    }
}

/// The tests that a page names: in backquotes, with their modules or without.
fn named(page: &str) -> BTreeSet<&str> {
    let is_of_a_path = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c);
    let quoted = page.split('`').skip(1).step_by(2);
    // Metrics have such names, too.
    quoted
        .filter(|word| word.chars().all(is_of_a_path) && word.matches('_').count() > 1)
        .filter(|word| !word.starts_with("berth_") && !word.starts_with("velero_"))
        .collect()
}

#[test]
fn every_test_that_the_page_on_security_names_is_there() {
    let mut all = BTreeMap::new();
    for folder in ["src", "webhooks", "tests"] {
        functions(&project().join(folder), &mut all);
    }
    let page = std::fs::read_to_string(project().join("docs/security.md")).unwrap();
    let named = named(&page);
    assert!(named.len() > 80, "{named:?}");
    let is_there = |path: &str| {
        let mut parts: Vec<&str> = path.split("::").collect();
        let name = parts.pop().unwrap_or_default();
        let of_modules =
            |file: &PathBuf| parts.iter().all(|part| file.components().any(|one| one.as_os_str() == *part));
        all.get(name).is_some_and(|files| files.iter().any(of_modules))
    };
    let missing: Vec<&str> = named.iter().copied().filter(|path| !is_there(path)).collect();
    assert!(missing.is_empty(), "docs/security.md names tests that are not there: {missing:?}");
}
