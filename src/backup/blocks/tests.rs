use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use berth_core::hook::{Hook, Hooks, OnError, TIMEOUT};
use berth_core::selection::ResourceType;
use berth_test_scripted::{Scripted, get};
use bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::backup::archive::ArchiveItem;
use crate::backup::exec::played::Played;
use crate::backup::hold::Used;
use crate::backup::hooks::Tally;
use crate::backup::ledger::PageId;
use crate::backup::log::{BackupLog, MessageCounts};
use crate::backup::names::PackedNames;
use crate::backup::volumes::outcomes::Outcomes;

mod files;
mod shared;
mod still;
mod thaw;

/// A hook of that name; `Fail` where that ends with an exclamation mark.
fn hook(name: &str, command: &str) -> Arc<Hook> {
    Arc::new(Hook {
        name: name.trim_end_matches('!').to_owned(),
        container: None,
        command: command.split(' ').map(str::to_owned).collect(),
        on_error: if name.ends_with('!') { OnError::Fail } else { OnError::Continue },
        timeout: TIMEOUT,
    })
}

/// Everything around blocks.
struct Site {
    api: Scripted,
    played: Played,
    log: BackupLog,
    tally: Tally,
    frozen: FrozenPods,
    counters: Counters,
    ending: CancellationToken,
    lost: CancellationToken,
    stop: CancellationToken,
    /// Does anybody write what is to stand on record?
    is_written: AtomicBool,
    outcomes: Outcomes,
    /// Can files be backed up?
    reads_files: bool,
}

impl Site {
    fn new() -> Self {
        Self {
            api: Scripted::new(),
            played: Played::default(),
            log: BackupLog::new(String::new()),
            tally: Tally::default(),
            frozen: FrozenPods::default(),
            counters: Counters { total: AtomicU64::new(100), done: Arc::default() },
            ending: CancellationToken::new(),
            lost: CancellationToken::new(),
            stop: CancellationToken::new(),
            is_written: AtomicBool::new(true),
            outcomes: Outcomes::default(),
            reads_files: false,
        }
    }

    /// A pod of that name, which is there as it was listed.
    fn pod(&self, name: &str, pre: &[Arc<Hook>], post: &[Arc<Hook>]) -> HeldPod {
        let path = format!("/api/v1/namespaces/shop/pods/{name}");
        self.api.always(get(&path).answers(json!({"metadata": {"name": name, "uid": "u"}})));
        self.listed(name, pre, post)
    }

    fn listed(&self, name: &str, pre: &[Arc<Hook>], post: &[Arc<Hook>]) -> HeldPod {
        let kind = ResourceType::regular("", "v1", "Pod", true);
        let (namespace, json) = (Some("shop".to_owned()), Bytes::from_static(b"{}"));
        HeldPod {
            kind: Arc::new(kind),
            page: PageId::default(),
            item: ArchiveItem { namespace, name: name.to_owned(), json, lacks_type: true },
            id: PodId { namespace: "shop".to_owned(), name: name.to_owned(), uid: "u".to_owned() },
            hooks: Hooks { pre: pre.to_vec(), post: post.to_vec(), is_annotated: false },
            container: Some("main".to_owned()),
            used: Used::default(),
            room: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
            over: None,
        }
    }

    /// Runs them; gives the names of those that were stored.
    async fn run(&self, pods: Vec<HeldPod>, workers: usize) -> BTreeSet<String> {
        let (batches, mut taken) = mpsc::channel(pods.len().max(1));
        self.run_to(pods, workers, batches).await;
        let mut stored = BTreeSet::new();
        while let Ok(batch) = taken.try_recv() {
            stored.extend(batch.items.into_iter().map(|item| item.name));
        }
        stored
    }

    /// Each as a block of its own.
    async fn run_to(&self, pods: Vec<HeldPod>, workers: usize, batches: mpsc::Sender<Batch>) {
        self.run_blocks(pods.into_iter().map(|pod| vec![pod]).collect(), workers, batches).await;
    }

    async fn run_blocks(&self, pods: Vec<Vec<HeldPod>>, workers: usize, batches: mpsc::Sender<Batch>) {
        let requests = Arc::new(Semaphore::new(4));
        let lister = || Lister::new(self.api.client("velero"), 500, Duration::ZERO, Arc::clone(&requests));
        let access = self.reads_files.then(|| files::access(&self.api, lister()));
        let (volumes, _jobs) = RunVolumes::new(
            berth_core::volume::VolumeOptions::default(),
            Vec::new(),
            (String::new(), true),
            &self.log,
            &self.outcomes,
            access,
        );
        let blocks = Blocks {
            runner: HookRunner { exec: &self.played, log: &self.log, tally: &self.tally },
            lister: lister(),
            frozen: &self.frozen,
            counters: &self.counters,
            volumes: &volumes,
            batches,
            ending: &self.ending,
            lost: &self.lost,
            stop: &self.stop,
            workers,
        };
        let (sender, held) = mpsc::channel(pods.len().max(1));
        for pod in pods {
            assert!(sender.try_send(pod).is_ok());
        }
        drop(sender);
        let record = async {
            loop {
                self.frozen.wanted().await;
                if let Some(asked) = self.frozen.asked().filter(|_| self.is_written.load(Ordering::Relaxed)) {
                    self.played.note(format!("on record: {}", asked.pods));
                    self.frozen.stands(&asked);
                }
            }
        };
        tokio::select! {
            () = blocks.run(held) => {}
            () = record => {}
        }
    }

    /// Errors that a run which goes on knows from its checkpoint, whatever it reads again.
    fn lasting(&self) -> usize {
        self.log.told().iter().filter(|told| told.lasts).count()
    }

    fn status(&self) -> (u64, u64) {
        let status = self.tally.status().unwrap_or_default();
        let count = |count: Option<i64>| u64::try_from(count.unwrap_or_default()).unwrap();
        (count(status.hooks_attempted), count(status.hooks_failed))
    }
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_on_record_before_its_first_hook_and_hooks_run_in_their_order() {
    let site = Site::new();
    let mut side = Hook::clone(&hook("second", "ok"));
    side.container = Some("side".to_owned());
    let pod =
        site.pod("db", &[hook("first", "ok"), Arc::new(side)], &[hook("third", "ok"), hook("fourth", "ok")]);
    assert_eq!(site.run(vec![pod], 1).await, names(["db"]));
    let expected = [
        "on record: \"shop/db/u\"",
        "first in db/main",
        "second in db/side",
        "third in db/main",
        "fourth in db/main",
    ];
    assert_eq!(site.played.happened(), expected);
    assert_eq!((site.status(), site.log.counts()), ((4, 0), MessageCounts { warnings: 0, errors: 0 }));
    assert!(site.frozen.asked().unwrap().pods.is_null(), "it is taken off with the next write");
}

#[tokio::test(start_paused = true)]
async fn what_nothing_is_undone_after_costs_no_write() {
    let site = Site::new();
    let pod = site.pod("db", &[hook("dump", "ok")], &[]);
    assert_eq!(site.run(vec![pod], 1).await, names(["db"]));
    assert_eq!(site.played.happened(), ["dump in db/main"]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_costs_the_pod_only_where_its_hook_says_so_and_what_was_begun_is_undone() {
    for (pre, expected, is_stored, counts) in [
        (&[("a", "fail"), ("b", "ok")][..], &["a", "b", "thaw"][..], true, (3, 1)),
        (&[("a!", "ok"), ("b!", "fail"), ("c", "ok")], &["a", "b", "thaw"], false, (3, 1)),
        (&[("a!", "wait 31000"), ("b", "ok")], &["a", "thaw"], false, (2, 1)),
        (&[("a", "wait 31000"), ("b", "wait 29000")], &["a", "b", "thaw"], true, (3, 1)),
        (&[], &["thaw"], true, (1, 0)),
    ] {
        let site = Site::new();
        let pre: Vec<Arc<Hook>> = pre.iter().map(|(name, command)| hook(name, command)).collect();
        let pod = site.pod("db", &pre, &[hook("thaw", "ok")]);
        let stored = site.run(vec![pod], 1).await;
        assert_eq!(stored.contains("db"), is_stored, "{expected:?}");
        let happened = site.played.happened();
        let ran: Vec<&str> = happened.iter().filter_map(|line| line.strip_suffix(" in db/main")).collect();
        assert_eq!(ran, expected);
        assert_eq!((site.status(), u64::from(site.log.counts().errors)), (counts, counts.1));
        let left = if is_stored { 100 } else { 99 };
        assert_eq!(site.counters.total.load(Ordering::Relaxed), left, "{expected:?}");
        let mut pods = PackedNames::default();
        pods.insert("shop/db".to_owned());
        let mut list = [("v1/Pod".to_owned(), pods)].into();
        site.tally.correct(&mut list);
        assert_eq!(list.is_empty(), !is_stored);
    }
}

#[tokio::test(start_paused = true)]
async fn each_hook_after_a_pod_is_tried_whatever_became_of_the_others() {
    let site = Site::new();
    let post = [hook("one!", "fail"), hook("two", "wait 40000"), hook("three", "ok")];
    let pod = site.pod("db", &[], &post);
    assert_eq!(site.run(vec![pod], 1).await, names(["db"]));
    assert_eq!(site.played.happened()[1..], ["one in db/main", "two in db/main", "three in db/main"]);
    assert_eq!(site.status(), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_or_was_made_anew_is_left_alone_and_told_once() {
    let path = "/api/v1/namespaces/shop/pods/db";
    let anew = get(path).answers(json!({"metadata": {"name": "db", "uid": "of another"}}));
    for (answer, on_error, is_stored) in
        [(anew.clone(), "", true), (anew, "!", false), (get(path).refuses(404), "", true)]
    {
        let site = Site::new();
        site.api.once(answer);
        let pre = [hook("freeze", "ok"), hook(&format!("more{on_error}"), "ok")];
        let stored = site.run(vec![site.listed("db", &pre, &[hook("thaw", "ok")])], 1).await;
        assert_eq!(stored.contains("db"), is_stored);
        assert_eq!((site.status(), site.log.counts().errors), ((1, 1), 1));
        assert!(!site.played.happened().iter().any(|line| line.contains("main")));
    }
    // One that has nothing but a hook after it.
    let site = Site::new();
    site.api.once(get(path).refuses(404));
    site.run(vec![site.listed("db", &[], &[hook("thaw", "ok")])], 1).await;
    assert_eq!((site.status(), site.played.happened().len()), ((1, 1), 1));
}

#[tokio::test(start_paused = true)]
async fn two_hundred_hooks_of_a_tenth_of_a_second_take_ten_workers_two_seconds() {
    let site = Site::new();
    let pods = (0..100)
        .map(|i| site.pod(&format!("db-{i}"), &[hook("freeze", "wait 100")], &[hook("thaw", "wait 100")]));
    let pods = pods.collect();
    let begun = Instant::now();
    assert_eq!(site.run(pods, 10).await.len(), 100);
    assert!((2000..2100).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert_eq!(site.played.most_running(), 10);
    let happened = site.played.happened();
    let writes = happened.iter().filter(|line| line.starts_with("on record")).collect::<Vec<_>>();
    assert!(writes.len() <= 40, "{} writes", writes.len());
    assert!(writes.iter().all(|line| line.matches("shop/").count() <= 20), "{writes:#?}");
}

/// A fifth of a second after the beginning: one pod is between its hooks, one waits for its worker,
/// one for its turn.
#[tokio::test(start_paused = true)]
async fn a_backup_that_ends_early_undoes_what_it_has_begun_and_begins_nothing_more() {
    for (command, stored, took) in [
        // The hook that runs comes to its end.
        ("wait 1000", "", 1000),
        // It is not waited for without end.
        ("wait 3600000", "", 30_200),
        // It had come to its end, and the pod was stored.
        ("wait 100", "a", 300),
    ] {
        let site = Site::new();
        let mut freeze = Hook::clone(&hook("freeze", command));
        freeze.timeout = Duration::from_secs(7200);
        let slow = hook("thaw", if command == "wait 100" { "wait 200" } else { "ok" });
        let pods = ["a", "b", "c"].map(|name| {
            site.pod(
                name,
                &[Arc::new(freeze.clone()), hook("second", "ok")],
                &[slow.clone(), hook("last", "ok")],
            )
        });
        let begun = Instant::now();
        let story = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            site.ending.cancel();
        };
        let (done, ()) = tokio::join!(site.run(pods.into(), 1), story);
        assert_eq!(done.into_iter().collect::<String>(), stored, "{command}");
        let took_millis = begun.elapsed().as_millis();
        assert!((took..=took + 10).contains(&took_millis), "{command}: {took_millis}");
        let happened = site.played.happened();
        let ran: Vec<&str> = happened.iter().filter_map(|line| line.strip_suffix(" in a/main")).collect();
        let expected = if stored.is_empty() {
            vec!["freeze", "thaw", "last"]
        } else {
            vec!["freeze", "second", "thaw", "last"]
        };
        assert_eq!(ran, expected, "{command}");
        assert!(
            !happened.iter().any(|line| line.contains(" in b/") || line.contains(" in c/")),
            "{happened:?}"
        );
    }
}

/// Else it would count as frozen, and the next leader would run hooks in it.
#[tokio::test(start_paused = true)]
async fn a_pod_that_only_waits_for_its_turn_when_the_backup_ends_is_taken_off_the_record() {
    let site = Site::new();
    let pods = ["a", "b"].map(|name| site.pod(name, &[hook("freeze", "wait 1000")], &[hook("thaw", "ok")]));
    let story = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let happened = site.played.happened();
        assert!(happened.iter().any(|line| line.contains("shop/b/u")), "{happened:?}");
        site.ending.cancel();
    };
    tokio::join!(site.run(pods.into(), 1), story);
    assert!(!site.played.happened().iter().any(|line| line.contains(" in b/")));
    assert!(!site.frozen.has_any());
}

/// A leader that was held up for longer than its Lease lasts finds out when it asks for the record
/// once more.
#[tokio::test(start_paused = true)]
async fn a_hook_that_comes_late_is_run_only_if_the_record_is_still_ours() {
    for is_ours in [true, false] {
        let site = Site::new();
        let pre = [hook("first", "wait 2500"), hook("second", "ok")];
        let pod = site.pod("db", &pre, &[hook("thaw", "ok")]);
        let story = async {
            if !is_ours {
                tokio::time::sleep(Duration::from_secs(1)).await;
                // Nobody writes for it any more, which it is told a moment later.
                site.is_written.store(false, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(5)).await;
                site.ending.cancel();
            }
        };
        let (stored, ()) = tokio::join!(site.run(vec![pod], 1), story);
        assert_eq!(stored.len(), usize::from(is_ours));
        let happened = site.played.happened();
        let ran: Vec<&str> = happened.iter().filter_map(|line| line.strip_suffix(" in db/main")).collect();
        assert_eq!(ran, if is_ours { vec!["first", "second", "thaw"] } else { vec!["first", "thaw"] });
    }
}

/// Whatever fails and whenever the backup ends: where a hook before a pod was tried, each one after
/// it is, and later.
#[tokio::test(start_paused = true)]
async fn nothing_stays_frozen_whatever_happens() {
    let commands = ["ok", "fail", "wait 70", "wait 31000"];
    let mut dice = 7_u64;
    let mut roll = |sides: usize| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(dice >> 33).unwrap_or_default() % sides
    };
    for round in 0..200 {
        let site = Site::new();
        let pods: Vec<HeldPod> = (0..4)
            .map(|i| {
                let mut hooks = |name: &str, count: usize| -> Vec<Arc<Hook>> {
                    let name =
                        |n: usize, fail: usize| format!("{name}{n}{}", if fail == 0 { "!" } else { "" });
                    (0..count).map(|n| hook(&name(n, roll(3)), commands[roll(4)])).collect()
                };
                let (pre, post) = (hooks("pre", i % 3), hooks("post", 2));
                site.pod(&format!("p{i}"), &pre, &post)
            })
            .collect();
        let (at, workers) = (roll(120), 1 + roll(3));
        let story = async {
            tokio::time::sleep(Duration::from_millis(u64::try_from(at).unwrap())).await;
            site.ending.cancel();
        };
        let (_, ()) = tokio::join!(site.run(pods, workers), story);
        let happened = site.played.happened();
        for i in 0..4 {
            let of = |name: &str| -> Vec<usize> {
                let end = format!(" in p{i}/main");
                let lines = happened.iter().enumerate();
                let lines = lines.filter(|(_, line)| line.starts_with(name) && line.ends_with(&end));
                lines.map(|(at, _)| at).collect()
            };
            let (pre, post) = (of("pre"), of("post"));
            if let Some(last) = pre.last() {
                // Once more, where one before it may go on.
                assert!(
                    (2..=4).contains(&post.len()) && post.iter().all(|at| at > last),
                    "{round}: {happened:#?}"
                );
                let recorded =
                    |line: &String| line.starts_with("on record") && line.contains(&format!("shop/p{i}/u"));
                let at = happened.iter().position(recorded);
                assert!(at.is_some_and(|at| at < pre[0]), "{round}: {happened:#?}");
            }
        }
        assert!(site.played.most_running() <= workers, "{round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_looked_at_when_its_turn_has_come_and_one_that_has_ended_is_stored_without_hooks() {
    let site = Site::new();
    let first = site.pod("a", &[hook("freeze", "wait 1000")], &[hook("thaw", "ok")]);
    let played = site.played.clone();
    let ended = move |_: &serde_json::Value| {
        played.note("b is looked at".to_owned());
        json!({"metadata": {"name": "b", "uid": "u"}, "status": {"phase": "Succeeded"}})
    };
    site.api.once(get("/api/v1/namespaces/shop/pods/b").answers_with(ended));
    let second = site.listed("b", &[hook("freeze!", "ok")], &[hook("thaw", "ok")]);
    assert_eq!(site.run(vec![first, second], 1).await, names(["a", "b"]));
    let happened = site.played.happened();
    assert_eq!(happened.last().unwrap(), "b is looked at", "{happened:?}");
    assert_eq!((site.status(), site.log.counts().errors), ((2, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_keeps_no_pod_still() {
    let site = Site::new();
    let pod = site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "ok")]);
    let (batches, mut taken) = mpsc::channel(1);
    let other =
        Batch { kind: Arc::clone(&pod.kind), page: PageId::default(), items: Vec::new(), packed: None };
    assert!(batches.try_send(other).is_ok());
    let story = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(site.played.happened().last().unwrap(), "thaw in db/main");
        taken.recv().await.unwrap();
        taken.recv().await.unwrap().items.len()
    };
    let ((), stored) = tokio::join!(site.run_to(vec![pod], 1, batches), story);
    assert_eq!(stored, 1);
}

/// Whoever annotates pods holds up everybody's backups.
#[tokio::test(start_paused = true)]
async fn annotations_of_one_namespace_take_an_hour_of_a_backup_and_others_what_they_need() {
    let site = Site::new();
    let mut slow = Hook::clone(&hook("slow!", "wait 500000"));
    slow.timeout = limits::ANNOTATED_HOOK_TIMEOUT;
    let slow = [Arc::new(slow)];
    let of = |name: String, is_annotated: bool| {
        let mut pod = site.pod(&name, &slow, &[]);
        pod.hooks.is_annotated = is_annotated;
        pod
    };
    let mut pods: Vec<HeldPod> = (0..12).map(|i| of(format!("p{i}"), true)).collect();
    pods.push(of("by-spec".to_owned(), false));
    let begun = Instant::now();
    let stored = site.run(pods, 1).await;
    // What is to be left out where its hooks fail is left out where they are not run.
    let expected: BTreeSet<String> = (0..8).map(|i| format!("p{i}")).chain(["by-spec".to_owned()]).collect();
    assert_eq!(stored, expected);
    assert_eq!((begun.elapsed().as_secs(), site.log.counts().errors), (4500, 1));
    assert_eq!(site.lasting(), 1, "a run that goes on runs none of these hooks either");
    assert_eq!((site.status(), site.counters.total.load(Ordering::Relaxed)), ((9, 0), 96));
}

#[tokio::test(start_paused = true)]
async fn hooks_after_a_pod_are_waited_for_some_minutes_when_the_backup_ends_early() {
    let site = Site::new();
    let mut hung = Hook::clone(&hook("thaw", "wait 9000000"));
    hung.timeout = limits::HOOK_TIMEOUT;
    let pod = site.pod("db", &[hook("freeze", "ok")], &[Arc::new(hung)]);
    let begun = Instant::now();
    let story = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        site.ending.cancel();
    };
    let (_, ()) = tokio::join!(site.run(vec![pod], 1), story);
    assert_eq!(begun.elapsed().as_secs(), 3 + limits::LAST_HOOKS.as_secs());
    assert_eq!((site.log.counts().errors, site.lasting()), (1, 1), "whoever goes on runs them no more");
}

/// What a pod takes along.
fn along(resource: &str, name: &str) -> Batch {
    let kind = ResourceType {
        group: String::new(),
        version: "v1".to_owned(),
        kind: "Any".to_owned(),
        resource: resource.to_owned(),
        singular: "any".to_owned(),
        short_names: Vec::new(),
        namespaced: true,
    };
    let item = ArchiveItem {
        namespace: None,
        name: name.to_owned(),
        json: Bytes::from_static(b"{}"),
        lacks_type: true,
    };
    Batch { kind: Arc::new(kind), page: PageId::default(), items: vec![item], packed: None }
}

/// What has been stored since the last time, in this order.
fn came(taken: &mut mpsc::Receiver<Batch>) -> Vec<String> {
    let mut came = Vec::new();
    while let Ok(batch) = taken.try_recv() {
        came.extend(batch.items.into_iter().map(|item| item.name));
    }
    came
}

/// However large blocks are: a record has its bound, and each of them comes.
#[tokio::test(start_paused = true)]
async fn no_more_pods_are_on_record_at_one_time_than_there_is_room_for() {
    let site = Site::new();
    let (freeze, thaw) = ([hook("freeze", "ok")], [hook("thaw", "ok")]);
    let blocks: Vec<Vec<HeldPod>> =
        (0..64).map(|i| (0..16).map(|j| site.pod(&format!("p{i}-{j}"), &freeze, &thaw)).collect()).collect();
    let (batches, mut taken) = mpsc::channel(2000);
    site.run_blocks(blocks, 64, batches).await;
    assert_eq!(came(&mut taken).len(), 1024);
    let happened = site.played.happened();
    let records = happened.iter().filter(|line| line.starts_with("on record"));
    let most = records.map(|line| line.matches("shop/").count()).max().unwrap();
    assert!((16..=ON_RECORD as usize).contains(&most), "{most}");
}
