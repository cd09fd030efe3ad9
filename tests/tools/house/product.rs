//! The modules of the product, and which of them imports which. A file is a module; it imports each
//! module in which a path of its `use` trees or of its code ends. A name that a module only hands
//! on counts as an import of the module that it comes from. A module and what lies below it are one
//! body, because Rust divides a file that way, so what they import of each other does not count.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;

use crate::source::{Token, is_word, tokens, types};

/// How often a name is followed that modules hand on.
const HANDED_ON: usize = 8;

#[derive(Deserialize)]
struct Manifest {
    package: Package,
    lib: Option<Library>,
    workspace: Option<Workspace>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

#[derive(Deserialize)]
struct Library {
    path: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Workspace {
    default_members: Vec<PathBuf>,
}

struct Module {
    file: PathBuf,
    uses: Vec<Use>,
    types: Vec<(String, usize)>,
}

/// A path, and the name under which the module has what it leads to; empty for a path in its code.
struct Use {
    line: usize,
    path: Vec<String>,
    name: String,
}

/// Where a module imports another one.
pub struct Import {
    pub line: usize,
    pub path: String,
}

/// By the importing module: the imported ones.
pub type Arrows = BTreeMap<String, BTreeMap<String, Import>>;

/// The modules of all packages that the program is built of.
#[derive(Default)]
pub struct Product {
    modules: BTreeMap<String, Module>,
}

impl Product {
    /// # Errors
    /// When a file cannot be read.
    pub fn read(top: &Path) -> anyhow::Result<Self> {
        let (mut product, mut left) = (Self::default(), Vec::new());
        let workspace = manifest(top, Path::new("."))?.workspace;
        for member in workspace.context("Cargo.toml: it has no [workspace]")?.default_members {
            let Manifest { package, lib, .. } = manifest(top, &member)?;
            let path = lib.and_then(|lib| lib.path).unwrap_or_else(|| PathBuf::from("src/lib.rs"));
            let file = member.join(path);
            let file = file.strip_prefix(".").unwrap_or(&file).to_owned();
            left.push((package.name.replace('-', "_"), file));
        }
        while let Some((module, file)) = left.pop() {
            let text = read(&top.join(&file))?;
            let folder = match module.contains("::") {
                true => file.with_extension(""),
                false => file.parent().unwrap_or(&file).to_owned(),
            };
            for name in product.add(&module, file, &text) {
                left.push((format!("{module}::{name}"), folder.join(format!("{name}.rs"))));
            }
        }
        Ok(product)
    }

    /// Adds a module, and returns the names of those below it that have files of their own.
    pub fn add(&mut self, module: &str, file: PathBuf, text: &str) -> Vec<String> {
        let tokens = tokens(text);
        let word = |at: usize| tokens.get(at).map_or("", |token| token.text);
        let (mut uses, mut below, mut at) = (Vec::new(), Vec::new(), 0);
        while at < tokens.len() {
            match word(at) {
                "use" if word(at + 1) != "<" => at = use_tree(&tokens, at + 1, &[], &mut uses),
                "mod" if word(at + 2) == ";" => {
                    below.push(word(at + 1).to_owned());
                    at += 3;
                }
                _ => at = path_in_code(&tokens, at, &mut uses),
            }
        }
        let types = types(&tokens).iter().map(|name| (name.text.to_owned(), name.line)).collect();
        self.modules.insert(module.to_owned(), Module { file, uses, types });
        below
    }

    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.modules.keys().map(String::as_str)
    }

    pub fn file(&self, module: &str) -> String {
        self.modules.get(module).map_or_else(String::new, |module| module.file.display().to_string())
    }

    /// The name of each type, with the places that declare one of this name.
    pub fn types(&self) -> BTreeMap<&str, Vec<String>> {
        let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for Module { file, types, .. } in self.modules.values() {
            for (name, line) in types {
                found.entry(name.as_str()).or_default().push(format!("{}:{line}", file.display()));
            }
        }
        found
    }

    pub fn arrows(&self) -> Arrows {
        let of = |from: &str, module: &Module| {
            let mut found = BTreeMap::new();
            for Use { line, path, .. } in &module.uses {
                if let Some(to) = self.resolve(from, path, HANDED_ON).filter(|to| !is_one_body(from, to)) {
                    found.entry(to).or_insert_with(|| Import { line: *line, path: path.join("::") });
                }
            }
            found
        };
        self.modules.iter().map(|(from, module)| (from.clone(), of(from, module))).collect()
    }

    /// The module in which a path ends. `None`: it is none of the product's.
    fn resolve(&self, from: &str, path: &[String], handed_on: usize) -> Option<String> {
        let (first, after) = path.split_first()?;
        let mut rest = path;
        let mut at = match first.as_str() {
            "crate" => {
                rest = after;
                from.split("::").next()?.to_owned()
            }
            "self" | "super" => {
                let mut at = from;
                while let Some((word, after)) = rest.split_first().filter(|(word, _)| is_relative(word)) {
                    at = if word == "super" { at.rsplit_once("::")?.0 } else { at };
                    rest = after;
                }
                at.to_owned()
            }
            name if self.modules.contains_key(&format!("{from}::{name}")) => from.to_owned(),
            name if self.modules.contains_key(name) => {
                rest = after;
                name.to_owned()
            }
            name => return self.handed(from, name, after, handed_on),
        };
        while let Some((name, after)) = rest.split_first() {
            let below = format!("{at}::{name}");
            if !self.modules.contains_key(&below) {
                return Some(self.handed(&at, name, after, handed_on).unwrap_or(at));
            }
            (at, rest) = (below, after);
        }
        Some(at)
    }

    /// Where a path ends that begins with a name which a `use` of the module brings into it.
    fn handed(&self, module: &str, name: &str, after: &[String], handed_on: usize) -> Option<String> {
        let uses = &self.modules.get(module)?.uses;
        let brought = uses.iter().find(|one| one.name == name)?;
        let path: Vec<String> = brought.path.iter().chain(after).cloned().collect();
        self.resolve(module, &path, handed_on.checked_sub(1)?)
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
}

fn manifest(top: &Path, member: &Path) -> anyhow::Result<Manifest> {
    let file = top.join(member).join("Cargo.toml");
    toml::from_str(&read(&file)?).with_context(|| format!("{} is not understood", file.display()))
}

fn is_relative(word: &str) -> bool {
    matches!(word, "self" | "super")
}

fn is_one_body(one: &str, other: &str) -> bool {
    let is_below =
        |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with("::"));
    one == other || is_below(one, other) || is_below(other, one)
}

/// Reads a branch of a `use` tree, and returns where it ends.
fn use_tree(tokens: &[Token<'_>], mut at: usize, trunk: &[String], found: &mut Vec<Use>) -> usize {
    let (mut path, mut name, mut line) = (trunk.to_vec(), None, 0);
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| !matches!(token.text, "}" | ";")) {
                    at = use_tree(tokens, at, &path, found);
                    at += usize::from(tokens.get(at).is_some_and(|token| token.text == ","));
                }
                return at + 1;
            }
            "," | "}" | ";" => break,
            "::" => {}
            // All that the module has, or the module itself.
            "*" => line = token.line,
            "self" if !path.is_empty() => line = token.line,
            "as" => {
                at += 1;
                name = tokens.get(at).map(|token| token.text.to_owned());
            }
            word => {
                line = token.line;
                path.push(word.to_owned());
            }
        }
        at += 1;
    }
    let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
    found.push(Use { line, path, name });
    at
}

/// Reads a path in the code, and returns where it ends.
fn path_in_code(tokens: &[Token<'_>], at: usize, found: &mut Vec<Use>) -> usize {
    let (mut path, mut line, mut end) = (Vec::new(), 0, at);
    while let Some(word) = tokens.get(end).filter(|token| token.text.starts_with(is_word)) {
        path.push(word.text.to_owned());
        (line, end) = (word.line, end + 1);
        if tokens.get(end).is_none_or(|token| token.text != "::") {
            break;
        }
        end += 1;
    }
    if path.len() > 1 {
        found.push(Use { line, path, name: String::new() });
    }
    end.max(at + 1)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The modules of one package, by their paths in it.
    pub fn product(modules: &[(&str, &str)]) -> Product {
        let mut product = Product::default();
        product.add("berth", PathBuf::from("lib.rs"), "");
        for (module, text) in modules {
            let file = format!("{}.rs", module.replace("::", "/"));
            product.add(&format!("berth::{module}"), PathBuf::from(file), text);
        }
        product
    }

    #[test]
    fn a_path_leads_to_the_module_that_has_its_end() {
        let product = product(&[
            ("a", "use crate::{b::{self, X as Y}, c::d::*};\nfn f() { super::e::g(); d::h(); }"),
            ("b", "pub use k::X; mod k;"),
            ("b::k", "use super::super::c; use std::fmt;"),
            ("c", ""),
            ("c::d", "use super::Above;"),
            ("e", "fn f() -> impl Fn() + use<> { Y::new() }"),
            ("f", "use super::b as other; fn f(x: other::X) {}"),
        ]);
        let arrows = product.arrows();
        let pairs = arrows.iter().flat_map(|(from, to)| to.keys().map(move |to| format!("{from} {to}")));
        let found: Vec<String> = pairs.map(|pair| pair.replace("berth::", "")).collect();
        assert_eq!(found, ["a b", "a b::k", "a c::d", "a e", "b::k c", "f b", "f b::k"]);
        let import = &arrows["berth::a"]["berth::e"];
        assert_eq!((import.line, import.path.as_str()), (2, "super::e::g"));
    }

    #[test]
    fn modules_below_are_those_with_files_that_the_product_has() {
        let text =
            "pub mod a; mod b { struct B; } #[cfg(test)] mod c; pub(crate) mod d; struct A; use mod_e::f;";
        let mut product = Product::default();
        assert_eq!(product.add("berth", PathBuf::from("src/lib.rs"), text), ["a", "d"]);
        product.add("other", PathBuf::from("lib.rs"), "\nenum A {}");
        let types = product.types();
        assert_eq!(types["A"], ["src/lib.rs:1", "lib.rs:2"]);
        assert_eq!(types.len(), 1);
    }
}
