//! `kubectl get … -o json` and `kubectl apply --server-side -f -` without a process: tests ask for objects thousands of times
//! while they wait, and apply hundreds, and each kubectl takes some 70 ms of a core.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use super::kubectl::Answer;

/// For what one call asks, and for each object that it applies.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_OF_OBJECT: Duration = Duration::from_secs(1);
/// `/api` and `/apis` with all resources in one answer each.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

static RUNTIME: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("kubectl")
        .enable_all()
        .build()
        .ok()
});
/// By the text of its kubeconfig: a file may be written anew with another identity.
static CONNECTIONS: Mutex<BTreeMap<String, Arc<Connection>>> = Mutex::new(BTreeMap::new());

/// What kubectl answers to `args`, if they are among those that are known here. `None`: ask kubectl, which also says why
/// something fails.
pub fn answer(kubeconfig: &Path, args: &[&str], stdin: &str) -> Option<Answer> {
    if let Some(wanted) = Wanted::parse(args) {
        let stdout = run(kubeconfig, PATIENCE, |connection| async move { connection.get(&wanted).await })?;
        return Some(Answer { stdout, stderr: String::new(), status: ExitStatus::default() });
    }
    let apply = Apply::parse(args, stdin)?;
    let count = u32::try_from(apply.objects.len()).unwrap_or(u32::MAX);
    let patience = PATIENCE + PATIENCE_OF_OBJECT.saturating_mul(count);
    run(kubeconfig, patience, |connection| async move { connection.apply(&apply).await })
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
        let answer = tokio::time::timeout(patience, run).await.ok().flatten();
        let _ = sender.send(answer);
    });
    answer.recv().ok().flatten()
}

/// The arguments of one `kubectl get`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    resource: String,
    name: Option<String>,
    /// `None`: the default one.
    namespace: Option<String>,
    everywhere: bool,
    labels: Option<String>,
    fields: Option<String>,
    may_be_absent: bool,
}

impl Wanted {
    fn parse(args: &[&str]) -> Option<Self> {
        let mut args = args.iter().flat_map(|arg| match arg.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => vec![flag, value],
            _ => vec![*arg],
        });
        (args.next() == Some("get")).then_some(())?;
        let mut wanted = Self::default();
        let mut is_json = false;
        while let Some(arg) = args.next() {
            match arg {
                "-n" | "--namespace" => wanted.namespace = Some(args.next()?.to_owned()),
                "-l" | "--selector" => wanted.labels = Some(args.next()?.to_owned()),
                "--field-selector" => wanted.fields = Some(args.next()?.to_owned()),
                "-A" | "--all-namespaces" => wanted.everywhere = true,
                "--ignore-not-found" => wanted.may_be_absent = true,
                "-o" | "--output" => is_json = args.next()? == "json",
                flag if flag.starts_with('-') => return None,
                word if word.contains(['/', ',']) => return None,
                word if wanted.resource.is_empty() => word.clone_into(&mut wanted.resource),
                word if wanted.name.is_none() => wanted.name = Some(word.to_owned()),
                _ => return None,
            }
        }
        (is_json && !wanted.resource.is_empty()).then_some(wanted)
    }
}

/// The arguments of one `kubectl apply --server-side -f -`, and what it is given.
#[derive(Debug)]
struct Apply {
    objects: Vec<Value>,
    namespace: Option<String>,
    /// Behind the `?` of each request.
    query: String,
}

impl Apply {
    fn parse(args: &[&str], stdin: &str) -> Option<Self> {
        let mut args = args.iter().copied();
        (args.next() == Some("apply")).then_some(())?;
        let (mut is_server_side, mut is_stdin, mut namespace) = (false, false, None);
        let mut query = "fieldManager=kubectl&fieldValidation=Strict".to_owned();
        while let Some(arg) = args.next() {
            match arg {
                "--server-side" => is_server_side = true,
                "--force-conflicts" => query += "&force=true",
                "--dry-run=server" => query += "&dryRun=All",
                "-f" => is_stdin = args.next()? == "-",
                "-n" | "--namespace" => namespace = Some(args.next()?.to_owned()),
                _ => return None,
            }
        }
        (is_server_side && is_stdin).then_some(())?;
        let mut object: Value = serde_json::from_str(stdin).ok()?;
        let objects = match object.get_mut("items") {
            Some(Value::Array(items)) => std::mem::take(items),
            _ => vec![object],
        };
        Some(Self { objects, namespace, query })
    }
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
        let connection = Arc::new(Self { client: Client::try_from(config).ok()?, kinds: Mutex::default() });
        let mut all = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        Some(all.entry(kubeconfig).or_insert(connection).clone())
    }

    async fn get(&self, wanted: &Wanted) -> Option<String> {
        let kind = self.kind(&wanted.resource).await?;
        let mut path = kind.root.clone();
        if kind.is_namespaced && !wanted.everywhere {
            path += &format!("/namespaces/{}", wanted.namespace.as_deref().unwrap_or("default"));
        }
        path += &format!("/{}", kind.plural);
        let Some(name) = &wanted.name else { return self.list(&kind, path, wanted).await };
        match self.ask(&format!("{path}/{name}"), None).await {
            Ok(mut object) => {
                hide_managers(&mut object);
                serde_json::to_string(&object).ok()
            }
            Err(404) if wanted.may_be_absent && !wanted.everywhere => Some(String::new()),
            Err(_) => None,
        }
    }

    async fn list(&self, kind: &Kind, path: String, wanted: &Wanted) -> Option<String> {
        let selectors = [("labelSelector", &wanted.labels), ("fieldSelector", &wanted.fields)];
        let selectors = selectors.iter().filter_map(|(key, value)| {
            let value = value.as_deref()?.replace('=', "%3D").replace(',', "%2C").replace('!', "%21");
            (!value.contains([' ', '&', '(', '#'])).then(|| format!("{key}={value}"))
        });
        let selectors: Vec<String> = selectors.collect();
        if selectors.len() < usize::from(wanted.labels.is_some()) + usize::from(wanted.fields.is_some()) {
            return None;
        }
        let mut list = self.ask(&format!("{path}?{}", selectors.join("&")), None).await.ok()?;
        let mut items = list.get_mut("items")?.take();
        for item in items.as_array_mut()? {
            hide_managers(item);
            if let Some(item) = item.as_object_mut() {
                item.insert("apiVersion".to_owned(), json!(kind.api_version));
                item.insert("kind".to_owned(), json!(kind.kind));
            }
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items, "metadata": Map::new()});
        serde_json::to_string(&list).ok()
    }

    /// One after the other, as they stand. `None`, before anything is sent, for kinds that are not known.
    async fn apply(&self, apply: &Apply) -> Option<Answer> {
        let mut requests = Vec::new();
        for object in &apply.objects {
            let (api_version, name) = (object["apiVersion"].as_str()?, object["metadata"]["name"].as_str()?);
            let group = api_version.split_once('/').map(|(group, _)| group);
            let word = object["kind"].as_str()?.to_lowercase();
            let word = group.map_or_else(|| word.clone(), |group| format!("{word}.{group}"));
            let kind = self.kind(&word).await.filter(|kind| kind.api_version == api_version)?;
            let mut path = kind.root.clone();
            if kind.is_namespaced {
                let given = object["metadata"]["namespace"].as_str().or(apply.namespace.as_deref());
                path += &format!("/namespaces/{}", given.unwrap_or("default"));
            }
            let request = http::Request::patch(format!("{path}/{}/{name}?{}", kind.plural, apply.query))
                .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
                .body(Body::from(object.to_string().into_bytes()))
                .ok()?;
            requests.push((format!("{word}/{name}"), request));
        }
        let (mut stdout, mut stderr, mut status) = (String::new(), String::new(), ExitStatus::default());
        for (what, request) in requests {
            // From here on kubectl is not asked any more: a request that failed must not be made good by a second one.
            match self.patch(request).await {
                Ok(warnings) => {
                    stderr += &warnings;
                    stdout += &format!("{what} serverside-applied\n");
                }
                Err(said) => {
                    stderr += &said;
                    status = ExitStatus::from_raw(1 << 8);
                }
            }
        }
        Some(Answer { stdout, stderr, status })
    }

    /// What kubectl prints on stderr, of warnings and of a refusal.
    async fn patch(&self, request: http::Request<Body>) -> Result<String, String> {
        let failed = |error: &dyn std::fmt::Display| format!("Unable to connect to the server: {error}\n");
        let response = self.client.send(request).await.map_err(|error| failed(&error))?;
        let mut said = String::new();
        for warning in response.headers().get_all(http::header::WARNING) {
            // 299 - "TEXT", with backslashes before quotes.
            let warning = warning.to_str().unwrap_or_default();
            let text =
                warning.split_once('"').and_then(|(_, text)| text.strip_suffix('"')).unwrap_or(warning);
            said += &format!("Warning: {}\n", text.replace("\\\"", "\"").replace("\\\\", "\\"));
        }
        let is_done = response.status().is_success();
        let body = response.into_body().collect().await.map_err(|error| failed(&error))?.to_bytes();
        if is_done {
            return Ok(said);
        }
        let refusal: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |key: &str| refusal[key].as_str().unwrap_or_default().to_owned();
        Err(said + &format!("Error from server ({}): {}\n", text("reason"), text("message")))
    }

    /// The kind of that name. A definition may have come since the last look.
    async fn kind(&self, name: &str) -> Option<Kind> {
        let known = |name: &str| self.kinds.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(kind) = known(name) {
            return Some(kind);
        }
        let mut found = BTreeMap::new();
        for root in ["/api", "/apis"] {
            let groups = self.ask(root, Some(DISCOVERY)).await.ok()?;
            for group in groups["items"].as_array()? {
                names_of(group, &mut found);
            }
        }
        *self.kinds.lock().unwrap_or_else(PoisonError::into_inner) = found;
        known(name)
    }

    /// The answer, or the status that a refusal came with; 0 without any.
    async fn ask(&self, path: &str, accept: Option<&str>) -> Result<Value, u16> {
        let mut request = http::Request::get(path);
        if let Some(accept) = accept {
            request = request.header(http::header::ACCEPT, accept);
        }
        let request = request.body(Vec::new()).map_err(|_| 0_u16)?;
        self.client.request(request).await.map_err(|error| match error {
            kube::Error::Api(status) => status.code,
            _ => 0,
        })
    }
}

/// kubectl does not print them unless asked.
fn hide_managers(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
}

/// Adds all kinds of a group of a discovery under each of their names. The group's first version is the preferred one, and the
/// first group with a name has it.
fn names_of(group: &Value, found: &mut BTreeMap<String, Kind>) {
    let Some(version) = group["versions"].get(0) else { return };
    let group = group["metadata"]["name"].as_str().unwrap_or_default();
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
