use k8s_openapi::ByteString;

use super::*;

const FILE: &str = r#"{"type": "service_account", "project_id": "p1", "private_key": "", "private_key_id": "",
    "client_email": "", "disable_oauth": true}"#;

fn open(bucket: &str, endpoint: Option<&str>, file: &str) -> Result<Google> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = StoreConfig { endpoint: endpoint.map(str::to_owned), ..StoreConfig::default() };
    let data = [(KEY.to_owned(), ByteString(file.as_bytes().to_vec()))].into();
    let secret = Secret { data: Some(data), ..Secret::default() };
    Google::open(bucket, "europe-west1", &config, &secret)
}

#[test]
fn what_is_wrong_with_a_secret_is_said_and_nothing_is_quoted() {
    let said = |file| open("b", None, file).err().map(|e| e.message).unwrap_or_default();
    let of = "Secret /, serviceaccount.json:";
    assert_eq!(said(FILE), "");
    assert_eq!(said(" "), "Secret / lacks serviceaccount.json");
    assert_eq!(said("top secret"), format!("{of} is not the JSON file of a service account"));
    assert_eq!(said(r#"{"project_id": 1}"#), format!("{of} is not the JSON file of a service account"));
    assert_eq!(said("{}"), format!("{of} lacks project_id"));
    let other = said(r#"{"type": "external_account"}"#);
    assert!(other.starts_with(&format!("{of} only keys of service accounts")), "{other}");
    let broken =
        said(&FILE.replace("true", "false").replace(r#""private_key": """#, r#""private_key": "TOP""#));
    assert_eq!(broken, format!("{of} lacks client_email, private_key_id, or a private_key in PEM"));
}

#[test]
fn a_bucket_has_one_address_and_a_key_cannot_leave_it() {
    for wrong in ["", "host", "ftp://h", "http://h/a", "http://u@h", "http://h?x"] {
        assert!(open("b", Some(wrong), FILE).is_err(), "{wrong:?}");
    }
    for wrong in ["", "..", "a/b", "B"] {
        assert!(open(wrong, None, FILE).is_err(), "{wrong:?}");
    }
    let google = open("b", None, FILE).unwrap();
    let path = format!("{}/o/{}", google.path(), utf8_percent_encode("e/../ä?#%.txt", &ENCODED));
    let call = GoogleRequest { path: &path, query: &[("generation", "1&2")], ..GoogleRequest::default() };
    let request = google.request(&Method::GET, call, "").unwrap();
    let wanted =
        "https://storage.googleapis.com/storage/v1/b/b/o/e%2F..%2F%C3%A4%3F%23%25.txt?generation=1%262";
    assert_eq!(request.uri().to_string(), wanted);
    assert!(!request.headers().contains_key(header::AUTHORIZATION));
}

#[test]
fn only_of_a_bucket_does_not_found_mean_that_it_is_gone() {
    let answer = |body: &str| StoreResponse {
        status: http::StatusCode::NOT_FOUND,
        headers: http::HeaderMap::new(),
        body: body.to_owned().into(),
    };
    let google =
        answer(r#"{"error": {"code": 404, "message": "Not here.", "errors": [{"reason": "notFound"}]}}"#);
    let found = refusal("GET bucket b", true, &google);
    assert_eq!(
        (found.fault, found.message.as_str()),
        (StoreFault::NoSuchBucket, "GET bucket b: 404 notFound Not here.")
    );
    assert_eq!(refusal("GET b/k", false, &google).fault, StoreFault::Unavailable);
    assert_eq!(refusal("GET bucket b", true, &answer("<html>404</html>")).fault, StoreFault::Unavailable);
}
