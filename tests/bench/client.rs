//! A client that asks the webhook what the API server asks, and costs little itself: one core of
//! two is all it has.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_test_support::{Berth, project};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(10);

/// The CA that signs the webhook's certificate, as PEM.
///
/// # Errors
/// When there is no such Secret.
pub fn authority(berth: &Berth) -> anyhow::Result<Vec<u8>> {
    let args = ["get", "secret", "berth-webhook-certs", "-n", berth.namespace(), "-o", "json"];
    let secret: Value = serde_json::from_str(&berth.kubectl().run(&args)?)?;
    let encoded = secret["data"]["ca.crt"].as_str().context("the Secret has no ca.crt")?;
    Ok(STANDARD.decode(encoded)?)
}

/// One kept-alive HTTP/1.1 connection.
pub struct Connection {
    stream: StreamOwned<ClientConnection, TcpStream>,
    answer: Vec<u8>,
}

/// How to connect: made once.
#[derive(Clone)]
pub struct Connector {
    address: SocketAddr,
    config: Arc<ClientConfig>,
}

impl Connector {
    /// # Errors
    /// When the CA cannot be read.
    pub fn new(address: SocketAddr, authority: &[u8]) -> anyhow::Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority) {
            roots.add(certificate?)?;
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Self { address, config: Arc::new(config) })
    }

    /// # Errors
    /// When no server answers there.
    pub fn connect(&self) -> anyhow::Result<Connection> {
        self.over(TcpStream::connect_timeout(&self.address, PATIENCE)?)
    }

    /// # Errors
    /// When the socket is of no use any more.
    pub fn over(&self, socket: TcpStream) -> anyhow::Result<Connection> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let tls = ClientConnection::new(Arc::clone(&self.config), name)?;
        Ok(Connection { stream: StreamOwned::new(tls, socket), answer: Vec::new() })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Connection {
    /// Sends a piece of a request.
    ///
    /// # Errors
    /// When the webhook has hung up.
    pub fn send(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        self.stream.write_all(piece)?;
        Ok(self.stream.flush()?)
    }

    /// Sends a request that is complete as it is; the body of the answer.
    ///
    /// # Errors
    /// When the answer is not 200.
    pub fn ask(&mut self, request: &[u8]) -> anyhow::Result<&[u8]> {
        self.stream.write_all(request)?;
        self.answer.clear();
        let mut chunk = [0; 4096];
        loop {
            let read = self.stream.read(&mut chunk)?;
            ensure!(read > 0, "the webhook hung up");
            self.answer.extend_from_slice(chunk.get(..read).unwrap_or_default());
            let Some(head) = memchr::memmem::find(&self.answer, b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(self.answer.get(..head).unwrap_or_default())?;
            ensure!(text.starts_with("HTTP/1.1 200"), "the webhook answered {text}");
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.context("no content-length")?.parse()?;
            if self.answer.len() >= head + 4 + length {
                break;
            }
        }
        let head = memchr::memmem::find(&self.answer, b"\r\n\r\n").unwrap_or_default();
        Ok(self.answer.get(head + 4..).unwrap_or_default())
    }
}

/// The whole HTTP/1.1 request.
pub fn request(address: SocketAddr, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {address}\r\naccept: application/json\r\n");
    format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// What the API server sends for a Backup that a user applies: about 2.9 kB.
///
/// # Errors
/// Never in practice.
pub fn review(namespace: &str, name: &str, dry_run: bool) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(project().join("tests/bench/review.json"))?;
    let mut review: Value = serde_json::from_str(&text)?;
    let request = review.get_mut("request").context("review.json has no request")?;
    request["uid"] = json!(format!("705ab4f5-6393-11e8-b7cc-{:012x}", name.len() + namespace.len()));
    request["dryRun"] = json!(dry_run);
    for place in ["/namespace", "/object/metadata/namespace"] {
        *request.pointer_mut(place).context("review.json lacks a namespace")? = json!(namespace);
    }
    for place in ["/name", "/object/metadata/name"] {
        *request.pointer_mut(place).context("review.json lacks a name")? = json!(name);
    }
    Ok(serde_json::to_string(&review)?)
}
