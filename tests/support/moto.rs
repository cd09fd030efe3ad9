//! moto: a server that knows the settings and locks of S3's buckets, as far as it goes: see
//! tests/control-plane/README.md.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_certs::Authority;
use http::Method;
use jiff::Timestamp;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{
    Certificate, ClientOptions, HttpClient, HttpConnector as _, HttpRequestBody, ReqwestConnector,
};
use quick_xml::Reader;
use quick_xml::events::Event;
use serde_json::{Value, json};

use super::peers::Keys;
use super::process::in_own_session;
use super::{ControlPlane, Process, binaries, port, wait_for};
use crate::wait::{ANSWER, PATIENCE};

/// By TLS: berth sets no policy where there is none. It checks no signatures.
pub struct Moto {
    pub process: Process,
    pub keys: Keys,
    /// PEM.
    pub ca: String,
    address: SocketAddr,
    client: HttpClient,
}

/// An answer, of whatever status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub text: String,
}

impl Moto {
    /// `None`, and a printed reason, where it cannot run.
    ///
    /// # Errors
    /// When it cannot be had or started.
    pub fn start(plane: &ControlPlane, name: &str) -> anyhow::Result<Option<Self>> {
        let [packages] = binaries::get(["moto"])?;
        if packages == Path::new("") {
            eprintln!("settings and locks of S3's buckets are left out: there is no moto here, see above");
            return Ok(None);
        }
        let host = plane.network().map_or(Ipv4Addr::LOCALHOST, |network| network.address());
        let address: SocketAddr = (host, port::free()?).into();
        let now = Timestamp::now();
        let ca = Authority::new("moto", now)?;
        let own = ca.issue("moto", &[], &[host.to_string()], now)?;
        let folder = plane.folder().join(format!("moto-{name}"));
        std::fs::create_dir_all(&folder)?;
        let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        std::fs::write(&certificate, &own.certificate)?;
        std::fs::write(&key, &own.key)?;
        // No packages but these, whatever else is installed here or lies in the working directory;
        // and nothing that this machine runs at each start of Python, which may write to them (as
        // to certifi's authorities), and what has changed in the cache is made anew in the next
        // run.
        let mut command = in_own_session(&PathBuf::from("python3"));
        command.args(["-S", "-s", "-P", "-m", "moto.server", "-H", &host.to_string()]);
        command.args(["-p", &address.port().to_string(), "-c"]).arg(certificate).arg("-k").arg(key);
        command.env("PYTHONPATH", packages).env_remove("PYTHONHOME");
        let process = Process::start("moto", command, &plane.folder().join(format!("moto-{name}.log")))?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let certificate = Certificate::from_pem(ca.certificate.as_bytes())?;
        let options = ClientOptions::new().with_root_certificate(certificate).with_timeout(ANSWER);
        let options = options.with_connect_timeout(ANSWER);
        let client = ReqwestConnector::default().connect(&options)?;
        let mut started = Self { process, keys: Keys::new(name), ca: ca.certificate, address, client };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        wait_for("moto to answer", PATIENCE, || {
            started.process.ensure_runs()?;
            let asked = runtime.block_on(started.call(Method::GET, "us-east-1", "/", &[], ""));
            Ok(asked.is_ok_and(|answer| answer.status == 200).then_some(()))
        })?;
        Ok(Some(started))
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The data of a Secret as Gardener writes it.
    pub fn secret(&self) -> Value {
        json!({"accessKeyID": self.keys.id, "secretAccessKey": self.keys.secret})
    }

    /// A BackupStorageLocation here. Its Secret is that of the keys.
    pub fn location(&self, name: &str, bucket: &str, prefix: &str) -> Value {
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "BackupStorageLocation",
            "metadata": {"name": name},
            "spec": {
                "provider": "aws",
                "objectStorage": {"bucket": bucket, "prefix": prefix, "caCert": STANDARD.encode(&self.ca)},
                "config": {"region": "us-east-1", "s3ForcePathStyle": "true", "s3Url": self.url()},
                "validationFrequency": "1s",
                "backupSyncPeriod": "1s",
            },
        })
    }

    /// A signed request of a client other than berth. `path` begins with the bucket.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn call(
        &self,
        method: Method,
        region: &str,
        path: &str,
        headers: &[(&'static str, &'static str)],
        body: &str,
    ) -> anyhow::Result<Answer> {
        let mut request = http::Request::builder().method(method).uri(format!("{}{path}", self.url()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(HttpRequestBody::from(body.to_owned()))?;
        let keys =
            AwsCredential { key_id: self.keys.id.clone(), secret_key: self.keys.secret.clone(), token: None };
        AwsAuthorizer::new(&keys, "s3", region).try_authorize(&mut request, None)?;
        let (head, body) = self.client.execute(request).await?.into_parts();
        let text = String::from_utf8(body.bytes().await?.to_vec()).context("not text")?;
        Ok(Answer { status: head.status.as_u16(), text })
    }

    /// As [`Self::call`], of what has to succeed.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn put(&self, region: &str, path: &str, body: &str) -> anyhow::Result<()> {
        let answer = self.call(Method::PUT, region, path, &[], body).await?;
        ensure!(answer.status == 200, "PUT {path}: {} {}", answer.status, answer.text);
        Ok(())
    }

    /// The requests so far about a bucket, of all clients, as in `GET ?encryption=`.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn asked(&self, bucket: &str) -> anyhow::Result<Vec<String>> {
        let text = self.process.log_text()?;
        let of_it = |line: &str| {
            let (method, rest) = line.split_once('"')?.1.split_once(' ')?;
            let rest = rest.split(' ').next()?.strip_prefix('/')?.strip_prefix(bucket)?;
            // Its server colours what it did not answer with 200.
            let method = method.rsplit_once('m').map_or(method, |(_, method)| method);
            let is_of_it = rest.is_empty() || rest.starts_with(['/', '?']);
            is_of_it.then(|| format!("{method} {}", rest.strip_prefix('/').unwrap_or(rest)))
        };
        Ok(text.lines().filter_map(of_it).collect())
    }
}

/// Texts of a document, each with the names of the elements around it but the outermost one, in
/// their order.
///
/// # Errors
/// When it is no XML.
pub fn texts(document: &str) -> anyhow::Result<Vec<(String, String)>> {
    let (mut reader, mut path, mut found) = (Reader::from_str(document), Vec::new(), Vec::new());
    let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // Only the innermost elements have one.
    let mut text: Option<String> = None;
    let at = |path: &[String]| path.get(1..).unwrap_or_default().join("/");
    loop {
        match reader.read_event()? {
            Event::Start(element) => {
                path.push(name(element.name().as_ref()));
                text = Some(String::new());
            }
            Event::Empty(element) => {
                path.push(name(element.name().as_ref()));
                found.push((at(&path), String::new()));
                path.pop();
                text = None;
            }
            Event::Text(more) => {
                if let Some(text) = &mut text {
                    text.push_str(&name(&more));
                }
            }
            Event::End(_) => {
                found.extend(text.take().map(|text| (at(&path), text)));
                path.pop();
            }
            Event::Eof => return Ok(found),
            _ => {}
        }
    }
}
