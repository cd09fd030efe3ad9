//! What lies in `manifests/` is what the code says.

use crate::support::project;

#[test]
fn the_definitions_on_disk_are_those_of_the_types() {
    for (name, text) in berth_api::crd::files().unwrap() {
        let path = project().join("manifests/crd").join(&name);
        let found = std::fs::read_to_string(&path).unwrap();
        assert!(found == text, "{name} is out of date: run `make manifests`");
    }
}

#[test]
fn no_definition_has_a_status_subresource_and_backups_can_be_queued() {
    for crd in berth_api::crd::all() {
        assert!(crd.spec.versions.iter().all(|version| version.subresources.is_none()));
    }
    let text = serde_json::to_string(&berth_api::crd::all()).unwrap();
    for word in ["\"Queued\"", "\"ReadyToStart\"", "\"queuePosition\""] {
        assert!(text.contains(word), "{word}");
    }
}
