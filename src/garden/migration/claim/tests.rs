use berth_test_scripted::{Scripted, get, patch as patching};
use serde_json::Value;
use tokio::time::Instant;

use super::*;

const LOCATION: &str = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations/old";

fn location(mark: Option<&str>) -> Value {
    let annotations = mark.map(|mark| json!({keys::MIGRATED_BY: mark}));
    json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": "old", "namespace": "velero", "resourceVersion": "7", "annotations": annotations},
        "spec": {"provider": "aws", "objectStorage": {"bucket": "bucket"}},
    })
}

async fn taken(api: &Scripted) -> MigrationClaim {
    let locations = Api::namespaced(api.client("velero"), "velero");
    MigrationClaim::take(locations, "old", "run", &|_: &str| {}).await.unwrap()
}

/// The mark that the last write left, as the API server shows it.
fn shown(api: &Scripted) -> Value {
    let written = api.writes().last().unwrap().body["metadata"]["annotations"][keys::MIGRATED_BY].clone();
    location(written.as_str())
}

#[tokio::test(start_paused = true)]
async fn whoever_meets_conflicts_looks_again_after_pauses_that_grow() {
    let api = Scripted::new()
        .always(get(LOCATION).answers(location(None)))
        .next(patching(LOCATION).refuses(409))
        .next(patching(LOCATION).refuses(409))
        .next(patching(LOCATION).answers(location(None)));
    let begun = Instant::now();
    let claim = taken(&api).await;
    let took = begun.elapsed().as_millis();
    assert!((300..=610).contains(&took), "{took} ms: a pause of up to 200 ms, and one of up to 400 ms");
    assert!(claim.ensure().is_ok());
    let sent = &api.writes()[2].body["metadata"];
    assert_eq!(sent["resourceVersion"], "7");
    assert!(sent["annotations"][keys::MIGRATED_BY].as_str().unwrap().starts_with("run "), "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_mark_is_renewed_in_the_face_of_conflicts_and_lost_where_somebody_else_has_it() {
    let api = Scripted::new()
        .next(get(LOCATION).answers(location(None)))
        .next(patching(LOCATION).answers(location(None)));
    let claim = taken(&api).await;
    api.next(get(LOCATION).answers(shown(&api)))
        .next(patching(LOCATION).refuses(409))
        .next(get(LOCATION).answers(shown(&api)))
        .next(patching(LOCATION).answers(location(None)));
    let begun = Instant::now();
    claim.renew().await.unwrap();
    assert!(begun.elapsed().as_millis() >= 100);
    api.next(get(LOCATION).answers(location(Some("another 1"))));
    assert!(matches!(claim.renew().await, Err(MigrationClaimError::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_mark_is_taken_away_within_seconds_or_left_to_be_found_dead() {
    let api = Scripted::new()
        .next(get(LOCATION).answers(location(None)))
        .next(patching(LOCATION).answers(location(None)));
    let claim = taken(&api).await;
    api.always(get(LOCATION).answers(shown(&api))).always(patching(LOCATION).refuses(409));
    let begun = Instant::now();
    claim.release().await;
    let (tries, took) = (api.writes().len() - 1, begun.elapsed().as_secs_f64());
    assert_eq!(tries, RELEASES);
    assert!((3.0..7.0).contains(&took), "{took} s");
}
