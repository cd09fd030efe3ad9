//! kubectl's commonest commands without a process, which takes some 100 ms of a core: tests ask for
//! objects thousands of times while they wait, and write hundreds. What is not known here is
//! kubectl's own.

mod args;
mod read;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::time::Duration;

use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use super::kubectl::Answer;
use args::{Asked, Common};

/// `/api` and `/apis` with all resources in one answer each.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// For what is neither asked nor written by a command of somebody's.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a request is repeated whose answer says when to come back.
const TRIES: u32 = 10;

static RUNTIME: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("kubectl")
        .enable_all()
        .build()
        .ok()
});
/// By the text of its kubeconfig, because a file may be overwritten with another identity.
static CONNECTIONS: Mutex<BTreeMap<String, Arc<Connection>>> = Mutex::new(BTreeMap::new());

/// What kubectl answers to `args`, if they are among those that are known here. `None`: ask
/// kubectl, which also says why something cannot be read.
pub fn answer(kubeconfig: &Path, args: &[&str], stdin: &str) -> Option<Answer> {
    let asked = Asked::parse(args, stdin)?;
    run(kubeconfig, asked.patience(), |connection| async move { connection.answer(&asked).await })
}

/// Names of all types that the API server serves, as `PLURAL.GROUP`, asked again.
pub fn served(kubeconfig: &Path) -> Option<BTreeSet<String>> {
    run(kubeconfig, PATIENCE, |connection| async move {
        let kinds = connection.discovered().await?;
        Some(kinds.values().map(Kind::full_name).collect())
    })
}

/// A token of that service account, for a day.
pub fn token(kubeconfig: &Path, namespace: &str, name: &str) -> Option<String> {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let wanted = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86_400},
    });
    run(kubeconfig, PATIENCE, |connection| async move {
        let request =
            request(Method::POST, &path, &Common::default(), JSON, wanted.to_string().into_bytes())?;
        let reply = connection.send(&request).await.ok().filter(|reply| reply.is_done)?;
        reply.body["status"]["token"].as_str().map(str::to_owned)
    })
}

/// Runs `task` on a runtime of its own, since the caller may or may not be on one.
fn run<T: Send + 'static, F: Future<Output = Option<T>> + Send>(
    kubeconfig: &Path,
    patience: Duration,
    task: impl FnOnce(Arc<Connection>) -> F + Send + 'static,
) -> Option<T> {
    let text = std::fs::read_to_string(kubeconfig).ok()?;
    let (sender, answer) = mpsc::channel();
    RUNTIME.as_ref()?.spawn(async move {
        let run = async { task(Connection::of(text).await?).await };
        let answer = timeout(patience, run).await.ok().flatten();
        let _ = sender.send(answer);
    });
    answer.recv().ok().flatten()
}

/// Types of bodies.
const JSON: &str = "application/json";

/// As kubectl makes it for the user who asks.
fn request(
    method: Method,
    path: &str,
    common: &Common,
    content: &str,
    body: Vec<u8>,
) -> Option<Request<Vec<u8>>> {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(user) = &common.user {
        request = request.header("Impersonate-User", user.as_str());
    }
    for group in &common.groups {
        request = request.header("Impersonate-Group", group.as_str());
    }
    if !content.is_empty() {
        request = request.header(http::header::CONTENT_TYPE, content);
    }
    request.body(body).ok()
}

/// A kind, as the API server has it.
#[derive(Clone)]
struct Kind {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    root: String,
    api_version: String,
    kind: String,
    plural: String,
    is_namespaced: bool,
}

impl Kind {
    /// Empty: the core's.
    fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// An administrator's definition has brought it.
    fn is_custom(&self) -> bool {
        self.group().contains('.') && !self.group().ends_with(".k8s.io")
    }

    fn with_group(&self, name: &str) -> String {
        if self.group().is_empty() { name.to_owned() } else { format!("{name}.{}", self.group()) }
    }

    /// As definitions are named.
    fn full_name(&self) -> String {
        self.with_group(&self.plural)
    }

    /// As kubectl prints it.
    fn word(&self) -> String {
        self.with_group(&self.kind.to_lowercase())
    }

    /// Of all of them: in one namespace, where they are in any.
    fn path(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) if self.is_namespaced => {
                format!("{}/namespaces/{namespace}/{}", self.root, self.plural)
            }
            _ => format!("{}/{}", self.root, self.plural),
        }
    }
}

/// What an API server said.
struct Reply {
    code: u16,
    is_done: bool,
    warnings: Vec<String>,
    body: Value,
}

impl Reply {
    /// As kubectl prints it.
    fn refusal(&self, before: &str) -> String {
        let text = |key: &str| self.body[key].as_str().unwrap_or_default();
        let reason = match text("reason") {
            "" => String::new(),
            reason => format!(" ({reason})"),
        };
        format!("Error from server{reason}: {before}{}\n", text("message"))
    }
}

struct Connection {
    client: Client,
    /// By every name that kubectl takes for them.
    kinds: Mutex<BTreeMap<String, Kind>>,
}

impl Connection {
    async fn of(kubeconfig: String) -> Option<Arc<Self>> {
        let known = |all: &BTreeMap<String, Arc<Self>>| all.get(&kubeconfig).cloned();
        if let Some(connection) = known(&CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Some(connection);
        }
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = Kubeconfig::from_yaml(&kubeconfig).ok()?;
        let mut config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await.ok()?;
        config.proxy_url = None;
        // kubectl tells every refusal; what it repeats is repeated by `send`.
        config.default_retry = false;
        let connection = Arc::new(Self { client: Client::try_from(config).ok()?, kinds: Mutex::default() });
        let mut all = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        Some(all.entry(kubeconfig).or_insert(connection).clone())
    }

    async fn answer(&self, asked: &Asked) -> Option<Answer> {
        match asked {
            Asked::Get(wanted) => {
                let stdout = self.get(wanted).await?;
                Some(Answer { stdout, stderr: String::new(), status: ExitStatus::default() })
            }
            Asked::MayI(asked) => self.may_i(asked).await,
            Asked::Apply(apply) => self.apply(apply).await,
            Asked::Create(create) => self.create(create).await,
            Asked::Change(change) => self.change(change).await,
            Asked::Note(note) => self.note(note).await,
            Asked::Delete(delete) => self.delete(delete).await,
        }
    }

    /// One request; again, as kubectl does, where the answer says when to come back. Fails with
    /// what kubectl prints when there is none.
    async fn send(&self, request: &Request<Vec<u8>>) -> Result<Reply, String> {
        let failed = |error: &dyn std::fmt::Display| format!("Unable to connect to the server: {error}\n");
        let mut tried = 0;
        loop {
            tried += 1;
            let asked = self.client.send(request.clone().map(Body::from)).await;
            let (head, body) = asked.map_err(|error| failed(&error))?.into_parts();
            let again = head.headers.get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok());
            let again = again.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
            let may_pass = head.status.as_u16() == 429 || head.status.is_server_error();
            if let Some(pause) = again.filter(|_| may_pass && tried < TRIES) {
                sleep(pause).await;
                continue;
            }
            let warnings = head.headers.get_all(http::header::WARNING).iter().map(|warning| {
                // 299 - "TEXT", with backslashes before quotes.
                let warning = String::from_utf8_lossy(warning.as_bytes());
                let text = warning.split_once('"').and_then(|(_, text)| text.strip_suffix('"'));
                text.unwrap_or(&warning).replace("\\\"", "\"").replace("\\\\", "\\")
            });
            let warnings = warnings.collect();
            let body = body.collect().await.map_err(|error| failed(&error))?.to_bytes();
            return Ok(Reply {
                code: head.status.as_u16(),
                is_done: head.status.is_success(),
                warnings,
                body: serde_json::from_slice(&body).unwrap_or_default(),
            });
        }
    }

    /// The answer, or the status that a refusal came with; 0 without any.
    async fn ask(&self, path: &str, accept: Option<&str>) -> Result<Value, u16> {
        let mut request = Request::get(path);
        if let Some(accept) = accept {
            request = request.header(http::header::ACCEPT, accept);
        }
        let request = request.body(Vec::new()).map_err(|_| 0_u16)?;
        match self.send(&request).await {
            Ok(reply) if reply.is_done => Ok(reply.body),
            Ok(reply) => Err(reply.code),
            Err(_) => Err(0),
        }
    }

    /// The kind of that name. A definition may have come since the last request.
    async fn kind(&self, name: &str) -> Option<Kind> {
        let name = name.to_lowercase();
        let known = || self.kinds.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
        if let Some(kind) = known() {
            return Some(kind);
        }
        self.discovered().await?.remove(&name)
    }

    /// The kind of an object that is to be written.
    async fn kind_of(&self, object: &Value) -> Option<Kind> {
        let (api_version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
        let group = api_version.split_once('/').map(|(group, _)| format!(".{group}"));
        let name = format!("{kind}{}", group.unwrap_or_default());
        self.kind(&name).await.filter(|kind| kind.api_version == api_version)
    }

    /// All kinds, by all of their names.
    async fn discovered(&self) -> Option<BTreeMap<String, Kind>> {
        let mut found = BTreeMap::new();
        for root in ["/api", "/apis"] {
            let groups = self.ask(root, Some(DISCOVERY)).await.ok()?;
            for group in groups["items"].as_array()? {
                names_of(group, &mut found);
            }
        }
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&found);
        Some(found)
    }
}

/// kubectl does not print them unless asked.
fn hide_managers(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
}

/// One that ended well, or not.
fn status(is_well: bool) -> ExitStatus {
    if is_well { ExitStatus::default() } else { ExitStatus::from_raw(1 << 8) }
}

/// Adds all kinds of a group of a discovery under each of their names. A kind is of the first
/// version that has it, which is the preferred one, and the first group with a name has it.
fn names_of(group: &Value, found: &mut BTreeMap<String, Kind>) {
    let name = group["metadata"]["name"].as_str().unwrap_or_default();
    for version in group["versions"].as_array().into_iter().flatten() {
        names_of_version(name, version, found);
    }
}

fn names_of_version(group: &str, version: &Value, found: &mut BTreeMap<String, Kind>) {
    let number = version["version"].as_str().unwrap_or_default();
    let api_version = if group.is_empty() { number.to_owned() } else { format!("{group}/{number}") };
    let root = format!("/{}/{api_version}", if group.is_empty() { "api" } else { "apis" });
    for resource in version["resources"].as_array().into_iter().flatten() {
        let text = |key: &str| resource[key].as_str().unwrap_or_default().to_owned();
        let kind = Kind {
            root: root.clone(),
            api_version: api_version.clone(),
            kind: resource["responseKind"]["kind"].as_str().unwrap_or_default().to_owned(),
            plural: text("resource"),
            is_namespaced: resource["scope"] == "Namespaced",
        };
        let short = resource["shortNames"].as_array().into_iter().flatten();
        let short = short.filter_map(|name| name.as_str().map(str::to_owned));
        let names = [text("resource"), text("singularResource"), kind.kind.to_lowercase()];
        for name in names.into_iter().chain(short) {
            if !group.is_empty() {
                found.entry(format!("{name}.{group}")).or_insert_with(|| kind.clone());
            }
            found.entry(name).or_insert_with(|| kind.clone());
        }
    }
}
