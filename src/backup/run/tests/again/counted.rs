//! What is counted of backups that were taken up again.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use prometheus_client::registry::Registry;

use super::*;

/// Whoever adds up the numbers of all processes adds up one attempt and one end.
#[tokio::test]
async fn a_backup_that_is_taken_up_again_counts_once_and_takes_as_long_as_since_its_first_start() {
    for is_asked_to_go in [true, false] {
        let mut registry = Registry::default();
        let metrics = BackupMetrics::new(&mut registry);
        let never = Hold::new();
        let (site, standing) = three_pages();
        site.api.once(third().never_answers().held(&never));
        let engine = || Engine { metrics: metrics.clone(), ..site.engine_of_small_parts() };
        let (first, signals) = (engine(), Signals::default());
        let story = async {
            never.asked().await;
            site.has(CHECKPOINT).await;
            if is_asked_to_go {
                signals.stop.cancel();
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            left = first.run("one", "u", signals.clone()) => {
                assert!(is_asked_to_go && left.unwrap().unwrap().phase() == BackupPhase::InProgress);
            }
            () = story => {}
        }
        let begun = Timestamp::now().checked_sub(SignedDuration::from_mins(90)).unwrap();
        standing.0.lock()["status"]["startTimestamp"] = json!(Time(begun));
        site.api.once(third().answers(list("5", &[large("c")])));
        let next = engine();
        let recovered = next.recover("one", "u", Signals::default(), |_| {});
        let ended = tokio::time::timeout(LONG, recovered).await.unwrap().unwrap().unwrap();
        assert_eq!(ended.phase(), BackupPhase::Completed, "{:?}", ended.status);
        let text = crate::metrics::encode(&Arc::new(registry)).unwrap();
        for line in [
            r#"attempt_total{schedule=""} 1"#,
            r#"success_total{schedule=""} 1"#,
            r#"partial_failure_total{schedule=""} 0"#,
            r#"failure_total{schedule=""} 0"#,
            r#"duration_seconds_count{schedule=""} 1"#,
            r#"duration_seconds_bucket{le="3600.0",schedule=""} 0"#,
            r#"duration_seconds_bucket{le="7200.0",schedule=""} 1"#,
            r#"items_total{schedule=""} 3"#,
            r#"last_status{schedule=""} 1"#,
        ] {
            assert!(text.lines().any(|one| one == format!("velero_backup_{line}")), "{line}: {text}");
        }
    }
}
