//! Ordinary creates while strangers hold as many connections as they get, and say nothing on them,
//! or hardly anything.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use berth_test_support::{Berth, ControlPlane, Options};
use tokio::net::TcpSocket;
use tokio::runtime::{Handle, Runtime};
use tokio::time::timeout;

use crate::admission::{SECONDS, create, hold};
use crate::client::{Connection, Connector, authority};
use crate::report::{Aim, Report, quantile};
use crate::system;

const NAMESPACE: &str = "velero";
const STRANGERS: usize = 500;
/// 127.0.0.2 and those after it: the API server asks from 127.0.0.1.
const ADDRESSES: u8 = 8;
const PACE: u32 = 50;
/// Between two pieces of a request.
const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(10);

pub fn measure(runtime: &Runtime, berth: &Path, report: &mut Report) -> anyhow::Result<()> {
    let part = &format!("{STRANGERS} hostile connections");
    eprintln!("{part}, and {PACE} creates/s:");
    let berth = Berth::start(ControlPlane::start()?, Options::new(berth, NAMESPACE))?;
    let _silent = hold(&berth, "*")?;
    let client = runtime.block_on(berth.plane().client())?;
    let connector = Connector::new(berth.webhook_address(), &authority(&berth)?)?;

    let quiet = runtime.block_on(create(&client, NAMESPACE, "quiet", PACE))?;
    report.add(part, "create without them, p99", quantile(&quiet.times, 0.99), "ms", Aim::None);
    let beside = || {
        let before = system::cpu_seconds(berth.webhook.process.id())?;
        let created = runtime.block_on(create(&client, NAMESPACE, "beside", PACE))?;
        let used = system::cpu_seconds(berth.webhook.process.id())? - before;
        anyhow::Ok((created, used))
    };
    let ((created, used), held) = among_strangers(runtime.handle(), &connector, beside)?;
    report.add(part, "held when the last create was answered", held as f64, "", Aim::None);
    report.add(part, "create beside them, p50", quantile(&created.times, 0.5), "ms", Aim::None);
    report.add(part, "create beside them, p99", quantile(&created.times, 0.99), "ms", Aim::AtMost(20.0));
    let share = 100.0 * created.queued as f64 / created.times.len() as f64;
    report.add(part, "creates queued by the webhook", share, "%", Aim::None);
    let busy = 100.0 * used / f64::from(SECONDS);
    report.add(part, "webhook: of one core", busy, "%", Aim::None);
    let peak = system::peak_mib(berth.webhook.process.id())?;
    report.add(part, "peak memory of the webhook", peak, "MiB", Aim::AtMost(128.0));
    Ok(())
}

/// Does `work` once all strangers have a connection. What it made, and how many had one when it was
/// done.
fn among_strangers<T>(
    runtime: &Handle,
    connector: &Connector,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, usize)> {
    let ended = AtomicBool::new(false);
    let held: Vec<AtomicUsize> = (0..ADDRESSES).map(|_| AtomicUsize::new(0)).collect();
    let holding = || held.iter().map(|held| held.load(Ordering::Relaxed)).sum::<usize>();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0_u8..)
            .zip(&held)
            .map(|(i, held)| {
                let ended = &ended;
                scope.spawn(move || {
                    let mut strangers = Stranger::all_from(i);
                    while !ended.load(Ordering::Relaxed) {
                        let go_on = |stranger: &mut Stranger| usize::from(stranger.go_on(runtime, connector));
                        held.store(strangers.iter_mut().map(go_on).sum(), Ordering::Relaxed);
                        std::thread::sleep(PAUSE);
                    }
                })
            })
            .collect();
        let begun = Instant::now();
        while holding() < STRANGERS && begun.elapsed() < PATIENCE {
            std::thread::sleep(PAUSE);
        }
        let at_first = holding();
        let done = if at_first == STRANGERS { work() } else { Err(anyhow!("{at_first} got a connection")) };
        let at_last = holding();
        ended.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a stranger panicked"))?;
        }
        Ok((done?, at_last))
    })
}

#[derive(Clone, Copy)]
enum Manner {
    /// Not even a handshake.
    Idle,
    SlowHead,
    SlowBody,
}

impl Manner {
    fn begins_with(self) -> &'static [u8] {
        match self {
            Self::Idle => b"",
            Self::SlowHead => b"POST /mutate/backups HTTP/1.1\r\nhost: hostile\r\nx-slow: ",
            // As much as a body may have, and as long a time as there is.
            Self::SlowBody => {
                b"POST /mutate/backups?timeout=30s HTTP/1.1\r\nhost: hostile\r\ncontent-type: application/json\r\ncontent-length: 3145728\r\n\r\n"
            }
        }
    }

    fn goes_on_with(self) -> &'static [u8] {
        match self {
            Self::Idle => b"",
            Self::SlowHead => b"a",
            Self::SlowBody => &[b' '; 1024],
        }
    }
}

struct Stranger {
    from: Ipv4Addr,
    manner: Manner,
    connected: Option<Connected>,
}

enum Connected {
    Silent(TcpStream),
    Slow(Box<Connection>),
}

impl Stranger {
    fn all_from(address: u8) -> Vec<Self> {
        let manners = [Manner::Idle, Manner::SlowHead, Manner::SlowBody];
        let mine = (0..STRANGERS).filter(|i| i % usize::from(ADDRESSES) == usize::from(address));
        let from = Ipv4Addr::new(127, 0, 0, 2 + address);
        mine.zip(manners.into_iter().cycle())
            .map(|(_, manner)| Self { from, manner, connected: None })
            .collect()
    }

    /// The next piece, or a new connection where the webhook has ended the last one. Is there one?
    fn go_on(&mut self, runtime: &Handle, connector: &Connector) -> bool {
        let goes_on = match &mut self.connected {
            None => false,
            // The server sends nothing on it, so the only thing that can be read is its end.
            Some(Connected::Silent(socket)) => {
                socket.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            }
            Some(Connected::Slow(connection)) => connection.send(self.manner.goes_on_with()).is_ok(),
        };
        if !goes_on {
            self.connected = self.connect(runtime, connector).ok();
        }
        self.connected.is_some()
    }

    fn connect(&self, runtime: &Handle, connector: &Connector) -> anyhow::Result<Connected> {
        let socket = runtime.block_on(socket(self.from, connector.address()))?;
        if matches!(self.manner, Manner::Idle) {
            return Ok(Connected::Silent(socket));
        }
        socket.set_nonblocking(false)?;
        let mut connection = connector.over(socket)?;
        connection.send(self.manner.begins_with())?;
        Ok(Connected::Slow(Box::new(connection)))
    }
}

/// One that does not block.
async fn socket(from: Ipv4Addr, to: SocketAddr) -> anyhow::Result<TcpStream> {
    ensure!(to.is_ipv4(), "the webhook listens at {to}");
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let connected = timeout(PATIENCE, socket.connect(to)).await.context("nobody answers")??;
    Ok(connected.into_std()?)
}
