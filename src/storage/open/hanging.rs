//! A store that takes each request and never answers. The clock is paused, so it runs on only while
//! everything waits; but object_store counts its retries on the machine's clock.

use std::net::TcpListener;

use berth_test_scripted::{Scripted, get};
use futures::TryStreamExt as _;
use object_store::ObjectStore as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;

/// Connections wait in its queue, as a system has one for each listener.
fn hanging() -> (TcpListener, Value) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let location = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "away"},
        "spec": {
            "provider": "aws", "objectStorage": {"bucket": "b"}, "config": {"s3Url": url},
            "credential": {"name": "keys", "key": "cloud"},
        },
    });
    (listener, location)
}

/// How many connections there were.
fn asked(listener: &TcpListener) -> usize {
    listener.set_nonblocking(true).unwrap();
    std::iter::from_fn(|| listener.accept().ok()).count()
}

/// Lists it with such retries. Gives how often it was asked, and how long that took.
async fn listed(max_retries: usize, retry_timeout: Duration) -> (usize, Duration) {
    let (listener, location) = hanging();
    let file = "[default]\naws_access_key_id=id\naws_secret_access_key=s\n";
    let data = json!({"cloud": base64::engine::general_purpose::STANDARD.encode(file)});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data});
    let api = Scripted::new().always(get("/api/v1/namespaces/velero/secrets/keys").answers(secret));
    let opener = Opener::new(api.client("velero"), "velero", Roots::default()).patient();
    let retry = RetryConfig { max_retries, retry_timeout, ..opener.retry.clone() };
    let store = Opener { retry, ..opener }.open(&serde_json::from_value(location).unwrap()).await.unwrap();
    let begun = Instant::now();
    store.list(None).try_collect::<Vec<_>>().await.unwrap_err();
    (asked(&listener), begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_answered_ends() {
    let (asked, lasted) = listed(0, PATIENT).await;
    assert_eq!(asked, 1);
    // The clock may have moved to the end of the time for the connection while that was made.
    assert!(lasted >= REQUEST && lasted <= REQUEST + 2 * CONNECT, "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn it_is_tried_again_until_its_time_is_over_and_not_until_a_count_is() {
    let (asked, lasted) = listed(usize::MAX, Duration::from_millis(50)).await;
    assert!(asked > 1 && lasted >= 2 * REQUEST, "{asked} {lasted:?}");
    let opener = Opener::new(Scripted::new().client("velero"), "velero", Roots::default());
    assert_eq!(opener.patient().retry.retry_timeout, Duration::from_secs(600));
}
