//! The script of [`super::week`] the other way: at the server of a stock Velero, typed with its own
//! command and with berth's.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::week::{NAMESPACE, Said, User, days};
use crate::support::ControlPlane;
use crate::support::peers::{S3, Velero, install_definitions, prepare};

/// How the script makes a location, for which a stock Velero has no provider.
const FOLDER: &str = "--provider berth.dev/filesystem --bucket shop --config path=$HOME/offsite";

/// What commands leave: Backups, Schedules and locations, without what the server alone says of
/// them.
fn objects(plane: &ControlPlane) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for kind in ["backups", "schedules", "backupstoragelocations"] {
        let args = ["get", &format!("{kind}.velero.io"), "-n", NAMESPACE, "-o", "json"];
        let mut list: Value = serde_json::from_str(&plane.kubectl().run(&args).unwrap()).unwrap();
        for object in list["items"].as_array_mut().unwrap() {
            let mut spec = object["spec"].take();
            // Each of the two has its own.
            if let Some(storage) = spec.get_mut("objectStorage").and_then(Value::as_object_mut) {
                storage.remove("prefix");
            }
            // The server writes it where it is absent, some time after `unpause` removed it.
            if spec["skipImmediately"] == false {
                spec.as_object_mut().unwrap().remove("skipImmediately");
            }
            let name = format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap());
            let labels = object["metadata"]["labels"].take();
            all.insert(name, json!({"spec": spec, "labels": labels, "phase": object["status"]["phase"]}));
        }
    }
    all
}

#[test]
fn the_week_at_a_stock_server_leaves_the_same_objects_after_each_command_of_either_program() {
    let plane = ControlPlane::start().unwrap();
    let _report = plane.report_on_panic();
    install_definitions(&plane).unwrap();
    let s3 = S3::start(&plane, "cli-both-ways").unwrap();
    prepare(&plane, NAMESPACE, &s3, "week").unwrap();
    let app = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "shop"}});
    let shop = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    plane.apply(vec![shop, app("ConfigMap", "prices"), app("Secret", "till")]).unwrap();
    // A sync that began before a deletion would bring the deleted Backup back: for ever, if its
    // location is deleted, too. No period prevents the first sync of a location.
    let _velero = Velero::start(&plane, NAMESPACE, &s3, &["backup-sync"], &[]).unwrap();
    let spec = s3.location("offsite", "")["spec"].take();
    let text = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    let (bucket, region, url) =
        (text("/objectStorage/bucket"), text("/config/region"), text("/config/s3Url"));
    let week = |program: &'static str| -> Vec<(&'static str, Said, BTreeMap<String, Value>)> {
        let user = User::new(program, &plane, None);
        // What the store has of a location stays when it goes, and would come back with the next
        // one.
        let away = format!(
            "--provider aws --bucket {bucket} --prefix {program} --config region={region},s3ForcePathStyle=true,s3Url={url}"
        );
        let mut seen = Vec::new();
        for line in days().into_iter().flat_map(|day| day.commands) {
            user.settle();
            let typed = user.typed(line).replace(FOLDER, &away).replace(" --cacert berth-ca.crt", "");
            let said = user.bash(&typed);
            user.settle();
            seen.push((line, said, objects(&plane)));
        }
        // The one that is not valid is still there.
        plane.kubectl().run(&["delete", "schedules.velero.io", "--all", "-n", NAMESPACE]).unwrap();
        seen
    };
    let [theirs, ours] = ["velero", "berth"].map(week);
    for ((line, theirs, left), (_, ours, left_by_ours)) in theirs.iter().zip(&ours) {
        let told = format!("{line}\n{}\n{}", theirs.text, ours.text);
        // Where velero waits, its exit code does not tell how the backup ended.
        let is_alike = if line.contains("--wait") {
            theirs.code == 0 && [0, 3].contains(&ours.code)
        } else {
            (theirs.code == 0) == (ours.code == 0)
        };
        assert!(is_alike, "exit codes {} and {}: {told}", theirs.code, ours.code);
        assert_eq!(left_by_ours, left, "{told}");
    }
    let last = theirs.last().map(|(_, _, left)| left.keys().cloned().collect::<Vec<_>>());
    assert_eq!(
        last.unwrap_or_default(),
        ["backupstoragelocations/default", "schedules/wrong"],
        "everything else was deleted"
    );
}
