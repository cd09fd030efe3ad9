//! What the engine backs up: ConfigMaps and Secrets, half each, and the bare work of listing them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use serde_json::json;

/// Starts the name of each namespace, and is the pattern that backups use.
pub const PREFIX: &str = "load-";
const AT_ONCE: usize = 24;
const BYTES: usize = 1_500;
const PAGE: u32 = 500;

/// Creates them, as fast as the API server takes them.
///
/// # Errors
/// When it refuses one.
pub async fn fill(client: &Client, objects: usize) -> anyhow::Result<()> {
    let namespaces = if objects > 20_000 { 50 } else { 20 };
    let api: Api<Namespace> = Api::all(client.clone());
    for i in 0..namespaces {
        let namespace = serde_json::from_value(json!({"metadata": {"name": format!("{PREFIX}{i}")}}))?;
        api.create(&PostParams::default(), &namespace).await?;
    }
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
    stream::iter(0..objects).map(create).buffer_unordered(AT_ONCE).try_collect().await
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

/// Lists both types over the whole cluster and throws the bytes away: less work than any backup can do.
///
/// # Errors
/// When the API server refuses.
pub async fn list(client: &Client) -> anyhow::Result<Duration> {
    let started = Instant::now();
    for resource in ["configmaps", "secrets"] {
        let mut next = String::new();
        loop {
            let path = format!("/api/v1/{resource}?limit={PAGE}&continue={next}");
            let answer = client.send(http::Request::get(path).body(Body::empty())?).await?;
            ensure!(answer.status().is_success(), "the list was answered {}", answer.status());
            let bytes = answer.into_body().collect_bytes().await?;
            // The list's own metadata stands before its items.
            let head = String::from_utf8_lossy(bytes.get(..2_000).unwrap_or(&bytes)).into_owned();
            let head = head.split("\"items\":").next().context("no list")?;
            match head.split("\"continue\":\"").nth(1).and_then(|rest| rest.split('"').next()) {
                Some(token) => token.clone_into(&mut next),
                None => break,
            }
        }
    }
    Ok(started.elapsed())
}
