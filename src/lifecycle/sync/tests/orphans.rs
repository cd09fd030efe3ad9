//! What Backups have left that nobody saw go.

use super::*;

const REQUESTS: &str = "/apis/velero.io/v1/namespaces/velero/deletebackuprequests";

/// Scripts a look whether the Backup of a folder of this cluster is gone: it is.
fn look_in_vain(api: &Scripted) {
    let cluster = json!({"metadata": {"name": "kube-system", "uid": "c"}});
    api.once(get("/api/v1/namespaces/kube-system").answers(cluster));
    api.once(get(&format!("{VELERO}/backups/left")).refuses(404));
}

/// What a run in this cluster writes into its folder at first.
fn claim_of(cluster: &str) -> String {
    json!({"cluster": cluster, "namespace": "velero", "backup": "u", "run": "r"}).to_string()
}

/// It was deleted by kubectl while it ran, and nobody led.
#[tokio::test(start_paused = true)]
async fn what_a_backup_has_left_that_nobody_saw_go_is_removed_and_nothing_else() {
    let cluster = || {
        get("/api/v1/namespaces/kube-system")
            .answers(json!({"metadata": {"name": "kube-system", "uid": "c"}}))
    };
    for (claimed_by, is_silent, there) in [
        ("c", true, None),
        ("c", true, Some("u")),
        ("c", true, Some("later")),
        ("c", false, None),
        ("away", true, None),
    ] {
        let mut place = Place::new();
        let _carries_out = place.lifecycle.removals.carry_out();
        // What is skipped is read again in the next round.
        place.lifecycle.sync_period = std::time::Duration::ZERO;
        place.store("left", "left.tar.gz", "x");
        place.store("left", "berth-run.json", claim_of(claimed_by));
        for file in ["left.tar.gz", "berth-run.json"].into_iter().take(if is_silent { 2 } else { 1 }) {
            place.age("left", file);
        }
        let is_doubted = claimed_by == "c" && is_silent;
        for round in 0..3 {
            let api = Scripted::new().once(get(REQUESTS).answers(requests(&[])));
            if round > 0 {
                api.once(cluster());
            }
            if round > 0 && is_doubted {
                let look = get(&format!("{VELERO}/backups/left"));
                api.once(match there {
                    None => look.refuses(404),
                    Some(uid) => {
                        let mut there = backup("left");
                        there["metadata"]["uid"] = json!(uid);
                        look.answers(there)
                    }
                });
            }
            let is_asked = round == 2 && is_doubted && there != Some("u");
            if is_asked {
                api.once(post(REQUESTS).takes_as("9"));
            }
            place.round(&api).await;
            let writes = api.writes();
            assert_eq!(writes.len(), 1 + usize::from(is_asked), "{writes:?}");
            if is_asked {
                let asked = &writes[0].body;
                assert_eq!(asked["metadata"]["name"], "removal-u");
                assert_eq!(asked["metadata"]["annotations"][keys::DELETES_IN], "here");
                assert_eq!(asked["status"]["phase"], "InProgress");
            }
        }
        assert!(place.root.path().join("b/p/backups/left/left.tar.gz").exists(), "the deletion removes it");
    }
}

/// Whoever may create requests could take the name.
#[tokio::test(start_paused = true)]
async fn a_request_of_somebody_else_does_not_keep_what_a_backup_has_left() {
    for is_ours in [true, false] {
        let mut place = Place::new();
        let _carries_out = place.lifecycle.removals.carry_out();
        place.lifecycle.sync_period = std::time::Duration::ZERO;
        place.store("left", "left.tar.gz", "x");
        let claim = claim_of("c");
        place.store("left", "berth-run.json", claim);
        for file in ["left.tar.gz", "berth-run.json"] {
            place.age("left", file);
        }
        let annotations = if is_ours { json!({keys::DELETES_IN: "here"}) } else { json!({}) };
        let found = json!({
            "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
            "metadata": {
                "name": "removal-u", "namespace": "velero", "uid": "f",
                "labels": {keys::BACKUP_UID: "u"}, "annotations": annotations,
            },
            "spec": {"backupName": "left"}, "status": {"phase": "Processed"},
        });
        for round in 0..3 {
            let api = Scripted::new().once(get(REQUESTS).answers(requests(&[])));
            if round > 0 {
                look_in_vain(&api);
            }
            if round == 2 {
                api.once(post(REQUESTS).already_exists());
                api.once(get(&format!("{REQUESTS}/removal-u")).answers(found.clone()));
                if !is_ours {
                    api.once(post(REQUESTS).takes_as("9"));
                }
            }
            place.round(&api).await;
            let writes = api.writes();
            let made = writes.iter().filter(|write| write.method == "POST");
            let names: Vec<_> = made.map(|write| write.body["metadata"]["name"].clone()).collect();
            let wanted = ["removal-u", "removal-u-again"].into_iter().take(if is_ours { 1 } else { 2 });
            assert_eq!(names, wanted.take(if round == 2 { 2 } else { 0 }).collect::<Vec<_>>());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_backup_that_has_only_lost_its_metadata_is_left_alone() {
    for (more, is_asked) in [(None, false), (Some("berth-checkpoint"), true)] {
        let mut place = Place::new();
        let _carries_out = place.lifecycle.removals.carry_out();
        place.lifecycle.sync_period = std::time::Duration::ZERO;
        let claim = claim_of("c");
        let files = ["left.tar.gz", "left-results.gz", "left-logs.gz", "berth-run.json"];
        for file in files.into_iter().chain(more) {
            place.store("left", file, &claim);
            place.age("left", file);
        }
        for round in 0..3 {
            let api = Scripted::new().once(get(REQUESTS).answers(requests(&[])));
            if round > 0 {
                look_in_vain(&api);
            }
            let is_asked = round == 2 && is_asked;
            if is_asked {
                api.once(post(REQUESTS).takes_as("9"));
            }
            place.round(&api).await;
            assert_eq!(api.writes().len(), 1 + usize::from(is_asked), "{more:?} {round}");
        }
        assert_eq!(place.past.finished.len(), usize::from(!is_asked));
    }
}

/// Whoever may write to the store may make any number of folders with claims.
#[tokio::test(start_paused = true)]
async fn no_more_removals_are_asked_for_while_a_location_has_many_that_have_not_ended() {
    let open = |count: usize, location: &str, phase: &str| -> Vec<Value> {
        let one = |i: usize| {
            json!({
                "metadata": {
                    "name": format!("removal-{location}-{phase}-{i}"),
                    "annotations": {keys::DELETES_IN: location},
                },
                "spec": {"backupName": format!("other-{i}")}, "status": {"phase": phase},
            })
        };
        (0..count).map(one).collect()
    };
    for (here, is_looked_at) in [(20, false), (19, true)] {
        let mut place = Place::new();
        let _carries_out = place.lifecycle.removals.carry_out();
        place.lifecycle.sync_period = std::time::Duration::ZERO;
        let claim = claim_of("c");
        place.store("left", "left.tar.gz", "x");
        place.store("left", "berth-run.json", claim);
        for file in ["left.tar.gz", "berth-run.json"] {
            place.age("left", file);
        }
        let items =
            [open(here, "here", "InProgress"), open(20, "away", "InProgress"), open(20, "here", "Processed")];
        for round in 0..3 {
            let api = Scripted::new().once(get(REQUESTS).answers(requests(&items.concat())));
            if round > 0 && is_looked_at {
                look_in_vain(&api);
            }
            let is_asked = round == 2 && is_looked_at;
            if is_asked {
                api.once(post(REQUESTS).takes_as("9"));
            }
            place.round(&api).await;
            assert_eq!(api.writes().len(), 1 + usize::from(is_asked), "{here} {round}");
        }
    }
}
