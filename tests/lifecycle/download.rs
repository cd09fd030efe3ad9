//! Downloads: what stock Velero's commands fetch.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::{PATIENCE, ended};
use crate::support::backup::backup_of;
use crate::support::peers::{S3, velero};
use crate::support::{Berth, ControlPlane, Options, backup, port, wait_for};

fn start(namespace: &str, args: &[String]) -> Berth {
    let mut options = Options::new(program(), namespace);
    options.controller_args.extend(args.iter().cloned());
    Berth::start(ControlPlane::shared().unwrap(), options).unwrap()
}

fn create(berth: &Berth, objects: &[Value]) {
    let answer = berth.kubectl().create(berth.namespace(), objects).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}

/// Runs a command that must succeed; gives what it prints.
fn fetch(berth: &Berth, args: &[&str]) -> String {
    let answer = velero(berth.plane(), berth.namespace(), args).unwrap();
    assert!(answer.status.success(), "{args:?}: {}{}", answer.stdout, answer.stderr);
    answer.stdout
}

/// Everything that the command line downloads of a backup.
fn everything_can_be_fetched(berth: &Berth, name: &str, more: &[&str]) {
    let logs = fetch(berth, &[&["backup", "logs", name], more].concat());
    assert!(logs.contains("backup begins") && logs.contains("backup ends: Completed"), "{logs}");
    let described = fetch(berth, &[&["backup", "describe", name, "--details"], more].concat());
    assert!(described.contains("Resource List:") && described.contains("v1/Namespace:"), "{described}");
    let to = berth.plane().folder().join(format!("{}-{name}.tar.gz", berth.namespace()));
    let output = to.display().to_string();
    fetch(berth, &[&["backup", "download", name, "-o", &output], more].concat());
    let mut archive = tar::Archive::new(MultiGzDecoder::new(std::fs::File::open(&to).unwrap()));
    let mut first = archive.entries().unwrap().next().unwrap().unwrap();
    let mut text = String::new();
    first.read_to_string(&mut text).unwrap();
    assert_eq!(text.trim(), "1.1.0");
}

#[test]
fn stock_velero_fetches_from_a_folder_over_https_with_berths_own_authority() {
    let port = port::free().unwrap();
    let args =
        [format!("--download-address=127.0.0.1:{port}"), format!("--download-url=https://127.0.0.1:{port}/")];
    let berth = start("download-folder", &args);
    create(&berth, &[backup_of("one", &["default"])]);
    ended(&berth, &["one"]);
    let args = ["get", "secret", "berth-webhook-certs", "-n", berth.namespace(), "-o", "json"];
    let secret: Value = serde_json::from_str(&berth.kubectl().run(&args).unwrap()).unwrap();
    let authority = STANDARD.decode(secret["data"]["ca.crt"].as_str().unwrap()).unwrap();
    let file = berth.plane().folder().join("download-folder-ca.crt");
    std::fs::write(&file, authority).unwrap();
    let trust = format!("--cacert={}", file.display());
    let is_served = || {
        let log = berth.controller.process.log_text()?;
        Ok(log.contains("swapped the certificate of downloads").then_some(()))
    };
    wait_for("the certificate to be served", PATIENCE, is_served).unwrap();
    everything_can_be_fetched(&berth, "one", &[&trust]);
    // Nobody who does not trust the authority gets anything.
    let args = ["backup", "logs", "one", "--timeout=20s"];
    let answer = velero(berth.plane(), berth.namespace(), &args).unwrap();
    assert!(answer.stderr.contains("certificate"), "{}{}", answer.stdout, answer.stderr);
}

#[test]
fn stock_velero_fetches_from_a_bucket_by_signed_links() {
    let berth = start("download-s3", &[]);
    let s3 = S3::start(berth.plane(), berth.namespace()).unwrap();
    let apply = |object: &Value| {
        let args = ["apply", "--server-side", "-n", berth.namespace(), "-f", "-"];
        berth.kubectl().run_with(&args, &object.to_string()).unwrap();
    };
    apply(&s3.keys.secret_object(berth.namespace()));
    apply(&s3.location("away", "deep"));
    berth.await_location("away").unwrap();
    let spec = json!({"includedNamespaces": ["default"], "storageLocation": "away"});
    create(&berth, &[backup("one", spec)]);
    ended(&berth, &["one"]);
    everything_can_be_fetched(&berth, "one", &[]);
}
