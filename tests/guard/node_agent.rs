//! What a stolen token of the node agents does not change of data movers, with berth away.

use berth::movers::objects;
use berth_core::mover::MoverKind;
use kube::api::{Patch, PostParams};
use serde_json::{Value, json};

use super::{annotation, born, client_of, dry_run, let_do_everything, passes, with_movers};
use crate::queue::PATIENCE;
use crate::support::{manifest, wait_for, wait_until};

/// The leader copies snapshots, binds volumes and removes snapshots by what a movement says.
#[tokio::test]
async fn the_node_agent_says_how_far_a_mover_is_and_nothing_else() {
    const NS: &str = "node-agents";
    let plane = with_movers();
    let _report = plane.report_on_panic();
    plane.install(manifest::objects(NS, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let accounts = ["berth-controller", "berth-node-agent"];
    let [controller, agent] = accounts.map(|name| format!("system:serviceaccount:{NS}:{name}"));
    let_do_everything(plane.kubectl(), &[controller.as_str(), &agent]);
    let (controller, agent) = (client_of(plane, &controller).await, client_of(plane, &agent).await);
    let owner = json!([{"apiVersion": "velero.io/v1", "kind": "Backup", "name": "b", "uid": "u"}]);
    for kind in MoverKind::ALL {
        let api = objects::api(&controller, NS, kind);
        api.create(&PostParams::default(), &born(kind, "plain", NS, "New", None)).await.unwrap();
        let by_agent = objects::api(&agent, NS, kind);
        let patched = async |patch: &Value| {
            passes("berth-grants", by_agent.patch("plain", &dry_run(), &Patch::Merge(patch)).await)
        };
        let canceled = json!({"spec": {"cancel": true}});
        wait_until("the policy to be on", PATIENCE, async || Ok((!patched(&canceled).await).then_some(())))
            .await
            .unwrap();
        for (patch, is_its) in [
            (json!({"spec": {"backupStorageLocation": "another"}}), false),
            (json!({"metadata": {"labels": {"velero.io/backup-uid": "u"}}}), false),
            (json!({"metadata": {"ownerReferences": owner}}), false),
            (json!({"metadata": {"finalizers": ["a/b"]}}), false),
            (annotation("made", "t"), false),
            (annotation("restored-volume", "pv"), false),
            (annotation("lost-pods", "u"), false),
            (annotation("restored", "t"), true),
            (annotation("runs", "1"), true),
            (annotation("progress", "7 files"), true),
            (annotation("by-mover", "true"), true),
            (json!({"status": {"phase": "Failed", "message": "why"}}), true),
        ] {
            assert_eq!(patched(&patch).await, is_its, "{kind} {patch}");
            let answer = api.patch("plain", &dry_run(), &Patch::Merge(&patch)).await;
            assert!(passes("berth-grants", answer), "the leader: {kind} {patch}");
        }
    }
}

#[test]
fn the_node_agent_makes_secrets_for_the_passwords_of_repositories_alone() {
    const NS: &str = "node-agent-secrets";
    let plane = with_movers();
    let _report = plane.report_on_panic();
    plane.install(manifest::objects(NS, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let kubectl = plane.kubectl();
    let agent = format!("system:serviceaccount:{NS}:berth-node-agent");
    let_do_everything(kubectl, &[agent.as_str()]);
    let make = |name: &str, kind: &str| {
        let annotations = json!({"kubernetes.io/service-account.name": "default"});
        let metadata = json!({"name": name, "namespace": NS, "annotations": annotations});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind});
        let flags = ["create", "--dry-run=server", "--as", &agent, "-f", "-"];
        kubectl.answer(&flags, &secret.to_string()).unwrap()
    };
    let refused = |name: &str, kind: &str, words: &str| {
        // The API server takes a policy up a moment after it was made.
        wait_for(&format!("{name} of type {kind} to be refused"), PATIENCE, || {
            Ok(make(name, kind).stderr.contains(words).then_some(()))
        })
        .unwrap();
    };
    refused("cloud-credentials", "Opaque", "makes Secrets for the passwords of repositories alone");
    let token = "kubernetes.io/service-account-token";
    refused("berth-repository-default.shop", token, "make no tokens of other accounts");
    let made = make("berth-repository-default.shop", "Opaque");
    assert!(made.status.success(), "{}", made.stderr);
}
