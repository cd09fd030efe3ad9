//! The pages name what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::project;

/// All files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn files_of(folders: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in folders {
        files(&project().join(folder), &mut found);
    }
    found
}

fn is_code(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// The pages for people.
fn pages() -> Vec<PathBuf> {
    let mut pages = files_of(&["docs"]);
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    pages.extend(others.iter().map(|page| project().join(page)));
    pages.extend(
        ["image", "tests/control-plane"].iter().map(|folder| project().join(folder).join("README.md")),
    );
    pages
}

/// The text of a page without its examples, and the examples, each with its language.
fn split(page: &str) -> (String, Vec<(String, String)>) {
    let (mut prose, mut examples) = (String::new(), Vec::new());
    // Language, indentation and lines of the example that has begun.
    let mut open: Option<(String, usize, String)> = None;
    for line in page.lines() {
        let text = line.trim_start();
        if let Some(language) = text.strip_prefix("```") {
            match open.take() {
                None => open = Some((language.to_owned(), line.len() - text.len(), String::new())),
                Some((language, _, example)) => examples.push((language, example)),
            }
        } else if let Some((_, indentation, example)) = &mut open {
            example.push_str(line.get(*indentation..).unwrap_or_default());
            example.push('\n');
        } else {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    assert!(open.is_none(), "an example does not end");
    (prose, examples)
}

fn read(page: &Path) -> (String, Vec<(String, String)>) {
    split(&std::fs::read_to_string(page).unwrap())
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(prose: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in prose.lines().filter(|line| line.starts_with('#')) {
        let Some(heading) = line.trim_start_matches('#').strip_prefix(' ') else { continue };
        let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
        let anchor = heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-");
        let number = (1..).find(|number| !found.contains(&format!("{anchor}-{number}")));
        if found.contains(&anchor) {
            found.extend(number.map(|number| format!("{anchor}-{number}")));
        } else {
            found.insert(anchor);
        }
    }
    found
}

#[test]
fn every_link_of_a_page_leads_to_a_file_and_a_heading() {
    let (mut links, mut dead) = (0, Vec::new());
    for page in pages() {
        let (prose, _) = read(&page);
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in targets.filter(|link| !link.starts_with("http") && !link.contains(char::is_whitespace)) {
            links += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let leads = if anchor.is_empty() {
                target.exists()
            } else {
                target.is_file() && anchors(&read(&target).0).contains(anchor)
            };
            if !leads {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(links > 300, "{links}");
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn every_example_of_yaml_and_of_json_can_be_read() {
    let (mut examples, mut wrong) = (0, Vec::new());
    for page in pages() {
        for (language, example) in read(&page).1 {
            let fault = match language.as_str() {
                "yaml" => {
                    // Some examples show one field before and after a change.
                    let twice = serde_saphyr::options! {
                        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
                    };
                    let read = serde_saphyr::from_multiple_with_options::<Value>(&example, twice);
                    read.err().map(|error| error.to_string())
                }
                "json" => serde_json::from_str::<Value>(&example).err().map(|error| error.to_string()),
                _ => continue,
            };
            examples += 1;
            wrong.extend(fault.map(|fault| format!("{}: {fault}\n{example}", page.display())));
        }
    }
    assert!(examples > 20, "{examples}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What stands in backquotes.
fn quoted(prose: &str) -> impl Iterator<Item = &str> {
    prose.split('`').skip(1).step_by(2)
}

/// The paths for which `src/{a,b}.rs` stands.
fn expanded(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (names, after))) = parts else { return vec![path.to_owned()] };
    names.split(',').flat_map(|name| expanded(&format!("{before}{name}{after}"))).collect()
}

/// The name at the beginning of a text.
fn name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// The names of functions, types, constants and modules, and of whatever stands at the beginning of
/// a line, as variants of enums do.
fn names(code: &str) -> BTreeSet<&str> {
    let kinds = ["fn", "struct", "enum", "trait", "type", "const", "mod"];
    let words: Vec<&str> = code.split_whitespace().collect();
    let items = words.windows(2).filter(|pair| kinds.contains(&pair[0])).map(|pair| name(pair[1]));
    items.chain(code.lines().map(|line| name(line.trim()))).collect()
}

#[test]
fn every_file_and_every_item_that_architecture_names_is_there() {
    let folders = ["src", "webhooks", "certs", "manifests", "tests", "docs"];
    let all = files_of(&folders);
    let mut there = BTreeSet::new();
    for file in &all {
        let file = file.strip_prefix(project()).unwrap();
        there.insert(file.with_extension(""));
        there.extend(file.ancestors().map(Path::to_owned));
    }
    let sources = all.iter().filter(|path| is_code(path));
    let code: String = sources.map(|path| std::fs::read_to_string(path).unwrap() + "\n").collect();
    let items = names(&code);

    let (prose, _) = read(&project().join("ARCHITECTURE.md"));
    let (mut checked, mut missing) = (0, Vec::new());
    for word in quoted(&prose) {
        let is_of = |allowed: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || allowed.contains(c));
        let begins = folders.iter().any(|folder| word.starts_with(&format!("{folder}/")));
        let is_there = if is_of("_-./{},") && (begins || word.ends_with(".rs")) {
            expanded(word).iter().all(|path| there.iter().any(|one| one.ends_with(path)))
        } else if is_of("_:") && word.contains("::") {
            // The names of packages are those of folders.
            word.split("::").filter(|part| !part.starts_with("berth_")).all(|part| items.contains(part))
        } else {
            continue;
        };
        checked += 1;
        if !is_there {
            missing.push(word);
        }
    }
    let engine =
        prose.split("\n## The files of the engine\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    for file in quoted(engine.unwrap()).filter(|word| !word.starts_with("src/")) {
        checked += 1;
        if !there.iter().any(|one| one.starts_with("src/backup") && one.ends_with(file)) {
            missing.push(file);
        }
    }
    assert!(checked > 150, "{checked}");
    assert!(missing.is_empty(), "ARCHITECTURE.md names what is not there: {missing:?}");
}

/// The names of all functions, with the modules of the files that they are in.
fn functions() -> BTreeMap<String, Vec<PathBuf>> {
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in files_of(&["src", "webhooks", "tests"]).iter().filter(|path| is_code(path)) {
        let text = std::fs::read_to_string(path).unwrap();
        let names = text.split("fn ").skip(1).filter_map(|rest| rest.split_once('('));
        let module = path.strip_prefix(project()).unwrap().with_extension("");
        for (name, _) in names {
            found.entry(name.to_owned()).or_default().push(module.clone());
        }
    }
    found
}

/// The tests that a page names: in backquotes, with their modules or without.
fn named(page: &str) -> BTreeSet<&str> {
    let is_of_a_path = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c);
    // Metrics have such names, too.
    quoted(page)
        .filter(|word| word.chars().all(is_of_a_path) && word.matches('_').count() > 1)
        .filter(|word| !word.starts_with("berth_") && !word.starts_with("velero_"))
        .collect()
}

#[test]
fn every_test_that_the_page_on_security_names_is_there() {
    let all = functions();
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
