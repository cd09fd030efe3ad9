//! Which types the cluster serves, as far as it says so.

use super::*;

impl Site {
    /// Its lists are empty, and it ends so.
    async fn ends(&self, phase: BackupPhase) {
        self.api.always(get(MAPS).answers(list("5", &[])));
        self.api.next(begins()).next(gets_leave()).next(ends_in(phase.as_str()));
        assert_eq!(self.run(Signals::default()).await.unwrap().phase(), phase, "{}", self.told());
    }
}

#[tokio::test]
async fn types_are_asked_for_once_the_api_server_is_ready() {
    let site = Site::new();
    site.api.once(get("/readyz").refuses(500)).once(get(NAMESPACES).answers(list("5", &[])));
    site.ends(BackupPhase::Completed).await;
    let asked = site.api.asked();
    let at = |what: &str| asked.iter().rposition(|asked| asked == what).unwrap();
    assert!(at("GET /readyz") < at("GET /apis"), "{asked:?}");
    // It never says so; or nobody may ask, which says nothing.
    for (code, warnings) in [(500, 1), (403, 0), (404, 0)] {
        let site = Site::new();
        site.api.once(get("/readyz").refuses(code));
        if code == 500 {
            site.api.once(get("/readyz").refuses(code)).once(get(NAMESPACES).answers(list("5", &[])));
        }
        site.ends(BackupPhase::Completed).await;
        assert_eq!(site.told().matches("is not ready").count(), warnings, "{code}: {}", site.told());
    }
}

#[tokio::test]
async fn types_are_asked_for_while_the_backup_is_read() {
    let read = Hold::new();
    let site = Site::with_type_unread("ConfigMap");
    site.api.next(get(ONE).answers(backup("7", "ReadyToStart")).held(&read));
    let story = async {
        read.asked().await;
        while !site.api.asked().contains(&"GET /apis".to_owned()) {
            tokio::task::yield_now().await;
        }
        read.let_go();
    };
    tokio::join!(site.ends(BackupPhase::Completed), story);
}

/// Just after it began an API server serves what it has found so far, and does not say that there
/// is more.
#[tokio::test]
async fn types_that_the_api_server_leaves_out_without_a_word_are_told() {
    let service = |name: &str| {
        let labels = json!({"kube-aggregator.kubernetes.io/automanaged": "true"});
        json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": name, "labels": labels},
        })
    };
    let site = Site::new();
    let services = ["v1.", "v1.apps", "v1.left.example.com"].map(service);
    site.api.once(get(SERVICES).answers(list("1", &services)));
    site.ends(BackupPhase::PartiallyFailed).await;
    assert_eq!(site.api.writes().last().unwrap().body["status"]["errors"], 1);
    let told = site.told();
    assert!(told.contains("the types of left.example.com/v1 are not known"), "{told}");
}

#[tokio::test]
async fn what_goes_first_is_of_one_type_though_another_group_has_one_of_that_name() {
    const OTHERS: &str = "/apis/other.example.com/v1/namespaces/app/configmaps";
    let resource = json!({
        "resource": "configmaps", "singularResource": "configmap", "scope": "Namespaced",
        "responseKind": {"group": "other.example.com", "version": "v1", "kind": "ConfigMap"},
        "verbs": ["create", "delete", "get", "list"],
    });
    let versions = json!([{"version": "v1", "resources": [resource]}]);
    let groups = json!({"items": [{"metadata": {"name": "other.example.com"}, "versions": versions}]});
    let mut ready = backup("7", "ReadyToStart");
    ready["spec"]["orderedResources"] = json!({"configmaps": "app/a"});
    let site = Site::of(ready);
    site.api.once(get("/apis").answers(groups)).once(get(&format!("{MAPS}/a")).answers(map("a")));
    site.api.always(get(OTHERS).answers(list("5", &[])));
    site.ends(BackupPhase::Completed).await;
    // Of the other group's type none is missing.
    let told = site.told();
    assert!(told.starts_with("{\"errors\":{},") && !told.contains("app/a"), "{told}");
}
