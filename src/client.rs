//! API clients. Every call has a time-out. The clients do not retry, because only the caller knows
//! what a retry means.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Builder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioExecutor;
use kube::api::{Api, ListParams};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Client, Config, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

use crate::guarded::Guarded;

const CONNECT: Duration = Duration::from_secs(5);
/// Longer than the API server keeps a watch open (kube asks for 290 s).
const WATCH: Duration = Duration::from_secs(310);
const CALL: Duration = Duration::from_secs(30);

/// Where the API server's address and credentials are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct KubeconfigSource<'a> {
    /// Default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    pub kubeconfig: Option<&'a Path>,
    /// Default: the kubeconfig's current context.
    pub context: Option<&'a str>,
}

impl<'a> From<Option<&'a Path>> for KubeconfigSource<'a> {
    fn from(kubeconfig: Option<&'a Path>) -> Self {
        Self { kubeconfig, context: None }
    }
}

impl<'a> From<Option<&'a std::path::PathBuf>> for KubeconfigSource<'a> {
    fn from(kubeconfig: Option<&'a std::path::PathBuf>) -> Self {
        kubeconfig.map(std::path::PathBuf::as_path).into()
    }
}

/// Two clients, because watches may be silent for minutes and other calls must not be.
#[derive(Clone)]
pub struct Clients {
    pub watch: Client,
    pub call: Client,
}

impl Clients {
    /// # Errors
    /// When there is no usable configuration.
    pub async fn new<'a>(source: impl Into<KubeconfigSource<'a>>) -> anyhow::Result<Self> {
        let config = config(source.into()).await?;
        Ok(Self { watch: client(config.clone(), WATCH, None)?, call: client(config, CALL, None)? })
    }
}

/// A client for commands, which retries calls that the API server defers (such as for a definition
/// that is not established yet).
///
/// # Errors
/// When there is no usable configuration.
pub async fn persistent<'a>(source: impl Into<KubeconfigSource<'a>>) -> anyhow::Result<Client> {
    client(config(source.into()).await?, CALL, Some(RetryLayer::new(RetryPolicy::server_retry())))
}

/// The address of the API server, for commands that say which cluster they are about to change.
///
/// # Errors
/// When there is no usable configuration.
pub async fn server<'a>(source: impl Into<KubeconfigSource<'a>>) -> anyhow::Result<http::Uri> {
    Ok(config(source.into()).await?.cluster_url)
}

async fn config(source: KubeconfigSource<'_>) -> anyhow::Result<Config> {
    let mut config = read(source).await?;
    // kube takes a proxy from the environment, and does not ask NO_PROXY about it.
    let is_direct = |proxy: &http::Uri| {
        is_of_environment(proxy) && Matcher::from_env().intercept(&config.cluster_url).is_none()
    };
    if config.proxy_url.as_ref().is_some_and(is_direct) {
        config.proxy_url = None;
    }
    anyhow::ensure!(
        config.proxy_url.is_none(),
        "berth reaches the API server without a proxy, and HTTPS_PROXY or the kubeconfig's proxy-url names one: add {} to NO_PROXY, or remove proxy-url",
        config.cluster_url.host().unwrap_or("its host")
    );
    Ok(config)
}

fn is_of_environment(proxy: &http::Uri) -> bool {
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok())
        .any(|value| value.parse::<http::Uri>().is_ok_and(|value| value == *proxy))
}

async fn read(source: KubeconfigSource<'_>) -> anyhow::Result<Config> {
    let options = KubeConfigOptions { context: source.context.map(str::to_owned), ..Default::default() };
    Ok(match (source.kubeconfig, source.context) {
        (Some(path), _) => {
            let file =
                Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options).await.context("the kubeconfig cannot be used")?
        }
        (None, Some(context)) => {
            Config::from_kubeconfig(&options).await.with_context(|| format!("--context {context}"))?
        }
        (None, None) => Config::infer().await.with_context(|| {
            match std::env::var("KUBECONFIG").ok().filter(|path| !path.is_empty()) {
                Some(path) => format!("KUBECONFIG={path} cannot be used, and this is no pod"),
                None => "there is no --kubeconfig, no KUBECONFIG, no ~/.kube/config, and this is no pod"
                    .to_owned(),
            }
        })?,
    })
}

/// `retries`: none for whoever decides itself, because they may go on for minutes.
fn client(
    config: Config,
    read: Duration,
    retries: Option<RetryLayer<RetryPolicy>>,
) -> anyhow::Result<Client> {
    // The same layers as kube's own client, except for the connector.
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp())?);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_read_timeout(Some(read));
    connector.set_write_timeout(Some(CALL));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retries)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Builder::new(TokioExecutor::new()).build::<_, Body>(connector));
    Ok(Client::new(service, config.default_namespace))
}

/// Sets TCP_NODELAY, because otherwise a request on a new connection may wait for the delayed
/// acknowledgement of the handshake (40 ms). Each hook and each command has a connection of its
/// own.
fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector
}

/// The result of a list. An unreadable object does not hide the others.
#[derive(Debug)]
pub struct ListResult<K> {
    pub items: Vec<K>,
    /// Names of unreadable objects, with the reason.
    pub unreadable: Vec<(String, String)>,
}

/// Objects of one answer of a list, because each of them may be as large as the API server's store
/// allows.
const PAGE: u32 = 100;
/// Answers of one list. Whoever answers says whether there is more, and so many objects of one kind
/// no cluster has.
const PAGES: usize = 1000;

/// Every object of a namespace.
///
/// # Errors
/// When the list fails.
pub async fn list<K>(client: &Client, namespace: &str) -> Result<ListResult<K>, kube::Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    list_as(client, namespace, Some).await
}

/// What is kept of every object of a namespace. The objects themselves are in memory a page at a
/// time.
///
/// # Errors
/// When the list fails.
pub async fn list_as<K, T>(
    client: &Client,
    namespace: &str,
    mut keep: impl FnMut(K) -> Option<T>,
) -> Result<ListResult<T>, kube::Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<Guarded<K>> = Api::namespaced(client.clone(), namespace);
    let mut params = ListParams::default().limit(PAGE);
    let (mut items, mut unreadable) = (Vec::new(), Vec::new());
    for _ in 0..PAGES {
        let page = timeout(CALL, api.list(&params));
        let page = page
            .await
            .map_err(|_| kube::Error::Service("the API server did not answer in time".into()))??;
        for object in page.items {
            let name = object.name_any();
            match object.0 {
                Ok(object) => items.extend(keep(object)),
                Err(error) => unreadable.push((name, error.error)),
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(ListResult { items, unreadable }),
        }
    }
    Err(kube::Error::Service(endless(PAGES, PAGE).into()))
}

/// That a list has more than so many pages.
pub fn endless(pages: usize, page: u32) -> String {
    let most = u64::from(page).saturating_mul(pages as u64);
    format!("there are more than {most} objects, which is more than is looked at")
}

/// Was the write refused because the object has changed since it was read?
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Was a create refused because an object of that name is there already?
pub fn already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// Did a webhook refuse the request? It may use any status code, including 409.
pub fn is_denied(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.message.contains("denied the request"))
}

/// Does the user lack the right?
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Does a field lack the value that the write tests, or would the object be invalid?
pub fn is_unprocessable(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422)
}

/// Is the version that was asked for too old, as that of a list of which the next page is asked
/// for?
pub fn is_expired(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

/// Is the object too large for the store, or the request for the API server?
pub fn is_too_large(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => {
            let message = status.message.as_str();
            status.code == 413
                || message.contains("request is too large")
                || message.contains("message larger than max")
        }
        _ => false,
    }
}

pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use berth_api::velero::BackupStorageLocation;
    use berth_test_scripted::{Scripted, get, page};
    use http::Uri;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn a_request_does_not_wait_until_what_went_before_it_is_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let connection = tcp().oneshot(uri).await.unwrap();
        assert!(connection.inner().nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_command_asks_again_what_the_api_server_puts_off() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let answers = tokio::spawn(async move {
            for (status, body) in [("503 Service Unavailable", "{}"), ("200 OK", r#"{"major": "1"}"#)] {
                let (mut connection, _) = listener.accept().await.unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    assert!(connection.read_buf(&mut asked).await.unwrap() > 0);
                }
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                connection.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        let client = persistent(Some(file.as_path())).await.unwrap();
        let asked = http::Request::get("/version").body(Vec::new()).unwrap();
        assert_eq!(client.request_text(asked).await.unwrap(), r#"{"major": "1"}"#);
        answers.await.unwrap();
    }

    #[tokio::test]
    async fn a_context_that_is_named_outranks_the_current_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        let cluster = |name: &str| json!({"name": name, "cluster": {"server": format!("http://{name}:1")}});
        let context = |name: &str| json!({"name": name, "context": {"cluster": name, "user": "u"}});
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "one",
            "clusters": [cluster("one"), cluster("two")], "users": [{"name": "u", "user": {}}],
            "contexts": [context("one"), context("two")],
        });
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        for (context, server) in [(None, Some("one")), (Some("two"), Some("two")), (Some("three"), None)] {
            let source = KubeconfigSource { kubeconfig: Some(file.as_path()), context };
            let found = read(source).await.ok();
            assert_eq!(found.as_ref().and_then(|found| found.cluster_url.host()), server, "{context:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_does_not_end_is_given_up() {
        let path = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations";
        let more = page("1", "more", &[]);
        let api = Scripted::new()
            .always(get(path).answers(more.clone()))
            .always(get(path).page("more").answers(more));
        let error = list::<BackupStorageLocation>(&api.client("velero"), "velero").await.unwrap_err();
        assert!(error.to_string().contains("more than 100000 objects"), "{error}");
        assert_eq!(api.asked().len(), PAGES);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_cannot_be_read_hides_no_other() {
        let location = |name: &str, provider: serde_json::Value| {
            json!({
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
                "metadata": {"name": name, "namespace": "velero"},
                "spec": {"provider": provider, "objectStorage": {"bucket": "b"}},
            })
        };
        let all = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocationList", "metadata": {},
            "items": [location("bad", json!({"is": "no text"})), location("good", json!("aws"))],
        });
        let path = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations";
        let api = Scripted::new().next(get(path).answers(all));
        let listed = list::<BackupStorageLocation>(&api.client("velero"), "velero").await.unwrap();
        assert_eq!(listed.items.iter().map(|one| one.name_any()).collect::<Vec<_>>(), ["good"]);
        let [(name, why)] = listed.unreadable.as_slice() else { panic!("{:?}", listed.unreadable) };
        assert!(name == "bad" && why.contains("a string"), "{why}");
    }
}
