//! Do the packages that are linked keep to `deny.toml`? `make lint` asks. The file is cargo-deny's,
//! which does the same and more; it takes minutes to install, and this takes seconds to build.
//! Advisories are left to it, or to cargo-audit, where one of them is installed.

mod advisories;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use spdx::{Expression, ParseMode};

use advisories::{Answer, Ignored};

/// crates.io, as `cargo metadata` names it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What we read of `deny.toml`. A rule that is not read here would never be enforced, so it is an
/// error.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    graph: Graph,
    advisories: Advisories,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advisories {
    yanked: String,
    ignore: Vec<Ignored>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    version: u8,
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    #[serde(rename = "crate")]
    package: String,
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    /// Only cargo-deny tells of those: they are a warning.
    multiple_versions: String,
    wildcards: String,
    allow_wildcard_paths: bool,
    deny: Vec<Banned>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Banned {
    #[serde(rename = "crate")]
    package: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: String,
    unknown_git: String,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// `None`: a folder, which should be one of this workspace.
    source: Option<String>,
    dependencies: Vec<Dependency>,
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(faults) if faults.is_empty() => {
            println!("what is linked keeps to deny.toml");
            ExitCode::SUCCESS
        }
        Ok(faults) => {
            for fault in faults {
                eprintln!("dependencies: {fault}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("dependencies: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<BTreeSet<String>> {
    // Settings of cargo that come with the source could put other sources in the place of
    // crates.io.
    let settings = std::path::Path::new(".cargo");
    ensure!(!settings.exists(), ".cargo: this repository has no settings of cargo of its own");
    let text = std::fs::read_to_string("deny.toml").context("failed to read deny.toml of this folder")?;
    let rules: Rules = toml::from_str(&text).context("deny.toml has something that is not checked here")?;
    ensure!(rules.licenses.version == 2, "deny.toml: licenses.version: only 2 is known here");
    let strict = [&rules.bans.wildcards, &rules.sources.unknown_registry, &rules.sources.unknown_git];
    let is_strict = strict.iter().all(|rule| *rule == "deny") && rules.bans.allow_wildcard_paths;
    ensure!(
        is_strict,
        "deny.toml: bans.wildcards and sources: only \"deny\" is known here, and paths may be wildcards"
    );
    ensure!(
        rules.bans.multiple_versions == "warn",
        "deny.toml: bans.multiple-versions: only \"warn\" is known here"
    );
    let is_plain = |banned: &Banned| !banned.package.contains(['@', ':', '=']);
    ensure!(
        rules.bans.deny.iter().all(is_plain),
        "deny.toml: bans.deny: only names without versions are known here"
    );
    ensure!(!rules.graph.targets.is_empty(), "deny.toml: graph.targets: nothing would be checked");
    ensure!(rules.advisories.yanked == "deny", "deny.toml: advisories.yanked: only \"deny\" is known here");
    ensure!(
        rules.advisories.ignore.iter().all(Ignored::is_sound),
        "deny.toml: advisories.ignore: each wants an id, RUSTSEC-…, and a reason"
    );
    let (mut faults, mut roots) = (BTreeSet::new(), BTreeSet::new());
    for target in &rules.graph.targets {
        let metadata = metadata(target)?;
        roots.extend(metadata.targets().map(|target| target.src_path.clone()));
        faults.extend(rules.faults(&metadata));
        faults.extend(not_run(
            &metadata,
            &std::fs::read_to_string("tests/run").context("failed to read tests/run")?,
        ));
    }
    let top = std::env::current_dir().context("there is no present folder")?;
    faults.extend(modules_left_out(&top, &roots)?);
    faults.extend(advisories(&rules.advisories.ignore));
    Ok(faults)
}

/// One line for each advisory, or the reason why there was no check.
fn advisories(ignored: &[Ignored]) -> Vec<String> {
    match advisories::look(ignored, &advisories::cargo) {
        Answer::Nothing(None) => {}
        Answer::Nothing(Some(why)) => {
            println!("advisories: looked for in the database as it was fetched before, because {why}");
        }
        Answer::NotChecked(why) => println!("advisories: not checked, because {why}"),
        Answer::Found(lines) => return lines.iter().map(|line| format!("advisories: {line}")).collect(),
    }
    Vec::new()
}

fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// `tests/run` names the test targets: none may be forgotten.
fn not_run(metadata: &Metadata, run: &str) -> BTreeSet<String> {
    let tests = metadata.targets().filter(|target| target.kind == ["test"]);
    let words: BTreeSet<&str> = run.split(|c: char| c.is_whitespace() || c == ')').collect();
    let forgotten = tests.filter(|test| !words.contains(test.name.as_str()));
    forgotten.map(|test| format!("tests/run does not name the tests of {}", test.name)).collect()
}

/// Files of Rust that no other file names as a module: nothing else says that the tests in them are
/// gone. `roots`: what cargo compiles.
fn modules_left_out(top: &Path, roots: &BTreeSet<PathBuf>) -> anyhow::Result<Vec<String>> {
    let (mut faults, mut folders) = (Vec::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("failed to read {}", folder.display()))?;
        let mut modules = Vec::new();
        for entry in entries {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            // Cargo marks the folder of what it makes.
            if kind.is_dir() && !is_hidden && !path.join("CACHEDIR.TAG").exists() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") && !roots.contains(&path) {
                modules.push(path);
            }
        }
        if modules.is_empty() {
            continue;
        }
        let beside = folder.with_extension("rs");
        let parents = roots.iter().filter(|root| root.parent() == Some(folder.as_path()));
        let parents = parents.chain(Some(&beside).filter(|file| file.is_file()));
        let texts = parents.map(std::fs::read_to_string).collect::<Result<Vec<_>, _>>()?;
        let lines = texts.iter().flat_map(|text| text.lines());
        let names: BTreeSet<&str> = lines.filter_map(module_of).collect();
        for module in modules {
            let name = module.file_stem().unwrap_or_default().to_string_lossy();
            if !names.contains(&*name) {
                let path = module.strip_prefix(top).unwrap_or(&module);
                faults.push(format!("no file names {} as a module: its tests are not run", path.display()));
            }
        }
    }
    Ok(faults)
}

/// The module that a line names, as in `pub(crate) mod name;`.
fn module_of(line: &str) -> Option<&str> {
    let (before, name) = line.trim().strip_suffix(';')?.rsplit_once("mod ")?;
    (before.is_empty() || before.starts_with("pub")).then_some(name)
}

fn metadata(target: &str) -> anyhow::Result<Metadata> {
    let args = ["metadata", "--locked", "--format-version=1", "--filter-platform", target];
    let done = Command::new(cargo()).args(args).output().context("failed to run cargo metadata")?;
    ensure!(done.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).context("cargo metadata is not understood")
}

impl Metadata {
    /// Of the packages of this workspace.
    fn targets(&self) -> impl Iterator<Item = &Target> {
        let ours = self.packages.iter().filter(|package| self.workspace_members.contains(&package.id));
        ours.flat_map(|package| &package.targets)
    }
}

impl Rules {
    /// One line for each rule that a package breaks.
    fn faults(&self, metadata: &Metadata) -> BTreeSet<String> {
        // Packages for other targets are listed, too, and not resolved.
        let linked: BTreeSet<&str> = metadata.resolve.nodes.iter().map(|node| node.id.as_str()).collect();
        let linked = metadata.packages.iter().filter(|package| linked.contains(package.id.as_str()));
        linked.flat_map(|package| self.faults_of(package, &metadata.workspace_members)).collect()
    }

    fn faults_of(&self, package: &Package, members: &BTreeSet<String>) -> Vec<String> {
        let Package { name, version, .. } = package;
        let mut faults = Vec::new();
        if let Some(license) = &package.license
            && let Err(why) = self.may_be_linked(name, license)
        {
            faults.push(format!("{name} {version}: licence {license:?}: {why}"));
        }
        if package.license.is_none() {
            faults.push(format!("{name} {version}: it names no licence"));
        }
        if self.bans.deny.iter().any(|banned| banned.package == *name) {
            faults.push(format!("{name} {version}: deny.toml bans it"));
        }
        match &package.source {
            Some(source) if source != REGISTRY => {
                faults.push(format!("{name} {version}: comes from {source}, not from crates.io"));
            }
            Some(_) => {}
            None if !members.contains(&package.id) => {
                faults
                    .push(format!("{name} {version}: comes from a folder that is none of this workspace's"));
            }
            None => {
                let wild = package.dependencies.iter().filter(|on| on.req == "*" && on.path.is_none());
                faults
                    .extend(wild.map(|on| format!("{name}: any version of {} would do: name one", on.name)));
            }
        }
        faults
    }

    fn may_be_linked(&self, package: &str, license: &str) -> Result<(), String> {
        // As cargo-deny reads it: some old packages separate alternatives by a slash.
        let expression =
            Expression::parse_mode(license, ParseMode::LAX).map_err(|error| error.reason.to_string())?;
        let exception = self.licenses.exceptions.iter().find(|exception| exception.package == package);
        let extra = exception.map(|exception| exception.allow.as_slice()).unwrap_or_default();
        let is_allowed = |wanted: &spdx::LicenseReq| {
            self.licenses.allow.iter().chain(extra).any(|allowed| *allowed == wanted.to_string())
        };
        match expression.evaluate(is_allowed) {
            true => Ok(()),
            false => Err("deny.toml does not allow it".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(name: &str, license: Option<&str>, source: Option<&str>) -> Vec<String> {
        let rules: Rules = toml::from_str(include_str!("../../deny.toml")).unwrap();
        let source = source.map(str::to_owned);
        let dependencies = vec![Dependency { name: "any".to_owned(), req: "*".to_owned(), path: None }];
        let members = BTreeSet::from(["ours".to_owned()]);
        let (id, license) = (name.to_owned(), license.map(str::to_owned));
        let version = "1.0.0".to_owned();
        let package = Package {
            id,
            name: name.to_owned(),
            version,
            license,
            source,
            dependencies,
            targets: Vec::new(),
        };
        rules.faults_of(&package, &members)
    }

    #[test]
    fn a_file_that_no_other_one_names_is_found() {
        let lines = ["mod a;", "pub mod b;", "    pub(crate) mod c;", "// mod d;", "mod e {", "use mod_f;"];
        let found: Vec<&str> = lines.into_iter().filter_map(module_of).collect();
        assert_eq!(found, ["a", "b", "c"]);

        // The folder of this package: three programs, and modules of two of them.
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = |name: &str| folder.join(name);
        let all = BTreeSet::from(["dependencies.rs", "house/main.rs", "times.rs"].map(program));
        assert_eq!(modules_left_out(folder, &all).unwrap(), [""; 0]);
        let some = BTreeSet::from(["house/main.rs", "times.rs"].map(program));
        let mut found = modules_left_out(folder, &some).unwrap();
        found.sort();
        let fault = |name: &str| format!("no file names {name} as a module: its tests are not run");
        assert_eq!(found, [fault("advisories.rs"), fault("dependencies.rs")]);
    }

    #[test]
    fn an_advisory_is_ignored_for_a_reason_that_is_told() {
        let read = |ignore: &str| {
            let text = format!("yanked = \"deny\"\nignore = [{ignore}]");
            toml::from_str::<Advisories>(&text).map(|read| read.ignore.iter().all(Ignored::is_sound))
        };
        assert!(read(r#"{ id = "RUSTSEC-2000-0001", reason = "we do not call it" }"#).unwrap());
        assert!(!read(r#"{ id = "RUSTSEC-2000-0001", reason = "" }"#).unwrap());
        for unread in [
            r#""RUSTSEC-2000-0001""#,
            r#"{ id = "RUSTSEC-2000-0001" }"#,
            r#"{ crate = "some", reason = "old" }"#,
        ] {
            assert!(read(unread).is_err(), "{unread}");
        }
    }

    #[test]
    fn each_rule_finds_what_breaks_it() {
        let good = ["MIT", "MIT OR GPL-3.0", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"];
        for license in good {
            assert_eq!(faults("some", Some(license), Some(REGISTRY)), [""; 0]);
        }
        let exact = faults("some", Some("Apache-2.0 WITH LLVM-exception"), Some(REGISTRY));
        assert_eq!(exact, [""; 0]);
        let data = |name| faults(name, Some("CDLA-Permissive-2.0"), Some(REGISTRY)).len();
        assert_eq!((data("webpki-root-certs"), data("some")), (0, 1));

        for license in ["GPL-3.0", "MIT AND GPL-3.0", "no licence at all"] {
            let found = faults("some", Some(license), Some(REGISTRY));
            assert!(found.len() == 1 && found[0].contains("licence"), "{license}: {found:?}");
        }
        assert_eq!(faults("some", None, Some(REGISTRY)), ["some 1.0.0: it names no licence"]);
        assert_eq!(faults("aws-lc-rs", Some("ISC"), Some(REGISTRY)), ["aws-lc-rs 1.0.0: deny.toml bans it"]);
        let found = faults("some", Some("MIT"), Some("git+https://example.com/some"));
        assert_eq!(found, ["some 1.0.0: comes from git+https://example.com/some, not from crates.io"]);
        let found = faults("theirs", Some("MIT"), None);
        assert_eq!(found, ["theirs 1.0.0: comes from a folder that is none of this workspace's"]);
        assert_eq!(faults("ours", Some("MIT"), None), ["ours: any version of any would do: name one"]);
    }
}
