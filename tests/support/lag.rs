//! A TCP proxy on loopback that hands on what a server says only after a while: its client sees
//! everything late, watches as well as answers, in order and whole.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Parts of one connection that are under way.
const UNDER_WAY: usize = 4096;
const PART: usize = 16 << 10;

pub struct Lag {
    address: SocketAddr,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Lag {
    /// # Errors
    /// When no port is free.
    pub fn start(server: SocketAddr, late: Duration) -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = accept(&listener, server, late) => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("lag".to_owned()).spawn(run)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Lag {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// For ever.
async fn accept(listener: &TcpListener, server: SocketAddr, late: Duration) {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            // An end of either side ends the connection, which is all that its error says.
            tokio::spawn(async move { carry(client, server, late).await.ok() });
        }
    }
}

async fn carry(client: TcpStream, server: SocketAddr, late: Duration) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (say, mut said) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let asking = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    let hearing = async move {
        let mut part = vec![0; PART];
        loop {
            let length = from_server.read(&mut part).await?;
            if length == 0 || say.send((Instant::now() + late, part[..length].to_vec())).await.is_err() {
                return std::io::Result::Ok(());
            }
        }
    };
    let telling = async move {
        while let Some((due, part)) = said.recv().await {
            tokio::time::sleep_until(due).await;
            to_client.write_all(&part).await?;
        }
        to_client.shutdown().await
    };
    tokio::try_join!(asking, hearing, telling).map(drop)
}
