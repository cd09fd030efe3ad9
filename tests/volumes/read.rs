//! Files of volumes that node-agents read while a leader dies.

use berth_api::velero::BackupPhase;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::decisions::{FILES, MOUNTS, NAMED, REPOSITORIES, play, pod, set_status};
use super::played::{begin, start, stored};
use crate::archive::side;
use crate::hooks::{create, namespace};
use crate::queue::ended;
use crate::support::{PATIENCE, wait_for};

/// The next leader waits for what the dead one has asked for.
#[test]
fn files_that_are_read_while_the_leader_is_killed_are_read_once() {
    let (mut berth, _) = start("vol-read", &[]);
    let (kubectl, at) = (berth.kubectl().clone(), berth.namespace().to_owned());
    let empty = json!({"emptyDir": {}});
    let mut agent = pod(&at, "node-agent", &empty, "", "");
    agent["metadata"]["labels"] = json!({"role": "node-agent"});
    create(&berth, &[namespace("read"), agent, pod("read", "db", &empty, NAMED, MOUNTS)]);
    for place in [(at.as_str(), "node-agent"), ("read", "db")] {
        set_status(&kubectl, "pod", place, &json!({"phase": "Running"}));
    }
    begin(&berth, "read", json!({"includedNamespaces": ["read"]}));
    let asked = || -> anyhow::Result<Vec<String>> {
        let args = ["get", FILES.0, "-n", &at, "-o", "json"];
        let all: Value = serde_json::from_str(&kubectl.run(&args)?)?;
        let uid = |one: &Value| one["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        Ok(all["items"].as_array().into_iter().flatten().map(uid).collect())
    };
    let first = wait_for("a node-agent to be asked", PATIENCE, || {
        play(&kubectl, &at, &[REPOSITORIES])?;
        let asked = asked()?;
        Ok((!asked.is_empty()).then_some(asked))
    })
    .unwrap();
    play(&kubectl, &at, &[(FILES.0, "InProgress")]).unwrap();
    let run = || kubectl.backup(&at, "read").unwrap().annotations().get("berth.dev/run").cloned();
    let dead = run();
    berth.kill_controller().unwrap();
    berth.controller.process.restart().unwrap();
    wait_for("the next leader to have the backup", PATIENCE, || Ok((run() != dead).then_some(()))).unwrap();
    play(&kubectl, &at, &[FILES]).unwrap();
    let done = ended(&berth, &["read"]).remove("read").unwrap();
    assert_eq!(done.phase(), BackupPhase::Completed, "{:?}", done.status);
    assert_eq!(asked().unwrap(), first, "nothing is read twice");
    let infos = side(&stored(&berth, "read"), "read-volumeinfo.json.gz");
    assert_eq!((infos.as_array().unwrap().len(), &infos[0]["result"]), (1, &json!("succeeded")), "{infos:#}");
}
