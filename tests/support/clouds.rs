//! Emulators of Azure's and Google's stores, as far as they go: see tests/control-plane/README.md.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{HeaderMap, Method};
use object_store::azure::{
    AzureAccessKey, AzureAuthorizer, AzureCredential, MicrosoftAzure, MicrosoftAzureBuilder,
};
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector as _, HttpRequestBody, ReqwestConnector,
};
use serde_json::{Value, json};

use super::process::in_own_session;
use super::{ControlPlane, Process, binaries, http as plain, port, wait_for};
use crate::wait::{ANSWER, PATIENCE};

fn address(plane: &ControlPlane) -> anyhow::Result<SocketAddr> {
    let host = plane.network().map_or(Ipv4Addr::LOCALHOST, |network| network.address());
    Ok((host, port::free()?).into())
}

fn client() -> anyhow::Result<HttpClient> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = ClientOptions::new().with_allow_http(true).with_timeout(ANSWER);
    Ok(ReqwestConnector::default().connect(&options.with_connect_timeout(ANSWER))?)
}

/// Headers and body of a success.
async fn send(request: http::Request<HttpRequestBody>) -> anyhow::Result<(HeaderMap, Bytes)> {
    send_by(&client()?, request).await
}

async fn send_by(
    client: &HttpClient,
    request: http::Request<HttpRequestBody>,
) -> anyhow::Result<(HeaderMap, Bytes)> {
    let (head, body) = client.execute(request).await?.into_parts();
    let body = body.bytes().await?;
    ensure!(head.status.is_success(), "{}: {}", head.status, String::from_utf8_lossy(&body));
    Ok((head.headers, body))
}

/// Azurite, with one account.
pub struct Azurite {
    pub process: Process,
    pub account: String,
    /// Base64.
    pub key: String,
    address: SocketAddr,
}

impl Azurite {
    /// `None`, and a printed reason, where it cannot run.
    ///
    /// # Errors
    /// When it cannot be had or started.
    pub fn start(plane: &ControlPlane, name: &str) -> anyhow::Result<Option<Self>> {
        let [folder] = binaries::get(["azurite"])?;
        if folder == Path::new("") {
            eprintln!("Azure's store is left out: there is no Azurite here, see above");
            return Ok(None);
        }
        let (account, key) = ("clusters1".to_owned(), "a2V5LW9mLXRoZS1hY2NvdW50LWNsdXN0ZXJzMQ==".to_owned());
        let address = address(plane)?;
        let kept = plane.folder().join(format!("azurite-{name}"));
        std::fs::create_dir_all(&kept)?;
        let mut command = in_own_session(&PathBuf::from("node"));
        command.arg(folder.join("node_modules/azurite/dist/src/blob/main.js"));
        command.args(["--blobHost", &address.ip().to_string(), "--blobPort", &address.port().to_string()]);
        command.arg("--disableTelemetry").arg("--location").arg(&kept);
        command.env("AZURITE_ACCOUNTS", format!("{account}:{key}"));
        let process =
            Process::start("azurite", command, &plane.folder().join(format!("azurite-{name}.log")))?;
        let mut started = Self { process, account, key, address };
        wait_for("Azurite to answer", PATIENCE, || {
            started.process.ensure_runs()?;
            Ok(plain::get(started.address, "/").is_ok().then_some(()))
        })?;
        Ok(Some(started))
    }

    /// Of the account's blobs.
    pub fn url(&self) -> String {
        format!("http://{}/{}", self.address, self.account)
    }

    /// The data of a Secret as Gardener writes it.
    pub fn secret(&self) -> Value {
        json!({"storageAccount": self.account, "storageKey": self.key})
    }

    /// A container, for a reader of our own.
    ///
    /// # Errors
    /// When the client cannot be made.
    pub fn store(&self, container: &str) -> anyhow::Result<MicrosoftAzure> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = MicrosoftAzureBuilder::new().with_account(&self.account).with_access_key(&self.key);
        let builder = builder.with_endpoint(self.url()).with_container_name(container);
        let options = ClientOptions::new().with_allow_http(true).with_timeout(ANSWER);
        Ok(builder.with_client_options(options.with_connect_timeout(ANSWER)).build()?)
    }

    /// A call that neither berth nor `object_store` makes, below the account.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn put(&self, path: &str, headers: &[(&'static str, &'static str)]) -> anyhow::Result<()> {
        let mut request = http::Request::put(format!("{}/{path}", self.url()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(HttpRequestBody::empty())?;
        let credential = AzureCredential::AccessKey(AzureAccessKey::try_new(&self.key)?);
        AzureAuthorizer::new(&credential, &self.account).try_authorize(&mut request)?;
        send(request).await.map(|_| ())
    }
}

/// fake-gcs-server. It asks for no credentials.
pub struct Gcs {
    pub process: Process,
    address: SocketAddr,
}

impl Gcs {
    /// # Errors
    /// When it cannot be found, built or started.
    pub fn start(plane: &ControlPlane, name: &str) -> anyhow::Result<Self> {
        let [program] = binaries::get(["fake-gcs-server"])?;
        let address = address(plane)?;
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        // Versions only in memory. It loads what is in a folder, and there is none: so the janitor
        // knows it.
        let none = plane.folder().join(format!("gcs-{name}"));
        let mut command = in_own_session(&program);
        command.args(["-scheme", "http", "-host", &host, "-port", &port, "-backend", "memory"]);
        command.args(["-public-host", &address.to_string(), "-data"]).arg(none);
        let log = plane.folder().join(format!("gcs-{name}.log"));
        let mut started = Self { process: Process::start("fake-gcs-server", command, &log)?, address };
        wait_for("fake-gcs-server to answer", PATIENCE, || {
            started.process.ensure_runs()?;
            let path = "/storage/v1/b?project=none";
            Ok(plain::get(started.address, path).is_ok_and(|(status, _)| status == 200).then_some(()))
        })?;
        Ok(started)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The data of a Secret as Gardener writes it. No server accepts the key.
    pub fn secret(&self) -> Value {
        let file = json!({
            "type": "service_account", "project_id": "clusters", "client_email": "berth@clusters.example",
            "private_key_id": "1", "private_key": "", "disable_oauth": true,
        });
        json!({"serviceaccount.json": file.to_string()})
    }

    /// # Errors
    /// When it is refused.
    pub async fn call(&self, method: Method, path: &str, body: Value) -> anyhow::Result<Value> {
        let request = http::Request::builder().method(method).uri(format!("{}{path}", self.url()));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (_, body) = send(request.body(HttpRequestBody::from(body))?).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).context("not JSON")
    }

    /// For many objects of a bucket: a client takes longer to make than an object to write.
    ///
    /// # Errors
    /// When the client cannot be made.
    pub fn uploads(&self, bucket: &str) -> anyhow::Result<Uploads> {
        let url = format!("{}/upload/storage/v1/b/{bucket}/o?uploadType=media&name=", self.url());
        Ok(Uploads { client: client()?, url })
    }
}

/// Writes into one bucket of [`Gcs`]. It belongs to the runtime on which it is used first.
pub struct Uploads {
    client: HttpClient,
    /// Up to the key.
    url: String,
}

impl Uploads {
    /// `key` as it stands in a query.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn put(&self, key: &str, text: &'static str) -> anyhow::Result<()> {
        let request = http::Request::post(format!("{}{key}", self.url));
        send_by(&self.client, request.body(HttpRequestBody::from(text.to_owned()))?).await.map(|_| ())
    }
}
