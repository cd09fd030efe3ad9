//! A member cluster with a store, and what a gardenlet does there.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use anyhow::{Context as _, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth::storage::Roots;
use berth::storage::bucket::{Bucket, Version};
use berth_garden_api::StoreConfig;
use berth_garden_api::crd;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use object_store::ObjectStore as _;
use object_store::ObjectStoreExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsAuthorizer, AwsCredential};
use object_store::client::{ClientOptions, HttpConnector as _, HttpRequestBody, ReqwestConnector};
use object_store::path::Path;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::admission::program;
pub use crate::support::PATIENCE;
use crate::support::peers::{Keys, S3};
use crate::support::process::in_own_session;
use crate::support::{ControlPlane, Kubectl, Process, port, project, wait_for};

pub const REGION: &str = "us-east-1";
pub const BUCKETS: &str = "backupbuckets.extensions.gardener.cloud";
pub const ENTRIES: &str = "backupentries.extensions.gardener.cloud";
pub const BUCKET_FINALIZER: &str = "extensions.gardener.cloud/backupbucket";
pub const ENTRY_FINALIZER: &str = "extensions.gardener.cloud/backupentry";

/// A member cluster with an agent, and a store.
pub struct Site {
    pub plane: ControlPlane,
    pub s3: S3,
    agent: PathBuf,
}

impl Site {
    /// One for all tests that do not disturb it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<(Site, Mutex<Process>), String>> = OnceLock::new();
        let start = || {
            let site = Self::start()?;
            let agent = site.start_agent("shared", &[])?;
            Ok::<_, anyhow::Error>((site, Mutex::new(agent)))
        };
        let shared = SHARED.get_or_init(|| start().map_err(|error| format!("{error:#}")));
        &shared.as_ref().map_err(|error| anyhow!("{error}")).unwrap().0
    }

    /// Without an agent.
    pub fn start() -> anyhow::Result<Self> {
        let plane = ControlPlane::start()?;
        let namespace =
            |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let mut objects: Vec<Value> = crd::member().iter().map(|crd| json!(crd)).collect();
        objects.extend(["velero", "garden", "elsewhere"].map(namespace));
        let rights = std::fs::read_to_string(project().join("manifests/components/garden-member/rbac.yaml"))?;
        for text in rights.split("\n---\n") {
            objects.push(serde_saphyr::from_str(text)?);
        }
        plane.apply(objects)?;
        plane.kubectl().await_definitions()?;
        let agent = plane.service_account_kubeconfig("velero", "berth-garden-agent")?;
        let s3 = S3::start(&plane, "garden")?;
        let site = Self { plane, s3, agent };
        site.keep_secret("keys", &site.s3.keys);
        Ok(site)
    }

    /// A short Lease is for those that are killed.
    pub fn start_agent(&self, name: &str, more: &[&str]) -> anyhow::Result<Process> {
        let mut command = in_own_session(&program());
        command.args(["garden", "agent", "--namespace=velero", "--log-level=info,berth=debug"]).args(more);
        command.arg("--kubeconfig").arg(&self.agent);
        command.arg("--filesystem-root").arg(self.plane.folder());
        command.arg(format!("--health-address=127.0.0.1:{}", port::free()?));
        let log = self.plane.folder().join(format!("agent-{name}.log"));
        Process::start("berth garden agent", command, &log)
    }

    pub fn kubectl(&self) -> &Kubectl {
        self.plane.kubectl()
    }

    pub fn apply(&self, object: &Value) {
        let args = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.kubectl().run_with(&args, &object.to_string()).unwrap();
    }

    /// As gardenlets write them.
    pub fn keep_secret(&self, name: &str, keys: &Keys) {
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "garden"},
            "stringData": {"accessKeyID": keys.id, "secretAccessKey": keys.secret, "region": REGION},
        }));
    }

    pub fn config(&self) -> Value {
        json!({"apiVersion": "garden.berth.dev/v1alpha1", "kind": "StoreConfig", "endpoint": self.s3.url()})
    }

    pub fn bucket(&self, name: &str) -> Value {
        json!({
            "apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": "BackupBucket",
            "metadata": {"name": name, "annotations": asked("reconcile")},
            "spec": {
                "type": "aws", "region": REGION, "providerConfig": self.config(),
                "secretRef": {"name": "keys", "namespace": "garden"},
            },
        })
    }

    pub fn entry(&self, name: &str, bucket: &str) -> Value {
        let mut entry = self.bucket(name);
        entry["kind"] = json!("BackupEntry");
        entry["spec"]["bucketName"] = json!(bucket);
        entry
    }

    /// Made, and well.
    pub fn make_bucket(&self, name: &str) {
        self.apply(&self.bucket(name));
        self.becomes(BUCKETS, name, "Succeeded");
    }

    pub fn make_entry(&self, name: &str, bucket: &str) {
        self.apply(&self.entry(name, bucket));
        self.becomes(ENTRIES, name, "Succeeded");
    }

    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let text = self.kubectl().run(&["get", kind, name, "-o", "json", "--ignore-not-found"]).unwrap();
        (!text.trim().is_empty()).then(|| serde_json::from_str(&text).unwrap())
    }

    pub fn secret(&self, name: &str) -> Value {
        serde_json::from_str(
            &self.kubectl().run(&["get", "secret", name, "-n", "garden", "-o", "json"]).unwrap(),
        )
        .unwrap()
    }

    pub fn waits(
        &self,
        what: &str,
        kind: &str,
        name: &str,
        is_so: impl Fn(Option<&Value>) -> bool,
    ) -> Option<Value> {
        let mut seen = None;
        let waited = wait_for(&format!("{kind} {name}: {what}"), PATIENCE, || {
            seen = self.get(kind, name);
            Ok(is_so(seen.as_ref()).then_some(()))
        });
        waited.unwrap_or_else(|error| panic!("{error}; it is {:#}", seen.clone().unwrap_or_default()));
        seen
    }

    /// Waits until its last operation is in that state, for what it is now.
    pub fn becomes(&self, kind: &str, name: &str, state: &str) -> Value {
        let is_so = |object: Option<&Value>| {
            object.is_some_and(|object| {
                let status = &object["status"];
                status["lastOperation"]["state"] == state
                    && status["observedGeneration"] == object["metadata"]["generation"]
            })
        };
        self.waits(state, kind, name, is_so).unwrap_or_default()
    }

    pub fn annotate(&self, kind: &str, name: &str, annotation: &str) {
        self.kubectl().run(&["annotate", "--overwrite", kind, name, annotation]).unwrap();
    }

    /// As a gardenlet does it: the confirmation first.
    pub fn delete(&self, kind: &str, name: &str) {
        self.annotate(kind, name, "confirmation.gardener.cloud/deletion=true");
        self.kubectl().run(&["delete", kind, name, "--wait=false"]).unwrap();
    }

    pub fn is_gone(&self, kind: &str, name: &str) {
        self.waits("to be gone", kind, name, |object| object.is_none());
    }

    /// What Events with that reason say of it.
    pub fn events(&self, kind: &str, name: &str, reason: &str) -> Vec<String> {
        let kind = if kind == BUCKETS { "BackupBucket" } else { "BackupEntry" };
        let selector = format!("reason={reason},regarding.kind={kind},regarding.name={name}");
        let args =
            ["get", "events.events.k8s.io", "-n", "default", "-o", "json", "--field-selector", &selector];
        let found: Value = serde_json::from_str(&self.kubectl().run(&args).unwrap()).unwrap();
        let notes = found["items"].as_array().into_iter().flatten().map(|event| event["note"].as_str());
        notes.map(|note| note.unwrap_or_default().to_owned()).collect()
    }

    /// The first of them.
    pub fn event(&self, kind: &str, name: &str, reason: &str) -> String {
        let told = || Ok(self.events(kind, name, reason).into_iter().next());
        wait_for(&format!("an Event of {kind} {name}: {reason}"), PATIENCE, told).unwrap()
    }

    /// The store's bucket, as another program sees it.
    pub fn store(&self, bucket: &str, keys: &Keys) -> AmazonS3 {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder =
            AmazonS3Builder::new().with_access_key_id(&keys.id).with_secret_access_key(&keys.secret);
        let builder = builder.with_endpoint(self.s3.url()).with_bucket_name(bucket).with_region(REGION);
        builder.with_allow_http(true).build().unwrap()
    }

    /// berth's own administration of it, for what a test must bring about.
    pub fn administer(&self, bucket: &str, keys: &Keys, more: &Value) -> Bucket {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = self.config();
        for (key, value) in more.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let config: StoreConfig = serde_json::from_value(config).unwrap();
        Bucket::open("aws", bucket, REGION, &config, &secret_of(keys), &Roots::default()).unwrap()
    }

    pub fn fill(&self, bucket: &str, prefix: &str, count: usize) {
        let store = self.store(bucket, &self.s3.keys);
        runtime().block_on(put(&store, prefix, count));
    }

    pub fn count(&self, bucket: &str, prefix: &str) -> usize {
        let store = self.store(bucket, &self.s3.keys);
        let prefix = Path::from(prefix);
        let prefix = (!prefix.as_ref().is_empty()).then_some(&prefix);
        runtime().block_on(async { store.list(prefix).try_collect::<Vec<_>>().await.unwrap().len() })
    }
}

/// Seven bytes each.
pub async fn put(store: &AmazonS3, prefix: &str, count: usize) {
    let puts = (0..count).map(|i| {
        let path = Path::from(format!("{prefix}etcd-main/part {}/object+{i}", i % 7));
        async move { store.put(&path, "sevenby".into()).await }
    });
    stream::iter(puts).buffer_unordered(16).try_collect::<Vec<_>>().await.unwrap();
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Gives a version a lock of its own.
pub async fn retain(
    site: &Site,
    bucket: &str,
    version: &Version,
    until: jiff::Timestamp,
) -> anyhow::Result<()> {
    let body = format!(
        "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>GOVERNANCE</Mode>\
         <RetainUntilDate>{}</RetainUntilDate></Retention>",
        until.strftime("%Y-%m-%dT%H:%M:%SZ")
    );
    let id = version.id.as_deref().context("no version")?;
    let url = format!("{}/{bucket}/{}?retention=&versionId={id}", site.s3.url(), version.key);
    let digest = ring::digest::digest(&ring::digest::SHA256, body.as_bytes());
    let request = http::Request::put(url).header("x-amz-checksum-sha256", STANDARD.encode(digest.as_ref()));
    let mut request = request.body(HttpRequestBody::from(body))?;
    let keys = AwsCredential {
        key_id: site.s3.keys.id.clone(),
        secret_key: site.s3.keys.secret.clone(),
        token: None,
    };
    AwsAuthorizer::new(&keys, "s3", REGION).try_authorize(&mut request, None)?;
    let client = ReqwestConnector::default().connect(&ClientOptions::new().with_allow_http(true))?;
    let response = client.execute(request).await?;
    let status = response.status();
    let said = response.into_body().bytes().await?;
    ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&said));
    Ok(())
}

pub fn secret_of(keys: &Keys) -> Secret {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let data =
        [("accessKeyID".to_owned(), bytes(&keys.id)), ("secretAccessKey".to_owned(), bytes(&keys.secret))];
    Secret { data: Some(data.into()), ..Secret::default() }
}

/// What a gardenlet annotates when it wants something.
pub fn asked(operation: &str) -> Value {
    json!({
        "gardener.cloud/operation": operation,
        "gardener.cloud/timestamp": jiff::Timestamp::now().to_string(),
    })
}

pub fn finalizers(object: &Value) -> Vec<&str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// As a gardenlet judges it.
pub fn is_healthy(object: &Value) -> bool {
    let (annotations, status) = (&object["metadata"]["annotations"], &object["status"]);
    let second =
        |time: &Value| -> Option<i64> { Some(time.as_str()?.parse::<jiff::Timestamp>().ok()?.as_second()) };
    status["lastError"].is_null()
        && status["observedGeneration"] == object["metadata"]["generation"]
        && annotations["gardener.cloud/operation"].is_null()
        && status["lastOperation"]["state"] == "Succeeded"
        && second(&annotations["gardener.cloud/timestamp"])
            <= second(&status["lastOperation"]["lastUpdateTime"])
}
