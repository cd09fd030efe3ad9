//! `berth complete-names`, and what `berth complete-words` asks the cluster for: the names that
//! complete a command line. A shell waits for them at every press of a key, so these commands say
//! nothing rather than wait, and never complain.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use berth_api::keys::DEFAULT_NAMESPACE;
use berth_api::velero::{Backup, BackupStorageLocation, Schedule};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, ResourceExt};

use crate::cli::config;
use crate::cli::names::{CompletionKind, CompletionRequest, is_plain, wanted};
use crate::client::{KubeconfigSource, persistent};

/// How long the whole command may take.
const LASTS: Duration = Duration::from_millis(900);
/// Names that are offered at most.
const MOST: u32 = 1000;

/// The names that complete the word behind these.
pub fn of(words: &[String]) -> Vec<String> {
    asked(wanted(words))
}

/// The names that are wanted. None, if the cluster does not tell them in time.
pub fn asked(wanted: CompletionRequest) -> Vec<String> {
    let Some(kind) = wanted.kind else { return Vec::new() };
    let (said, found) = mpsc::channel();
    // A thread of its own, because a program that the kubeconfig names for credentials blocks it;
    // it ends with the process.
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        if let Ok(names) = runtime.block_on(names(&wanted, kind)) {
            // Nobody may wait any more.
            let _ = said.send(names);
        }
    });
    found.recv_timeout(LASTS).unwrap_or_default()
}

async fn names(wanted: &CompletionRequest, kind: CompletionKind) -> anyhow::Result<Vec<String>> {
    let kubeconfig = wanted.kubeconfig.as_ref().map(PathBuf::from);
    let source = KubeconfigSource { kubeconfig: kubeconfig.as_deref(), context: wanted.context.as_deref() };
    let client: Client = persistent(source).await?;
    let namespace = wanted.namespace.clone().or_else(|| config::read().namespace).unwrap_or_else(|| {
        let of_environment = std::env::var("VELERO_NAMESPACE").ok().filter(|name| !name.is_empty());
        of_environment.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())
    });
    let resource = match kind {
        CompletionKind::Backup => ApiResource::erase::<Backup>(&()),
        CompletionKind::Schedule => ApiResource::erase::<Schedule>(&()),
        CompletionKind::Location => ApiResource::erase::<BackupStorageLocation>(&()),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &resource);
    let found = api.list_metadata(&ListParams::default().limit(MOST)).await?;
    Ok(found.items.iter().map(ResourceExt::name_any).filter(|name| is_plain(name)).collect())
}
