//! The SBOM of the image as CycloneDX: all crates that are linked into the binary, and the CAs. It
//! comes from `cargo metadata`, without paths and without build dependencies.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Arch, roots};

#[derive(Deserialize)]
struct CargoMetadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for packages of this repository.
    source: Option<String>,
    targets: Vec<CargoTarget>,
}

#[derive(Deserialize)]
struct CargoTarget {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<ResolveNode>,
}

#[derive(Deserialize)]
struct ResolveNode {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// `None` for normal dependencies.
    kind: Option<String>,
}

impl Package {
    /// The reference of a component. Not cargo's id, because that differs between machines.
    fn reference(&self) -> String {
        match self.source {
            Some(_) => format!("pkg:cargo/{}@{}", self.name, self.version),
            None => format!("{}@{}", self.name, self.version),
        }
    }

    /// A procedural macro, which runs in the compiler only.
    fn is_macro(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }

    fn component(&self, kind: &str) -> Value {
        let reference = self.reference();
        let mut component =
            json!({ "type": kind, "bom-ref": reference, "name": self.name, "version": self.version });
        if self.source.is_some() {
            component["purl"] = json!(reference);
        }
        if let Some(license) = &self.license {
            // Cargo's old separator for "or", which SPDX does not have.
            let expression = license.replace(" / ", "/").replace('/', " OR ");
            component["licenses"] = json!([{ "expression": expression }]);
        }
        component
    }
}

/// # Errors
/// When `metadata` is not what `cargo metadata` prints for this workspace.
pub fn write(metadata: &[u8], arch: Arch, rust: &str) -> anyhow::Result<String> {
    let metadata: CargoMetadata =
        serde_json::from_slice(metadata).context("cargo metadata is not understood")?;
    let packages: BTreeMap<&str, &Package> = metadata.packages.iter().map(|p| (p.id.as_str(), p)).collect();
    let nodes: BTreeMap<&str, &ResolveNode> =
        metadata.resolve.nodes.iter().map(|n| (n.id.as_str(), n)).collect();
    let named = |name: &str| {
        let found = metadata.packages.iter().find(|package| package.name == name);
        found.with_context(|| format!("cargo metadata does not know {name}"))
    };
    let root = named(crate::PACKAGE)?;
    let linked = |id: &str| -> anyhow::Result<Vec<&Package>> {
        let node = nodes.get(id).with_context(|| format!("cargo metadata has not resolved {id}"))?;
        let wanted = node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        let wanted = wanted.map(|dep| {
            let package = packages.get(dep.pkg.as_str()).copied();
            package.with_context(|| format!("cargo metadata does not know {}", dep.pkg))
        });
        let wanted: anyhow::Result<Vec<&Package>> = wanted.collect();
        Ok(wanted?.into_iter().filter(|package| !package.is_macro()).collect())
    };

    let std = format!("rust-std@{rust}");
    let certificates = named(roots::CRATE)?;
    let mut components = BTreeMap::from([
        (std.clone(), standard_library(&std, arch, rust)),
        (certificates.reference(), certificates.component("data")),
    ]);
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut ahead = vec![root];
    while let Some(package) = ahead.pop() {
        if edges.contains_key(&package.reference()) {
            continue;
        }
        let next = linked(&package.id)?;
        edges.insert(package.reference(), next.iter().map(|package| package.reference()).collect());
        if package.id != root.id {
            components.insert(package.reference(), package.component("library"));
        }
        ahead.extend(next);
    }
    edges.entry(root.reference()).or_default().insert(std);

    let dependencies: Vec<Value> =
        edges.iter().map(|(from, to)| json!({ "ref": from, "dependsOn": to })).collect();
    let sbom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": root.component("application") },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&sbom)? + "\n")
}

fn standard_library(reference: &str, arch: Arch, rust: &str) -> Value {
    json!({
        "type": "library",
        "bom-ref": reference,
        "name": "rust-std",
        "version": rust,
        "description": format!("Rust's standard library for {}, and the musl libc in it", arch.target()),
        "licenses": [{ "expression": "(MIT OR Apache-2.0) AND MIT" }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, source: Option<&str>, kind: &str) -> Value {
        json!({
            "id": format!("path+file:///somewhere/{name}#1.0.0"), "name": name, "version": "1.0.0",
            "license": "MIT/Apache-2.0", "source": source, "targets": [{ "kind": [kind] }],
        })
    }

    fn node(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let id = |name: &str| format!("path+file:///somewhere/{name}#1.0.0");
        let dependencies: Vec<Value> = dependencies
            .iter()
            .map(|(name, kind)| json!({ "pkg": id(name), "dep_kinds": [{ "kind": kind, "target": null }] }))
            .collect();
        json!({ "id": id(name), "deps": dependencies })
    }

    fn sbom() -> (String, Value) {
        let registry = Some("registry+somewhere");
        let metadata = json!({
            "packages": [
                package("berth", None, "lib"),
                package("berth-core", None, "lib"),
                package("linked", registry, "lib"),
                package("derive", registry, "proc-macro"),
                package("of-derive", registry, "lib"),
                package("for-tests", registry, "lib"),
                package("for-building", registry, "lib"),
                package(roots::CRATE, registry, "lib"),
            ],
            "resolve": { "nodes": [
                node("berth", &[("berth-core", None), ("for-tests", Some("dev")), (roots::CRATE, Some("dev"))]),
                node("berth-core", &[("linked", None), ("derive", None)]),
                node("linked", &[("for-building", Some("build")), ("derive", None)]),
                node("derive", &[("of-derive", None)]),
                node("of-derive", &[]),
                node("for-tests", &[("linked", None)]),
                node("for-building", &[]),
                node(roots::CRATE, &[]),
            ] },
        });
        let text = write(metadata.to_string().as_bytes(), Arch::Amd64, "1.2.3").unwrap();
        let read = serde_json::from_str(&text).unwrap();
        (text, read)
    }

    #[test]
    fn what_is_linked_is_listed_and_nothing_else() {
        let (_, sbom) = sbom();
        let names: Vec<&str> =
            sbom["components"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["berth-core", "linked", roots::CRATE, "rust-std"]);
        assert_eq!(sbom["metadata"]["component"]["name"], "berth");
        assert_eq!(sbom["components"][1]["purl"], "pkg:cargo/linked@1.0.0");
        assert_eq!(sbom["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        let wanted = json!([
            { "ref": "berth-core@1.0.0", "dependsOn": ["pkg:cargo/linked@1.0.0"] },
            { "ref": "berth@1.0.0", "dependsOn": ["berth-core@1.0.0", "rust-std@1.2.3"] },
            { "ref": "pkg:cargo/linked@1.0.0", "dependsOn": [] },
        ]);
        assert_eq!(sbom["dependencies"], wanted);
    }

    #[test]
    fn the_machine_does_not_show() {
        let (text, _) = sbom();
        assert!(!text.contains("somewhere"), "{text}");
    }

    #[test]
    fn what_cargo_does_not_say_is_an_error() {
        assert!(write(b"{}", Arch::Amd64, "1.2.3").is_err());
    }
}
