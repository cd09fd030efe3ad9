//! A validating webhook of the tests' own: it says no to what the test names, and counts.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_certs::Authority;
use jiff::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use super::{ControlPlane, port};

/// More than any caller takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// How it says no.
#[derive(Clone, Copy, Debug)]
pub struct No {
    pub code: u16,
    pub reason: &'static str,
}

/// What the API server takes for a conflict of two writers.
pub const CONFLICT: No = No { code: 409, reason: "Conflict" };
pub const FORBIDDEN: No = No { code: 403, reason: "Forbidden" };

/// A request that was refused.
#[derive(Clone, Debug)]
pub struct Refused {
    pub kind: String,
    pub name: String,
    pub user: String,
    pub at: Instant,
}

type Decide = dyn Fn(&Value) -> Option<No> + Send + Sync;

pub struct Refusal {
    refused: Arc<Mutex<Vec<Refused>>>,
    address: SocketAddr,
    ca: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Refusal {
    /// `decide` is given each request of a review.
    ///
    /// # Errors
    /// When no port is free, or no certificate can be made.
    pub fn start(decide: impl Fn(&Value) -> Option<No> + Send + Sync + 'static) -> anyhow::Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let now = Timestamp::now();
        let ca = Authority::new("refusal", now)?;
        let own = ca.issue("refusal", &[], &["127.0.0.1".to_owned()], now)?;
        let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes())?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
        let address: SocketAddr = (Ipv4Addr::LOCALHOST, port::free()?).into();
        let listener = TcpListener::bind(address)?;
        let (refused, stop) = (Arc::<Mutex<Vec<Refused>>>::default(), Arc::new(AtomicBool::new(false)));
        let (told, stopped, config, decide) = (
            Arc::clone(&refused),
            Arc::clone(&stop),
            Arc::new(config),
            Arc::<Decide>::from(Box::new(decide) as Box<Decide>),
        );
        let serve = move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (told, config, decide) = (Arc::clone(&told), Arc::clone(&config), Arc::clone(&decide));
                // A client that is gone gets no answer.
                std::thread::spawn(move || drop(answer(stream, config, &told, &*decide)));
            }
        };
        let thread = std::thread::Builder::new().name("refusal".to_owned()).spawn(serve)?;
        Ok(Self { refused, address, ca: ca.certificate.clone(), stop, thread: Some(thread) })
    }

    /// Asks to be called for the UPDATEs of these resources of `velero.io`.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn register(&self, plane: &ControlPlane, resources: &[&str]) -> anyhow::Result<()> {
        plane.apply(vec![json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "refusal"},
            "webhooks": [{
                "name": "refusal.berth.test",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 5,
                "clientConfig": {"url": format!("https://{}/", self.address), "caBundle": STANDARD.encode(&self.ca)},
                "rules": [{
                    "apiGroups": ["velero.io"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": resources,
                }],
            }],
        })])
    }

    /// In the order of the answers.
    pub fn refused(&self) -> Vec<Refused> {
        lock(&self.refused).clone()
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(refused: &Mutex<Vec<Refused>>) -> MutexGuard<'_, Vec<Refused>> {
    refused.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One review a connection: the API server opens as many as it wants.
fn answer(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    refused: &Mutex<Vec<Refused>>,
    decide: &Decide,
) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut stream = BufReader::new(StreamOwned::new(ServerConnection::new(config)?, stream));
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().context("Content-Length")?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let review: Value = serde_json::from_slice(&body)?;
    let request = &review["request"];
    let mut response = json!({"uid": request["uid"], "allowed": true});
    if let Some(No { code, reason }) = decide(request) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        lock(refused).push(Refused {
            kind: text(&request["kind"]["kind"]),
            name: text(&request["name"]),
            user: text(&request["userInfo"]["username"]),
            at: Instant::now(),
        });
        response = json!({
            "uid": request["uid"],
            "allowed": false,
            "status": {"code": code, "reason": reason, "message": "not yet"},
        });
    }
    let answer =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
            .to_string();
    let stream = stream.get_mut();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
        answer.len()
    )?;
    stream.conn.send_close_notify();
    stream.flush()?;
    Ok(())
}
