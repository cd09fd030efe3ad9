//! Access to a hub in a form that the agent's pods can use: one context of a kubeconfig, without
//! references to this machine.
//!
//! Errors quote only names of contexts, clusters and users from the file, because the rest may be a
//! credential.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::Kubeconfig;
use serde_json::{Map, Value, json};

use crate::objects::{PART_OF, PART_OF_BERTH};

/// Name of the Secret with the access to the hub, as in the manifests; and its keys.
pub const HUB_SECRET: &str = "berth-garden-hub";
pub const KUBECONFIG: &str = "kubeconfig";
pub const SEED: &str = "seed";

/// The contents of the Secret. Never printed.
pub struct HubAccess {
    kubeconfig: String,
    seed: String,
}

impl HubAccess {
    /// # Errors
    /// When the file cannot be read, is not a kubeconfig, or its current context depends on this
    /// machine.
    pub fn read(file: &Path, seed: &str) -> anyhow::Result<Self> {
        let read = || {
            let text = std::fs::read_to_string(file).context("it cannot be read")?;
            let folder = file.parent().unwrap_or(Path::new(""));
            portable(&text, |name| Ok(std::fs::read(folder.join(name))?))
        };
        let kubeconfig = read().with_context(|| format!("--hub-kubeconfig {}", file.display()))?;
        Ok(Self { kubeconfig, seed: seed.to_owned() })
    }

    pub fn secret(&self, namespace: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": HUB_SECRET, "namespace": namespace, "labels": {PART_OF: PART_OF_BERTH}},
            "type": "Opaque",
            "data": {KUBECONFIG: STANDARD.encode(&self.kubeconfig), SEED: STANDARD.encode(&self.seed)},
        })
    }

    /// Ten hexadecimal digits: enough to detect a change, too few to reveal the contents.
    pub fn digest(&self) -> String {
        let both = format!("{}\0{}", self.seed, self.kubeconfig);
        let digest = ring::digest::digest(&ring::digest::SHA256, both.as_bytes());
        digest.as_ref().iter().take(5).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The current context of a kubeconfig with its cluster and user, and no others. `read` embeds the
/// files that it names.
fn portable(text: &str, read: impl Fn(&str) -> anyhow::Result<Vec<u8>>) -> anyhow::Result<String> {
    let whole: Value = serde_saphyr::from_str(text).map_err(|error| {
        let place = error.location().map_or_else(String::new, |place| format!(", line {}", place.line()));
        anyhow::anyhow!("it is no kubeconfig: not one YAML document{place}")
    })?;
    // Parsed as the agent will parse it.
    ensure!(
        whole.is_object() && serde_json::from_value::<Kubeconfig>(whole.clone()).is_ok(),
        "it is no kubeconfig; `kubectl config view` of it tells what is wrong"
    );
    let current = whole["current-context"].as_str().unwrap_or_default();
    ensure!(
        !current.is_empty(),
        "it has no current context: choose one by `kubectl config use-context`{}",
        contexts(&whole)
    );
    let context = named(&whole, "contexts", "context", current).with_context(|| {
        format!(
            "its current context {current} is not in it: choose one by `kubectl config use-context`{}",
            contexts(&whole)
        )
    })?;
    let name = |field: &str| context[field].as_str().unwrap_or_default().to_owned();
    let (cluster_name, user_name) = (name("cluster"), name("user"));
    let mut cluster = named(&whole, "clusters", "cluster", &cluster_name)
        .with_context(|| format!("context {current} names a cluster {cluster_name:?} that is not in it"))?;
    ensure!(
        cluster["server"].as_str().is_some_and(|server| !server.is_empty()),
        "cluster {cluster_name} has no server"
    );
    let mut user = named(&whole, "users", "user", &user_name)
        .with_context(|| format!("context {current} names a user {user_name:?} that is not in it"))?;
    for field in ["exec", "auth-provider"] {
        if user.get(field).is_some_and(|value| !value.is_null()) {
            bail!(
                "user {user_name} gets its credentials from a program ({field}), which the agent's pods do not have: take a kubeconfig with a token or a certificate of the hub"
            );
        }
    }
    if user.get("tokenFile").is_some_and(|value| !value.is_null()) {
        bail!(
            "user {user_name} reads its token from a file (tokenFile), which the agent's pods do not have: put it in as `token`"
        );
    }
    put_in(&mut cluster, "certificate-authority", &read)?;
    put_in(&mut user, "client-certificate", &read)?;
    put_in(&mut user, "client-key", &read)?;
    let one = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster_name, "cluster": cluster}],
        "users": [{"name": user_name, "user": user}],
        "contexts": [{"name": current, "context": context}],
        "current-context": current,
    });
    Ok(serde_json::to_string_pretty(&one)?)
}

/// ` (there are a, b)`.
fn contexts(whole: &Value) -> String {
    let all = whole["contexts"].as_array().into_iter().flatten();
    let names: Vec<&str> = all.filter_map(|one| one["name"].as_str()).collect();
    if names.is_empty() { String::new() } else { format!(" (there are {})", names.join(", ")) }
}

fn named(whole: &Value, list: &str, field: &str, name: &str) -> Option<Map<String, Value>> {
    let one = whole[list].as_array()?.iter().find(|one| one["name"] == name)?;
    one[field].as_object().cloned()
}

/// Embeds the file that `field` names as `field-data`. Existing data has precedence.
fn put_in(
    of: &mut Map<String, Value>,
    field: &str,
    read: impl Fn(&str) -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<()> {
    let data = format!("{field}-data");
    let file = of.remove(field);
    let is_there = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    if let Some(Value::String(file)) = file.filter(is_there)
        && !of.get(&data).is_some_and(is_there)
    {
        let bytes = read(&file).with_context(|| format!("its {field} {file}"))?;
        of.insert(data, json!(STANDARD.encode(bytes)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "hub",
            "clusters": [
                {"name": "hub", "cluster": {"server": "https://hub", "certificate-authority": "ca.crt", "tls-server-name": "x"}},
                {"name": "other", "cluster": {"server": "https://other"}},
            ],
            "contexts": [
                {"name": "other", "context": {"cluster": "other", "user": "admin"}},
                {"name": "hub", "context": {"cluster": "hub", "user": "ship", "namespace": "garden"}},
            ],
            "users": [
                {"name": "admin", "user": {"token": "of-another-cluster"}},
                {"name": "ship", "user": {"token": "of-the-hub"}},
            ],
        })
    }

    fn read(name: &str) -> anyhow::Result<Vec<u8>> {
        ensure!(name == "ca.crt", "there is no {name}");
        Ok(b"CA".to_vec())
    }

    fn refused(file: &Value) -> String {
        portable(&file.to_string(), read).map_or_else(|error| format!("{error:#}"), |_| String::new())
    }

    #[test]
    fn one_context_is_taken_and_files_are_put_into_it() {
        let text = portable(&serde_saphyr::to_string(&file()).unwrap_or_default(), read).unwrap_or_default();
        let one: Value = serde_json::from_str(&text).unwrap_or_default();
        let cluster =
            json!({"server": "https://hub", "certificate-authority-data": "Q0E=", "tls-server-name": "x"});
        assert_eq!(one["clusters"], json!([{"name": "hub", "cluster": cluster}]));
        assert_eq!(one["users"], json!([{"name": "ship", "user": {"token": "of-the-hub"}}]));
        assert_eq!(one["contexts"].as_array().map(Vec::len), Some(1));
        assert!(!text.contains("of-another-cluster"));
        assert!(serde_json::from_value::<Kubeconfig>(one).is_ok());
        assert_eq!(portable(&text, read).unwrap_or_default(), text, "a second time changes nothing");
    }

    #[test]
    fn what_cannot_work_is_named() {
        let change = |pointer: &str, value: Value| {
            let mut file = file();
            if let Some(field) = file.pointer_mut(pointer) {
                *field = value;
            }
            refused(&file)
        };
        for (pointer, value, words) in [
            (
                "/current-context",
                json!(""),
                "no current context: choose one by `kubectl config use-context` (there are other, hub)",
            ),
            ("/current-context", json!("gone"), "current context gone is not in it"),
            ("/contexts/1/context/cluster", json!("gone"), "a cluster \"gone\" that is not in it"),
            ("/contexts/1/context/user", json!("gone"), "a user \"gone\" that is not in it"),
            ("/clusters/0/cluster/server", json!(""), "has no server"),
            (
                "/clusters/0/cluster/certificate-authority",
                json!("gone.crt"),
                "its certificate-authority gone.crt",
            ),
            ("/users/1/user", json!({"tokenFile": "/t"}), "tokenFile"),
            (
                "/users/1/user",
                json!({"exec": {"command": "aws"}}),
                "take a kubeconfig with a token or a certificate",
            ),
            ("/clusters", json!("text"), "it is no kubeconfig"),
        ] {
            let said = change(pointer, value);
            assert!(said.contains(words), "{pointer}: {said}");
        }
        assert!(refused(&json!("text")).contains("no kubeconfig"));
    }

    #[test]
    fn no_error_has_a_credential_in_it() {
        let broken = format!("{}\n  : [of-the-hub", serde_saphyr::to_string(&file()).unwrap_or_default());
        let mut wrong = file();
        wrong["users"][1]["user"]["token"] = json!(["of-the-hub"]);
        for text in [broken, wrong.to_string()] {
            let said = portable(&text, read).map_or_else(|error| format!("{error:?}"), |_| String::new());
            assert!(said.contains("no kubeconfig") && !said.contains("of-the-hub"), "{said}");
        }
    }

    #[test]
    fn another_way_has_another_digest() {
        let access =
            |kubeconfig: &str, seed: &str| HubAccess { kubeconfig: kubeconfig.into(), seed: seed.into() };
        assert_eq!(access("k", "s").digest(), access("k", "s").digest());
        assert_ne!(access("k", "s").digest(), access("k", "t").digest());
        assert_ne!(access("k", "s").digest(), access("l", "s").digest());
    }
}
