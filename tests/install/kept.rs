//! Flags that an administrator added to a Deployment are kept, or named before anything is written.

use std::path::Path;

use serde_json::{Value, json};

use super::{berth, finish_namespaces, said};
use crate::support::ControlPlane;

const CONTROLLER: &str = "berth-controller";

pub fn what_somebody_added_stays_until_he_takes_it_out(plane: &ControlPlane, admin: &Path) {
    let kubectl = plane.kubectl();
    let args = |name: &str| -> Vec<String> {
        let text = kubectl.run(&["get", "deployment", name, "-n", "velero", "-o", "json"]).unwrap();
        let object: Value = serde_json::from_str(&text).unwrap();
        let container = &object["spec"]["template"]["spec"]["containers"][0];
        serde_json::from_value(container["args"].clone()).unwrap()
    };
    let edit = |name: &str, args: &[String]| {
        let path = "/spec/template/spec/containers/0/args";
        let patch = json!([{"op": "replace", "path": path, "value": args}]).to_string();
        kubectl.run(&["patch", "deployment", name, "-n", "velero", "--type=json", "-p", &patch]).unwrap();
    };
    let dry_run = || said(&berth(admin, &["install", "--dry-run"]));
    // No pod comes up here.
    let text = said(&berth(admin, &["install", "--timeout=1s", "--concurrent-backups=2"]));
    assert!(text.contains("not ready after 1 s") && !text.contains("somebody added"), "{text}");
    let bare = args(CONTROLLER);
    let more = ["--deletion-grace-period", "168h", "--fair-share", "--concurrent-backups", "4"];
    edit(CONTROLLER, &[bare.clone(), more.map(str::to_owned).to_vec()].concat());
    let webhook = args("berth-webhook");
    edit("berth-webhook", &[webhook.clone(), vec!["--fair-share".to_owned()]].concat());

    let text = said(&berth(admin, &["install", "--timeout=1s", "--concurrent-backups=3"]));
    for line in [
        "deployment/berth-controller in velero keeps what somebody added: --deletion-grace-period=168h --fair-share\n",
        "deployment/berth-controller in velero loses what `berth install` says otherwise: --concurrent-backups=4\n",
        "deployment/berth-webhook in velero keeps what somebody added: --fair-share\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let with = |args: &[String], more: &[&str]| -> Vec<String> {
        let three = args.iter().map(|arg| arg.replace("--concurrent-backups=2", "--concurrent-backups=3"));
        three.chain(more.iter().map(|&one| one.to_owned())).collect()
    };
    assert_eq!(args(CONTROLLER), with(&bare, &["--deletion-grace-period=168h", "--fair-share"]));
    assert_eq!(args("berth-webhook"), with(&webhook, &["--fair-share"]));
    let text = dry_run();
    for name in [CONTROLLER, "berth-webhook"] {
        for line in [
            format!("deployment/{name} in velero keeps what"),
            format!("deployment/{name} in velero unchanged"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }

    edit(CONTROLLER, &with(&bare, &["--no-such-flag=1"]));
    for flags in [&["--dry-run"][..], &["--image=mirror/berth:next"]] {
        let refused = berth(admin, &[&["install"][..], flags].concat());
        let text = said(&refused);
        assert!(!refused.status.success(), "{text}");
        for words in [
            "unexpected argument '--no-such-flag'",
            "Nothing was changed",
            "kubectl edit deployment berth-controller --namespace velero",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    assert_eq!(args(CONTROLLER), with(&bare, &["--no-such-flag=1"]));
    // The way out, and what was taken out does not come back.
    edit(CONTROLLER, &with(&bare, &[]));
    let text = dry_run();
    assert!(text.contains("deployment/berth-controller in velero unchanged"), "{text}");
    assert!(!text.contains("berth-controller in velero keeps"), "{text}");

    // Pods that were given longer to end have that.
    let grace = "terminationGracePeriodSeconds";
    let patch = json!({"spec": {"template": {"spec": {grace: 3600}}}}).to_string();
    kubectl.run(&["patch", "deployment", CONTROLLER, "-n", "velero", "-p", &patch]).unwrap();
    let text = said(&berth(admin, &["install", "--timeout=1s"]));
    assert!(text.contains("berth-controller in velero keeps what somebody set"), "{text}");
    let path = format!("jsonpath={{.spec.template.spec.{grace}}}");
    let found = kubectl.run(&["get", "deployment", CONTROLLER, "-n", "velero", "-o", &path]).unwrap();
    assert_eq!(found, "3600");

    let output = berth(admin, &["uninstall"]);
    assert!(output.status.success(), "{}", said(&output));
    finish_namespaces(plane);
}
