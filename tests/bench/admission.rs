//! What the two webhooks add to a create, while Backups come in at a steady pace.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use berth_api::velero::{Backup, BackupPhase};
use berth_test_support::peers::Keys;
use berth_test_support::{Berth, ControlPlane, Options, backup, wait_for};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::client::{Connector, authority, request, review};
use crate::report::{Aim, Report, quantile};
use crate::system;

const NAMESPACE: &str = "velero";
/// berth does not serve it: the same creates without webhooks.
const ASIDE: &str = "aside";
/// The slower one tells what a full machine adds to the faster one.
const PACES: [u32; 2] = [50, 200];
pub const SECONDS: u32 = 15;
const PATIENCE: Duration = Duration::from_secs(60);
const WEBHOOKS: [&str; 2] = ["backups.mutate.berth.dev", "backups.validate.berth.dev"];

pub fn measure(runtime: &Runtime, berth: &Path, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("Admission, as the API server sees it:");
    let berth = Berth::start(ControlPlane::start()?, Options::new(berth, NAMESPACE))?;
    berth.kubectl().run(&["create", "namespace", ASIDE])?;
    let _silent = hold(&berth, "*")?;
    let client = runtime.block_on(berth.plane().client())?;

    for pace in PACES {
        at_pace(runtime, &berth, &client, pace, report)?;
    }
    let peak = system::peak_mib(berth.webhook.process.id())?;
    report.add("admission", "peak memory of the webhook", peak, "MiB", Aim::None);
    Ok(())
}

/// Starts a backup of this namespace in the only slot. It does not end during the measurement,
/// because the server in place of its store never answers. So the queue grows, and nothing else
/// happens.
///
/// # Errors
/// When it does not start.
pub fn hold(berth: &Berth, namespaces: &str) -> anyhow::Result<TcpListener> {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let url = format!("http://{}", silent.local_addr()?);
    let keys = Keys { id: "nobody".to_owned(), secret: "nothing".to_owned() };
    let location = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "silent"},
        "spec": {
            "provider": "aws",
            "objectStorage": {"bucket": "silent"},
            "config": {"region": "us-east-1", "s3Url": url},
        },
    });
    let holder = backup("holder", json!({"includedNamespaces": [namespaces], "storageLocation": "silent"}));
    let (kubectl, ns) = (berth.kubectl(), berth.namespace());
    let answer = kubectl.create(ns, &[keys.secret_object(ns), location, holder])?;
    ensure!(answer.status.success(), "{}", answer.stderr);
    wait_for("the holder to run", PATIENCE, || {
        Ok((kubectl.phase(ns, "holder")? == BackupPhase::InProgress).then_some(()))
    })?;
    Ok(silent)
}

fn at_pace(
    runtime: &Runtime,
    berth: &Berth,
    client: &Client,
    pace: u32,
    report: &mut Report,
) -> anyhow::Result<()> {
    let part = &format!("admission, {pace} creates/s");
    let without = runtime.block_on(create(client, ASIDE, "at", pace))?.times;
    let before = runtime.block_on(histograms(client))?;
    let servers = [("webhook", &berth.webhook), ("controller", &berth.controller)];
    let used = servers.map(|(_, server)| system::cpu_seconds(server.process.id()));
    let started = Instant::now();
    let (with, asked) = beside(berth, || runtime.block_on(create(client, NAMESPACE, "at", pace)))?;
    let wall = started.elapsed().as_secs_f64();
    for ((name, server), used) in servers.into_iter().zip(used) {
        let busy = (system::cpu_seconds(server.process.id())? - used?) / wall;
        report.add(part, &format!("{name}: of one core"), 100.0 * busy, "%", Aim::None);
    }
    let after = runtime.block_on(histograms(client))?;

    for webhook in WEBHOOKS {
        let (before, after) = (before.get(webhook), after.get(webhook));
        let seen = after.with_context(|| format!("the API server says nothing of {webhook}"))?.since(before);
        ensure!(seen.count >= f64::from(pace * SECONDS), "{webhook} was called {} times", seen.count);
        report.add(part, &format!("{webhook}: mean"), 1000.0 * seen.sum / seen.count, "ms", Aim::None);
        let (finest, within) = seen.buckets.first().copied().unwrap_or_default();
        let what = format!("{webhook}: within {} ms", 1000.0 * finest);
        report.add(part, &what, 100.0 * within / seen.count, "%", Aim::None);
        // The API server's finest bucket ends at 5 ms: what is inside is taken as evenly spread.
        for (name, share, aim) in [("p50", 0.5, Aim::None), ("p99, at worst", 0.99, Aim::None)] {
            report.add(part, &format!("{webhook}: {name}"), 1000.0 * seen.quantile(share), "ms", aim);
        }
    }
    for (name, share, aim) in [("p50", 0.5, Aim::None), ("p99", 0.99, Aim::AtMost(2.0))] {
        report.add(part, &format!("one review meanwhile, {name}"), quantile(&asked, share), "ms", aim);
    }
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let (with, without) = (quantile(&with.times, share), quantile(&without, share));
        report.add(part, &format!("create without webhooks, {name}"), without, "ms", Aim::None);
        report.add(part, &format!("create with both, {name}"), with, "ms", Aim::None);
        let aim = if share == 0.5 { Aim::AtMost(2.0) } else { Aim::None };
        report.add(part, &format!("create with both / without, {name}"), with / without, "×", aim);
    }
    Ok(())
}

pub struct Created {
    /// How long each took, in milliseconds.
    pub times: Vec<f64>,
    /// How many came back with a place.
    pub queued: usize,
}

/// Creates at a steady pace for [`SECONDS`], whether or not the answers keep up.
///
/// # Errors
/// When one is refused.
pub async fn create(
    client: &Client,
    namespace: &str,
    name: &str,
    per_second: u32,
) -> anyhow::Result<Created> {
    let api: Api<Backup> = Api::namespaced(client.clone(), namespace);
    let mut pace = tokio::time::interval(Duration::from_secs(1) / per_second);
    let mut creates = JoinSet::new();
    for i in 0..per_second * SECONDS {
        pace.tick().await;
        let api = api.clone();
        let backup: Backup = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": format!("{name}-{per_second}-{i}")},
            "spec": {"includedNamespaces": [format!("ns-{}", i % 500), format!("ns-{}", i % 7)], "ttl": "24h"},
        }))?;
        creates.spawn(async move {
            let started = Instant::now();
            let created = api.create(&PostParams::default(), &backup).await?;
            let took = started.elapsed().as_secs_f64() * 1000.0;
            anyhow::Ok((took, created.phase() == BackupPhase::Queued))
        });
    }
    let created: Vec<(f64, bool)> = creates.join_all().await.into_iter().collect::<anyhow::Result<_>>()?;
    let queued = created.iter().filter(|(_, queued)| *queued).count();
    Ok(Created { times: created.into_iter().map(|(took, _)| took).collect(), queued })
}

/// Asks the webhook itself from time to time during `work`, because the API server's histogram is
/// too coarse for this.
fn beside<T>(berth: &Berth, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Vec<f64>)> {
    let connector = Connector::new(berth.webhook_address(), &authority(berth)?)?;
    let body = review(NAMESPACE, "asked-meanwhile", true)?;
    let request = request(connector.address(), "/mutate/backups", &body);
    let mut connection = connector.connect()?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut times = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let started = Instant::now();
                connection.ask(&request)?;
                times.push(started.elapsed().as_secs_f64() * 1000.0);
                std::thread::sleep(Duration::from_millis(10));
            }
            anyhow::Ok(times)
        });
        let done = work();
        ended.store(true, Ordering::Relaxed);
        let times = asking.join().map_err(|_| anyhow!("the asking thread panicked"))??;
        Ok((done?, times))
    })
}

/// Calls of one webhook, as Prometheus counts them: each bucket holds those before it too.
#[derive(Default, Clone)]
struct Histogram {
    count: f64,
    sum: f64,
    buckets: Vec<(f64, f64)>,
}

impl Histogram {
    fn since(&self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self.clone() };
        let buckets = self.buckets.iter().map(|(limit, count)| {
            let earlier = before.buckets.iter().find(|(other, _)| other == limit).map_or(0.0, |(_, c)| *c);
            (*limit, count - earlier)
        });
        Self { count: self.count - before.count, sum: self.sum - before.sum, buckets: buckets.collect() }
    }

    fn quantile(&self, share: f64) -> f64 {
        let wanted = share * self.count;
        let (mut from, mut below) = (0.0, 0.0);
        for (limit, count) in &self.buckets {
            if *count >= wanted {
                return from + (limit - from) * (wanted - below) / (count - below).max(1.0);
            }
            (from, below) = (*limit, *count);
        }
        from
    }
}

async fn histograms(client: &Client) -> anyhow::Result<BTreeMap<String, Histogram>> {
    const METRIC: &str = "apiserver_admission_webhook_admission_duration_seconds_";
    let text = client.request_text(http::Request::get("/metrics").body(Vec::new())?).await?;
    let mut found: BTreeMap<String, Histogram> = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(METRIC)) {
        let (series, value) = line.rsplit_once(' ').context("a metric without a value")?;
        let value: f64 = value.parse()?;
        let label = |name: &str| {
            let (_, rest) = series.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0)
        };
        if label("operation") != Some("CREATE") {
            continue;
        }
        let Some(webhook) = label("name") else { continue };
        let histogram = found.entry(webhook.to_owned()).or_default();
        match series.split_once('{').map_or(series, |(kind, _)| kind) {
            "count" => histogram.count += value,
            "sum" => histogram.sum += value,
            _ => {
                let limit = label("le").and_then(|limit| limit.parse().ok()).unwrap_or(f64::INFINITY);
                match histogram.buckets.iter_mut().find(|(other, _)| *other == limit) {
                    Some((_, count)) => *count += value,
                    None => histogram.buckets.push((limit, value)),
                }
            }
        }
    }
    for histogram in found.values_mut() {
        histogram.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    Ok(found)
}
