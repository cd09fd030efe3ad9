//! Who may ask the webhook, and how much.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};

use crate::admission::program;
use crate::support::backup::backup_of;
use crate::support::shared::{Shared, SharedBerth};
use crate::support::{Berth, ControlPlane, Options, PATIENCE, wait_for};

/// A request of a stranger, over TLS and HTTP/1.1; what is answered. `None`: he is not answered.
fn ask(berth: &Berth, review: &Value) -> Option<String> {
    use std::io::{Read as _, Write as _};
    let _ = rustls::crypto::ring::default_provider().install_default();
    let path = "jsonpath={.data.ca\\.crt}";
    let args = ["get", "secret", "berth-webhook-certs", "-n", berth.namespace(), "-o", path];
    let ca = berth.kubectl().run(&args).unwrap();
    let ca = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, ca).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = std::net::TcpStream::connect(berth.webhook_address()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = rustls::Stream::new(&mut tls, &mut socket);
    let body = review.to_string();
    let length = body.len();
    let head =
        "POST /mutate/backups HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json";
    write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    (read.is_ok() && !answer.is_empty()).then(|| String::from_utf8(answer).unwrap())
}

fn review(name: &str) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": "CREATE", "name": name, "namespace": "x",
            "userInfo": {"username": "kube-apiserver"},
            "object": backup_of(name, &["a"]),
        },
    })
}

/// One that answers whoever asks.
fn open() -> SharedBerth {
    static OPEN: Shared<Berth> = Shared::unstarted();
    OPEN.berth(|| Berth::start(ControlPlane::shared()?, Options::new(program(), "open"))).unwrap()
}

#[test]
fn with_a_client_authority_nobody_but_the_api_server_is_answered() {
    let plane = ControlPlane::shared().unwrap();
    let mut options = Options::new(program(), "mutual");
    options.webhook_args = vec![format!("--client-ca={}", plane.webhook_client_authority().display())];
    // It is ready once the API server's reviews are answered.
    let berth = Berth::start(plane, options).unwrap();
    let made = berth.kubectl().create("mutual", &[backup_of("mine", &["a"])]).unwrap();
    assert!(made.stderr.contains("berth: queued at position"), "{}", made.stderr);
    assert_eq!(ask(&berth, &review("theirs")), None);

    let answer = ask(&open(), &review("theirs")).unwrap();
    assert!(answer.contains("200 OK"), "without an authority anybody is: {answer}");
}

#[test]
fn a_client_authority_that_cannot_be_read_is_named() {
    let plane = ControlPlane::shared().unwrap();
    for (file, why) in
        [("/nowhere/ca.crt", "No such file"), ("/dev/null", "there is no certificate in the PEM")]
    {
        let mut command = std::process::Command::new(program());
        command.args(["webhook", "--namespace=x", "--health-address=127.0.0.1:0", "--listen=127.0.0.1:0"]);
        command.arg("--kubeconfig").arg(plane.kubeconfig()).arg(format!("--client-ca={file}"));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(&format!("--client-ca {file}")), "{said}");
        assert!(said.contains(why), "{said}");
    }
}

async fn connect(from: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// Connections to the port of reviews.
fn refused(berth: &Berth) -> anyhow::Result<u32> {
    let metrics = berth.webhook.metrics()?;
    let line = metrics.lines().find(|line| line.starts_with("berth_admission_connections_refused_total "));
    Ok(line.context("no such metric")?.rsplit(' ').next().unwrap_or_default().parse()?)
}

#[test]
fn what_one_address_takes_leaves_room_for_the_api_server() {
    let berth = Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "crowded")).unwrap();
    let to = berth.webhook_address();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Not even a handshake: for five seconds they are waited for.
    let crowd = || -> Vec<TcpStream> {
        (0..384).map(|_| runtime.block_on(connect([127, 0, 0, 7], to)).unwrap()).collect()
    };
    let mut strangers = crowd();
    wait_for("some above its share to be refused", PATIENCE, || {
        if refused(&berth)? > 0 {
            return Ok(Some(()));
        }
        // A busy machine may have let the first ones go before the last ones came.
        strangers.clear();
        strangers = crowd();
        Ok(None)
    })
    .unwrap();
    let made = berth.kubectl().create("crowded", &[backup_of("mine", &["a"])]).unwrap();
    assert!(made.stderr.contains("berth: queued at position"), "{}", made.stderr);
    drop(strangers);
}

/// The API server and the kubelet of one machine come by its address, and so does what else runs in
/// its network.
#[test]
fn reviews_and_probes_of_one_address_do_not_starve_each_other() {
    let berth = Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "neighbours")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let crowd = |to: SocketAddr, count: usize| -> Vec<TcpStream> {
        (0..count).map(|_| runtime.block_on(connect([127, 0, 0, 1], to)).unwrap()).collect()
    };
    let probes = crowd(berth.webhook.health_address(), 64);
    let made = berth.kubectl().create("neighbours", &[backup_of("mine", &["a"])]).unwrap();
    assert!(made.stderr.contains("berth: queued at position"), "{}", made.stderr);
    drop(probes);
    let mut reviews = crowd(berth.webhook_address(), 384);
    wait_for("some above its share to be refused, and that to be told", PATIENCE, || {
        if refused(&berth).is_ok_and(|count| count > 0) {
            return Ok(Some(()));
        }
        reviews.clear();
        reviews = crowd(berth.webhook_address(), 384);
        Ok(None)
    })
    .unwrap();
    assert!(berth.webhook.is_ready(), "the port of probes has connections of its own");
}

#[test]
fn what_a_stranger_sends_forges_no_line_of_the_log() {
    let berth = open();
    let mut forged = review("x");
    forged["kind"] = json!("x\nFORGED by a stranger\u{1b}[2J");
    let answer = ask(&berth, &forged).unwrap();
    assert!(answer.contains("400 Bad Request"), "{answer}");
    let log = wait_for("the line about it", PATIENCE, || {
        let log = berth.webhook.process.log_text()?;
        Ok(log.contains("no verdict").then_some(log))
    })
    .unwrap();
    assert!(log.contains("FORGED") && log.lines().all(|line| !line.starts_with("FORGED")), "{log}");
    assert!(!log.contains("\u{1b}[2J"), "{log}");
}
