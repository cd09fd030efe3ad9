use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::backup::ledger::{Extent, read_names};
use crate::backup::log::{About, BackupLog};

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
    let fates = [("configmaps".to_owned(), Fate::Listed), ("gadgets.example.com".to_owned(), Fate::Needed)];
    let selection = Selection::of(fates, true);
    let scope = Scope::of(&types, &selection, &HashSet::from(["app".to_owned()]), "a digest");
    let log = BackupLog::new("velero/b".into());
    log.error(&About::Namespace("app"), "configmaps", "gone");
    log.lasting_error(&About::Namespace("app"), "pods", "its hook failed");
    let hooks = json!({"attempted": 3, "failed": 1, "leftOut": ["app/db"]});
    let of = |place: usize, name: &str| Bytes::from(gzip_json(&BTreeMap::from([(place, [name])])).unwrap());
    Checkpoint {
        run: "r".into(),
        scope: Packed::new(&scope).unwrap(),
        uploaded: Uploaded { upload: "u".into(), parts: vec![Receipt { id: "\"tag\"".into(), size: 7 }] },
        tail: Bytes::from_static(b"rest"),
        is_whole: false,
        balance: Balance {
            extents: Extents::from([(1, Extent { is_whole: true, ..Extent::default() })]),
            names: vec![of(0, "app/a"), of(1, "app/b")],
            count: 2,
        },
        remembered: Remembered {
            told: log.told(),
            hooks: serde_json::from_value(hooks).unwrap(),
            moment: vec![(false, "as of then".into())],
        },
        lines: log.lines().unwrap().into(),
    }
}

#[test]
fn a_checkpoint_is_read_as_it_was_written() {
    let written = checkpoint();
    let (remembered, lines) = (written.remembered.clone(), written.lines.clone());
    let content = Bytes::from(written.content().unwrap());
    let read = Checkpoint::read(content.clone()).unwrap();
    assert_eq!((read.run.as_str(), read.is_whole, &read.tail[..]), ("r", false, &b"rest"[..]));
    assert_eq!((read.uploaded.size(), &read.remembered, &read.lines), (7, &remembered, &lines));
    let names = serde_json::to_value(read_names(&read.balance.names).unwrap()).unwrap();
    assert_eq!(names, json!({"0": ["app/a"], "1": ["app/b"]}));
    assert!(read.balance.extents[&1].is_whole);
    let scope = read.scope.open().unwrap();
    let types = scope.types();
    assert_eq!(
        types.iter().map(ResourceType::qualified).collect::<Vec<_>>(),
        ["configmaps", "gadgets.example.com"]
    );
    let selection = scope.selection();
    assert!(selection.all_namespaces && scope.resolved().contains("app") && scope.policy() == "a digest");
    assert_eq!([0, 1].map(|i| selection.fate(&types[i])), [Fate::Listed, Fate::Needed]);
    for damaged in [content.slice(..content.len() - 1), content.slice(1..), Bytes::new()] {
        assert!(Checkpoint::read(damaged).is_err());
    }
    let mut other = content.to_vec();
    *other.last_mut().unwrap() ^= 1;
    assert!(Checkpoint::read(other.into()).is_err());
}

proptest! {
    #[test]
    fn nothing_that_anybody_writes_there_ends_us(bytes in prop::collection::vec(any::<u8>(), 0..200), header in any::<bool>()) {
        let mut content = bytes;
        if header {
            let lengths = r#"{"version":1,"run":"","uploaded":{"upload":"","parts":[]},"isWhole":false,"extents":{},"count":0,"lengths":[18446744073709551615,1,0,0,0],"digest":"#;
            let digest = digest([&Bytes::from(content.clone())]);
            content = [format!("{lengths}\"{digest}\"}}\n").into_bytes(), content].concat();
        }
        prop_assert!(Checkpoint::read(content.into()).is_err());
    }
}
