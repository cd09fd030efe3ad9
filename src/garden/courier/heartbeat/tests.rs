use berth_test_scripted::{Line, Scripted, get, patch};

use super::*;

const SEED: &str = "/apis/garden.berth.dev/v1alpha1/seeds/ship";
const STATUS: &str = "/apis/garden.berth.dev/v1alpha1/seeds/ship/status";

fn seed(version: &str) -> Value {
    json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "Seed",
        "metadata": {"name": "ship", "uid": "s", "resourceVersion": version},
        "spec": {"cloudProfileName": "aws", "region": "eu-west-1"},
    })
}

/// Of the cluster whose UID is `here`.
async fn look(api: &Scripted) -> anyhow::Result<HeartbeatResult> {
    let namespace = json!({"metadata": {"name": "kube-system", "uid": "here"}});
    let api = api.always(get("/api/v1/namespaces/kube-system").answers(namespace));
    let (client, identity) = (api.client("velero"), watch::channel(ClusterIdentity::Unknown).0);
    let heart = Heart { hub: &client, member: &client, seed: "ship", identity: &identity };
    heart.look(&mut None, &mut Rival::default()).await
}

#[tokio::test(start_paused = true)]
async fn a_beat_that_meets_a_conflict_is_judged_anew_after_a_pause_and_three_times_at_most() {
    let api = Scripted::new()
        .next(get(SEED).answers(seed("7")))
        .next(patch(STATUS).refuses(409))
        .next(get(SEED).answers(seed("8")))
        .next(patch(STATUS).answers(seed("9")));
    let begun = tokio::time::Instant::now();
    assert!(matches!(look(&api).await, Ok(HeartbeatResult::Beaten)));
    let took = begun.elapsed().as_millis();
    assert!((100..=210).contains(&took), "{took} ms");
    let writes = api.writes();
    let versions: Vec<_> = writes.iter().map(|write| &write.body["metadata"]["resourceVersion"]).collect();
    assert_eq!(versions, ["7", "8"]);
    assert_eq!(writes[1].body["status"]["clusterUID"], "here");

    let api = Scripted::new().always(get(SEED).answers(seed("7"))).always(patch(STATUS).refuses(409));
    assert!(look(&api).await.is_err());
    assert_eq!(api.writes().len(), ATTEMPTS);
}

#[tokio::test(start_paused = true)]
async fn whatever_else_the_hub_answers_to_a_beat_is_said_at_once() {
    let beaten = |line: Line| async move {
        look(&Scripted::new().next(get(SEED).answers(seed("7"))).next(line)).await
    };
    assert!(matches!(beaten(patch(STATUS).refuses(404)).await, Ok(HeartbeatResult::Unregistered)));
    for (line, why) in [
        (patch(STATUS).refuses(403), "the script says so (403)"),
        (patch(STATUS).never_answers(), "the hub did not answer in time"),
    ] {
        let begun = tokio::time::Instant::now();
        let error = beaten(line).await.err().unwrap();
        assert!(error.to_string().contains(why), "{error}");
        assert!(begun.elapsed() <= ANSWER + Duration::from_millis(10));
    }
}
