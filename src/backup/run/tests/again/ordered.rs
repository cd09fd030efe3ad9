//! What goes first, where a run ends before all of that is stored.

use super::*;

const SECRETS: &str = "/api/v1/namespaces/app/secrets";
const ORDERED: &str = "app/a,app/b";

/// A cluster with another type, whose list keeps a run from its end.
fn with_secrets(site: &Site) {
    let kind = |kind: &str| {
        let singular = kind.to_lowercase();
        json!({
            "resource": format!("{singular}s"), "singularResource": singular, "scope": "Namespaced",
            "responseKind": {"group": "", "version": "v1", "kind": kind},
            "verbs": ["create", "delete", "get", "list"],
        })
    };
    let versions = json!([{"version": "v1", "resources": [kind("ConfigMap"), kind("Secret")]}]);
    let types = json!({"items": [{"metadata": {"name": ""}, "versions": versions}]});
    // Each of two runs asks once.
    site.api.once(get("/api").answers(types.clone())).once(get("/api").answers(types));
}

/// Paths of the objects in the archive.
pub(super) fn archived(site: &Site) -> Vec<String> {
    let archive = std::fs::read(site.folder.path().join("bucket/backups/one/one.tar.gz")).unwrap();
    let mut tar = tar::Archive::new(MultiGzDecoder::new(&archive[..]));
    let paths = tar.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        String::from_utf8(entry.path_bytes().into_owned()).unwrap()
    });
    let is_object = |path: &String| path.starts_with("resources/") && !path.contains("preferredversion");
    paths.filter(is_object).collect()
}

/// The large one is stored, and the small one is behind the last part that is full.
#[tokio::test]
async fn what_goes_first_is_not_missing_after_a_resume_where_it_is_all_there_is_of_its_type() {
    let never = Hold::new();
    let mut ready = backup("7", "ReadyToStart");
    ready["spec"]["orderedResources"] = json!({"configmaps": ORDERED});
    let site = Site::of(ready);
    let standing = Standing::serve(&site);
    standing.0.lock()["spec"]["orderedResources"] = json!({"configmaps": ORDERED});
    with_secrets(&site);
    site.api.always(get(&format!("{MAPS}/a")).answers(large("a")));
    site.api.always(get(&format!("{MAPS}/b")).answers(map("b")));
    site.api.always(get(MAPS).answers(list("5", &[large("a"), map("b")])));
    site.api.once(get(SECRETS).never_answers().held(&never));
    let story = async {
        never.asked().await;
        standing.has_packed(2).await;
    };
    site.is_drained_after(story).await;
    site.api.once(get(SECRETS).answers(list("5", &[])));
    let (told, _) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it goes on from a checkpoint"), "{told}");
    let expected = ["a", "b"].map(|name| format!("resources/configmaps/namespaces/app/{name}.json"));
    assert_eq!(archived(&site), expected, "in their order, each of them once");
    let list =
        std::fs::read(site.folder.path().join("bucket/backups/one/one-resource-list.json.gz")).unwrap();
    let list: Value = serde_json::from_reader(MultiGzDecoder::new(&list[..])).unwrap();
    assert_eq!(list, json!({"v1/ConfigMap": ["app/a", "app/b"]}));
}
