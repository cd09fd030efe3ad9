//! Startup, readiness and liveness probes, as kubelet makes them.
//!
//! With one difference: a container that has not been healthy yet is probed much more often than
//! its period, so that no test waits for the rest of a period in vain. Failures count as if it were
//! not.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPHeader, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

const EAGER: Duration = Duration::from_millis(50);

pub enum News {
    Started,
    Ready(bool),
}

/// A container that must be restarted.
pub struct Failed {
    pub probe: &'static str,
    /// How long it has to end, if the probe says so.
    pub grace: Option<i64>,
}

/// Returns only if the container has to go.
pub async fn attend(container: &Container, address: Ipv4Addr, tell: &impl Fn(News)) -> Failed {
    let probe = |probe: &Option<Probe>| probe.as_ref().map(|probe| Rounds::new(probe, container, address));
    if let Some(startup) = probe(&container.startup_probe)
        && !startup.started().await
    {
        return Failed { probe: "startup", grace: startup.grace };
    }
    tell(News::Started);
    let readiness = async {
        match probe(&container.readiness_probe) {
            Some(readiness) => readiness.follow(|is_ready| tell(News::Ready(is_ready))).await,
            None => tell(News::Ready(true)),
        }
        std::future::pending().await
    };
    let liveness = async {
        match probe(&container.liveness_probe) {
            Some(liveness) => {
                liveness.failed().await;
                Failed { probe: "liveness", grace: liveness.grace }
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        failed = readiness => failed,
        failed = liveness => failed,
    }
}

enum Question {
    Http(String),
    Connect,
}

/// A probe with its numbers.
struct Rounds {
    address: SocketAddr,
    question: Question,
    delay: Duration,
    period: Duration,
    timeout: Duration,
    failures: u32,
    successes: u32,
    grace: Option<i64>,
}

impl Rounds {
    fn new(probe: &Probe, container: &Container, address: Ipv4Addr) -> Self {
        let (port, question) = match (&probe.http_get, &probe.tcp_socket) {
            (Some(get), _) => {
                let path = get.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
                let headers = get.http_headers.as_deref().unwrap_or_default();
                (Some(&get.port), Question::Http(request(path, address, headers)))
            }
            (None, Some(socket)) => (Some(&socket.port), Question::Connect),
            (None, None) => (None, Question::Connect),
        };
        let number = |given: Option<i32>, default: u32| {
            given.and_then(|given| u32::try_from(given).ok()).filter(|given| *given > 0).unwrap_or(default)
        };
        let seconds = |given, default| Duration::from_secs(number(given, default).into());
        Self {
            address: SocketAddr::new(IpAddr::from(address), port_of(port, container)),
            question,
            delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            failures: number(probe.failure_threshold, 3),
            successes: number(probe.success_threshold, 1),
            grace: probe.termination_grace_period_seconds,
        }
    }

    async fn is_well(&self) -> bool {
        timeout(self.timeout, ask(self.address, &self.question)).await.is_ok_and(|answer| answer.is_ok())
    }

    /// Eager. `false` once it failed as often as it may.
    async fn started(&self) -> bool {
        sleep(self.delay).await;
        let first = Instant::now();
        while !self.is_well().await {
            if first.elapsed() >= self.period * (self.failures - 1) {
                return false;
            }
            sleep(EAGER).await;
        }
        true
    }

    /// For ever; eager until it is well for the first time.
    async fn follow(&self, tell: impl Fn(bool)) {
        sleep(self.delay).await;
        while !self.is_well().await {
            sleep(EAGER).await;
        }
        let (mut is_ready, mut in_a_row) = (false, 1);
        loop {
            if in_a_row >= if is_ready { self.failures } else { self.successes } {
                is_ready = !is_ready;
                in_a_row = 0;
                tell(is_ready);
            }
            sleep(self.period).await;
            in_a_row = if self.is_well().await == is_ready { 0 } else { in_a_row + 1 };
        }
    }

    /// Once it failed as often in a row as it may.
    async fn failed(&self) {
        sleep(self.delay).await;
        let mut in_a_row = 0;
        while in_a_row < self.failures {
            in_a_row = if self.is_well().await { 0 } else { in_a_row + 1 };
            if in_a_row < self.failures {
                sleep(self.period).await;
            }
        }
    }
}

fn port_of(port: Option<&IntOrString>, container: &Container) -> u16 {
    let number = match port {
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let ports: BTreeMap<_, _> = container
                .ports
                .iter()
                .flatten()
                .map(|port| (port.name.as_deref(), port.container_port))
                .collect();
            ports.get(&Some(name.as_str())).copied()
        }
        None => None,
    };
    // Port 0 never answers, which is what becomes of a name that no port has.
    number.and_then(|number| u16::try_from(number).ok()).unwrap_or_default()
}

fn request(path: &str, address: Ipv4Addr, headers: &[HTTPHeader]) -> String {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let headers: String = headers.iter().map(|h| format!("{}: {}\r\n", h.name, h.value)).collect();
    format!(
        "GET {slash}{path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: kube-probe\r\nConnection: close\r\n{headers}\r\n"
    )
}

async fn ask(address: SocketAddr, question: &Question) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let Question::Http(request) = question else { return Ok(()) };
    stream.write_all(request.as_bytes()).await?;
    // `HTTP/1.1 2` or `HTTP/1.1 3`
    let mut start = [0; 10];
    stream.read_exact(&mut start).await?;
    match start {
        [b'H', b'T', b'T', b'P', b'/', _, _, _, b' ', b'2' | b'3'] => Ok(()),
        _ => Err(std::io::Error::other("not well")),
    }
}
