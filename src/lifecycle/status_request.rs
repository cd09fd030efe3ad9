//! Answers ServerStatusRequests, by which `velero version` and `velero plugin get` ask who serves
//! them, and removes them a minute later.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::keys::FILESYSTEM_PROVIDER;
use berth_api::velero::{
    PluginInfo, ServerStatusRequest, ServerStatusRequestPhase as Phase, ServerStatusRequestStatus,
};
use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::watcher;
use serde_json::json;
use tokio::time::sleep;
use tracing::warn;

use super::Lifecycle;
use crate::cache::SharedCache;
use crate::lean;
use crate::text::chain;
use crate::watch::{WatchEvent, of_namespace, reflect};
use crate::write::{Write, WriteResult, delete, patch};

/// How long an answer stays.
const STAYS: SignedDuration = SignedDuration::from_mins(1);
/// No request stays for longer, whether or not it could be answered, and whatever time somebody has
/// written into it.
const LONGEST: SignedDuration = SignedDuration::from_mins(10);
const TICK: Duration = Duration::from_secs(5);
/// Requests that are answered or removed at the same time.
const AT_ONCE: usize = 10;
/// Requests that one turn looks at. Whoever creates more waits for the next turn.
const MOST: usize = 1000;

/// What berth has where Velero has plugins, by Velero's names.
const PLUGINS: [(&str, &str); 12] = [
    ("velero.io/csi-volumesnapshot-backupper", "BackupItemActionV2"),
    ("velero.io/csi-volumesnapshotclass-backupper", "BackupItemActionV2"),
    ("velero.io/csi-volumesnapshotcontent-backupper", "BackupItemActionV2"),
    ("velero.io/pod", "BackupItemAction"),
    ("velero.io/pv", "BackupItemAction"),
    ("velero.io/service-account", "BackupItemAction"),
    ("velero.io/pod", "ItemBlockAction"),
    ("velero.io/pvc", "ItemBlockAction"),
    (FILESYSTEM_PROVIDER, "ObjectStore"),
    ("velero.io/aws", "ObjectStore"),
    ("velero.io/azure", "ObjectStore"),
    ("velero.io/gcp", "ObjectStore"),
];

/// The version of Velero whose server berth stands for, with berth's own as build metadata, so that
/// programs can read it as a version.
fn version() -> String {
    format!("v1.18.3+berth.{}", env!("CARGO_PKG_VERSION"))
}

/// Runs for ever.
pub async fn run(lifecycle: &Lifecycle) {
    let known: SharedCache<BTreeMap<String, ServerStatusRequest>> = SharedCache::default();
    let following = reflect(
        of_namespace(&lifecycle.clients.watch, &lifecycle.namespace),
        watcher::Config::default(),
        |request: ServerStatusRequest| (request.name_any(), kept(request)),
        |event: WatchEvent<(String, ServerStatusRequest)>| known.write(|all| event.apply_to(all)),
    );
    let api = Api::namespaced(lifecycle.clients.call.clone(), &lifecycle.namespace);
    let answering = async {
        let mut changed = known.changed();
        loop {
            let now = Timestamp::now();
            let due = due(known.read().values(), now);
            futures::stream::iter(due).for_each_concurrent(AT_ONCE, |one| serve(&api, one, now)).await;
            tokio::select! {
                _ = changed.changed() => {}
                () = sleep(TICK) => {}
            }
        }
    };
    tokio::join!(following, answering);
}

/// What is kept of a request, because whoever asks chooses its size.
fn kept(request: ServerStatusRequest) -> ServerStatusRequest {
    let status = request.status.map(|status| ServerStatusRequestStatus {
        phase: status.phase,
        processed_timestamp: status.processed_timestamp,
        ..ServerStatusRequestStatus::default()
    });
    ServerStatusRequest { metadata: lean::metadata(request.metadata, &[], &[]), spec: request.spec, status }
}

/// What there is to do about requests: those that nobody has answered come first, because somebody
/// waits for them, and then those that are over. One that somebody's finalizer keeps from going is
/// done with, as if it were gone.
fn due<'a>(
    all: impl Iterator<Item = &'a ServerStatusRequest> + Clone,
    now: Timestamp,
) -> Vec<ServerStatusRequest> {
    let all = all.filter(|one| one.metadata.deletion_timestamp.is_none());
    let is_over = |one: &&ServerStatusRequest| is_over(one, now);
    let is_new = |one: &&ServerStatusRequest| !is_answered(one) && !is_over(one);
    all.clone().filter(is_new).chain(all.filter(is_over)).take(MOST).cloned().collect()
}

fn is_answered(request: &ServerStatusRequest) -> bool {
    request.status.as_ref().and_then(|status| status.phase) == Some(Phase::Processed)
}

/// Is it to be removed? One that has an answer without a time was not answered here, and nobody
/// waits for it, nor for one that could not be answered for so long.
fn is_over(request: &ServerStatusRequest, now: Timestamp) -> bool {
    let created = request.metadata.creation_timestamp.as_ref();
    let answered = request.status.as_ref().and_then(|status| status.processed_timestamp.as_ref());
    let since = |at: &Time| now.duration_since(at.0);
    let is_read = is_answered(request) && answered.or(created).is_none_or(|at| since(at) >= STAYS);
    is_read || created.is_some_and(|at| since(at) >= LONGEST)
}

async fn serve(api: &Api<ServerStatusRequest>, request: ServerStatusRequest, now: Timestamp) {
    let name = request.name_any();
    let answer = if is_over(&request, now) {
        delete(api, Write::on(&request).version(None)).await
    } else if is_answered(&request) {
        return;
    } else {
        let plugins: Vec<PluginInfo> =
            PLUGINS.map(|(name, kind)| PluginInfo { name: name.to_owned(), kind: kind.to_owned() }).into();
        let status = ServerStatusRequestStatus::processed(now, &version(), &plugins);
        discard(patch(api, Write::on(&request), json!({"status": status})).await)
    };
    match answer {
        WriteResult::Written(()) | WriteResult::Conflict(_) | WriteResult::Gone(_) => {}
        WriteResult::Refused(error) => {
            warn!(%name, error = chain(&error), "failed to answer a ServerStatusRequest");
        }
        WriteResult::TimedOut => warn!(%name, "answering a ServerStatusRequest took too long"),
    }
}

fn discard<K>(answer: WriteResult<K>) -> WriteResult<()> {
    match answer {
        WriteResult::Written(_) => WriteResult::Written(()),
        WriteResult::Conflict(error) => WriteResult::Conflict(error),
        WriteResult::Gone(error) => WriteResult::Gone(error),
        WriteResult::Refused(error) => WriteResult::Refused(error),
        WriteResult::TimedOut => WriteResult::TimedOut,
    }
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, delete as delete_of, patch as patch_of};
    use serde_json::Value;

    use super::*;

    const ONE: &str = "/apis/velero.io/v1/namespaces/velero/serverstatusrequests/one";

    fn request(status: &Value) -> ServerStatusRequest {
        let object = json!({
            "apiVersion": "velero.io/v1", "kind": "ServerStatusRequest",
            "metadata": {"name": "one", "namespace": "velero", "uid": "u", "resourceVersion": "7"},
            "spec": {}, "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    async fn served(api: &Scripted, status: Value, now: &str) {
        let requests = Api::namespaced(api.client("velero"), "velero");
        serve(&requests, request(&status), now.parse().unwrap()).await;
    }

    #[test]
    fn whoever_waits_for_an_answer_comes_before_all_that_are_answered() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let answered = |at: &str| request(&json!({"phase": "Processed", "processedTimestamp": at}));
        let (young, old) = (answered("2026-01-01T00:00:59Z"), answered("2026-01-01T00:00:00Z"));
        let mut all = vec![young; MOST];
        all.extend(vec![old; MOST]);
        all.push(request(&json!({})));
        let due = due(all.iter(), now);
        assert_eq!(due.len(), MOST, "the rest has another turn");
        assert!(!is_answered(&due[0]) && due[1..].iter().all(|one| is_over(one, now)));
    }

    /// As one that is as large as the API server takes, and so cannot take an answer.
    #[test]
    fn no_request_stays_for_ever_whatever_stands_in_it() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let created = |status: &Value, at: &str| {
            let mut made = request(status);
            made.metadata.creation_timestamp = Some(Time(at.parse().unwrap()));
            made
        };
        let far = json!({"phase": "Processed", "processedTimestamp": "2099-01-01T00:00:00Z"});
        for status in [json!({}), far] {
            let old = created(&status, "2026-01-01T00:00:00Z");
            assert!(is_over(&old, now), "{status}");
            assert_eq!(due([old.clone()].iter(), now).len(), 1);
            assert!(!is_over(&created(&status, "2026-01-01T00:00:01Z"), now), "{status}");
            let mut going = old;
            going.metadata.deletion_timestamp = Some(Time(now));
            assert!(due([going].iter(), now).is_empty(), "somebody's finalizer keeps it");
        }
    }

    #[test]
    fn a_request_takes_little_memory_whatever_is_in_it() {
        let mut made = request(&json!({
            "phase": "Processed", "processedTimestamp": "2026-01-01T00:00:00Z",
            "plugins": vec![json!({"name": "x".repeat(1000), "kind": "y"}); 1000],
        }));
        made.metadata.annotations = Some((0..1000).map(|i| (format!("a{i}"), "x".repeat(1000))).collect());
        let found = kept(made.clone());
        assert!(crate::patch::json_size(&found) < 2000, "{found:?}");
        let now = "2026-01-01T00:00:30Z".parse().unwrap();
        assert_eq!((is_answered(&found), is_over(&found, now)), (is_answered(&made), is_over(&made, now)));
        assert_eq!(found.metadata.uid, made.metadata.uid);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_request_is_answered_and_an_answered_one_goes_a_minute_later() {
        let answered = json!({"phase": "Processed", "processedTimestamp": "2026-01-01T00:00:00Z"});
        let api =
            Scripted::new().next(patch_of(ONE).answers(serde_json::to_value(request(&answered)).unwrap()));
        served(&api, json!({}), "2026-01-01T00:00:00Z").await;
        let written = &api.writes()[0].body;
        assert_eq!(written["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        assert_eq!(written["status"]["phase"], "Processed");
        assert_eq!(written["status"]["processedTimestamp"], "2026-01-01T00:00:00Z");
        assert_eq!(written["status"]["serverVersion"], version());
        let plugins = written["status"]["plugins"].as_array().unwrap();
        assert!(plugins.contains(&json!({"name": "velero.io/aws", "kind": "ObjectStore"})), "{plugins:?}");

        served(&api, answered.clone(), "2026-01-01T00:00:59Z").await;
        assert_eq!(api.writes().len(), 1, "it may not have been read yet");
        let gone = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"});
        let api = Scripted::new().next(delete_of(ONE).answers(gone));
        served(&api, answered, "2026-01-01T00:01:00Z").await;
    }
}
