//! Self-managed certificates: every change that another writer makes to the Secret or to caBundle
//! is mended within seconds, and no admission is lost meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_certs::bundle::is_signed_by;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admission::program;
use crate::support::PATIENCE;
use crate::support::backup::backup;
use crate::support::{Berth, ControlPlane, Kubectl, Options, wait_for};

/// For how long a new authority is believed before it is used. An API server that is busy with
/// other tests learns of a caBundle within seconds, not at once, and would not believe a leaf that
/// came earlier.
const LEAD_TIME: &str = "--ca-lead-time=10s";
/// What "within seconds" is held to here, that time included: a busy machine takes ten times as
/// long as an idle one.
const SECONDS: Duration = Duration::from_secs(300);
/// So many Backups at least are created while something is done.
const LEAST: usize = 6;
const SECRET: &str = "berth-webhook-certs";
/// Holds the key that signs: the webhook may not read it.
const AUTHORITY: &str = "berth-webhook-authority";

fn start(namespace: &str) -> Berth {
    start_with(namespace, &[LEAD_TIME])
}

fn start_with(namespace: &str, flags: &[&str]) -> Berth {
    let mut options = Options::new(program(), namespace);
    options.controller_args = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Berth::start(ControlPlane::shared().unwrap(), options).unwrap()
}

/// `null` where there is none.
fn secret(berth: &Berth, name: &str) -> anyhow::Result<Value> {
    let args = ["get", "secret", name, "-n", berth.namespace(), "--ignore-not-found", "-o", "json"];
    Ok(serde_json::from_str(&berth.kubectl().run(&args)?).unwrap_or_default())
}

/// One value of a Secret, as text; empty where there is none.
fn value(berth: &Berth, name: &str, key: &str) -> anyhow::Result<String> {
    let secret = secret(berth, name)?;
    Ok(String::from_utf8(STANDARD.decode(secret["data"][key].as_str().unwrap_or_default())?)?)
}

/// The same, of what the webhook reads.
fn part(berth: &Berth, key: &str) -> anyhow::Result<String> {
    value(berth, SECRET, key)
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

fn patch_secret(berth: &Berth, name: &str, patch: Value) {
    let patch = patch.to_string();
    berth
        .kubectl()
        .run(&["patch", "secret", name, "-n", berth.namespace(), "--type=merge", "-p", &patch])
        .unwrap();
}

fn delete_secret(berth: &Berth, name: &str) {
    berth.kubectl().run(&["delete", "secret", name, "-n", berth.namespace()]).unwrap();
}

fn rotate(berth: &Berth, args: &[&str]) {
    let all = [&["certificates", "rotate", "--namespace", berth.namespace()], args].concat();
    let output = crate::install::berth(&berth.plane().kubeconfig(), &all);
    assert!(output.status.success(), "{}", crate::install::said(&output));
}

fn count(authorities: &str) -> usize {
    authorities.matches("BEGIN").count()
}

fn served(berth: &Berth) -> usize {
    berth.webhook.process.log_text().unwrap().matches("swapped the served certificate").count()
}

/// Creates Backups all the while, and at least [`LEAST`]: each has to be queued.
fn while_creating(berth: &Berth, work: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let creating = scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) || count < LEAST {
                count += 1;
                create(
                    berth.kubectl(),
                    berth.namespace(),
                    &format!("held-{}-{count}", Timestamp::now().as_millisecond()),
                );
            }
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        let created = creating.join();
        if let Err(panic) = worked {
            std::panic::resume_unwind(panic);
        }
        created.unwrap();
    });
}

/// The answer of the API server has the place: the controller's repair would come later.
fn create(kubectl: &Kubectl, namespace: &str, name: &str) {
    let mut object = backup(name, json!({"includedNamespaces": ["default"]}));
    object["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
    let args = ["create", "-n", namespace, "-o", "json", "-f", "-"];
    let answer: Value = serde_json::from_str(&kubectl.run_with(&args, &object.to_string()).unwrap()).unwrap();
    assert_eq!(answer["status"]["phase"], "Queued", "{answer}");
}

/// What another writer does, by name. A change of the authority takes a lead time to mend: each of
/// three berths has two of these at most.
const THESE: [&str; 5] = ["deleted", "emptied", "leaf edited", "key of somebody else", "authority deleted"];
const THOSE: [&str; 2] = ["authority emptied", "authority edited"];
const OTHERS: [&str; 2] = ["key of the authority lost", "all in one Secret, as berth kept it once"];

#[test]
fn whatever_happens_to_the_secret_is_put_right_and_no_admission_is_lost() {
    std::thread::scope(|scope| {
        let others = [("more-certificates", THOSE), ("most-certificates", OTHERS)]
            .map(|(namespace, some)| scope.spawn(move || put_right(&start(namespace), &some)));
        put_right(&start("certificates"), &THESE);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

fn put_right(berth: &Berth, some: &[&str]) {
    let noise = STANDARD.encode("noise");
    let other_key = {
        let now = Timestamp::now();
        let ca = berth_certs::Authority::new("stranger", now).unwrap();
        STANDARD.encode(ca.issue("x", &[], &["x".to_owned()], now).unwrap().key)
    };
    let patch = |name: &str, data: Value| patch_secret(berth, name, json!({"data": data}));
    let wrongs: [(&str, &dyn Fn()); 9] = [
        ("deleted", &|| delete_secret(berth, SECRET)),
        ("emptied", &|| patch(SECRET, json!({"tls.crt": "", "tls.key": "", "ca.crt": ""}))),
        ("leaf edited", &|| patch(SECRET, json!({"tls.crt": noise}))),
        ("key of somebody else", &|| patch(SECRET, json!({"tls.key": other_key}))),
        ("authority deleted", &|| delete_secret(berth, AUTHORITY)),
        ("authority emptied", &|| patch(AUTHORITY, json!({"ca.crt": "", "ca.key": ""}))),
        ("authority edited", &|| patch(AUTHORITY, json!({"ca.crt": noise}))),
        ("key of the authority lost", &|| patch(AUTHORITY, json!({"ca.key": null}))),
        ("all in one Secret, as berth kept it once", &|| {
            let key = STANDARD.encode(value(berth, AUTHORITY, "ca.key").unwrap());
            delete_secret(berth, AUTHORITY);
            patch(SECRET, json!({"ca.key": key}));
        }),
    ];
    let mut wrongs = wrongs.to_vec();
    wrongs.retain(|(what, _)| some.contains(what));
    assert_eq!(wrongs.len(), some.len());
    while_creating(berth, || {
        for (what, wrong) in wrongs {
            let (leaf, before) = (part(berth, "tls.crt").unwrap(), served(berth));
            wrong();
            wait_for(what, SECONDS, || {
                let is_new = part(berth, "tls.crt")? != leaf || what == "leaf edited";
                let is_apart = part(berth, "ca.key")?.is_empty();
                Ok((is_new && is_apart && is_whole(berth)? && served(berth) > before).then_some(()))
            })
            .unwrap();
        }
    });
    if some.contains(&"leaf edited") {
        is_told_of(berth);
    }
}

/// A certificate that is not served.
fn is_told_of(berth: &Berth) {
    let kubectl = berth.kubectl();
    // The webhook reported what it could not serve, unless the Secret was mended before the webhook
    // read it. So it is broken once more.
    wait_for("two certificates to be rejected", PATIENCE, || {
        let metrics = berth.webhook.metrics()?;
        let rejected =
            metrics.lines().find_map(|line| line.strip_prefix("berth_certificate_rejected_total ")).unwrap();
        if rejected.parse::<u32>()? >= 2 {
            return Ok(Some(()));
        }
        let noise = STANDARD.encode(format!("noise of {}", Timestamp::now()));
        patch_secret(berth, SECRET, json!({"data": {"tls.crt": noise}}));
        Ok(None)
    })
    .unwrap();
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

/// While it is gone creates go through without a place, and get one when the controller is at it;
/// that is all.
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
    while_creating(&berth, || {
        rotate(&berth, &[]);
        let new = part(&berth, "tls.crt").unwrap();
        assert!(new != old && is_whole(&berth).unwrap());
        assert_eq!(count(&part(&berth, "ca.crt").unwrap()), 1);
        for authorities in 2..=3 {
            rotate(&berth, &["--ca"]);
            wait_for("caBundle to be that of the Secret", SECONDS, || {
                let bundles = believed(&berth)?;
                let all = bundles.iter().all(|bundle| count(bundle) == authorities);
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
}

/// Nothing is believed but what one authority signed: not the old leaf, nor what one could still
/// make with an old key.
fn ensure_revoked(berth: &Berth, old: &str) {
    let bundles = believed(berth).unwrap();
    assert!(!bundles.is_empty() && is_whole(berth).unwrap());
    for bundle in bundles.into_iter().chain([value(berth, AUTHORITY, "ca.crt").unwrap()]) {
        assert_eq!(count(&bundle), 1, "{bundle}");
        assert!(!is_signed_by(old.as_bytes(), bundle.as_bytes()));
    }
}

/// With the lead time that an installation has.
#[test]
fn what_is_revoked_is_believed_no_more_within_a_minute_and_no_admission_is_lost() {
    let berth = start_with("revocation", &[]);
    // A leaf waits for nothing: that is what a busy machine adds.
    let begun = Instant::now();
    rotate(&berth, &[]);
    let minute = Duration::from_secs(60) + 5 * begun.elapsed();
    let old = part(&berth, "tls.crt").unwrap();
    let revoked = secret(&berth, AUTHORITY).unwrap()["data"].clone();
    while_creating(&berth, || {
        let begun = Instant::now();
        rotate(&berth, &["--ca", "--revoke"]);
        let took = begun.elapsed();
        assert!(took < minute, "{took:?}, not {minute:?}");
        ensure_revoked(&berth, &old);
        for index in 0..5 {
            create(berth.kubectl(), berth.namespace(), &format!("afterwards-{index}"));
        }
        // As a restore of an old archive would bring it back.
        patch_secret(&berth, AUTHORITY, json!({"data": revoked}));
        wait_for("another authority", SECONDS, || {
            let is_another = count(&value(&berth, AUTHORITY, "ca.crt")?) == 2;
            Ok((is_another && is_whole(&berth)?).then_some(()))
        })
        .unwrap();
        let is_believed = |bundle: &String| is_signed_by(old.as_bytes(), bundle.as_bytes());
        assert!(!believed(&berth).unwrap().iter().any(is_believed), "it was revoked");
    });
}

/// The command was killed, and the leader after it, when both authorities were trusted.
#[test]
fn a_revocation_is_finished_by_whoever_leads_next() {
    let mut options = Options::new(program(), "revocation-crash");
    options.controller_args = vec![LEAD_TIME.to_owned()];
    // A replica has ten seconds to serve a new leaf, not twenty.
    options.env = vec![("BERTH_PACE".to_owned(), "2".to_owned())];
    let mut berth = Berth::start(ControlPlane::shared().unwrap(), options).unwrap();
    let old = part(&berth, "tls.crt").unwrap();
    let asked = json!({"metadata": {"annotations": {"berth.dev/rotate": "ca", "berth.dev/revoke": "true"}}});
    patch_secret(&berth, SECRET, asked);
    wait_for("the new certificate", SECONDS, || Ok((part(&berth, "tls.crt")? != old).then_some(()))).unwrap();
    berth.kill_controller().unwrap();
    // One more for each time that it lost its Lease between two writes.
    assert!(count(&value(&berth, AUTHORITY, "ca.crt").unwrap()) >= 2);
    let _next = berth.start_another_controller("controller-2").unwrap();
    while_creating(&berth, || {
        wait_for("the revocation", PATIENCE, || {
            let found = secret(&berth, SECRET)?;
            Ok(found["metadata"]["annotations"]["berth.dev/revoke"].is_null().then_some(()))
        })
        .unwrap();
        ensure_revoked(&berth, &old);
    });
}

#[test]
fn the_webhook_cannot_read_the_authoritys_key() {
    let berth = start("authority");
    assert!(!value(&berth, AUTHORITY, "ca.key").unwrap().is_empty());
    for name in [SECRET, AUTHORITY] {
        let labels = &secret(&berth, name).unwrap()["metadata"]["labels"];
        assert_eq!(labels["velero.io/exclude-from-backup"], "true", "{name} is in no backup");
    }
    let who = format!("--as=system:serviceaccount:{}:berth-webhook", berth.namespace());
    let get = |name: &str| {
        berth
            .kubectl()
            .answer(&["get", "secret", name, "-n", berth.namespace(), &who, "-o", "yaml"], "")
            .unwrap()
    };
    let (its_own, authority) = (get(SECRET), get(AUTHORITY));
    assert!(its_own.stdout.contains("tls.key") && !its_own.stdout.contains("ca.key"), "{}", its_own.stderr);
    assert!(!authority.status.success() && authority.stderr.contains("forbidden"), "{}", authority.stderr);
}

/// The next leader renews a leaf that expired without a renewal; a clock that is ten minutes off
/// does not stop the webhook from serving.
#[test]
fn a_certificate_near_its_end_is_renewed() {
    let mut berth = start("renewal");
    berth.controller.stop().unwrap();
    let long_ago = Timestamp::now() - jiff::SignedDuration::from_hours(24 * 70);
    let names = ["berth-webhook.renewal.svc", "berth-webhook.renewal.svc.cluster.local", "127.0.0.1"]
        .map(str::to_owned);
    let ca = berth_certs::Authority::new("berth webhook CA of long ago", long_ago).unwrap();
    let leaf = ca.issue("x", &[], &names, long_ago).unwrap();
    let encoded = |text: &str| STANDARD.encode(text);
    let data = json!({"data": {"ca.crt": encoded(&ca.certificate), "ca.key": encoded(&ca.key)}});
    patch_secret(&berth, AUTHORITY, data);
    let data = json!({"data": {"tls.crt": encoded(&leaf.certificate), "tls.key": encoded(&leaf.key)}});
    patch_secret(&berth, SECRET, data);
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let name = "berth-renewal";
        let found: Value =
            serde_json::from_str(&berth.kubectl().run(&["get", kind, name, "-o", "json"]).unwrap()).unwrap();
        let count = found["webhooks"].as_array().unwrap().len();
        let patch: Vec<Value> = (0..count)
            .map(|i| {
                let path = format!("/webhooks/{i}/clientConfig/caBundle");
                json!({"op": "add", "path": path, "value": encoded(&ca.certificate)})
            })
            .collect();
        let patch = json!(patch).to_string();
        berth.kubectl().run(&["patch", kind, name, "--type=json", "-p", &patch]).unwrap();
    }
    berth.controller.process.restart().unwrap();
    wait_for("another leaf", SECONDS, || {
        let now = part(&berth, "tls.crt")?;
        let renewed = now != leaf.certificate && is_signed_by(now.as_bytes(), ca.certificate.as_bytes());
        Ok((renewed && is_whole(&berth)?).then_some(()))
    })
    .unwrap();
}
