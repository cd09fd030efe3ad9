//! Something to back up.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};

const NAMESPACES: u32 = 9;
/// backup1 takes these, and runs long enough to show the others waiting.
const LARGE: [u32; 2] = [1, 2];
const PARALLEL: usize = 16;

/// Namespaces ns1 to ns9 with ConfigMaps. Gives how many objects.
///
/// # Errors
/// When one cannot be created.
pub async fn fill(client: &Client) -> anyhow::Result<usize> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let params = PostParams::default();
    let mut objects = Vec::new();
    for number in 1..=NAMESPACES {
        let metadata = ObjectMeta { name: Some(format!("ns{number}")), ..ObjectMeta::default() };
        namespaces.create(&params, &Namespace { metadata, ..Namespace::default() }).await?;
        let count = if LARGE.contains(&number) { 300 } else { 10 };
        objects.extend((0..count).map(|i| config_map(number, i, count)));
    }
    let count = objects.len();
    futures::stream::iter(objects)
        .map(|object| {
            let api: Api<ConfigMap> =
                Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
            async move { api.create(&PostParams::default(), &object).await }
        })
        .buffer_unordered(PARALLEL)
        .try_for_each(|_| std::future::ready(Ok(())))
        .await?;
    Ok(count + NAMESPACES as usize)
}

fn config_map(namespace: u32, number: u32, count: u32) -> ConfigMap {
    let length = if count > 100 && number.is_multiple_of(2) { 60_000 } else { 200 };
    let data = BTreeMap::from([("text".to_owned(), noise(u64::from(namespace * 1_000 + number), length))]);
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(format!("settings-{number}")),
            namespace: Some(format!("ns{namespace}")),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    }
}

/// Text that does not compress well, the same for the same seed (xorshift).
fn noise(seed: u64, length: usize) -> String {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let letter = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'0' + (state % 75) as u8)
    };
    std::iter::repeat_with(letter).take(length).collect()
}
