//! `berth webhook` alone: how many reviews one core answers.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use berth_test_support::{Berth, ControlPlane, Options};
use futures::future::try_join_all;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::client::{Connection, Connector, authority, request, review};
use crate::report::{Aim, Report};
use crate::system::{self, OffFirstCore};

const NAMESPACE: &str = "velero";
const SECONDS: Duration = Duration::from_secs(5);
const CONNECTIONS: usize = 8;
/// Of HTTP/2, which the connections share: fewer of them, each with several reviews on its way.
const CONNECTIONS_2: usize = 4;
const STREAMS: usize = 16;
pub const ENQUEUE: &str = "/mutate/backups";
pub const VALIDATE: &str = "/validate/backups";

pub fn measure(runtime: &Runtime, berth: &Path, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("The webhook alone, on a core of its own:");
    let scratch = tempfile::tempdir()?;
    let options = Options::new(system::on_first_core(berth, scratch.path())?, NAMESPACE);
    let mut berth = Berth::start(ControlPlane::start()?, options)?;
    // It would keep the same core busy.
    berth.controller.process.kill()?;
    let authority = authority(&berth)?;
    let connector = Connector::new(berth.webhook_address(), &authority)?;
    let id = berth.webhook.process.id();
    let dry = review(NAMESPACE, "nightly-payments-20260115020000", true)?;
    let stays = review(NAMESPACE, "nightly-payments-20260115020000", false)?;
    let _here = OffFirstCore::begin()?;
    let over_1 = |report: &mut Report, what: &str, path: &str, body: &str, is_aim: bool| {
        let used = system::cpu_seconds(id)?;
        let rate = over_http1(&connector, &request(connector.address(), path, body))?;
        told(report, what, rate, system::cpu_seconds(id)? - used, is_aim);
        anyhow::Ok(())
    };
    over_1(report, "enqueue, HTTP/1.1", ENQUEUE, &dry, true)?;
    over_1(report, "validate, HTTP/1.1", VALIDATE, &dry, true)?;
    for (what, path) in [("enqueue, HTTP/2", ENQUEUE), ("validate, HTTP/2", VALIDATE)] {
        let url = format!("https://{}{path}", connector.address());
        let used = system::cpu_seconds(id)?;
        let rate = runtime.block_on(over_http2(&url, &authority, &dry))?;
        told(report, what, rate, system::cpu_seconds(id)? - used, true);
    }
    // Last: what is remembered makes those that come after it slower for a while.
    over_1(report, "enqueue, HTTP/1.1, each remembered", ENQUEUE, &stays, false)?;
    report.add("webhook alone", "size of the review", dry.len() as f64, "bytes", Aim::None);
    let peak = system::peak_mib(id)?;
    report.add("webhook alone", "peak memory", peak, "MiB", Aim::None);
    Ok(())
}

fn told(report: &mut Report, what: &str, rate: f64, used: f64, is_aim: bool) {
    let add = |report: &mut Report, what: &str, value, unit, aim| {
        report.add("webhook alone", what, value, unit, aim);
    };
    add(report, what, rate, "reviews/s", Aim::None);
    let busy = used / SECONDS.as_secs_f64();
    // If the webhook's core was not busy, the client or another program was the bottleneck.
    add(report, &format!("{what}: core busy"), 100.0 * busy, "%", Aim::None);
    let aim = if is_aim { Aim::AtLeast(10_000.0) } else { Aim::None };
    add(report, &format!("{what}: of a whole core"), rate / busy, "reviews/s", aim);
}

/// # Errors
/// When the answer is of another form.
pub fn ensure_allowed(answer: &[u8]) -> anyhow::Result<()> {
    let answer: Value = serde_json::from_slice(answer)?;
    ensure!(answer["response"]["allowed"] == true, "the review was answered {answer}");
    Ok(())
}

fn over_http1(connector: &Connector, request: &[u8]) -> anyhow::Result<f64> {
    let mut connections: Vec<_> =
        (0..CONNECTIONS).map(|_| connector.connect()).collect::<anyhow::Result<_>>()?;
    for connection in &mut connections {
        ensure_allowed(connection.ask(request)?)?;
    }
    let (answered, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let started = Instant::now();
    let work = |mut connection: Connection| {
        while !ended.load(Ordering::Relaxed) {
            connection.ask(request)?;
            answered.fetch_add(1, Ordering::Relaxed);
        }
        anyhow::Ok(())
    };
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            connections.into_iter().map(|connection| scope.spawn(move || work(connection))).collect();
        std::thread::sleep(SECONDS);
        let rate = answered.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
        ended.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok(rate)
    })
}

async fn over_http2(url: &str, authority: &[u8], body: &str) -> anyhow::Result<f64> {
    let roots = reqwest::Certificate::from_pem_bundle(authority)?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS_2 {
        let client = reqwest::Client::builder().tls_certs_only(roots.clone()).no_proxy();
        clients.push(client.http2_prior_knowledge().build()?);
    }
    let ask = async |client: &reqwest::Client| {
        let request = client.post(url).header("content-type", "application/json").body(body.to_owned());
        let answer = request.send().await?.error_for_status()?;
        ensure!(answer.version() == http::Version::HTTP_2, "the webhook speaks {:?}", answer.version());
        anyhow::Ok(answer.bytes().await?)
    };
    for client in &clients {
        ensure_allowed(&ask(client).await.context("the first review over HTTP/2")?)?;
    }
    let answered = AtomicU64::new(0);
    let started = Instant::now();
    let streams = clients.iter().flat_map(|client| (0..STREAMS).map(move |_| client)).map(async |client| {
        while started.elapsed() < SECONDS {
            ask(client).await?;
            answered.fetch_add(1, Ordering::Relaxed);
        }
        anyhow::Ok(())
    });
    try_join_all(streams).await?;
    Ok(answered.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}
