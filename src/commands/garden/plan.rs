//! `berth garden plan`: shows what a hub would do with the objects in files.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use berth_garden_api::hub::cluster;
use berth_garden_api::{BackupBucket, BackupEntry, CloudProfile, GARDEN_NAMESPACE, Seed};
use berth_garden_core::bucket::GardenBucket;
use berth_garden_core::check::{self, AdmissionFindings};
use berth_garden_core::entry::GardenEntry;
use berth_garden_core::hub::{HubSettings, HubView, ProfileState};
use berth_garden_core::quota::Quota;
use berth_garden_core::simulation::{SimulationResult, simulate};
use berth_garden_core::view;
use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::Output;
use crate::args::garden::PlanArgs;
use crate::cli::print::{self, ColumnHead, say};
use crate::text::printable;

/// Stands for the UID of a profile that does not exist yet, which is a part of its buckets' names.
const NO_UID: &str = "xxxxx";

#[derive(Default)]
struct PlannedObjects {
    profiles: Vec<CloudProfile>,
    seeds: Vec<Seed>,
    buckets: Vec<BackupBucket>,
    entries: Vec<BackupEntry>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HubPlanOutput {
    buckets: Vec<BucketLine>,
    entries: Vec<EntryLine>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BucketLine {
    name: String,
    is_new: bool,
    provider: String,
    region: String,
    entries: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EntryLine {
    namespace: String,
    name: String,
    cluster: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
}

pub fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let settings = HubSettings {
        quota: Quota::new(args.bucket_quotas.iter().cloned())?,
        namespace: GARDEN_NAMESPACE.to_owned(),
        ..HubSettings::default()
    };
    let objects = read(&args.files)?;
    let (faults, warnings) = objects.findings();
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    let now = Timestamp::now();
    let told = tell(&simulate(objects.view(now), &settings, now), warnings);
    show(&told, args.output)
}

fn read(files: &[std::path::PathBuf]) -> anyhow::Result<PlannedObjects> {
    let mut objects = PlannedObjects::default();
    for file in files {
        let text = text(file).with_context(|| format!("-f {}", file.display()))?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
            .with_context(|| format!("-f {}: it is no YAML", file.display()))?;
        for (i, document) in documents.into_iter().enumerate() {
            let items = match document.get("items") {
                Some(Value::Array(items)) => items.clone(),
                _ if document.is_null() => Vec::new(),
                _ => vec![document],
            };
            for item in items {
                objects.take(item).with_context(|| format!("-f {}, document {}", file.display(), i + 1))?;
            }
        }
    }
    Ok(objects)
}

fn text(file: &Path) -> std::io::Result<String> {
    if file != Path::new("-") {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

impl PlannedObjects {
    /// Other kinds are skipped, because files may have Secrets and Namespaces, too.
    fn take(&mut self, object: Value) -> anyhow::Result<()> {
        let field = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, kind) = (field("apiVersion"), field("kind"));
        ensure!(!kind.is_empty(), "it is no Kubernetes object: kind is missing");
        if !version.starts_with("garden.berth.dev/") {
            return Ok(());
        }
        match kind.as_str() {
            "CloudProfile" => self.profiles.push(parse(object)?),
            "Seed" => self.seeds.push(parse(object)?),
            "BackupBucket" => self.buckets.push(parse(object)?),
            "BackupEntry" => {
                let mut entry: BackupEntry = parse(object)?;
                entry.metadata.namespace.get_or_insert_with(|| "default".to_owned());
                let (namespace, name) = (entry.namespace().unwrap_or_default(), entry.name_any());
                // Any UID will do, as long as it is unique.
                entry.metadata.uid.get_or_insert_with(|| format!("{namespace}/{name}"));
                self.entries.push(entry);
            }
            _ => bail!("{version} has no kind {kind}: CloudProfile, Seed, BackupBucket or BackupEntry"),
        }
        Ok(())
    }

    /// The answers of admission for each object: faults and warnings.
    fn findings(&self) -> (Vec<String>, Vec<String>) {
        let known = view::GardenView {
            garden_namespace: GARDEN_NAMESPACE.to_owned(),
            profiles: self.profiles.iter().map(|one| (one.name_any(), one.into())).collect(),
            seeds: self.seeds.iter().map(|one| (one.name_any(), one.into())).collect(),
            buckets: self.buckets.iter().map(|one| (one.name_any(), one.into())).collect(),
            entries: self.entries.iter().map(|one| (key(one), one.into())).collect(),
            ..view::GardenView::default()
        };
        let (mut faults, mut warnings) = (Vec::new(), Vec::new());
        let mut take = |kind: &str, name: String, found: AdmissionFindings| {
            faults.extend(found.violations().iter().map(|fault| format!("{kind} {name}: {fault}")));
            warnings.extend(found.warnings.iter().map(|warning| format!("{kind} {name}: {warning}")));
        };
        for one in &self.profiles {
            take("CloudProfile", one.name_any(), check::profile::check(None, &one.into(), None, &known));
        }
        for one in &self.seeds {
            take("Seed", one.name_any(), check::seed::check(None, &one.into(), &known));
        }
        for one in &self.buckets {
            take("BackupBucket", one.name_any(), check::bucket::check(None, &one.into(), None, &known));
        }
        for one in &self.entries {
            let (namespace, name) = key(one);
            let found = check::entry::check(None, &one.into(), false, &known);
            take("BackupEntry", format!("{namespace}/{name}"), found);
        }
        faults.extend(self.twice());
        (faults, warnings)
    }

    /// Objects with the same name, because the API server would take the second one for an update
    /// of the first.
    fn twice(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut look = |kind: &str, names: Vec<String>| {
            let (mut seen, mut told) = (BTreeSet::new(), BTreeSet::new());
            for name in &names {
                if !seen.insert(name) && told.insert(name) {
                    faults.push(format!(
                        "{kind} {name}: metadata.name: stands here twice: leave one of them out"
                    ));
                }
            }
        };
        look("CloudProfile", self.profiles.iter().map(ResourceExt::name_any).collect());
        look("Seed", self.seeds.iter().map(ResourceExt::name_any).collect());
        look("BackupBucket", self.buckets.iter().map(ResourceExt::name_any).collect());
        let entries = self.entries.iter().map(key);
        look("BackupEntry", entries.map(|(namespace, name)| format!("{namespace}/{name}")).collect());
        faults
    }

    /// Assumes that every seed exists and reports, and that every named Secret exists.
    fn view(&self, now: Timestamp) -> HubView {
        let provider = |seed: &Seed| {
            let profile = self.profiles.iter().find(|one| one.name_any() == seed.spec.cloud_profile_name);
            profile.map(|profile| profile.spec.provider.as_str())
        };
        let seeds = self.seeds.iter().map(|seed| {
            let mut cluster = cluster(seed, provider(seed));
            cluster.member.seen = Some(now);
            cluster
        });
        let profiles = self.profiles.iter().map(|profile| {
            let mut infrastructure = ProfileState::from(profile);
            if infrastructure.uid.is_empty() {
                NO_UID.clone_into(&mut infrastructure.uid);
            }
            infrastructure
        });
        let backups = self.profiles.iter().filter_map(|profile| profile.spec.backup.as_ref());
        let named = backups.filter_map(|backup| backup.secret_ref.as_ref());
        let named = named.chain(self.buckets.iter().filter_map(|bucket| bucket.spec.secret_ref.as_ref()));
        HubView {
            profiles: profiles.collect(),
            seeds: seeds.collect(),
            // Files may have `generateName` alone.
            buckets: self
                .buckets
                .iter()
                .map(|one| GardenBucket { name: one.name_any(), ..one.into() })
                .collect(),
            entries: self
                .entries
                .iter()
                .map(|one| GardenEntry { name: one.name_any(), ..one.into() })
                .collect(),
            secrets: named.map(|secret| (secret.name.clone(), Default::default())).collect(),
            ..HubView::default()
        }
    }
}

/// Namespace and name.
fn key(entry: &BackupEntry) -> (String, String) {
    (entry.namespace().unwrap_or_default(), entry.name_any())
}

fn parse<K: Resource<DynamicType = ()> + for<'d> Deserialize<'d>>(object: Value) -> anyhow::Result<K> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    serde_json::from_value(object).with_context(|| format!("{} {name}", K::kind(&())))
}

fn tell(seen: &SimulationResult, mut warnings: Vec<String>) -> HubPlanOutput {
    let buckets: Vec<BucketLine> = seen
        .view
        .buckets
        .iter()
        .map(|bucket| BucketLine {
            name: bucket.name.clone(),
            is_new: seen.made.contains(&bucket.name),
            provider: bucket.store.place.provider.clone(),
            region: bucket.store.place.region.clone(),
            entries: bucket.status.allocated.len(),
            limit: bucket.status.limit,
            seed: bucket.status.seed.clone(),
        })
        .collect();
    let waits = |i: usize| seen.waiting.iter().find(|(entry, _)| *entry == i).map(|(_, why)| why.to_string());
    let entries = seen.view.entries.iter().enumerate().map(|(i, entry)| EntryLine {
        namespace: entry.namespace.clone(),
        name: entry.name.clone(),
        cluster: entry.seed.clone(),
        bucket: entry.bucket.clone(),
        waits_for: waits(i),
    });
    if buckets.iter().any(|bucket| bucket.is_new && bucket.name.contains(NO_UID)) {
        warnings.push(format!(
            "{NO_UID} stands for the first five characters of the CloudProfile's UID, which it gets when it is created"
        ));
    }
    HubPlanOutput { entries: entries.collect(), buckets, warnings }
}

fn show(told: &HubPlanOutput, output: Output) -> anyhow::Result<()> {
    let mut out = print::stdout();
    if output != Output::Table {
        return print::value(&mut out, told, output);
    }
    let heads = ["BUCKET", "", "PROVIDER", "REGION", "ENTRIES", "SEED"].map(ColumnHead::Always);
    let rows: Vec<Vec<String>> = told
        .buckets
        .iter()
        .map(|bucket| {
            let limit = bucket.limit.map_or_else(String::new, |limit| format!("/{limit}"));
            vec![
                bucket.name.clone(),
                if bucket.is_new { "new" } else { "there" }.to_owned(),
                bucket.provider.clone(),
                bucket.region.clone(),
                format!("{}{limit}", bucket.entries),
                bucket.seed.clone().unwrap_or_default(),
            ]
        })
        .collect();
    print::table(&mut out, &heads, &rows)?;
    if !told.entries.is_empty() {
        say!("");
        let heads = [
            ColumnHead::Always("ENTRY"),
            ColumnHead::Always("CLUSTER"),
            ColumnHead::Always("BUCKET"),
            ColumnHead::IfAny("WAITS FOR"),
        ];
        let rows: Vec<Vec<String>> = told
            .entries
            .iter()
            .map(|entry| {
                vec![
                    format!("{}/{}", entry.namespace, entry.name),
                    entry.cluster.clone(),
                    entry.bucket.clone().unwrap_or_default(),
                    entry.waits_for.clone().unwrap_or_default(),
                ]
            })
            .collect();
        print::table(&mut out, &heads, &rows)?;
    }
    for warning in &told.warnings {
        say!("\nwarning: {}", printable(warning));
    }
    Ok(())
}
