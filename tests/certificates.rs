//! Self-managed certificates: whatever somebody does to the Secret or to caBundle is put right within seconds, and no
//! admission is lost meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_certs::bundle::is_signed_by;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admission::program;
use crate::support::backup::backup;
use crate::support::{Berth, ControlPlane, Kubectl, Options, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);
/// What "within seconds" is held to here, the lead time of a new authority (1 s in these tests) included.
const SECONDS: Duration = Duration::from_secs(10);
const SECRET: &str = "berth-webhook-certs";

fn start(namespace: &str) -> Berth {
    let mut options = Options::new(program(), namespace);
    options.controller_args.push("--ca-lead-time=1s".to_owned());
    Berth::start(ControlPlane::shared().unwrap(), options).unwrap()
}

/// One value of the Secret, as text; empty where there is none.
fn part(berth: &Berth, key: &str) -> anyhow::Result<String> {
    let args = ["get", "secret", SECRET, "-n", berth.namespace(), "--ignore-not-found", "-o", "json"];
    let secret: Value = serde_json::from_str(&berth.kubectl().run(&args)?).unwrap_or_default();
    Ok(String::from_utf8(STANDARD.decode(secret["data"][key].as_str().unwrap_or_default())?)?)
}

/// caBundle of every webhook.
fn believed(berth: &Berth) -> anyhow::Result<Vec<String>> {
    let name = format!("berth-{}", berth.namespace());
    let mut all = Vec::new();
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let found: Value = serde_json::from_str(&berth.kubectl().run(&["get", kind, &name, "-o", "json"])?)?;
        for webhook in found["webhooks"].as_array().into_iter().flatten() {
            let bundle = webhook["clientConfig"]["caBundle"].as_str().unwrap_or_default();
            all.push(String::from_utf8(STANDARD.decode(bundle)?)?);
        }
    }
    Ok(all)
}

/// Does every webhook believe the leaf of the Secret?
fn is_whole(berth: &Berth) -> anyhow::Result<bool> {
    let leaf = part(berth, "tls.crt")?;
    Ok(!leaf.is_empty()
        && believed(berth)?.iter().all(|bundle| is_signed_by(leaf.as_bytes(), bundle.as_bytes())))
}

fn patch_secret(berth: &Berth, data: Value) {
    let patch = json!({"data": data}).to_string();
    berth
        .kubectl()
        .run(&["patch", "secret", SECRET, "-n", berth.namespace(), "--type=merge", "-p", &patch])
        .unwrap();
}

fn served(berth: &Berth) -> usize {
    berth.webhook.process.log_text().unwrap().matches("serving the certificate of the Secret").count()
}

/// Creates Backups all the while; gives how many, and the first that was not queued.
fn while_creating(berth: &Berth, work: impl FnOnce()) -> usize {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let creating = scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                count += 1;
                create(
                    berth.kubectl(),
                    berth.namespace(),
                    &format!("held-{}-{count}", Timestamp::now().as_millisecond()),
                );
            }
            count
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        let count = creating.join();
        if let Err(panic) = worked {
            std::panic::resume_unwind(panic);
        }
        count.unwrap()
    })
}

/// The answer of the API server has the place: the controller's repair would come later.
fn create(kubectl: &Kubectl, namespace: &str, name: &str) {
    let mut object = backup(name, json!({"includedNamespaces": ["default"]}));
    object["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
    let args = ["create", "-n", namespace, "-o", "json", "-f", "-"];
    let answer: Value = serde_json::from_str(&kubectl.run_with(&args, &object.to_string()).unwrap()).unwrap();
    assert_eq!(answer["status"]["phase"], "Queued", "{answer}");
}

#[test]
fn whatever_happens_to_the_secret_is_put_right_and_no_admission_is_lost() {
    let berth = start("certificates");
    let kubectl = berth.kubectl();
    let noise = STANDARD.encode("noise");
    let other_key = {
        let now = Timestamp::now();
        let ca = berth_certs::Authority::new("stranger", now).unwrap();
        STANDARD.encode(ca.issue("x", &[], &["x".to_owned()], now).unwrap().key)
    };
    let wrongs: [(&str, &dyn Fn()); 6] = [
        ("deleted", &|| drop(kubectl.run(&["delete", "secret", SECRET, "-n", berth.namespace()]).unwrap())),
        ("emptied", &|| {
            patch_secret(&berth, json!({"tls.crt": "", "tls.key": "", "ca.crt": "", "ca.key": ""}))
        }),
        ("leaf edited", &|| patch_secret(&berth, json!({"tls.crt": noise}))),
        ("key of somebody else", &|| patch_secret(&berth, json!({"tls.key": other_key}))),
        ("authority edited", &|| patch_secret(&berth, json!({"ca.crt": noise}))),
        ("key of the authority lost", &|| patch_secret(&berth, json!({"ca.key": null}))),
    ];
    let count = while_creating(&berth, || {
        for (what, wrong) in wrongs {
            let (leaf, before) = (part(&berth, "tls.crt").unwrap(), served(&berth));
            wrong();
            let begun = Instant::now();
            wait_for(what, SECONDS, || {
                let is_new = part(&berth, "tls.crt")? != leaf || what == "leaf edited";
                Ok((is_new && is_whole(&berth)? && served(&berth) > before).then_some(()))
            })
            .unwrap();
            assert!(begun.elapsed() < SECONDS, "{what}: {:?}", begun.elapsed());
        }
    });
    assert!(count > 5, "{count}");
    // The one that did not fit its key was told of.
    let metrics = berth.webhook.metrics().unwrap();
    let rejected =
        metrics.lines().find_map(|line| line.strip_prefix("berth_certificate_rejected_total ")).unwrap();
    assert!(rejected.parse::<u32>().unwrap() >= 2, "{rejected}");
    let args = [
        "get",
        "events.events.k8s.io",
        "-n",
        berth.namespace(),
        "--field-selector",
        "reason=CertificateRejected",
        "-o",
        "json",
    ];
    wait_for("the Event", PATIENCE, || {
        let events: Value = serde_json::from_str(&kubectl.run(&args)?)?;
        let told = events["items"].as_array().is_some_and(|items| {
            items
                .iter()
                .any(|event| event["regarding"]["name"] == SECRET && event["regarding"]["kind"] == "Secret")
        });
        Ok(told.then_some(()))
    })
    .unwrap();
}

/// While it is gone creates go through without a place, and get one when the controller is at it; that is all.
#[test]
fn a_bundle_that_is_overwritten_is_put_back() {
    let berth = start("bundle");
    let (kubectl, name) = (berth.kubectl(), "berth-bundle");
    let stranger = berth_certs::Authority::new("stranger", Timestamp::now()).unwrap().certificate;
    for bundle in [json!(""), json!(STANDARD.encode(stranger))] {
        for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
            let patch = json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}])
                .to_string();
            kubectl.run(&["patch", kind, name, "--type=json", "-p", &patch]).unwrap();
            wait_for("the bundle to be put back", SECONDS, || Ok(is_whole(&berth)?.then_some(()))).unwrap();
        }
    }
    let dry_run = ["create", "--dry-run=server", "-n", berth.namespace(), "-o", "json", "-f", "-"];
    wait_for("an answer", SECONDS, || {
        let answer: Value =
            serde_json::from_str(&kubectl.run_with(&dry_run, &backup("probe", json!({})).to_string())?)?;
        Ok((answer["status"]["phase"] == "Queued").then_some(()))
    })
    .unwrap();
}

/// Old and new stand side by side until nothing that the old one signed can be served any more.
#[test]
fn authorities_overlap_when_one_is_rotated() {
    let berth = start("rotation");
    let old = part(&berth, "tls.crt").unwrap();
    let kubeconfig = berth.plane().kubeconfig();
    let rotate = |args: &[&str]| {
        let all = [&["certificates", "rotate", "--namespace", berth.namespace()], args].concat();
        let output = crate::install::berth(&kubeconfig, &all);
        assert!(output.status.success(), "{}", crate::install::said(&output));
    };
    let count = while_creating(&berth, || {
        rotate(&[]);
        let new = part(&berth, "tls.crt").unwrap();
        assert!(new != old && is_whole(&berth).unwrap());
        assert_eq!(part(&berth, "ca.crt").unwrap().matches("BEGIN").count(), 1);
        for authorities in 2..=4 {
            rotate(&["--ca"]);
            wait_for("caBundle to be that of the Secret", SECONDS, || {
                let bundles = believed(&berth)?;
                let all = bundles.iter().all(|bundle| bundle.matches("BEGIN").count() == authorities);
                Ok((all && is_whole(&berth)?).then_some(()))
            })
            .unwrap();
            let bundles = believed(&berth).unwrap();
            assert!(
                bundles.iter().all(|bundle| is_signed_by(old.as_bytes(), bundle.as_bytes())),
                "{authorities}"
            );
        }
    });
    assert!(count > 5, "{count}");
}

/// A leaf that nobody renewed in time is renewed by whoever leads next; ten minutes of skew are no reason not to serve.
#[test]
fn a_certificate_near_its_end_is_renewed() {
    let berth = start("renewal");
    let long_ago = Timestamp::now() - jiff::SignedDuration::from_hours(24 * 70);
    let names = ["berth-webhook.renewal.svc", "berth-webhook.renewal.svc.cluster.local", "127.0.0.1"]
        .map(str::to_owned);
    let ca = berth_certs::Authority::new("berth webhook CA of long ago", long_ago).unwrap();
    let leaf = ca.issue("x", &[], &names, long_ago).unwrap();
    let encoded = |text: &str| STANDARD.encode(text);
    patch_secret(
        &berth,
        json!({
            "ca.crt": encoded(&ca.certificate), "ca.key": encoded(&ca.key),
            "tls.crt": encoded(&leaf.certificate), "tls.key": encoded(&leaf.key),
        }),
    );
    wait_for("another leaf", SECONDS, || {
        let now = part(&berth, "tls.crt")?;
        let renewed = now != leaf.certificate && is_signed_by(now.as_bytes(), ca.certificate.as_bytes());
        Ok((renewed && is_whole(&berth)?).then_some(()))
    })
    .unwrap();
}
