use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use berth_core::selection::{ResourceType, Selection, TypeSelection};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{DynObjectStore, ObjectStoreExt as _};
use proptest::prelude::*;
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::backup::index::ByteRange;
use crate::backup::ledger::{ListExtent, read_names};
use crate::backup::live_log;
use crate::backup::log::{BackupLog, MessageCounts, ResultsHeading};
use crate::backup::movement::Movement;
use crate::backup::operations::data_namespaces;
use crate::backup::removals::Removals;
use crate::backup::volumes::outcomes;
use crate::storage::BackupLayout;

fn kind(resource: &str, group: &str) -> ResourceType {
    ResourceType {
        group: group.into(),
        version: "v1".into(),
        kind: "Kind".into(),
        resource: resource.into(),
        singular: "kind".into(),
        short_names: vec!["k".into()],
        namespaced: true,
    }
}

fn checkpoint() -> Checkpoint {
    let types = [kind("configmaps", ""), kind("gadgets", "example.com")];
    let fates = [
        ("configmaps".to_owned(), TypeSelection::Listed),
        ("gadgets.example.com".to_owned(), TypeSelection::Needed),
    ];
    let selection = Selection::of(fates, true);
    let scope = BackupScope::of(&types, &selection, &HashSet::from(["app".to_owned()]), "a digest");
    let log = BackupLog::new("velero/b".into());
    log.error(&ResultsHeading::Namespace("app"), "configmaps", "gone");
    log.lasting_error(&ResultsHeading::Namespace("app"), "pods", "its hook failed");
    let volumes = json!({
        "claims": {"app/data": {"volume": "pv", "fate": {"snapshot": {"name": "s", "content": "c", "handle": "h"}}}},
        "hasFiles": true,
    });
    let hooks = json!({"attempted": 3, "failed": 1, "leftOut": ["app/db"]});
    let of = |place: usize, name: &str| Bytes::from(gzip_json(&BTreeMap::from([(place, [name])])).unwrap());
    Checkpoint {
        run: "r".into(),
        scope: Packed::new(&scope).unwrap(),
        uploaded: Uploaded { upload: "u".into(), parts: vec![Receipt { id: "\"tag\"".into(), size: 7 }] },
        tail: Bytes::from_static(b"rest"),
        is_whole: false,
        is_collected: true,
        balance: Balance {
            extents: Extents::from([(1, ListExtent { is_whole: true, ..ListExtent::default() })]),
            names: vec![of(0, "app/a"), of(1, "app/b")],
            count: 2,
            index: {
                let mut index = ArchiveIndex::default();
                index.note("pods", &["app/a".to_owned(), "app/b".to_owned()], ByteRange { from: 3, to: 7 });
                index
            },
        },
        remembered: Remembered {
            told: log.told(),
            untold: Untold::from([("pods".into(), MessageCounts { warnings: 0, errors: 2 })]),
            hooks: serde_json::from_value(hooks).unwrap(),
            operations: vec![Movement { upload: "b-0123".into(), ..Movement::default() }],
            volumes: serde_json::from_value(volumes).unwrap(),
            moment: vec![(false, "as of then".into())],
        },
        lines: log.lines().unwrap().into(),
    }
}

#[test]
fn a_checkpoint_is_read_as_it_was_written() {
    let written = checkpoint();
    let (remembered, lines) = (written.remembered.clone(), written.lines.clone());
    let digest = written.scope.digest();
    let content = Bytes::from(written.content().unwrap());
    let (head, _) = CheckpointHead::read(content.slice(..content.len().min(HEAD))).unwrap();
    assert_eq!(head.says(), run::CheckpointIdentity { run: "r", scope: &digest });
    let (told, log) = Checkpoint::read_notes(content.slice(..content.len().min(NOTES))).unwrap();
    assert_eq!((&told.told, &told.untold, &log), (&remembered.told, &remembered.untold, &lines));
    assert!(Checkpoint::read_notes(content.slice(..content.len() / 4)).is_err());
    let read = Checkpoint::read(content.clone()).unwrap();
    assert_eq!((read.run.as_str(), read.is_whole, &read.tail[..]), ("r", false, &b"rest"[..]));
    assert_eq!((read.uploaded.size(), &read.remembered, &read.lines), (7, &remembered, &lines));
    let names = serde_json::to_value(read_names(&read.balance.names).unwrap()).unwrap();
    assert_eq!(names, json!({"0": ["app/a"], "1": ["app/b"]}));
    assert!(read.balance.extents[&1].is_whole);
    let scope = read.scope.open().unwrap();
    let types = scope.types();
    assert_eq!(types, [kind("configmaps", ""), kind("gadgets", "example.com")]);
    let selection = scope.selection();
    assert!(selection.all_namespaces && scope.resolved().contains("app") && scope.policy() == "a digest");
    assert_eq!([0, 1].map(|i| selection.fate(&types[i])), [TypeSelection::Listed, TypeSelection::Needed]);
    for damaged in [content.slice(..content.len() - 1), content.slice(1..), Bytes::new()] {
        assert!(Checkpoint::read(damaged).is_err());
    }
    let mut other = content.to_vec();
    *other.last_mut().unwrap() ^= 1;
    assert!(Checkpoint::read(other.into()).is_err());
}

#[test]
fn the_log_of_a_run_is_read_from_the_beginning_of_its_checkpoint() {
    let written = checkpoint();
    let lines = written.lines.clone();
    let content = Bytes::from(written.content().unwrap());
    let start = |content: &Bytes| content.slice(..content.len().min(live_log::START));
    let extent = live_log::extent(&start(&content)).unwrap();
    assert!(extent.bytes < content.len());
    assert_eq!(live_log::lines(content.slice(..extent.bytes)).unwrap(), lines);
    assert!(live_log::lines(content.slice(..extent.bytes - 1)).is_err());
    let other = Checkpoint { tail: Bytes::from_static(b"more"), ..checkpoint() };
    let other = Bytes::from(other.content().unwrap());
    assert_ne!(live_log::extent(&start(&other)).unwrap().digest, extent.digest);
    for bad in [Bytes::new(), lines, content.slice(1..)] {
        assert!(live_log::extent(&bad).is_err());
    }
}

#[test]
fn an_index_too_long_for_a_checkpoint_does_not_keep_a_run_from_going_on() {
    for (begin, is_kept) in [('a', true), ('\u{1}', false)] {
        let mut written = checkpoint();
        let index = crate::backup::index::tests::full(begin, 300);
        written.balance.index = index.clone();
        let read = Checkpoint::read(written.content().unwrap().into()).unwrap();
        let expected = if is_kept { index } else { ArchiveIndex::void() };
        assert!(read.balance.index.counted() == expected, "{begin:?}");
        assert_eq!(read.balance.count, 2, "what is stored is known");
    }
}

/// As `forge` writes it, whole and with a digest that is right.
fn read_forged(forge: impl FnOnce(&mut Checkpoint)) -> anyhow::Result<Checkpoint> {
    let mut forged = checkpoint();
    forge(&mut forged);
    Checkpoint::read(forged.content().unwrap().into())
}

#[test]
fn a_checkpoint_that_says_what_cannot_be_is_none() {
    assert!(read_forged(|_| ()).is_ok());
    let part = |size| Receipt { id: "tag".into(), size };
    for parts in [vec![part(u64::MAX), part(1)], vec![part(MOST_STORED), part(1)]] {
        assert!(read_forged(|forged| forged.uploaded.parts = parts).is_err());
    }
    for hooks in [json!({"attempted": u64::MAX}), json!({"attempted": 1, "failed": 2})] {
        let hooks = serde_json::from_value(hooks).unwrap();
        assert!(read_forged(|forged| forged.remembered.hooks = hooks).is_err());
    }
    // The line may say whatever it likes of a scope: what follows is what counts.
    let content = Bytes::from(checkpoint().content().unwrap());
    let (mut head, rest) = CheckpointHead::read(content).unwrap();
    head.scope = "that of the Backup".into();
    let line = serde_json::to_vec(&head).unwrap();
    assert!(Checkpoint::read([&line[..], &b"\n"[..], &rest[..]].concat().into()).is_err());
}

/// Whoever ends a backup reads it without counting a run for that.
#[test]
fn no_more_is_noted_of_a_checkpoint_than_a_run_tells() {
    let notes = |content: PutPayload| {
        let content = Bytes::from(content);
        Checkpoint::read_notes(content.slice(..content.len().min(NOTES)))
    };
    let with = |count: usize, message: &str| {
        let mut forged = checkpoint();
        let one = json!({"level": "warning", "resource": "", "message": message});
        forged.remembered.told = vec![serde_json::from_value(one).unwrap(); count];
        forged.content().unwrap()
    };
    assert_eq!(notes(with(10_002, "m")).unwrap().0.told.len(), 10_002);
    assert!(notes(with(10_003, "m")).is_err());
    assert!(notes(with(10, &"m".repeat(1 << 20))).is_err(), "it unpacks to more than is read");
    // And no run goes on from there.
    assert!(Checkpoint::read(with(10_003, "m").into()).is_err());
}

/// What a deleted Backup has stored is forgotten without counting a run for that, too.
#[test]
fn of_the_data_of_a_deleted_backup_only_namespaces_are_read_and_so_many() {
    let namespaces = |operations: Vec<Movement>| {
        let mut forged = checkpoint();
        forged.remembered.operations = operations;
        let content = Bytes::from(forged.content().unwrap());
        Checkpoint::read_namespaces(content.slice(..content.len().min(NOTES)))
    };
    let of = |namespace: &str| Movement { namespace: namespace.into(), ..Movement::default() };
    let odd = [of("shop"), of("../up"), of("app"), of(""), of(&"a".repeat(1000)), of("shop")];
    let found: Vec<String> = namespaces(odd.to_vec()).unwrap().into_iter().collect();
    assert_eq!(found, ["app", "shop"], "the others cannot be namespaces");
    assert!(namespaces(vec![of("shop"); MOST_MOVEMENTS]).is_ok());
    assert!(namespaces(vec![of("shop"); MOST_MOVEMENTS + 1]).is_err());
    assert!(namespaces(vec![of(&"a".repeat(1 << 20)); 40]).is_err(), "it unpacks to more than is read");
    assert!(Checkpoint::read_namespaces(Bytes::new()).is_err());
    let of_files = |all: Vec<String>| {
        let mut forged = checkpoint();
        forged.remembered.operations = vec![of("shop")];
        forged.remembered.volumes.file_namespaces = all.into_iter().collect();
        Checkpoint::read_namespaces(forged.content().unwrap().into())
    };
    let found = of_files(vec!["../up".to_owned(), "files".to_owned()]).unwrap();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["files", "shop"], "of both kinds of data");
    let many = |count: usize| (0..count).map(|i| format!("n{i}")).collect();
    assert_eq!(of_files(many(outcomes::MOST_NOTED)).unwrap().len(), outcomes::MOST_NOTED + 1);
    assert!(of_files(many(outcomes::MOST_NOTED + 1)).is_err());
}

/// Whoever runs a store chooses how long the list of its repositories is.
#[tokio::test(start_paused = true)]
async fn two_lists_of_repositories_are_in_memory_at_one_time_however_many_deletions_run() {
    let list = Duration::from_secs(10);
    let slow = ThrottleConfig { wait_list_with_delimiter_per_call: list, ..ThrottleConfig::default() };
    let store: Arc<DynObjectStore> = Arc::new(ThrottledStore::new(InMemory::new(), slow));
    for namespace in ["shop", "others"] {
        store.put(&Path::from(format!("restic/{namespace}/config")), "x".into()).await.unwrap();
    }
    let layout = BackupLayout::new(store, None, "one");
    let mut with_data = checkpoint();
    with_data.remembered.volumes.file_namespaces = ["shop", "gone"].map(str::to_owned).into();
    layout.put_checkpoint(with_data.content().unwrap(), None).await.unwrap();
    let (removals, begun) = (Removals::default(), Instant::now());
    let looks = (0..5).map(|_| data_namespaces(&layout, &removals));
    for found in futures::future::join_all(looks).await {
        assert_eq!(found.unwrap(), ["shop".to_owned()].into());
    }
    assert_eq!(begun.elapsed(), 3 * list);
}

#[test]
fn what_would_lead_elsewhere_in_an_address_is_no_type() {
    let open = |group: &str, version: &str, resource: &str| {
        let kind = ResourceType { version: version.into(), ..kind(resource, group) };
        let selection = Selection::of([(kind.qualified(), TypeSelection::Listed)], true);
        Packed::new(&BackupScope::of(&[kind], &selection, &HashSet::new(), "")).unwrap().open()
    };
    assert!(open("", "v1", "pods").is_ok() && open("example.com", "v1beta1", "gadgets").is_ok());
    for odd in ["../..", "a/b", "..", "a%2Fb", "a?b", "a#b", "a b"] {
        assert!(open(odd, "v1", "pods").is_err(), "{odd}");
        assert!(open("", odd, "pods").is_err(), "{odd}");
        assert!(open("", "v1", odd).is_err(), "{odd}");
    }
    assert!(open("", "", "pods").is_err() && open("", "v1", "").is_err());
}

/// Of a file that is larger than memory no more is looked at than this.
#[test]
fn a_first_line_that_is_too_long_is_none() {
    let line = |length: usize| {
        let mut line = vec![b' '; length];
        line.extend(Bytes::from(checkpoint().content().unwrap()));
        CheckpointHead::read(line.into()).is_ok()
    };
    assert!(line(1) && !line(HEAD));
}

/// Each version has another line: a controller that was upgraded aborts what the one before it had
/// begun.
#[test]
fn the_upload_of_a_checkpoint_is_known_whichever_version_wrote_it() {
    let ours = Bytes::from(checkpoint().content().unwrap());
    assert_eq!(CheckpointHead::upload_of(&ours).as_deref(), Some("u"));
    let parts = r#"{"id":"\"tag\"","size":8388608},"#.repeat(200);
    let first = format!(r#"{{"version":1,"run":"r","uploaded":{{"upload":"a/b\"c","parts":[{parts}"#);
    let second = r#"{"version":2,"run":"r","scope":"s","upload":"u2","lengths":[1,2,3,4,5,6],"digest":"d"}"#;
    for (start, upload) in [
        (first.as_str(), Some("a/b\"c")),
        (second, Some("u2")),
        (r#"{"version":4,"upload":"u4","#, Some("u4")),
        // It had begun none, or says it where no line does, or says something else there.
        (r#"{"version":3,"run":"r","upload":"","lengths":[]}"#, None),
        (r#"{"version":2,"run":"r","scope":"s","lengths":[1,2,3,4,5,6],"digest":"d"}"#, None),
        (r#"{"version":2,"run":"\"upload\":\"no\"","lengths":[]}"#, None),
        (r#"{"version":9,"upload":{"id":"u9"}}"#, None),
        (r#"{"version":1,"uploaded":{"upload":"cut o"#, None),
        ("{\"version\":2}\n\"upload\":\"behind\"", None),
        ("", None),
    ] {
        assert_eq!(CheckpointHead::upload_of(start.as_bytes()).as_deref(), upload, "{start}");
    }
    let far = format!("{}{second}", " ".repeat(HEAD));
    assert_eq!(CheckpointHead::upload_of(far.as_bytes()), None);
}

proptest! {
    #[test]
    fn nothing_that_anybody_writes_there_ends_us(bytes in prop::collection::vec(any::<u8>(), 0..200), header in any::<bool>()) {
        let mut content = bytes;
        if header {
            let lengths = r#"{"version":3,"run":"","scope":"","lengths":[18446744073709551615,1,0,0,0,0],"digest":"#;
            let digest = digest([&Bytes::from(content.clone())]);
            content = [format!("{lengths}\"{digest}\"}}\n").into_bytes(), content].concat();
        }
        let content = Bytes::from(content);
        let _ = CheckpointHead::upload_of(&content);
        prop_assert!(Checkpoint::read_notes(content.clone()).is_err());
        prop_assert!(Checkpoint::read(content).is_err());
    }
}
