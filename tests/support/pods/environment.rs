//! A container's environment: what its manifest says, and where the API server is.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret};
use kube::Api;

use super::site::{self, Host};

pub type Environment = BTreeMap<String, String>;

/// # Errors
/// When something that is not optional is not there, or cannot be given here.
pub async fn of(
    host: &Host,
    pod: &Pod,
    container: &Container,
    address: Ipv4Addr,
) -> anyhow::Result<Environment> {
    let (_, name) = site::key(pod);
    let api_server = host.site.api_server;
    let mut env = Environment::from([
        ("HOSTNAME".to_owned(), name),
        ("KUBERNETES_SERVICE_HOST".to_owned(), api_server.ip().to_string()),
        ("KUBERNETES_SERVICE_PORT".to_owned(), api_server.port().to_string()),
    ]);
    if let Ok(backtrace) = std::env::var("RUST_BACKTRACE") {
        env.insert("RUST_BACKTRACE".to_owned(), backtrace);
    }
    env.extend(host.site.variables());
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (_, Some(source)) => {
                let looked_up = look_up(host, pod, source, address).await;
                looked_up.with_context(|| format!("variable {}", variable.name))?
            }
            (value, None) => Some(expand(value.as_deref().unwrap_or_default(), &env)),
        };
        if let Some(value) = value {
            env.insert(variable.name.clone(), value);
        }
    }
    Ok(env)
}

async fn look_up(
    host: &Host,
    pod: &Pod,
    source: &EnvVarSource,
    address: Ipv4Addr,
) -> anyhow::Result<Option<String>> {
    let (namespace, _) = site::key(pod);
    if let Some(field_ref) = &source.field_ref {
        return Ok(Some(field(pod, &field_ref.field_path, address)?));
    }
    let (kind, name, key, optional, found) = if let Some(wanted) = &source.secret_key_ref {
        let secret = Api::<Secret>::namespaced(host.client.clone(), &namespace).get_opt(&wanted.name).await?;
        let value = secret.and_then(|secret| secret.data?.remove(&wanted.key));
        let value = value.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        ("Secret", &wanted.name, &wanted.key, wanted.optional, value)
    } else if let Some(wanted) = &source.config_map_key_ref {
        let map = Api::<ConfigMap>::namespaced(host.client.clone(), &namespace).get_opt(&wanted.name).await?;
        let value = map.and_then(|map| map.data?.remove(&wanted.key));
        ("ConfigMap", &wanted.name, &wanted.key, wanted.optional, value)
    } else {
        bail!("only fieldRef, secretKeyRef and configMapKeyRef can be given here");
    };
    if found.is_none() && optional != Some(true) {
        bail!("no key {key} in {kind} {name}");
    }
    Ok(found)
}

/// A field of a pod, as fieldRef names it.
///
/// # Errors
/// When that one is not known here.
pub fn field(pod: &Pod, path: &str, address: Ipv4Addr) -> anyhow::Result<String> {
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref();
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let map = match map {
            "metadata.labels" => &metadata.labels,
            "metadata.annotations" => &metadata.annotations,
            _ => bail!("no field {path}"),
        };
        return Ok(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    let value = match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|spec| spec.service_account_name.clone()),
        "status.podIP" | "status.podIPs" => Some(address.to_string()),
        _ => bail!("no field {path}"),
    };
    Ok(value.unwrap_or_default())
}

/// `$(NAME)` stands for the variable, if there is one; `$$` for `$`.
pub fn expand(text: &str, env: &Environment) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        match name.and_then(|(name, after)| Some((env.get(name)?, after))) {
            Some((value, after)) => {
                expanded.push_str(value);
                rest = after;
            }
            None => expanded.push('$'),
        }
    }
    expanded + rest
}
