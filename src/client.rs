//! API clients. Every call has a time-out; what is retried is retried by whoever knows what it means.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

const CONNECT: Duration = Duration::from_secs(5);
/// Longer than the API server keeps a watch open (kube asks for 290 s).
const WATCH: Duration = Duration::from_secs(310);
const CALL: Duration = Duration::from_secs(30);

/// Two clients: watches are silent for minutes, anything else must not be.
#[derive(Clone)]
pub struct Clients {
    pub watch: Client,
    pub call: Client,
}

impl Clients {
    /// # Errors
    /// When there is no usable configuration.
    pub async fn new(kubeconfig: Option<&Path>) -> anyhow::Result<Self> {
        let config = config(kubeconfig).await?;
        Ok(Self { watch: client(config.clone(), WATCH)?, call: client(config, CALL)? })
    }
}

/// For a person who waits: what the API server puts off (a definition that it is just taking up) is tried again.
///
/// # Errors
/// When there is no usable configuration.
pub async fn persistent(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let mut config = config(kubeconfig).await?;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(CALL);
    config.write_timeout = Some(CALL);
    Ok(Client::try_from(config)?)
}

async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    Ok(match kubeconfig {
        Some(path) => {
            let file =
                Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => Config::infer().await.context("no --kubeconfig, no KUBECONFIG, and not in a pod")?,
    })
}

fn client(mut config: Config, read: Duration) -> anyhow::Result<Client> {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(read);
    config.write_timeout = Some(CALL);
    // kube would retry 429, 503 and 504 for minutes under us.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Was the write refused because the object is not as it was when we decided?
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Does whoever asks lack the right?
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
