//! What a pod with hooks uses, where a run ends when that is stored, or on its way there.

use flate2::read::MultiGzDecoder;

use super::*;

const CLAIMS: &str = "/api/v1/namespaces/app/persistentvolumeclaims";

/// Of many parts.
fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "app"},
        "spec": {}, "status": {"phase": "Bound"}, "noise": noise(name),
    })
}

fn types() -> Value {
    let kind = |kind: &str| {
        let singular = kind.to_lowercase();
        json!({
            "resource": format!("{singular}s"), "singularResource": singular, "scope": "Namespaced",
            "responseKind": {"group": "", "version": "v1", "kind": kind},
            "verbs": ["create", "delete", "get", "list"],
        })
    };
    let versions = json!([{"version": "v1", "resources": [kind("Pod"), kind("PersistentVolumeClaim")]}]);
    json!({"items": [{"metadata": {"name": ""}, "versions": versions}]})
}

/// The list of claims keeps it from its end, when pods are through.
#[tokio::test]
async fn a_run_that_goes_on_behind_a_block_stores_each_object_of_it_once() {
    let never = Hold::new();
    let hooked = Hooked::new("ok");
    let api = &hooked.site.api;
    let mut db = pod("db", "u", "ok");
    db["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
    // Each of two runs asks once.
    for _ in 0..2 {
        api.once(get("/api").answers(types())).once(get(PODS).answers(list("5", &[db.clone()])));
    }
    api.always(get(&format!("{CLAIMS}/c")).answers(claim("c")));
    api.always(get(CLAIMS).answers(page("5", "more", &[claim("c")])));
    api.once(get(CLAIMS).page("more").never_answers().held(&never));
    let exec: Arc<dyn Exec> = Arc::new(hooked.played.clone());
    let engine = engine(api, &hooked.site.folder, AfterInterruption::Resume);
    let engine = Engine { exec, part_size: SMALL, ..engine };
    let signals = Signals::default();
    let story = async {
        never.asked().await;
        let has_checkpoint = || hooked.site.stored().contains(&CHECKPOINT.to_owned());
        while hooked.played.happened().len() < 2 || !has_checkpoint() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        signals.stop.cancel();
    };
    let (ran, ()) = tokio::join!(engine.run("one", "u", signals.clone()), story);
    assert_eq!(ran.unwrap().unwrap().phase(), BackupPhase::InProgress);
    api.once(get(CLAIMS).page("more").answers(list("5", &[claim("d")])));
    let recovered = engine.recover("one", "u", Signals::default(), |_| {});
    let ended = tokio::time::timeout(LONG, recovered).await.unwrap().unwrap().unwrap();
    assert_eq!(ended.phase(), BackupPhase::Completed, "{:?}", ended.status);
    let folder = hooked.site.folder.path().join("bucket/backups/one");
    let archive = std::fs::read(folder.join("one.tar.gz")).unwrap();
    let mut tar = tar::Archive::new(MultiGzDecoder::new(&archive[..]));
    let paths = tar.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        String::from_utf8(entry.path_bytes().into_owned()).unwrap()
    });
    let is_object = |path: &String| path.starts_with("resources/") && !path.contains("preferredversion");
    let mut archived: Vec<String> = paths.filter(is_object).collect();
    archived.sort_unstable();
    let expected = [
        "resources/persistentvolumeclaims/namespaces/app/c.json",
        "resources/persistentvolumeclaims/namespaces/app/d.json",
        "resources/pods/namespaces/app/db.json",
    ];
    assert_eq!(archived, expected);
    let progress = ended.status.unwrap().progress.unwrap();
    assert_eq!((progress.total_items, progress.items_backed_up), (Some(3), Some(3)));
}
