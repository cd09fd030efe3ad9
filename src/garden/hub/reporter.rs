//! Reports what the hub decided and did: Events and metrics.

use std::collections::BTreeMap;

use berth_garden_api::{BackupBucket, BackupEntry, CloudProfile};
use berth_garden_core::entry::GardenEntry;
use berth_garden_core::fence::{HandoverReason, WaitingFor};
use berth_garden_core::hub::{EntryHandover, HubPlan, HubView, PlacementWaitReason};
use berth_garden_core::name;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use tracing::info;

use super::writer::WrittenPlan;
use crate::events::{EventReason, Events};
use crate::metrics::{ByBucket, GardenMetrics};

pub struct Reporter {
    events: Events,
    metrics: GardenMetrics,
    /// What was reported last, by UID of the entry.
    waiting: BTreeMap<String, &'static str>,
    moving: BTreeMap<String, WaitingFor>,
    /// Seed that acts, by name of a bucket, and by UID of an entry that is being removed.
    executors: BTreeMap<String, String>,
}

impl Reporter {
    pub fn new(events: Events, metrics: GardenMetrics) -> Self {
        Self {
            events,
            metrics,
            waiting: BTreeMap::new(),
            moving: BTreeMap::new(),
            executors: BTreeMap::new(),
        }
    }

    /// Reports a plan, before it is carried out.
    pub fn record_plan(&mut self, view: &HubView, plan: &HubPlan) {
        self.metrics.pending.set(i64::try_from(plan.waiting.len()).unwrap_or(i64::MAX));
        self.metrics.entries.clear();
        self.metrics.limit.clear();
        for bucket in &view.buckets {
            let label = ByBucket { bucket: bucket.name.clone() };
            let used = i64::try_from(bucket.status.allocated.len()).unwrap_or(i64::MAX);
            self.metrics.entries.get_or_create(&label).set(used);
            if let Some(limit) = bucket.status.limit {
                self.metrics.limit.get_or_create(&label).set(limit.into());
            }
        }
        let mut waiting = BTreeMap::new();
        for (index, why) in plan.waiting.iter().filter(|(_, why)| *why != PlacementWaitReason::Making) {
            let Some(entry) = view.entries.get(*index) else { continue };
            if self.waiting.get(&entry.uid) != Some(&why.word()) {
                self.events.tell_about(EventReason::NotPlaced, entry_reference(entry), why.to_string());
            }
            waiting.insert(entry.uid.clone(), why.word());
        }
        self.waiting = waiting;
        self.moves(view, plan);
        self.executors(view);
    }

    /// Reports moves that wait for a person.
    fn moves(&mut self, view: &HubView, plan: &HubPlan) {
        let mut moving = BTreeMap::new();
        for (index, what) in plan.moving.iter().filter(|(_, what)| *what != WaitingFor::Answer) {
            let Some(entry) = view.entries.get(*index) else { continue };
            let from = entry.status.seed.as_ref().or(entry.writer.as_ref()).map_or("", String::as_str);
            let note = match what {
                WaitingFor::Upgrade => format!(
                    "to Seed {}: the agent of Seed {from} does not know how to let go of it: bring it to the hub's version",
                    entry.seed
                ),
                WaitingFor::Answer | WaitingFor::Sign => format!(
                    "to Seed {}: Seed {from} has not reported lately, and its cluster may be writing there still",
                    entry.seed
                ),
            };
            if self.moving.get(&entry.uid) != Some(what) {
                info!(namespace = %entry.namespace, name = %entry.name, %from, to = %entry.seed, note, "a move is waiting");
                self.events.tell_about(EventReason::MoveWaits, entry_reference(entry), note);
            }
            moving.insert(entry.uid.clone(), *what);
        }
        self.moving = moving;
    }

    fn executors(&mut self, view: &HubView) {
        let mut executors = BTreeMap::new();
        let mut take = |id: &str, seed: &Option<String>, about: ObjectReference| {
            let Some(seed) = seed else { return };
            if let Some(before) = self.executors.get(id).filter(|before| *before != seed) {
                let (kind, name) = (about.kind.clone(), about.name.clone());
                info!(kind, name, %before, %seed, "assigned an object to another seed");
                self.metrics.executor_changes.inc();
                let note = format!("Seed {seed} acts on it now; it was Seed {before}");
                self.events.tell_about(EventReason::ExecutorChanged, about, note);
            }
            executors.insert(id.to_owned(), seed.clone());
        };
        for bucket in &view.buckets {
            take(&bucket.name, &bucket.status.seed, cluster_scoped::<BackupBucket>(&bucket.name));
        }
        for entry in view.entries.iter().filter(|entry| entry.status.released_at.is_some()) {
            take(&entry.uid, &entry.status.seed, entry_reference(entry));
        }
        self.executors = executors;
    }

    /// Reports what was carried out.
    pub fn record_done(&self, view: &HubView, acted: &WrittenPlan) {
        for (bucket, profile) in &acted.made {
            let Some(owner) = view.profiles.get(*profile) else { continue };
            let about = cluster_scoped::<CloudProfile>(&owner.profile.name);
            self.events.tell_about(
                EventReason::BucketCreated,
                about,
                format!("BackupBucket {bucket} was made for it"),
            );
        }
        for index in &acted.retired {
            let Some(bucket) = view.buckets.get(*index) else { continue };
            let note = "no seed has backed up into it, and no entry been in it, for --bucket-idle-delay";
            self.events.tell_about(
                EventReason::BucketRetired,
                cluster_scoped::<BackupBucket>(&bucket.name),
                note,
            );
        }
        for (index, handed) in &acted.handed {
            let Some(entry) = view.entries.get(*index) else { continue };
            self.handed(entry, handed);
        }
        for index in &acted.ended {
            let Some(entry) = view.entries.get(*index) else { continue };
            let note = format!("its record is ConfigMap {}", name::tombstone(&entry.name, &entry.uid));
            self.events.tell_about(EventReason::Recorded, entry_reference(entry), note);
        }
    }
}

impl Reporter {
    fn handed(&self, entry: &GardenEntry, EntryHandover { from, to, because }: &EntryHandover) {
        let (what, why) = match because {
            HandoverReason::Free | HandoverReason::NeverMade => {
                (EventReason::Moved, "nothing was ever made of it there".to_owned())
            }
            HandoverReason::LetGo => (EventReason::Moved, "which writes there no more".to_owned()),
            HandoverReason::Unregistered => (
                EventReason::TakenOver,
                "of which there is no Seed any more: it was not waited for".to_owned(),
            ),
            HandoverReason::TakenOver => {
                let reason = entry.take_over.as_deref().unwrap_or_default();
                (EventReason::TakenOver, format!("which was not waited for: {reason}"))
            }
        };
        info!(namespace = %entry.namespace, name = %entry.name, %from, %to, ?because, why, "gave an entry to another cluster");
        let note = format!("Seed {to}'s cluster may write there now; it was Seed {from}'s, {why}");
        self.events.tell_about(what, entry_reference(entry), note);
    }
}

fn cluster_scoped<K: Resource<DynamicType = ()>>(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

fn entry_reference(entry: &GardenEntry) -> ObjectReference {
    ObjectReference {
        namespace: Some(entry.namespace.clone()),
        uid: Some(entry.uid.clone()),
        ..cluster_scoped::<BackupEntry>(&entry.name)
    }
}
