//! Hooks of Backups, in pods of a kubelet that really runs commands.

use std::path::Path;
use std::sync::OnceLock;

use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use crate::admission::program;
use crate::archive::{items, side_text};
use crate::queue::ended;
use crate::support::kwok::Kwok;
use crate::support::{Berth, ControlPlane, Options, PATIENCE, backup, wait_for};

const FROZEN: &str = "berth.dev/frozen";

/// Of its own: a Node concerns everybody.
pub fn site() -> &'static (ControlPlane, Kwok) {
    static SITE: OnceLock<(ControlPlane, Kwok)> = OnceLock::new();
    SITE.get_or_init(|| {
        let plane = ControlPlane::start().unwrap();
        let kwok = Kwok::start(&plane, "hooked").unwrap();
        (plane, kwok)
    })
}

pub fn create(berth: &Berth, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let answer = berth.kubectl().answer(&["create", "-f", "-"], &list.to_string()).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}

pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// Commands that tell of themselves in a file, and wait for another one.
pub struct Place<'f>(pub &'f Path);

impl Place<'_> {
    pub fn told(&self) -> Vec<String> {
        let told = std::fs::read_to_string(self.0.join("told")).unwrap_or_default();
        told.lines().map(str::to_owned).collect()
    }

    pub fn shell(&self, script: &str) -> Value {
        json!(["/bin/sh", "-c", script])
    }

    pub fn tells(&self, word: &str) -> String {
        format!("echo {word} >> {}/told", self.0.display())
    }

    /// Until [`Place::open`] of that gate.
    pub fn waits(&self, gate: &str) -> String {
        format!("while [ ! -e {}/{gate} ]; do sleep 0.05; done", self.0.display())
    }

    pub fn open(&self, gate: &str) {
        std::fs::write(self.0.join(gate), "").unwrap();
    }

    pub fn wait_told(&self, word: &str) {
        let told = || Ok(self.told().iter().any(|line| line == word).then_some(()));
        wait_for(&format!("a hook to tell {word}"), PATIENCE, told).unwrap();
    }
}

pub fn place(berth: &Berth) -> std::path::PathBuf {
    let folder = berth.plane().folder().join(berth.namespace()).join("hooks");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// As a person annotates a pod.
pub fn annotations(pre: &[(&str, Value)], post: Option<Value>) -> Value {
    let mut annotations = json!({});
    for (key, value) in pre {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        annotations[format!("pre.hook.backup.velero.io/{key}")] = json!(text);
    }
    if let Some(command) = post {
        annotations["post.hook.backup.velero.io/command"] = json!(command.to_string());
    }
    annotations
}

#[test]
fn hooks_run_around_their_pods_and_what_goes_wrong_in_one_costs_what_was_said() {
    let (plane, kwok) = site();
    let berth = Berth::start(plane, Options::new(program(), "around")).unwrap();
    let folder = place(&berth);
    let at = Place(&folder);
    let says = |word: &str| at.shell(&at.tells(word));
    // Its entry of the spec is for this one alone.
    let mut of_spec = kwok.pod("shop", "b-fails", &json!({}));
    of_spec["metadata"]["labels"] = json!({"hooked": "by-spec"});
    let hung = at.shell(&at.waits("end"));
    let waiting = at.shell(&format!("{}; {}; echo oops >&2; exit 1", at.tells("c-pre"), at.waits("gate")));
    let container = ("container", json!(kwok.side()));
    let pods = [
        kwok.pod(
            "shop",
            "a-annotated",
            &annotations(&[("command", says("a-pre")), container], Some(says("a-post"))),
        ),
        of_spec,
        kwok.pod(
            "shop",
            "c-continues",
            &annotations(
                &[("command", waiting), ("on-error", json!("Continue")), ("timeout", json!("10m"))],
                None,
            ),
        ),
        kwok.pod(
            "shop",
            "d-hangs",
            &annotations(&[("command", hung), ("timeout", json!("3s"))], Some(says("d-post"))),
        ),
        kwok.pod("shop", "e-gone", &annotations(&[("command", says("e-pre"))], Some(says("e-post")))),
        kwok.pod("shop", "f-ended", &annotations(&[("command", says("f-pre"))], None)),
        kwok.pod(
            "shop",
            "g-odd",
            &annotations(&[("command", says("g-pre")), ("timeout", json!("soon"))], None),
        ),
        kwok.pod("shop", "h-plain", &json!({})),
    ];
    create(&berth, &[&[namespace("shop")][..], &pods[..]].concat());
    let status = json!({"status": {"phase": "Succeeded"}}).to_string();
    let args =
        ["patch", "pod", "f-ended", "-n", "shop", "--subresource=status", "--type=merge", "-p", &status];
    berth.kubectl().run(&args).unwrap();
    let fails = at.shell(&format!("{}; exit 3", at.tells("b-pre")));
    let entry = json!({
        "name": "dump",
        "labelSelector": {"matchLabels": {"hooked": "by-spec"}},
        "pre": [{"exec": {"command": fails, "onError": "Fail"}}, {"exec": {"command": says("never")}}],
        "post": [{"exec": {"command": says("b-post")}}],
    });
    let spec = json!({"includedNamespaces": ["shop"], "hooks": {"resources": [entry]}});
    let made = berth.kubectl().create(berth.namespace(), &[backup("hooked", spec)]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    at.wait_told("c-pre");
    berth.kubectl().run(&["delete", "pod", "e-gone", "-n", "shop", "--force", "--grace-period=0"]).unwrap();
    at.open("gate");
    let done = ended(&berth, &["hooked"]).remove("hooked").unwrap();
    at.open("end");
    assert_eq!(at.told(), ["a-pre", "a-post", "b-pre", "b-post", "c-pre", "d-post"]);
    let status = done.status.unwrap();
    assert_eq!((status.phase, status.errors), (Some(BackupPhase::PartiallyFailed), Some(5)), "{status:?}");
    let hooks = status.hook_status.unwrap();
    assert_eq!((hooks.hooks_attempted, hooks.hooks_failed), (Some(8), Some(4)));
    assert!(!done.metadata.annotations.unwrap().contains_key(FROZEN));
    let stored = berth.archives().join("backups/hooked");
    let pods = ["a-annotated", "c-continues", "d-hangs", "e-gone", "f-ended", "g-odd", "h-plain"];
    let mut found = items(&stored.join("hooked.tar.gz"));
    found.retain(|item| item.starts_with("pods/"));
    assert_eq!(found, pods.map(|name| format!("pods/namespaces/shop/{name}")));
    assert_eq!(status.progress.unwrap().items_backed_up, status.progress.unwrap().total_items);
    let log = side_text(&stored, "hooked-logs.gz");
    let told = |words: &[&str]| log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    for words in [
        &["level=info", "pod shop/a-annotated went well"][..],
        &["level=error", "pre hook dump of pod b-fails failed", "exit status 3", "the pod is not stored"],
        &["level=error", "of pod c-continues failed", "exit status 1", "oops", "stored all the same"],
        &["level=error", "of pod d-hangs failed", "it had not ended after 3s"],
        &["level=error", "of pod e-gone failed", "the pod is gone"],
        &["level=error", "pod g-odd", "pre.hook.backup.velero.io/timeout", "is not a duration"],
    ] {
        assert!(told(words), "{words:?}: {log}");
    }
}

/// The pods that the dead leader left between their hooks: one is unchanged, another was created
/// again under its name.
#[test]
fn what_a_killed_leader_left_frozen_is_thawed_by_the_next_one() {
    let (plane, kwok) = site();
    let mut options = Options::new(program(), "killed");
    options.item_block_workers = 2;
    options.controller_args = vec!["--after-interruption=fail".to_owned()];
    let mut berth = Berth::start(plane, options).unwrap();
    let folder = place(&berth);
    let at = Place(&folder);
    let pod = |name: &str| {
        let freeze = at.shell(&format!("{}; {}", at.tells(&format!("froze-{name}")), at.waits("end")));
        let pre = [("command", freeze), ("timeout", json!("10m"))];
        kwok.pod("bank", name, &annotations(&pre, Some(at.shell(&at.tells(&format!("thawed-{name}"))))))
    };
    create(&berth, &[namespace("bank"), pod("db-0"), pod("db-1"), pod("db-2")]);
    let spec = json!({"includedNamespaces": ["bank"]});
    let made = berth.kubectl().create(berth.namespace(), &[backup("cut", spec)]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    at.wait_told("froze-db-0");
    at.wait_told("froze-db-1");
    let record = || {
        let backup = berth.kubectl().backup(berth.namespace(), "cut").unwrap();
        backup.metadata.annotations.unwrap_or_default().remove(FROZEN).unwrap_or_default()
    };
    assert!(record().contains("bank/db-0/") && record().contains("bank/db-1/"), "{}", record());
    berth.kill_controller().unwrap();
    berth.kubectl().run(&["delete", "pod", "db-1", "-n", "bank", "--force", "--grace-period=0"]).unwrap();
    create(&berth, &[pod("db-1")]);
    berth.controller.process.restart().unwrap();
    at.wait_told("thawed-db-0");
    let done = ended(&berth, &["cut"]).remove("cut").unwrap();
    at.open("end");
    assert_eq!(done.phase(), BackupPhase::Failed);
    assert!(!done.metadata.annotations.unwrap().contains_key(FROZEN));
    let told = at.told();
    assert!(!told.contains(&"thawed-db-1".to_owned()), "it is another pod: {told:?}");
    let log = side_text(&berth.archives().join("backups/cut"), "cut-logs.gz");
    for words in ["between the hooks of pod bank/db-0", "pod bank/db-0 went well", "pod bank/db-1 is gone"] {
        assert!(log.contains(words), "{words}: {log}");
    }
}
