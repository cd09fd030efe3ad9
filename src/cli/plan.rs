//! What a Backup would store and wait for, as `backup create --dry-run=plan` shows it.

use std::collections::BTreeMap;

use berth_core::bytes::size;
use berth_core::hook::{HookPhase, OnError};
use jiff::SignedDuration;
use serde::Serialize;
use serde_json::Value;

use crate::backup::rehearsal::{PlannedHook, Rehearsed};
use crate::backup::volumes::{RehearsedVolume, VolumeMethod};
use crate::cli::print::{self, ColumnHead, age};
use crate::text::printable;

/// Lines of one table; with `-o json` or `-o yaml` all of them are shown.
const ROWS: usize = 200;

/// The whole plan.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupPlan {
    pub name: String,
    pub namespace: String,
    pub storage_location: String,
    /// Everything could be read in time and with this user's rights.
    pub is_complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_short: Option<String>,
    pub objects: u64,
    /// Of the objects' JSON, before compression.
    pub bytes: u64,
    pub types: Vec<PlannedType>,
    pub volumes: Vec<OfVolume>,
    #[serde(skip_serializing_if = "is_zero")]
    pub more_volumes: u64,
    pub hooks: Vec<OfHook>,
    #[serde(skip_serializing_if = "is_zero")]
    pub more_hooks: u64,
    /// Namespaces that the spec names and that do not exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_namespaces: Vec<String>,
    /// What this user may not read: objects of it may be stored and are not counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// What would be logged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    pub admission: Admission,
    /// As `berth queue explain` tells it; none if the queue cannot be read.
    pub queue: Option<Value>,
    /// The last run of a Backup like it.
    pub last_like_it: Option<Like>,
}

/// The last run that ended well of a Backup like another one.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Like {
    pub name: String,
    pub seconds: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<i64>,
}

/// What the API server and the webhooks would say.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    pub accepted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Objects of one type.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedType {
    #[serde(rename = "type")]
    pub kind: String,
    pub objects: u64,
    /// By namespace; empty for a type of the cluster.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub namespaces: BTreeMap<String, u64>,
}

/// What becomes of the data of a volume.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfVolume {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    pub data: &'static str,
    pub why: String,
}

/// A command that would run in a pod.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfHook {
    pub pod: String,
    pub when: &'static str,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub on_error: &'static str,
    pub timeout_seconds: u64,
}

// serde hands over a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl BackupPlan {
    pub fn new(
        (namespace, name): (&str, &str),
        rehearsed: Rehearsed,
        admission: Admission,
        (queue, last_like_it): (Option<Value>, Option<Like>),
    ) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            storage_location: rehearsed.location,
            is_complete: rehearsed.cut_short.is_none() && rehearsed.refused.is_empty(),
            cut_short: rehearsed.cut_short,
            objects: rehearsed.objects.values().sum(),
            bytes: rehearsed.bytes,
            types: types(rehearsed.objects),
            volumes: volumes(&rehearsed.volumes, rehearsed.without_data),
            more_volumes: rehearsed.more_volumes,
            hooks: rehearsed.hooks.iter().map(hook).collect(),
            more_hooks: rehearsed.more_hooks,
            missing_namespaces: rehearsed.missing,
            refused: rehearsed.refused.into_iter().collect(),
            errors: rehearsed.errors,
            warnings: rehearsed.warnings,
            admission,
            queue,
            last_like_it,
        }
    }

    /// As text. `queue`: what blocks it, as sentences.
    pub fn text(&self, queue: &str) -> String {
        let mut text = format!(
            "Backup {} in namespace {}, to location {}. Nothing is created.\n",
            printable(&self.name),
            printable(&self.namespace),
            printable(&self.storage_location)
        );
        match &self.admission.why {
            _ if self.admission.accepted => text += "It would be accepted.\n",
            Some(why) => text += &format!("It would not be accepted: {}\n", printable(why)),
            None => {}
        }
        if let Some(why) = &self.cut_short {
            text += &format!("This is not all of it, because {}.\n", printable(why));
        }
        text += &format!("\nObjects: {} ({} of JSON before compression)\n", self.objects, size(self.bytes));
        let rows = self.types.iter().flat_map(|one| {
            let count = |place: &str, count: u64| vec![one.kind.clone(), place.to_owned(), count.to_string()];
            let in_namespaces: u64 = one.namespaces.values().sum();
            let rest = (one.objects > in_namespaces).then(|| count("", one.objects - in_namespaces));
            one.namespaces.iter().map(move |(name, number)| count(name, *number)).chain(rest)
        });
        text += &table(&["TYPE", "NAMESPACE", "OBJECTS"], rows.collect());
        text += &format!("\nVolumes: {}\n", self.volumes.len() as u64 + self.more_volumes);
        let row = |one: &OfVolume| {
            let cell = |text: &Option<String>| text.clone().unwrap_or_default();
            vec![cell(&one.claim), cell(&one.pod), cell(&one.volume), one.data.to_owned(), one.why.clone()]
        };
        let heads = ["CLAIM", "POD", "VOLUME", "DATA", "WHY"];
        text += &table(&heads, self.volumes.iter().map(row).collect());
        text += &format!("\nHooks: {}\n", self.hooks.len() as u64 + self.more_hooks);
        let row = |one: &OfHook| {
            let container = one.container.clone().unwrap_or_default();
            let timeout = format!("{}s", one.timeout_seconds);
            let (when, on_error) = (one.when.to_owned(), one.on_error.to_owned());
            vec![one.pod.clone(), when, one.name.clone(), container, on_error, timeout]
        };
        let heads = ["POD", "WHEN", "HOOK", "CONTAINER", "ON ERROR", "TIMEOUT"];
        text += &table(&heads, self.hooks.iter().map(row).collect());
        text += "\nQueue:\n";
        for line in queue.lines() {
            text += &format!("  {}\n", printable(line));
        }
        text += &match &self.last_like_it {
            Some(like) => format!(
                "\nThe last Backup like it, {}, took {}{}.\n",
                printable(&like.name),
                age(SignedDuration::from_secs(like.seconds)),
                like.items.map(|items| format!(" and stored {items} items")).unwrap_or_default()
            ),
            None => "\nHow long it takes is unknown, because no Backup like it has ended well.\n".to_owned(),
        };
        for (head, lines) in [
            ("Namespaces that do not exist", &self.missing_namespaces),
            ("Not counted, because you may not read them (the controller may)", &self.refused),
            ("Errors that the backup would log", &self.errors),
            ("Warnings that the backup would log", &self.warnings),
        ] {
            if !lines.is_empty() {
                text += &format!("\n{head}:\n");
            }
            for line in lines.iter().take(ROWS) {
                text += &format!("  {}\n", printable(line));
            }
            text += &more(lines.len());
        }
        text
    }
}

/// Says how many lines are not shown.
fn more(len: usize) -> String {
    match len.saturating_sub(ROWS) {
        0 => String::new(),
        more => format!("  … and {more} more, which -o json shows\n"),
    }
}

fn table(heads: &[&'static str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heads: Vec<ColumnHead> = heads.iter().map(|head| ColumnHead::IfAny(head)).collect();
    let mut out = Vec::new();
    let shown = rows.get(..ROWS.min(rows.len())).unwrap_or_default();
    // Writing to memory does not fail.
    let _ = print::table(&mut out, &heads, shown);
    let lines = String::from_utf8_lossy(&out);
    let indented: String = lines.lines().map(|line| format!("  {line}\n")).collect();
    indented + &more(rows.len())
}

fn types(objects: BTreeMap<(String, Option<String>), u64>) -> Vec<PlannedType> {
    let mut types: Vec<PlannedType> = Vec::new();
    for ((kind, namespace), count) in objects {
        if types.last().is_none_or(|last| last.kind != kind) {
            types.push(PlannedType { kind, objects: 0, namespaces: BTreeMap::new() });
        }
        if let Some(last) = types.last_mut() {
            last.objects += count;
            if let Some(namespace) = namespace {
                *last.namespaces.entry(namespace).or_default() += count;
            }
        }
    }
    types
}

fn volumes(taken: &[RehearsedVolume], without: BTreeMap<String, String>) -> Vec<OfVolume> {
    let taken = taken.iter().map(|one| {
        let by_class = format!("driver {}, VolumeSnapshotClass {}", one.driver, one.class);
        let (pod, volume) = one.pod.clone().unzip();
        let (data, why) = match one.way {
            VolumeMethod::Snapshot => ("snapshot", by_class),
            VolumeMethod::Move => ("moved", by_class),
            VolumeMethod::Files => ("files", "the pod, the policy or the Backup asks for it".to_owned()),
        };
        OfVolume { claim: one.claim.clone(), pod, volume, data, why }
    });
    let without = without.into_iter().map(|(claim, why)| OfVolume {
        claim: Some(claim),
        pod: None,
        volume: None,
        data: "none",
        why,
    });
    let mut all: Vec<OfVolume> = taken.chain(without).collect();
    all.sort_by(|a, b| (&a.claim, &a.pod, &a.volume).cmp(&(&b.claim, &b.pod, &b.volume)));
    all
}

fn hook(one: &PlannedHook) -> OfHook {
    OfHook {
        pod: one.pod.clone(),
        when: match one.when {
            HookPhase::Pre => "pre",
            HookPhase::Post => "post",
        },
        name: one.hook.name.clone(),
        container: one.container.clone(),
        on_error: match one.hook.on_error {
            OnError::Continue => "Continue",
            OnError::Fail => "Fail",
        },
        timeout_seconds: one.hook.timeout.as_secs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(key: &str, way: VolumeMethod, pod: Option<(&str, &str)>) -> RehearsedVolume {
        RehearsedVolume {
            way,
            claim: Some(key.to_owned()),
            pod: pod.map(|(pod, volume)| (pod.to_owned(), volume.to_owned())),
            driver: "ebs".to_owned(),
            class: "fast".to_owned(),
        }
    }

    #[test]
    fn objects_are_told_by_type_and_namespace_and_volumes_by_what_becomes_of_their_data() {
        let place = |kind: &str, namespace: Option<&str>| (kind.to_owned(), namespace.map(str::to_owned));
        let rehearsed = Rehearsed {
            objects: BTreeMap::from([
                (place("pods", Some("a")), 2),
                (place("pods", Some("b")), 3),
                (place("namespaces", None), 2),
            ]),
            bytes: 2048,
            location: "default".to_owned(),
            volumes: vec![
                claim("a/two", VolumeMethod::Files, Some(("a/p", "data"))),
                claim("a/one", VolumeMethod::Snapshot, None),
            ],
            without_data: BTreeMap::from([("a/three".to_owned(), "a policy skips it".to_owned())]),
            refused: ["secrets".to_owned()].into(),
            warnings: vec!["odd \x1b[2J".to_owned()],
            ..Rehearsed::default()
        };
        let admission = Admission { accepted: true, why: None };
        let plan = BackupPlan::new(("velero", "web"), rehearsed, admission, (None, None));
        assert!(!plan.is_complete, "what may not be read is not counted");
        let text = plan.text("web starts next.\n");
        for line in [
            "Objects: 7 (2.0 KiB of JSON before compression)",
            "  namespaces             2",
            "  pods        b          3",
            "  a/one                 snapshot  driver ebs, VolumeSnapshotClass fast",
            "  a/three               none      a policy skips it",
            "  a/two    a/p  data    files     the pod, the policy or the Backup asks for it",
            "  web starts next.",
            "  secrets",
            "  odd \\u{1b}[2J",
        ] {
            assert!(text.lines().any(|one| one == line), "{line:?} in\n{text}");
        }
        let json = serde_json::to_value(&plan).unwrap();
        assert_eq!(json["types"][1]["namespaces"]["b"], 3);
        assert_eq!(json["refused"][0], "secrets");
    }
}
