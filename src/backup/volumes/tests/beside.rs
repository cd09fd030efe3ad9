//! What is taken while others are busy beside it.

use super::*;

/// Their node-agents say how many of them are read at one time. None of these is ever read.
#[tokio::test(start_paused = true)]
async fn the_files_of_pods_are_asked_for_side_by_side() {
    const FILES: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";
    const REPOSITORIES: &str = "/apis/velero.io/v1/namespaces/velero/backuprepositories";
    const COUNT: usize = 20;
    let agent = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"},
        "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"},
    });
    let repository = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupRepository", "metadata": {"name": "app-default-kopia"},
        "status": {"phase": "Ready"},
    });
    let api = Scripted::new()
        .always(get("/api/v1/namespaces/velero/pods").answers(list("5", &[agent])))
        .always(get(REPOSITORIES).answers(list("5", &[repository])))
        .always(get(FILES).answers(list("5", &[])))
        .always(watch(FILES).never_answers());
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, jobs) = of(&log, &outcomes, Some(access(&api)));
    for number in 0..COUNT {
        api.once(post(FILES).takes_as("8"));
        let pod = FilePod {
            namespace: "app".to_owned(),
            name: format!("web-{number}"),
            uid: format!("u{number}"),
            node: "n".to_owned(),
            moment: berth_core::volume::Moment::Any,
            volumes: vec![files::FileVolume { name: "data".to_owned(), claim: None }],
        };
        volumes.take_later(pod).await.unwrap();
    }
    let (batches, _taken) = mpsc::channel(1);
    tokio::select! {
        () = volumes.run(jobs, batches) => {}
        () = api.played() => {}
    }
    assert_eq!((api.writes().len(), log.counts().errors), (COUNT, 0));
}

/// The snapshot controller and the sidecar of the driver write to both as well.
#[tokio::test(start_paused = true)]
async fn a_snapshot_is_kept_though_other_writes_come_between() {
    let name = made("a");
    let (path, of_content) = (format!("{IN_APP}/{name}"), format!("{CONTENTS}/content-{name}"));
    let (mut ready, mut of_ready) = (snapshot(&name, "a"), content(&name, true, "Delete"));
    ready["status"]["readyToUse"] = json!(true);
    of_ready["status"]["readyToUse"] = json!(true);
    let api = serve(std::slice::from_ref(&ready), std::slice::from_ref(&of_ready));
    api.next(post(IN_APP).answers(ready.clone()));
    for (path, object) in [(&of_content, of_ready), (&path, ready)] {
        api.next(patch(path).refuses(409)).next(get(path).answers(object.clone()));
        api.next(patch(path).answers(object));
    }
    let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
    let (volumes, _jobs) = of(&log, &outcomes, Some(access(&api)));
    let cut = volumes.cut_later(&ask("a")).await.unwrap();
    let kept = volumes.ready(&ask("a"), &cut).await.unwrap();
    assert_eq!(kept.handle, "handle");
    assert!(kept.ready_at.unwrap().parse::<jiff::Timestamp>().is_ok(), "as a restore reads it");
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_repository_that_is_missing_is_asked_for_as_velero_does_and_why_it_is_not_ready_is_told() {
    const REPOSITORIES: &str = "/apis/velero.io/v1/namespaces/velero/backuprepositories";
    let found = |status: &Value| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "BackupRepository",
            "metadata": {"name": "app-default-kopia"}, "status": status,
        })
    };
    for (is_there, status, told) in [
        (false, json!({"phase": "Ready"}), None),
        (true, json!({"phase": "Ready"}), None),
        (true, json!({"phase": "NotReady", "message": "no bucket"}), Some("is not ready: no bucket")),
        // Nobody connects to it.
        (true, json!({"phase": "New"}), Some("was not ready within 600 s")),
    ] {
        let there = if is_there { vec![found(&status)] } else { Vec::new() };
        let api = Scripted::new().next(get(REPOSITORIES).answers(list("5", &there)));
        if !is_there {
            api.next(post(REPOSITORIES).takes_as("6"));
        }
        api.next(get(REPOSITORIES).answers(list("6", &[found(&status)])));
        api.always(watch(REPOSITORIES).never_answers());
        let (log, outcomes) = (BackupLog::new(String::new()), Outcomes::default());
        let (volumes, _jobs) = of(&log, &outcomes, None);
        let ready = volumes.repository(&access(&api), "app").await;
        match (told, ready) {
            (None, Ok(())) => {}
            (Some(told), Err(why)) => assert!(why.contains(told), "{why}"),
            (_, ready) => panic!("{status}: {ready:?}"),
        }
        let writes = api.writes();
        assert_eq!(writes.len(), usize::from(!is_there));
        for write in writes {
            let labels = json!({
                "velero.io/volume-namespace": "app", "velero.io/storage-location": "default",
                "velero.io/repository-type": "kopia",
            });
            assert_eq!(write.body["metadata"]["labels"], labels);
            let spec = json!({
                "volumeNamespace": "app", "backupStorageLocation": "default", "repositoryType": "kopia",
                "maintenanceFrequency": "0s",
            });
            assert_eq!(write.body["spec"], spec);
        }
        api.finish();
    }
}
