//! Lists as of one moment, by a real API server.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use berth::backup::list::{ListError, ListProgress, ListedObject, Lister, ObjectSink};
use berth::backup::log::BackupLog;
use berth::backup::revision::Revision;
use berth_core::selection::ResourceType;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::ControlPlane;

#[derive(Default)]
struct Names(Vec<String>);

impl ObjectSink for Names {
    async fn take(&mut self, found: ListedObject) -> Result<(), ListError> {
        self.0.push(found.name);
        Ok(())
    }
}

fn kind(resource: &str) -> ResourceType {
    ResourceType {
        group: String::new(),
        version: "v1".to_owned(),
        kind: "Kind".to_owned(),
        resource: resource.to_owned(),
        singular: String::new(),
        short_names: Vec::new(),
        namespaced: true,
    }
}

/// What came since, went since, or is of another type than the one whose write the revision is:
/// page by page.
#[test]
fn a_list_as_of_a_revision_holds_what_was_there_then() {
    let plane = ControlPlane::shared().unwrap();
    let kubectl = plane.kubectl();
    let create = |kind: &str, names: &[&str]| {
        let made = |name: &&str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
        let namespace = if kind == "Namespace" { "" } else { "as-of" };
        let answer = kubectl.create(namespace, &names.iter().map(made).collect::<Vec<Value>>()).unwrap();
        assert!(answer.status.success(), "{}", answer.stderr);
    };
    create("Namespace", &["as-of"]);
    create("Secret", &["a", "b", "c"]);
    create("ConfigMap", &["then"]);
    let then = kubectl.run(&["get", "configmap", "then", "--namespace", "as-of", "-o", "json"]).unwrap();
    let then: Value = serde_json::from_str(&then).unwrap();
    let version = then["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    create("Secret", &["aa", "d"]);
    create("ConfigMap", &["later"]);
    kubectl.run(&["delete", "secret", "b", "--namespace", "as-of"]).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let list = async {
        let revision = Arc::new(Revision::new(Some(version), Some(HashSet::new())).unwrap());
        let requests = Arc::new(Semaphore::new(4));
        let lister = Lister::new(plane.client().await.unwrap(), 2, Duration::from_secs(60), requests);
        let lister = lister.as_of(Some(Arc::clone(&revision)));
        let mut found = Vec::new();
        for resource in ["secrets", "configmaps"] {
            let (mut progress, mut names) = (ListProgress::default(), Names::default());
            while !progress.is_done() {
                lister.page(&kind(resource), Some("as-of"), "", &mut progress, &mut names).await.unwrap();
            }
            found.push(names.0);
        }
        let log = BackupLog::new(String::new());
        Revision::tell(Some(&*revision), &log);
        (found, log.counts().warnings)
    };
    let (found, warnings) = runtime.block_on(list);
    assert_eq!(found, [vec!["a", "b", "c"], vec!["then"]]);
    assert_eq!(warnings, 0);
}
