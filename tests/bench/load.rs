//! What the engine backs up, and the bare work of listing it.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_test_support::ControlPlane;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Starts the name of each namespace, and is the pattern that backups use.
const PREFIX: &str = "load-";
/// Of custom types.
const GROUP: &str = "load.example.com";
const AT_ONCE: usize = 24;
const BYTES: usize = 1_500;
const PAGE: u32 = 500;
/// As many as a Backup may name.
const NAMED: usize = 1_000;
const IN_EACH: usize = 20;
const TYPES: usize = 300;
const OF_EACH: usize = 5;
const PODS: usize = 2_000;
const POD_NAMESPACES: usize = 20;
/// Definitions that the API server takes up at one time.
const DEFINED_AT_ONCE: usize = 50;

/// What is in the cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cargo {
    /// ConfigMaps and Secrets, half each, in a few namespaces that a pattern names.
    Objects(usize),
    /// The same, twenty in each of a thousand namespaces that are named one by one.
    Namespaces,
    /// Custom objects of many types, few of each.
    Types,
    /// Pods in a few namespaces, each with a claim, and a volume that the claim is bound to.
    Pods,
}

impl Cargo {
    pub fn text(self) -> String {
        match self {
            Self::Objects(count) => format!("{count} objects"),
            Self::Namespaces => format!("{NAMED} namespaces of {IN_EACH}"),
            Self::Types => format!("{TYPES} types of {OF_EACH}"),
            Self::Pods => format!("{PODS} pods with claims and volumes"),
        }
    }

    /// What a Backup includes.
    pub fn included(self) -> Vec<String> {
        match self {
            Self::Objects(_) | Self::Types | Self::Pods => vec![format!("{PREFIX}*")],
            Self::Namespaces => (0..NAMED).map(|i| format!("{PREFIX}{i}")).collect(),
        }
    }

    /// Creates it, as fast as the API server takes it.
    ///
    /// # Errors
    /// When it refuses something.
    pub fn fill(self, runtime: &Runtime, plane: &ControlPlane, client: &Client) -> anyhow::Result<()> {
        match self {
            Self::Objects(count) => {
                let namespaces = namespaces_for(count);
                runtime.block_on(make_namespaces(client, namespaces))?;
                runtime.block_on(make_objects(client, namespaces, 0..count))
            }
            Self::Namespaces => {
                runtime.block_on(make_namespaces(client, NAMED))?;
                runtime.block_on(make_objects(client, NAMED, 0..NAMED * IN_EACH))
            }
            Self::Types => {
                runtime.block_on(make_namespaces(client, OF_EACH))?;
                for first in (0..TYPES).step_by(DEFINED_AT_ONCE) {
                    plane.apply((first..TYPES.min(first + DEFINED_AT_ONCE)).map(definition).collect())?;
                    plane.kubectl().await_definitions()?;
                }
                runtime.block_on(make_custom_objects(client))
            }
            Self::Pods => {
                runtime.block_on(make_namespaces(client, POD_NAMESPACES))?;
                runtime.block_on(make_pods(client))
            }
        }
    }

    /// More [`Cargo::Objects`] beside these, until there are so many.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn fill_up(self, runtime: &Runtime, client: &Client, to: usize) -> anyhow::Result<()> {
        match self {
            Self::Objects(from) => runtime.block_on(make_objects(client, namespaces_for(from), from..to)),
            Self::Namespaces | Self::Types | Self::Pods => Ok(()),
        }
    }

    /// Where its types are listed over the whole cluster.
    fn paths(self) -> Vec<String> {
        match self {
            Self::Objects(_) | Self::Namespaces => {
                ["configmaps", "secrets"].map(|plural| format!("/api/v1/{plural}")).to_vec()
            }
            Self::Types => (0..TYPES).map(|i| format!("/apis/{GROUP}/v1/{}", plural(i))).collect(),
            Self::Pods => ["pods", "persistentvolumeclaims", "persistentvolumes"]
                .map(|plural| format!("/api/v1/{plural}"))
                .to_vec(),
        }
    }

    /// Lists its types over the whole cluster and throws the bytes away: less work than any backup
    /// can do.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn list(self, client: &Client) -> anyhow::Result<Duration> {
        let started = Instant::now();
        for path in self.paths() {
            list(client, &path).await?;
        }
        Ok(started.elapsed())
    }
}

fn namespaces_for(objects: usize) -> usize {
    if objects > 20_000 { 50 } else { 20 }
}

async fn make_namespaces(client: &Client, count: usize) -> anyhow::Result<()> {
    let create = async |i: usize| {
        let api: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": format!("{PREFIX}{i}")}}))?;
        api.create(&PostParams::default(), &namespace).await?;
        anyhow::Ok(())
    };
    stream::iter(0..count).map(create).buffer_unordered(AT_ONCE).try_collect().await
}

async fn make_objects(client: &Client, namespaces: usize, objects: Range<usize>) -> anyhow::Result<()> {
    let create = async |i: usize| {
        let namespace = format!("{PREFIX}{}", i % namespaces);
        let metadata =
            json!({"name": format!("object-{i}"), "labels": {"app": "load", "part": format!("{}", i % 97)}});
        // Of 16 letters, so that it compresses about as well as real text does.
        let text: String = noise(i as u64).take(BYTES).map(|n| char::from(b'a' + (n & 15))).collect();
        if i.is_multiple_of(2) {
            let object = serde_json::from_value(json!({"metadata": metadata, "data": {"text": text}}))?;
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
            api.create(&PostParams::default(), &object).await?;
        } else {
            let object = serde_json::from_value(json!({"metadata": metadata, "stringData": {"text": text}}))?;
            let api: Api<Secret> = Api::namespaced(client.clone(), &namespace);
            api.create(&PostParams::default(), &object).await?;
        }
        anyhow::Ok(())
    };
    stream::iter(objects).map(create).buffer_unordered(AT_ONCE).try_collect().await
}

fn plural(i: usize) -> String {
    format!("cargo{i}s")
}

fn definition(i: usize) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{GROUP}", plural(i))},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"plural": plural(i), "singular": format!("cargo{i}"), "kind": format!("Cargo{i}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

async fn make_custom_objects(client: &Client) -> anyhow::Result<()> {
    let create = async |i: usize| {
        let (of, which) = (i / OF_EACH, i % OF_EACH);
        let object = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": format!("Cargo{of}"),
            "metadata": {"name": format!("object-{which}")}, "spec": {"of": of},
        });
        let path = format!("/apis/{GROUP}/v1/namespaces/{PREFIX}{which}/{}", plural(of));
        let request = http::Request::post(path).header("content-type", "application/json");
        client.request::<Value>(request.body(object.to_string().into_bytes())?).await?;
        anyhow::Ok(())
    };
    stream::iter(0..TYPES * OF_EACH).map(create).buffer_unordered(AT_ONCE).try_collect().await
}

/// No kubelet runs these pods. Each volume names its claim and each claim its volume, as the
/// controller of volumes leaves them.
async fn make_pods(client: &Client) -> anyhow::Result<()> {
    let post = async |path: String, object: Value| {
        let request = http::Request::post(path).header("content-type", "application/json");
        client.request::<Value>(request.body(object.to_string().into_bytes())?).await?;
        anyhow::Ok(())
    };
    let create = async |i: usize| {
        let namespace = format!("{PREFIX}{}", i % POD_NAMESPACES);
        let (claim, volume) = (format!("data-{i}"), format!("{PREFIX}volume-{i}"));
        let (modes, size) = (json!(["ReadWriteOnce"]), json!({"storage": "1Gi"}));
        let of_volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
            "spec": {
                "accessModes": modes, "capacity": size, "storageClassName": "load",
                "claimRef": {"kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim},
                "csi": {"driver": "load.example.com", "volumeHandle": volume},
            },
        });
        let of_claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim},
            "spec": {
                "accessModes": modes, "resources": {"requests": size}, "storageClassName": "load", "volumeName": volume,
            },
        });
        let of_pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("pod-{i}"), "labels": {"app": "load"}},
            "spec": {
                "containers": [{"name": "main", "image": "none", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        });
        post("/api/v1/persistentvolumes".to_owned(), of_volume).await?;
        let in_namespace = format!("/api/v1/namespaces/{namespace}");
        post(format!("{in_namespace}/persistentvolumeclaims"), of_claim).await?;
        let bound = json!({"status": {"phase": "Bound"}}).to_string().into_bytes();
        let path = format!("{in_namespace}/persistentvolumeclaims/{claim}/status");
        let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
        client.request::<Value>(request.body(bound)?).await?;
        post(format!("{in_namespace}/pods"), of_pod).await
    };
    stream::iter(0..PODS).map(create).buffer_unordered(AT_ONCE).try_collect().await
}

fn noise(seed: u64) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::from_fn(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u8::try_from(state >> 56).ok()
    })
}

async fn list(client: &Client, path: &str) -> anyhow::Result<()> {
    let mut next = String::new();
    loop {
        let path = format!("{path}?limit={PAGE}&continue={next}");
        let answer = client.send(http::Request::get(path).body(Body::empty())?).await?;
        ensure!(answer.status().is_success(), "the list was answered {}", answer.status());
        let bytes = answer.into_body().collect_bytes().await?;
        // The list's own metadata stands before its items.
        let head = String::from_utf8_lossy(bytes.get(..2_000).unwrap_or(&bytes)).into_owned();
        let head = head.split("\"items\":").next().context("no list")?;
        match head.split("\"continue\":\"").nth(1).and_then(|rest| rest.split('"').next()) {
            Some(token) if !token.is_empty() => token.clone_into(&mut next),
            _ => return Ok(()),
        }
    }
}
