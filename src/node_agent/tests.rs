use berth_api::keys::BY_MOVER;
use berth_core::pod_volume::others::SILENCE;
use berth_test_scripted::{Scripted, Watch, get, list, patch, watch};
use serde_json::{Value, json};

use super::*;

const BACKUPS: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";
const BACKUP: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups/b";

fn backup(version: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
        "metadata": {"name": "b", "namespace": "velero", "uid": "u", "resourceVersion": version},
        "spec": {"node": "n1", "uploaderType": "restic"}, "status": {"phase": phase},
    })
}

fn of_another(version: &str) -> Value {
    let mut object = backup(version, "InProgress");
    object["metadata"]["annotations"] = json!({CARRIER: "n1/another.1"});
    object
}

/// An agent of an API server that has this backup at first.
fn agent(api: &Scripted, listed: Value) -> Agent {
    agent_with(api, listed, FileAccess::Agent)
}

fn agent_with(api: &Scripted, listed: Value, access: FileAccess) -> Agent {
    api.always(get(BACKUPS).answers(list("7", &[listed]))).always(watch(BACKUPS).never_answers());
    for path in [
        "/apis/velero.io/v1/namespaces/velero/podvolumerestores",
        "/apis/velero.io/v1/namespaces/velero/backuprepositories",
        "/api/v1/pods",
    ] {
        api.always(get(path).answers(list("7", &[]))).always(watch(path).never_answers());
    }
    let client = api.client("velero");
    let opener = Opener::new(client.clone(), "velero", Vec::new().into());
    let clients = Clients { watch: client.clone(), call: client };
    Agent::new(clients, Settings { access, ..Settings::of_tests("/pods") }, opener)
}

#[tokio::test(start_paused = true)]
async fn what_another_process_has_begun_meanwhile_is_not_taken_back_from_it() {
    let object = backup("7", "InProgress");
    let api = Scripted::new()
        .always(patch(BACKUP).answers(object.clone()))
        .always(get(BACKUP).answers(of_another("7")));
    let agent = agent(&api, object);
    let begun = async {
        sleep(SILENCE / 2).await;
        let first = api.writes().len();
        sleep(SILENCE).await;
        [first, api.writes().len()]
    };
    tokio::select! {
        () = agent.run(CancellationToken::new()) => unreachable!("nobody told it to end"),
        begun = begun => assert_eq!(begun, [1, 2], "it is begun again if that one does not end it"),
    }
}

/// Two agents of a node may live, after the pod of one was removed by force.
#[tokio::test(start_paused = true)]
async fn what_another_process_was_the_first_to_begin_is_left_to_it() {
    let events = Watch::new();
    // It is begun by the other one before this one's write comes.
    let api = Scripted::new().always(patch(BACKUP).refuses(409)).once(watch(BACKUPS).streams(&events));
    let agent = agent(&api, backup("7", "New"));
    let begun = async {
        events.begun().await;
        events.modified(&of_another("8"));
        sleep(SILENCE / 3).await;
        api.writes().len()
    };
    tokio::select! {
        () = agent.run(CancellationToken::new()) => unreachable!("nobody told it to end"),
        begun = begun => assert!(begun <= 1, "it is taken from one that lives: {begun} writes"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_process_before_this_one_carried_is_begun_again_at_once() {
    let api = Scripted::new().always(patch(BACKUP).refuses(409));
    let agent = agent(&api, of_another("7"));
    let begun = async {
        let begun = Instant::now();
        while api.writes().is_empty() {
            assert!(begun.elapsed() < LOOK, "a volume would wait long for each restart of its agent");
            sleep(AGAIN).await;
        }
    };
    tokio::select! {
        () = agent.run(CancellationToken::new()) => unreachable!("nobody told it to end"),
        () = begun => {}
    }
}

/// The leader has a data mover pod carry it from then on.
#[tokio::test(start_paused = true)]
async fn an_agent_that_sees_nothing_of_its_node_hands_over_what_it_would_begin() {
    for phase in ["New", "InProgress"] {
        let mut handed_over = backup("8", "New");
        handed_over["metadata"]["annotations"] = json!({BY_MOVER: "true"});
        let events = Watch::new();
        let api = Scripted::new()
            .always(patch(BACKUP).answers(handed_over.clone()))
            .once(watch(BACKUPS).streams(&events));
        let agent = agent_with(&api, backup("7", phase), FileAccess::DataMovers);
        let written = async {
            events.begun().await;
            let begun = Instant::now();
            while api.writes().is_empty() {
                assert!(begun.elapsed() < 2 * LOOK, "{phase}: nobody would read its files");
                sleep(AGAIN).await;
            }
            events.modified(&handed_over);
            sleep(AGAIN).await;
            let writes = api.writes();
            sleep(3 * LOOK).await;
            assert_eq!(api.writes().len(), writes.len(), "{phase}: it is the leader's now");
            writes
        };
        tokio::select! {
            () = agent.run(CancellationToken::new()) => unreachable!("nobody told it to end"),
            writes = written => {
                let written = &writes[0].body;
                assert_eq!(written["metadata"]["annotations"], json!({BY_MOVER: "true"}), "{phase}");
                assert_eq!(written["metadata"]["resourceVersion"], "7", "{phase}");
                assert_eq!(written["status"], json!({"phase": "New"}), "{phase}");
            }
        }
    }
}

/// It was handed over before the agent could see the files of its node again.
#[tokio::test(start_paused = true)]
async fn what_was_handed_over_is_left_to_its_data_mover_pod() {
    let mut object = backup("7", "Prepared");
    object["metadata"]["annotations"] = json!({BY_MOVER: "true"});
    let api = Scripted::new();
    let agent = agent(&api, object);
    tokio::select! {
        () = agent.run(CancellationToken::new()) => unreachable!("nobody told it to end"),
        () = sleep(3 * LOOK) => assert_eq!(api.writes(), []),
    }
}
