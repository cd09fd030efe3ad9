//! The image as an OCI image layout.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::Arch;
use crate::layer::{Layer, LayerEntry, sha256, tar};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// An id that no user of a node has, as in other images from scratch. A number, because the image
/// has no /etc/passwd.
const USER: &str = "65532:65532";

pub struct ImageInfo {
    /// NAME:TAG.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub epoch: u32,
}

pub struct Image {
    pub arch: Arch,
    pub layer: Layer,
}

pub struct ImageLayout {
    /// Digest of the image: of its index, or of its manifest if there is only one.
    pub digest: String,
    index: Value,
    /// The format of `docker save`, for engines without OCI layouts, which support one architecture
    /// only.
    docker: Option<Value>,
    blobs: ImageBlobs,
}

impl ImageLayout {
    /// # Errors
    /// When the name has no tag, or the time is invalid.
    pub fn new(images: &[Image], about: &ImageInfo) -> anyhow::Result<Self> {
        let (name, tag) = full(&about.name)?;
        let created = jiff::Timestamp::from_second(about.epoch.into())?.to_string();
        let mut blobs = ImageBlobs::default();
        let mut manifests = Vec::new();
        let mut docker = Vec::new();
        for image in images {
            let platform = json!({ "architecture": image.arch.name(), "os": "linux" });
            let config = blobs.add(CONFIG, config(image, about, &created)?);
            let layer = blobs.add(LAYER, image.layer.packed.clone());
            let files = [&config, &layer].map(blob_path);
            docker.push(json!({ "Config": files[0], "RepoTags": [&name], "Layers": [files[1]] }));
            let manifest = json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": config,
                "layers": [layer],
                "annotations": about.labels,
            });
            let mut manifest = blobs.add(MANIFEST, serde_json::to_vec(&manifest)?);
            manifest["platform"] = platform;
            manifests.push(manifest);
        }
        let mut top = match manifests.as_slice() {
            [one] => one.clone(),
            _ => {
                let index = json!({
                    "schemaVersion": 2,
                    "mediaType": INDEX,
                    "manifests": manifests,
                    "annotations": about.labels,
                });
                blobs.add(INDEX, serde_json::to_vec(&index)?)
            }
        };
        let digest = top["digest"].as_str().unwrap_or_default().to_owned();
        // The first annotation is the specification's; containerd and podman read the whole name
        // from the second one.
        top["annotations"] =
            json!({ "org.opencontainers.image.ref.name": tag, "io.containerd.image.name": name });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [top] });
        Ok(Self { digest, index, docker: (images.len() == 1).then(|| json!(docker)), blobs })
    }

    /// # Errors
    /// When the layout cannot be written.
    pub fn tar(&self, epoch: u32) -> anyhow::Result<Vec<u8>> {
        let version = json!({ "imageLayoutVersion": "1.0.0" });
        let mut entries = vec![
            LayerEntry::file("oci-layout", serde_json::to_vec(&version)?),
            LayerEntry::file("index.json", serde_json::to_vec(&self.index)?),
        ];
        if let Some(docker) = &self.docker {
            entries.push(LayerEntry::file("manifest.json", serde_json::to_vec(docker)?));
        }
        for (digest, blob) in &self.blobs.0 {
            entries.push(LayerEntry::file(&format!("blobs/sha256/{digest}"), blob.clone()));
        }
        tar(&entries, epoch)
    }
}

/// Blobs by digest.
#[derive(Default)]
struct ImageBlobs(BTreeMap<String, Vec<u8>>);

impl ImageBlobs {
    /// Adds a blob, and returns its descriptor.
    fn add(&mut self, media: &str, blob: Vec<u8>) -> Value {
        let digest = sha256(&blob);
        let descriptor =
            json!({ "mediaType": media, "digest": format!("sha256:{digest}"), "size": blob.len() });
        self.0.insert(digest, blob);
        descriptor
    }
}

fn blob_path(descriptor: &Value) -> String {
    format!("blobs/{}", descriptor["digest"].as_str().unwrap_or_default().replace(':', "/"))
}

fn config(image: &Image, about: &ImageInfo, created: &str) -> anyhow::Result<Vec<u8>> {
    let config = json!({
        "created": created,
        "architecture": image.arch.name(),
        "os": "linux",
        "config": {
            "User": USER,
            "Entrypoint": ["/berth"],
            "WorkingDir": "/",
            "Labels": about.labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", image.layer.diff_id)] },
        "history": [{ "created": created, "created_by": "make image" }],
    });
    Ok(serde_json::to_vec(&config)?)
}

/// The full name with registry and tag, because containerd adds no default registry.
fn full(name: &str) -> anyhow::Result<(String, &str)> {
    let tag = name.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.is_empty() && !tag.contains('/'));
    let tag = tag.with_context(|| format!("{name:?} has no tag: NAME:TAG is wanted"))?;
    let full = match name.split_once('/') {
        None => format!("docker.io/library/{name}"),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
    };
    Ok((full, tag))
}

/// The value for `berth install --image` once the image is pushed, with a placeholder for a missing
/// registry.
pub fn pinned(name: &str, digest: &str) -> String {
    let registry = if name.contains('/') { "" } else { "REGISTRY/" };
    format!("{registry}{name}@{digest}")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn about() -> ImageInfo {
        let labels = [("org.opencontainers.image.title".to_owned(), "berth".to_owned())];
        ImageInfo { name: "berth:1.2.3".into(), labels: labels.into(), epoch: 1_700_000_000 }
    }

    fn image(arch: Arch) -> Image {
        let program = LayerEntry::program("berth", arch.name().into());
        Image { arch, layer: Layer::pack([program], about().epoch).unwrap() }
    }

    fn files(arches: &[Arch]) -> (String, BTreeMap<String, Vec<u8>>) {
        let images: Vec<Image> = arches.iter().copied().map(image).collect();
        let layout = ImageLayout::new(&images, &about()).unwrap();
        let tar = layout.tar(about().epoch).unwrap();
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(tar.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            files.insert(path, bytes);
        }
        (layout.digest, files)
    }

    /// Checks that every blob that a descriptor names exists with that size and digest.
    fn follow(files: &BTreeMap<String, Vec<u8>>, value: &Value, seen: &mut Vec<String>) {
        if let (Some(media), Some(digest)) = (value["mediaType"].as_str(), value["digest"].as_str()) {
            let path = blob_path(value);
            let blob = &files[&path];
            assert_eq!(value["size"], blob.len());
            assert_eq!(digest, format!("sha256:{}", sha256(blob)));
            seen.push(path);
            if media.ends_with("json") {
                follow(files, &serde_json::from_slice(blob).unwrap(), seen);
            }
        }
        let children: Vec<&Value> = match value {
            Value::Array(children) => children.iter().collect(),
            Value::Object(children) => children.values().collect(),
            _ => Vec::new(),
        };
        children.into_iter().for_each(|child| follow(files, child, seen));
    }

    #[test]
    fn all_that_is_named_is_there_and_no_more() {
        for arches in [vec![Arch::Amd64], vec![Arch::Amd64, Arch::Arm64]] {
            let (digest, files) = files(&arches);
            let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
            assert_eq!(index["manifests"][0]["digest"], digest);
            let mut seen = Vec::new();
            follow(&files, &index, &mut seen);
            seen.sort();
            let is_blob = |path: &&String| path.starts_with("blobs/sha256/") && !path.ends_with('/');
            assert_eq!(seen.iter().collect::<Vec<_>>(), files.keys().filter(is_blob).collect::<Vec<_>>());
            assert_eq!(files.contains_key("manifest.json"), arches.len() == 1);
        }
    }

    #[test]
    fn it_runs_berth_as_nobody_and_says_what_it_is() {
        let (_, files) = files(&[Arch::Arm64]);
        let docker: Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        let config = docker[0]["Config"].as_str().unwrap();
        let config: Value = serde_json::from_slice(&files[config]).unwrap();
        assert_eq!(config["architecture"], "arm64");
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"], json!(["/berth"]));
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.title"], "berth");
        assert!(config["config"].get("Env").is_none());
        assert!(files.contains_key(docker[0]["Layers"][0].as_str().unwrap()));
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        assert_eq!(files(&[Arch::Amd64, Arch::Arm64]), files(&[Arch::Amd64, Arch::Arm64]));
        assert_ne!(files(&[Arch::Amd64]).0, files(&[Arch::Arm64]).0);
    }

    #[test]
    fn what_is_to_be_installed_is_named_by_its_digest() {
        assert_eq!(pinned("berth:1", "sha256:ab"), "REGISTRY/berth:1@sha256:ab");
        for name in ["team/berth:1", "registry.example:5000/berth:1"] {
            assert_eq!(pinned(name, "sha256:ab"), format!("{name}@sha256:ab"));
        }
    }

    #[test]
    fn names_are_made_whole() {
        let cases = [
            ("berth:1", Some(("docker.io/library/berth:1", "1"))),
            ("team/berth:1", Some(("docker.io/team/berth:1", "1"))),
            ("localhost/berth:1", Some(("localhost/berth:1", "1"))),
            ("registry.example:5000/berth:1", Some(("registry.example:5000/berth:1", "1"))),
            ("registry.example:5000/berth", None),
            ("berth", None),
            ("berth:", None),
        ];
        for (name, wanted) in cases {
            let made = full(name).ok();
            assert_eq!(made, wanted.map(|(full, tag)| (full.to_owned(), tag)), "{name}");
        }
    }
}
