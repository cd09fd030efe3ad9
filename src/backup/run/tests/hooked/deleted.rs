//! Backups that are deleted while a hook of theirs runs, and what begins only when it has ended.

use prometheus_client::metrics::counter::Counter;

use super::*;
use crate::backup::runner::Runner;
use crate::events::Events;
use crate::queue::{BackupCache, QueueSettings};
use crate::watch::WatchEvent;

fn ready(name: &str, uid: &str, namespace: &str) -> Backup {
    let mut ready = backup("7", "ReadyToStart");
    ready["metadata"]["name"] = json!(name);
    ready["metadata"]["uid"] = json!(uid);
    ready["spec"]["includedNamespaces"] = json!([namespace]);
    serde_json::from_value(ready).unwrap()
}

/// Runs Backup one, and deletes it while its hook runs. `next` is there from then on. Returns when
/// `has_begun`.
async fn deletes_one(hooked: &Hooked, next: Backup, has_begun: impl Fn() -> bool) {
    let never = Hold::new();
    hooked.site.api.once(get(PODS).page("more").never_answers().held(&never));
    let store = Arc::new(BackupCache::new(QueueSettings { slots: 2, ..QueueSettings::default() }));
    store.observe(WatchEvent::Replaced(vec![ready("one", "u", "app")]));
    let exec: Arc<dyn Exec> = Arc::new(hooked.played.clone());
    let runner = Runner {
        engine: Engine { exec, ..engine(&hooked.site.api, &hooked.site.folder, AfterInterruption::Fail) },
        store: Arc::clone(&store),
        uploads: Arc::default(),
        events: Events::new(hooked.site.api.client("velero"), "velero", Counter::default()).0,
        stop: CancellationToken::new(),
        drain: Duration::ZERO,
    };
    let story = async {
        never.asked().await;
        hooked.begins().await;
        store.observe(WatchEvent::Deleted("one".to_owned()));
        store.observe(WatchEvent::Applied(next));
        while !has_begun() {
            tokio::task::yield_now().await;
        }
    };
    let both = async {
        tokio::select! {
            () = runner.run() => {}
            () = story => {}
        }
    };
    tokio::time::timeout(LONG, both).await.unwrap();
}

/// Else it would freeze pods that the first one thaws a moment later.
#[tokio::test]
async fn a_backup_begins_only_when_the_hooks_of_a_deleted_one_of_its_namespaces_have_ended() {
    let hooked = Hooked::new("wait 50");
    let two = "/apis/velero.io/v1/namespaces/velero/backups/two";
    let played = hooked.played.clone();
    // Not the one that is looked for: more of it is nobody's business.
    hooked.site.api.always(get(two).answers_with(move |_| {
        played.note("two".to_owned());
        backup("9", "Completed")
    }));
    let has_begun = || hooked.played.happened().iter().any(|line| line == "two");
    deletes_one(&hooked, ready("two", "v", "app"), has_begun).await;
    assert_eq!(hooked.played.happened(), [FREEZES, THAWS, "two"]);
}

/// Else both would write to one folder, and the first would remove what the second stores. Nothing
/// but the name keeps them apart: they share no namespace.
#[tokio::test]
async fn a_backup_that_is_made_again_under_its_name_begins_only_when_the_deleted_one_has_ended() {
    let hooked = Hooked::new("wait 50");
    // What each run asks for first, besides its Backup.
    let begun = || hooked.site.api.asked().iter().filter(|asked| *asked == "GET /readyz").count();
    deletes_one(&hooked, ready("one", "v", "other"), || begun() >= 2).await;
    assert_eq!(hooked.played.happened(), [FREEZES, THAWS]);
    assert_eq!(hooked.site.stored(), [""; 0], "the first one has removed what it had stored");
}
