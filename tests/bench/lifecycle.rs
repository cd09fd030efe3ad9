//! The life of backups besides their runs: how fast they come from a store, go, and are created by
//! Schedules, with stock Velero beside, on the same S3 server.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use berth_api::velero::{
    Backup, BackupStorageLocation, BackupStorageLocationPhase, DeleteBackupRequest, Schedule,
};
use berth_test_support::peers::{S3, Velero, install_definitions, prepare};
use berth_test_support::{Berth, ControlPlane, Options};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::observer::{Change, Observer, writes};
use crate::report::{Aim, Report};
use crate::{stock, system};

const PART: &str = "lifecycle";
const NAMESPACE: &str = "velero";
const STOCK: &str = "stock";
/// Where Backups are created that nobody watches and no policy checks.
const BARE: &str = "bare";
const LOCATION: &str = "away";
const PREFIX: &str = "shared";
const ARCHIVE: &str = ".tar.gz";
/// Files of each backup, as berth and Velero write them.
const FILES: [&str; 11] = [
    ARCHIVE,
    "-logs.gz",
    "-results.gz",
    "-resource-list.json.gz",
    "-volumeinfo.json.gz",
    "-podvolumebackups.json.gz",
    "-volumesnapshots.json.gz",
    "-itemoperations.json.gz",
    "-csi-volumesnapshots.json.gz",
    "-csi-volumesnapshotcontents.json.gz",
    "-csi-volumesnapshotclasses.json.gz",
];
/// Between the beginnings of two rounds.
const PERIOD: Duration = Duration::from_secs(15);
const ROUNDS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(120);
const CREATES_AT_ONCE: usize = 16;
/// Stock Velero has a store of so few, because its rate is what counts, and so long for them.
const STOCK_SYNCED: usize = 400;
/// The same of bare creates.
const BARE_CREATED: usize = 1000;
const STOCK_DELETED: usize = 20;
const STOCK_PATIENCE: Duration = Duration::from_secs(90);
/// From the creation of the last Schedule to the time of all.
const AHEAD: SignedDuration = SignedDuration::from_secs(15);
/// How long before that time the processor time of all programs is read.
const JUST_BEFORE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
pub struct Sizes {
    pub stored: usize,
    pub deleted: usize,
    pub schedules: usize,
}

/// How many, and how long.
#[derive(Clone, Copy)]
struct Pace {
    count: usize,
    seconds: f64,
}

impl Pace {
    fn rate(self) -> f64 {
        self.count as f64 / self.seconds
    }
}

pub fn measure(
    runtime: &Runtime,
    program: &Path,
    sizes: Sizes,
    alone: bool,
    report: &mut Report,
) -> anyhow::Result<()> {
    let Sizes { stored, deleted, schedules } = sizes;
    eprintln!("The life of {stored} backups, {schedules} Schedules:");
    if !alone {
        stock::find()?;
    }
    let mut berth = Berth::start(ControlPlane::start()?, Options::new(program, NAMESPACE))?;
    let s3 = S3::start_counting(berth.plane(), "life")?;
    let few = STOCK_SYNCED.min(stored);
    fill(&s3, PREFIX, stored)?;
    let client = runtime.block_on(berth.plane().client())?;
    let (synced, removed) = runtime.block_on(async {
        let synced = sync(&client, &berth, &s3, stored, report).await?;
        idle(&client, &s3, stored, report).await?;
        due(&client, &berth, &s3, schedules, report).await?;
        let peak = system::peak_mib(berth.controller.process.id())?;
        let what = format!("berth: peak memory of the controller, {stored} backups, {schedules} schedules");
        report.add(PART, &what, peak, "MiB", Aim::AtMost(128.0));
        let before = Usage::now(&berth, &s3)?;
        let removed = delete(&client, NAMESPACE, deleted, PATIENCE * 3).await?;
        before.tell("deletion", &Usage::now(&berth, &s3)?);
        report.add(PART, &format!("berth: deletion of {deleted} backups"), removed.seconds, "s", Aim::None);
        let bare = bare(&client, BARE_CREATED.min(stored)).await?;
        report.add(PART, "bare creates of such Backups, rate", bare.rate(), "a second", Aim::None);
        let part = synced.rate() / bare.rate();
        report.add(PART, "berth: sync, rate to that of bare creates", part, "×", Aim::None);
        anyhow::Ok((synced, removed))
    })?;
    if alone {
        return Ok(());
    }
    berth.controller.process.kill()?;
    install_definitions(berth.plane())?;
    fill(&s3, STOCK, few)?;
    prepare(berth.plane(), STOCK, &s3, STOCK)?;
    let observer = runtime.block_on(Observer::start(&client, STOCK, |_| {}))?;
    let velero = Velero::start(berth.plane(), STOCK, &s3, &[], &[])?;
    let theirs = async {
        let synced = stock_sync(observer, few).await?;
        let removed = delete(&client, STOCK, STOCK_DELETED.min(deleted), STOCK_PATIENCE).await?;
        anyhow::Ok((synced, removed))
    };
    let theirs = runtime.block_on(theirs);
    let theirs = theirs.with_context(|| berth_test_support::log::tail(velero.log(), 20))?;
    for (what, ours, theirs) in [("sync", synced, theirs.0), ("deletion", removed, theirs.1)] {
        report.add(PART, &format!("stock Velero: {what}, rate"), theirs.rate(), "a second", Aim::None);
        report.add(PART, &format!("berth: {what}, rate"), ours.rate(), "a second", Aim::None);
        let faster = ours.rate() / theirs.rate();
        report.add(PART, &format!("berth: {what}, rate to stock Velero's"), faster, "×", Aim::AtLeast(10.0));
    }
    Ok(())
}

/// The processor time of all programs that take part, in seconds, by their names.
struct Usage {
    at: Instant,
    seconds: Vec<(String, f64)>,
}

impl Usage {
    fn now(berth: &Berth, s3: &S3) -> anyhow::Result<Self> {
        let programs =
            berth.plane().processes().chain([&berth.controller.process, &berth.webhook.process, &s3.process]);
        let mut seconds = Vec::new();
        for program in programs {
            seconds.push((program.name().to_owned(), system::cpu_seconds(program.id())?));
        }
        seconds.push(("this program".to_owned(), system::cpu_seconds(std::process::id())?));
        Ok(Self { at: Instant::now(), seconds })
    }

    /// Tells which program took how much since this was read: what takes long is where the cores
    /// were, or nowhere, where nobody used them.
    fn tell(&self, what: &str, now: &Self) {
        let used: Vec<(&str, f64)> = self
            .seconds
            .iter()
            .zip(&now.seconds)
            .map(|((name, before), (_, after))| (name.as_str(), after - before))
            .collect();
        let all: f64 = used.iter().map(|(_, seconds)| seconds).sum();
        let there = (now.at - self.at).as_secs_f64() * system::cores() as f64;
        let used: Vec<String> = used.iter().map(|(name, seconds)| format!("{name} {seconds:.1}")).collect();
        eprintln!("  {what}: {all:.1} s of {there:.1} s that the cores have: {}", used.join(", "));
    }
}

fn name(i: usize) -> String {
    format!("stored-{i:05}")
}

/// Backups as a Velero that is gone has left them, each of 12 files.
fn fill(s3: &S3, prefix: &str, count: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    let root = s3.file(&format!("{prefix}/backups"));
    for i in 0..count {
        let name = name(i);
        let folder = root.join(&name);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("velero-backup.json"), stored_backup(i).to_string())?;
        for file in FILES {
            let content = if file == ARCHIVE { &EMPTY_ARCHIVE[..] } else { &EMPTY_LIST[..] };
            std::fs::write(folder.join(format!("{name}{file}")), content)?;
        }
    }
    eprintln!("  stored in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// A Backup that has ended, as a Velero stores it.
fn stored_backup(i: usize) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {
            "name": name(i), "namespace": "elsewhere", "uid": format!("00000000-0000-0000-0000-{i:012}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"velero.io/storage-location": "default", "velero.io/schedule-name": "nightly"},
            "annotations": {"velero.io/source-cluster-k8s-gitversion": "v1.36.3"},
        },
        "spec": {
            "includedNamespaces": [format!("n-{}", i % 100)], "storageLocation": "default", "ttl": "876000h0m0s",
            "snapshotVolumes": false, "hooks": {}, "metadata": {},
        },
        "status": {
            "phase": "Completed", "formatVersion": "1.1.0", "version": 1,
            "startTimestamp": "2026-01-01T00:00:00Z", "completionTimestamp": "2026-01-01T00:00:05Z",
            "expiration": "2126-01-01T00:00:00Z", "progress": {"totalItems": 100, "itemsBackedUp": 100},
        },
    })
}

/// How fast the API server takes such Backups from a program that does nothing else: no sync can
/// be faster.
async fn bare(client: &Client, count: usize) -> anyhow::Result<Pace> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": BARE}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let backups = (0..count).map(|i| {
        let mut backup = stored_backup(i);
        backup["metadata"]["namespace"] = json!(BARE);
        backup
    });
    let begun = Instant::now();
    create::<Backup>(client, BARE, backups.collect()).await?;
    Ok(Pace { count, seconds: begun.elapsed().as_secs_f64() })
}

/// An archive without members, as gzip. A stock Velero reads it before it deletes a backup.
const EMPTY_ARCHIVE: [u8; 29] = [
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 99, 96, 24, 5, 163, 96, 20, 140, 84, 0, 0, 46, 175, 181, 239, 0, 4, 0, 0,
];
/// `[]`, as gzip.
const EMPTY_LIST: [u8; 22] = [31, 139, 8, 0, 0, 0, 0, 0, 0, 255, 139, 142, 5, 0, 41, 187, 76, 13, 2, 0, 0, 0];

/// How many requests about the bucket there were so far.
fn requests(s3: &S3) -> anyhow::Result<usize> {
    Ok(s3.requests()?.iter().filter(|request| request.contains("/bucket-life")).count())
}

async fn location(client: &Client) -> anyhow::Result<BackupStorageLocation> {
    let api: Api<BackupStorageLocation> = Api::namespaced(client.clone(), NAMESPACE);
    Ok(api.get(LOCATION).await?)
}

/// From the moment at which the location can be used to the last Backup.
async fn sync(
    client: &Client,
    berth: &Berth,
    s3: &S3,
    count: usize,
    report: &mut Report,
) -> anyhow::Result<Pace> {
    let mut observer = Observer::start(client, NAMESPACE, |_| {}).await?;
    let mut here = s3.location(LOCATION, PREFIX);
    // Nothing else is to ask the store.
    here["spec"]["validationFrequency"] = json!("24h");
    here["spec"]["backupSyncPeriod"] = json!(format!("{}s", PERIOD.as_secs()));
    // The deletions are of backups that another cluster has stored.
    here["metadata"]["annotations"] = json!({"berth.dev/inherits": "*"});
    let before = requests(s3)?;
    let answer = berth.kubectl().create(NAMESPACE, &[s3.keys.secret_object(NAMESPACE), here])?;
    ensure!(answer.status.success(), "{}", answer.stderr);
    let begun = until("the location to be Available", || async {
        let status = location(client).await?.status;
        let phase = status.and_then(|status| status.phase);
        Ok((phase == Some(BackupStorageLocationPhase::Available)).then(Instant::now))
    })
    .await?;
    let used = Usage::now(berth, s3)?;
    observer.wait_ended(count, PATIENCE * 3).await?;
    used.tell("sync", &Usage::now(berth, s3)?);
    let last = observer.changes().iter().map(|change| change.at).max().context("nothing came")?;
    let pace = Pace { count, seconds: (last - begun).as_secs_f64() };
    let asked = (requests(s3)? - before) as f64;
    report.add(PART, &format!("berth: sync of {count} backups"), pace.seconds, "s", Aim::None);
    let what = "berth: requests to the store for each new backup";
    report.add(PART, what, asked / count as f64, "", Aim::AtMost(1.1));
    let peak = system::peak_mib(berth.controller.process.id())?;
    report.add(PART, "berth: peak memory of the controller after the sync", peak, "MiB", Aim::None);
    Ok(pace)
}

/// Rounds in which nothing is new.
async fn idle(client: &Client, s3: &S3, count: usize, report: &mut Report) -> anyhow::Result<()> {
    let next_round = |last: Option<Timestamp>| async move {
        until("the next round", || async {
            let status = location(client).await?.status;
            let at = status.and_then(|status| status.last_synced_time).map(|time| time.0);
            Ok(at.filter(|at| Some(*at) != last))
        })
        .await
    };
    // The one that has brought them may not be over.
    let mut last = next_round(None).await?;
    last = next_round(Some(last)).await?;
    let before = (requests(s3)?, writes(client, "backups").await?);
    let located = writes(client, "backupstoragelocations").await?;
    for _ in 0..ROUNDS {
        last = next_round(Some(last)).await?;
    }
    let rounds = ROUNDS as f64;
    let asked = (requests(s3)? - before.0) as f64 / rounds;
    let wrote = (writes(client, "backups").await? - before.1) / rounds;
    let located = (writes(client, "backupstoragelocations").await? - located) / rounds;
    let says = |what: &str| format!("berth: idle round over {count} backups: {what}");
    report.add(PART, &says("requests to the store"), asked, "", Aim::AtMost(10.0));
    report.add(PART, &says("writes to Backups"), wrote, "", Aim::AtMost(0.0));
    report.add(PART, &says("writes to locations (lastSyncedTime)"), located, "", Aim::None);
    Ok(())
}

/// Schedules of one time: how long after it the last Backup is there. None of them runs.
async fn due(
    client: &Client,
    berth: &Berth,
    s3: &S3,
    count: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let args = ["annotate", "backupstoragelocations", "default", "-n", NAMESPACE, "berth.dev/hold=true"];
    berth.kubectl().run(&args)?;
    let begun = Instant::now();
    // Room for their creation.
    let most = SignedDuration::from_secs(10 + i64::try_from(count / 40)?);
    let tick = next_minute(Timestamp::now() + most + AHEAD)?;
    let expression = tick.strftime("%-M %-H %-d %-m *").to_string();
    let schedules = (0..count).map(|i| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "Schedule", "metadata": {"name": format!("s-{i}")},
            "spec": {
                "schedule": expression,
                "template": {"includedNamespaces": [format!("s-{i}")], "storageLocation": "default"},
            },
        })
    });
    create::<Schedule>(client, NAMESPACE, schedules.collect()).await?;
    eprintln!("  {count} Schedules created in {:.0} s", begun.elapsed().as_secs_f64());
    ensure!(Timestamp::now() < tick, "the Schedules were created too slowly");
    let due = Instant::now() + Duration::try_from(tick.duration_since(Timestamp::now()))?;
    let observer = Observer::start(client, NAMESPACE, |_| {}).await?;
    tokio::time::sleep_until((due - JUST_BEFORE).into()).await;
    let used = Usage::now(berth, s3)?;
    let after = |change: &Change| change.name.starts_with("s-").then_some(change.at);
    let seen = until("the Backups of all Schedules", || async {
        let changes = observer.changes();
        let mut names: Vec<(&str, Instant)> =
            changes.iter().filter_map(|change| Some((change.name.as_str(), after(change)?))).collect();
        names.sort_unstable();
        names.dedup_by_key(|(name, _)| *name);
        let at: Vec<Instant> = names.into_iter().map(|(_, at)| at).collect();
        Ok((at.len() >= count).then_some(at))
    })
    .await?;
    used.tell("due Schedules", &Usage::now(berth, s3)?);
    let last = seen.into_iter().max().context("no Schedule is due")?;
    ensure!(last > due, "a Backup came before its time");
    let late = (last - due).as_secs_f64();
    let what = format!("berth: {count} schedules of one minute: last Backup after");
    report.add(PART, &what, late, "s", Aim::AtMost(2.0));
    Ok(())
}

fn next_minute(after: Timestamp) -> anyhow::Result<Timestamp> {
    Ok(Timestamp::from_second((after.as_second() / 60 + 1) * 60)?)
}

/// Asks for the deletion of the first few at once, as people do, and waits until all of them are
/// gone.
async fn delete(client: &Client, namespace: &str, count: usize, patience: Duration) -> anyhow::Result<Pace> {
    let backups: Api<Backup> = Api::namespaced(client.clone(), namespace);
    let there = backups.list_metadata(&ListParams::default()).await?;
    let chosen: Vec<(String, String)> = there
        .iter()
        .map(|one| (one.name_any(), one.uid().unwrap_or_default()))
        .filter(|(name, _)| name.starts_with("stored-"))
        .take(count)
        .collect();
    ensure!(chosen.len() == count, "there are only {} backups", chosen.len());
    let requests = chosen.iter().map(|(name, uid)| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
            "metadata": {
                "generateName": format!("{name}-"),
                "labels": {"velero.io/backup-name": name, "velero.io/backup-uid": uid},
            },
            "spec": {"backupName": name},
        })
    });
    let begun = Instant::now();
    create::<DeleteBackupRequest>(client, namespace, requests.collect()).await?;
    let api: Api<DeleteBackupRequest> = Api::namespaced(client.clone(), namespace);
    loop {
        let left = api.list(&ListParams::default()).await?;
        if let Some(failed) = left.iter().find_map(|request| {
            let errors = request.status.as_ref()?.errors.as_ref().filter(|errors| !errors.is_empty())?;
            Some(format!("{}: {}", request.spec.backup_name, errors.join("; ")))
        }) {
            bail!("a deletion failed: {failed}");
        }
        if left.items.is_empty() {
            break;
        }
        ensure!(begun.elapsed() < patience, "{} of {count} deletions are left", left.items.len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let there = backups.list_metadata(&ListParams::default()).await?;
    let is_left = |one: &str| chosen.iter().any(|(name, _)| name == one);
    ensure!(!there.iter().any(|one| is_left(&one.name_any())), "a Backup is still there");
    Ok(Pace { count, seconds })
}

/// From its first Backup on: when it begins is chance.
async fn stock_sync(mut observer: Observer, count: usize) -> anyhow::Result<Pace> {
    // Its rounds begin once a minute.
    let ended = observer.wait_ended(count, STOCK_PATIENCE + Duration::from_secs(60)).await;
    let at: Vec<Instant> = observer.changes().iter().map(|change| change.at).take(count).collect();
    ensure!(at.len() > 10, "stock Velero has brought {} backups: {ended:?}", at.len());
    let (first, last) = (at.iter().min().context("none")?, at.iter().max().context("none")?);
    Ok(Pace { count: at.len() - 1, seconds: (*last - *first).as_secs_f64() })
}

async fn create<K>(client: &Client, namespace: &str, objects: Vec<Value>) -> anyhow::Result<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let create = async |object: Value| {
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        anyhow::Ok(())
    };
    stream::iter(objects).map(create).buffer_unordered(CREATES_AT_ONCE).try_collect().await
}

/// Looks often, because what is measured may end at any moment.
async fn until<T, F: Future<Output = anyhow::Result<Option<T>>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        ensure!(begun.elapsed() < PATIENCE * 2, "{what} takes too long");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
