//! The Secrets that objects name. A finalizer keeps them as long as they are needed.

use std::collections::HashSet;

use berth_api::keys;
use berth_garden_api::SecretReference;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use serde_json::json;

use super::outcome::OperationError;
use crate::write::{self, Write, WriteResult};

/// Objects that need their Secret from now on, and objects that no longer need it, by UID, because
/// the watch may not show either yet.
#[derive(Default)]
pub struct Holders {
    held: HashSet<String>,
    released: HashSet<String>,
}

impl Holders {
    pub fn hold(&mut self, uid: &str) {
        self.released.remove(uid);
        self.held.insert(uid.to_owned());
    }

    /// Forgets objects that are not `here` any more.
    pub fn release(&mut self, uid: &str, here: &HashSet<String>) {
        self.held.retain(|one| one != uid && here.contains(one));
        self.released.retain(|one| here.contains(one));
        self.released.insert(uid.to_owned());
    }

    /// `is_shown`: the watch shows it with the executor's finalizer.
    pub fn needs(&self, uid: &str, is_shown: bool) -> bool {
        !self.released.contains(uid) && (is_shown || self.held.contains(uid))
    }
}

/// # Errors
/// A fault of configuration if it is missing or may not be read. A missing Secret says nothing
/// about the data that it is for.
pub async fn get(client: &Client, reference: &SecretReference) -> Result<Secret, OperationError> {
    let SecretReference { name, namespace } = reference;
    match api(client, reference).get_opt(name).await {
        Ok(Some(secret)) => Ok(secret),
        Ok(None) => Err(OperationError::configuration(format!(
            "spec.secretRef: there is no Secret {namespace}/{name}; create it again, or, to leave the data in the store, \
             delete the object with the annotation {}=<why>",
            keys::FORGET_DATA
        ))),
        Err(kube::Error::Api(status)) if status.code == 403 => Err(OperationError::configuration(format!(
            "spec.secretRef: Secret {namespace}/{name} may not be read here: berth has a Role for the Secrets of one namespace"
        ))),
        Err(error) => Err(error.into()),
    }
}

/// Puts `finalizer` on it, unless it is there.
pub async fn hold(client: &Client, secret: &Secret, finalizer: &str) -> Result<(), OperationError> {
    if secret.finalizers().iter().any(|held| held == finalizer) {
        return Ok(());
    }
    // No finalizer can be added to an object that is being deleted; it can be used while it is
    // there.
    if secret.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let finalizers = secret.finalizers().iter().cloned().chain([finalizer.to_owned()]).collect();
    patch(client, secret, finalizers).await.written()?;
    Ok(())
}

/// Takes `finalizer` off, if it is there.
pub async fn let_go(
    client: &Client,
    reference: &SecretReference,
    finalizer: &str,
) -> Result<(), kube::Error> {
    let secret = match api(client, reference).get_opt(&reference.name).await {
        Ok(Some(secret)) => secret,
        Ok(None) => return Ok(()),
        // Where berth may not read, it has never put a finalizer.
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(()),
        Err(error) => return Err(error),
    };
    if !secret.finalizers().iter().any(|held| held == finalizer) {
        return Ok(());
    }
    let finalizers = secret.finalizers().iter().filter(|held| *held != finalizer).cloned().collect();
    match patch(client, &secret, finalizers).await {
        WriteResult::Gone(_) => Ok(()),
        patched => patched.written().map(drop),
    }
}

async fn patch(client: &Client, secret: &Secret, finalizers: Vec<String>) -> WriteResult<Secret> {
    let reference =
        SecretReference { name: secret.name_any(), namespace: secret.namespace().unwrap_or_default() };
    let change = json!({"metadata": {"finalizers": finalizers}});
    write::patch(&api(client, &reference), Write::on(secret).uid(None), change).await
}

fn api(client: &Client, reference: &SecretReference) -> Api<Secret> {
    Api::namespaced(client.clone(), &reference.namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_needs_a_secret_is_known_before_the_watch_shows_it() {
        let here: HashSet<String> = ["a", "b", "c"].map(str::to_owned).into();
        let mut holders = Holders::default();
        assert!(!holders.needs("a", false) && holders.needs("a", true));
        holders.hold("a");
        holders.hold("b");
        assert!(holders.needs("a", false));
        holders.release("a", &here);
        assert!(!holders.needs("a", true), "the watch shows its finalizer still");
        assert!(holders.needs("b", false) && !holders.needs("c", false));
        // Let go, and restored.
        holders.hold("a");
        assert!(holders.needs("a", false));
        holders.release("c", &["c".to_owned()].into());
        assert!(!holders.needs("a", false) && !holders.needs("b", false), "they are gone");
    }
}
