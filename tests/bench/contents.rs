//! One object of a large archive at a store: by its index, without one, and as a whole download by
//! stock Velero's command.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth::backup::archive::{self, ArchiveItem, Batch};
use berth::backup::index::{ArchiveIndex, ByteRange};
use berth::backup::messages::ArchivePart;
use berth_core::selection::ResourceType;
use berth_test_support::backup::backup;
use berth_test_support::peers::{S3, velero};
use berth_test_support::process::without_proxies;
use berth_test_support::{Berth, ControlPlane, Options, wait_for};
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt as _, WriteMultipart};
use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::report::{Aim, Report, median};
use crate::system::peak_mib;

const NAMESPACE: &str = "velero";
const NAME: &str = "large";
/// Of an archive.
const BYTES: u64 = 1 << 30;
/// Objects of a page, and characters of noise in each.
const PAGE: usize = 500;
const NOISE: usize = 6 * 1024;
const ROUNDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(120);
const MIB: f64 = 1_048_576.0;

pub fn measure(runtime: &Runtime, program: &Path, alone: bool, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("One object of a large archive:");
    let berth = Berth::start(ControlPlane::start()?, Options::new(program, NAMESPACE))?;
    let s3 = S3::start(berth.plane(), "contents")?;
    let objects = [s3.keys.secret_object(NAMESPACE), s3.location("away", "")];
    let answer = berth.kubectl().create(NAMESPACE, &objects)?;
    ensure!(answer.status.success(), "{}", answer.stderr);
    berth.await_location("away")?;
    // A small backup gets the large archive in place of its own.
    let spec = json!({"includedNamespaces": ["default"], "storageLocation": "away"});
    let answer = berth.kubectl().create(NAMESPACE, &[backup(NAME, spec)])?;
    ensure!(answer.status.success(), "{}", answer.stderr);
    wait_for("a backup to end", PATIENCE, || {
        Ok(berth.kubectl().phase(NAMESPACE, NAME)?.is_final().then_some(()))
    })?;
    let (bytes, objects) = runtime.block_on(store(&s3))?;
    report.add("cli", "archive of one object that is looked up", bytes as f64 / MIB, "MiB", Aim::None);
    let (mut seconds, mut peak) = (Vec::new(), 0.0_f64);
    for round in 0..ROUNDS {
        let (took, held) = one(program, &berth, objects * (round + 1) / (ROUNDS + 1))?;
        seconds.push(took);
        peak = peak.max(held);
    }
    report.add("cli", "contents of one object, by the index", median(&seconds), "s", Aim::AtMost(3.0));
    report.add("cli", "contents of one object, most memory", peak, "MiB", Aim::AtMost(64.0));
    runtime
        .block_on(async { s3.store()?.delete(&key("-index.json.gz")).await.map_err(anyhow::Error::from) })?;
    let (took, held) = one(program, &berth, objects * ROUNDS / (ROUNDS + 1))?;
    report.add("cli", "contents of one object, without an index", took, "s", Aim::None);
    report.add(
        "cli",
        "contents of one object, without an index, most memory",
        held,
        "MiB",
        Aim::AtMost(64.0),
    );
    if !alone {
        let to = berth.plane().folder().join("large.tar.gz");
        let begun = Instant::now();
        let args = ["backup", "download", NAME, "--timeout=30m", "-o", &to.display().to_string()];
        let answer = velero(berth.plane(), NAMESPACE, &args)?;
        ensure!(answer.status.success(), "{}{}", answer.stdout, answer.stderr);
        let took = begun.elapsed().as_secs_f64();
        report.add("cli", "velero backup download of that archive", took, "s", Aim::None);
    }
    Ok(())
}

fn key(suffix: &str) -> Key {
    Key::from(format!("backups/{NAME}/{NAME}{suffix}"))
}

fn name(number: usize) -> String {
    format!("object-{number:08}")
}

/// What no compressor makes small.
fn noise(seed: usize) -> String {
    let mut state = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut text = String::with_capacity(NOISE);
    while text.len() < NOISE {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let digits = state.to_le_bytes().map(|byte| char::from(b'0' + byte % 64));
        text.extend(digits.iter().map(|digit| if matches!(digit, '\\' | '"') { '~' } else { *digit }));
    }
    text
}

/// Puts an archive in place, and its index. Gives its size, and how many objects it has.
async fn store(s3: &S3) -> anyhow::Result<(u64, usize)> {
    let kind = Arc::new(ResourceType::regular("", "v1", "ConfigMap", true));
    let (batches, waiting) = mpsc::channel(4);
    let (parts, mut members) = mpsc::channel(4);
    let packing = tokio::task::spawn_blocking(move || {
        archive::pack(&Mutex::new(waiting), &parts, 0, &AtomicU64::new(0))
    });
    let feeding = tokio::spawn(async move {
        for page in 0.. {
            let items = (page * PAGE..(page + 1) * PAGE).map(|number| ArchiveItem {
                namespace: Some("many".to_owned()),
                name: name(number),
                json: json!({"metadata": {"name": name(number), "namespace": "many"}, "data": {"noise": noise(number)}})
                    .to_string()
                    .into(),
                lacks_type: true,
            });
            let batch = Batch {
                kind: Arc::clone(&kind),
                page: Default::default(),
                items: items.collect(),
                packed: None,
            };
            // Who has enough takes no more.
            if batches.send(batch).await.is_err() {
                return;
            }
        }
    });
    let store = s3.store()?;
    let mut upload =
        WriteMultipart::new_with_chunk_size(store.put_multipart(&key(".tar.gz")).await?, 8 << 20);
    let opening = archive::opening(0)?;
    upload.write(&opening);
    let (mut from, mut index, mut objects) = (opening.len() as u64, ArchiveIndex::default(), 0);
    while from < BYTES {
        let Some(ArchivePart::Member(member, contents)) = members.recv().await else { break };
        let piece = ByteRange { from, to: from + member.len() as u64 };
        for held in contents {
            index.note(&held.resource, &held.names, piece);
            objects += held.names.len();
        }
        upload.wait_for_capacity(2).await?;
        upload.write(&member);
        from = piece.to;
    }
    drop(members);
    // It ends because nobody takes what it packs.
    let _ = packing.await.context("the packer ended early")?;
    feeding.abort();
    let closing = archive::closing()?;
    upload.write(&closing);
    upload.finish().await?;
    let bytes = from + closing.len() as u64;
    let file = index.file(bytes)?.context("there is no index")?;
    store.put(&key("-index.json.gz"), file.into()).await?;
    Ok((bytes, objects))
}

/// Seconds until an object is printed, and the most memory that was held meanwhile, in MiB.
fn one(program: &Path, berth: &Berth, number: usize) -> anyhow::Result<(f64, f64)> {
    let object = format!("configmaps/many/{}", name(number));
    let to = berth.plane().folder().join("contents.json");
    let mut command = Command::new(program);
    command.args(["backup", "contents", NAME, &object, "-o", "json", "--timeout=30m"]);
    command.args(["--namespace", NAMESPACE]).env("KUBECONFIG", berth.plane().kubeconfig());
    command.env("HOME", berth.plane().folder()).current_dir(berth.plane().folder());
    command.stdin(Stdio::null()).stdout(std::fs::File::create(&to)?);
    without_proxies(&mut command);
    let begun = Instant::now();
    let mut child = command.spawn().with_context(|| format!("failed to run {}", program.display()))?;
    let mut peak = 0.0_f64;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        // It may end in this moment.
        peak = peak.max(peak_mib(child.id()).unwrap_or(0.0));
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = begun.elapsed().as_secs_f64();
    ensure!(status.success(), "berth backup contents {object} failed");
    let printed: serde_json::Value = serde_json::from_slice(&std::fs::read(&to)?)?;
    ensure!(printed["data"]["noise"] == noise(number).as_str(), "{object} is not what was stored");
    Ok((took, peak))
}
