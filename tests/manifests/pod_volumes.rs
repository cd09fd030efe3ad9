//! berth's node agents in what kustomize, Helm and the binary make of the manifests, and the
//! definitions of their objects beside Velero's.

use std::collections::BTreeSet;

use berth::install::{InstallSettings, Reference, render};
use serde_json::{Value, json};

use super::{assert_same, documents, kustomized, printed, rendered_by_helm};
use crate::support::{binaries, project};

const DEFINITIONS: &str = "components/pod-volumes/crd";

#[test]
fn kustomize_and_the_binary_agree_on_node_agents() {
    let alone = InstallSettings { pod_volumes: true, ..InstallSettings::new("velero") };
    let beside = InstallSettings {
        bring_definitions: false,
        bring_namespace: false,
        velero_account: Some("velero".to_owned()),
        ..alone.clone()
    };
    let by_movers = InstallSettings { files_by_movers: true, ..alone.clone() };
    for (resources, components, settings) in [
        (&[DEFINITIONS][..], "alone without-velero self-managed pod-volumes", alone),
        (&[DEFINITIONS], "alone without-velero self-managed pod-volumes files-by-movers", by_movers),
        (&[], "self-managed pod-volumes", beside),
    ] {
        assert_same(kustomized(resources, components), render(&settings).unwrap(), components);
    }
}

#[test]
fn the_chart_and_the_binary_agree_on_node_agents() {
    let theirs = rendered_by_helm("podVolumes.enabled=true,veleroServiceAccount=velero");
    let mut ours = documents(&printed("berth", "self-managed", "elsewhere", &["--pod-volumes"]));
    let definitions = [berth_api::crd::velero(), berth_api::crd::pod_volumes()].concat();
    ours.extend(definitions.iter().map(|definition| json!(definition)));
    assert_same(theirs, ours, "podVolumes.enabled=true");
    let by_movers = "podVolumes.enabled=true,podVolumes.filesByMovers=true,veleroServiceAccount=velero";
    let theirs = rendered_by_helm(by_movers);
    let flags = ["--pod-volumes", "--files-by-movers"];
    let mut ours = documents(&printed("berth", "self-managed", "elsewhere", &flags));
    ours.extend(definitions.iter().map(|definition| json!(definition)));
    assert_same(theirs, ours, by_movers);
    let without = rendered_by_helm("podVolumes.enabled=true,definitions=false");
    assert!(without.iter().all(|object| object["spec"]["group"] != "velero.io"));
}

#[test]
fn what_the_chart_carries_of_node_agents_is_up_to_date() {
    let names = |objects: &[Value]| objects.iter().filter_map(Reference::of).collect::<BTreeSet<_>>();
    let plain = names(&documents(&printed("berth", "self-managed", "release-namespace", &[])));
    for (file, flags) in [
        ("pod-volumes", &["--pod-volumes"][..]),
        ("files-by-movers", &["--pod-volumes", "--files-by-movers"]),
    ] {
        let mut ours = documents(&printed("berth", "self-managed", "release-namespace", flags));
        ours.retain(|object| Reference::of(object).is_some_and(|name| !plain.contains(&name)));
        let path = project().join(format!("manifests/chart/objects/{file}.yaml"));
        let theirs = documents(&std::fs::read_to_string(&path).unwrap());
        assert_same(theirs, ours, "run `make manifests`");
    }
}

/// Type, allowed values and fields, without what describes or formats them.
fn shape(schema: &Value) -> Value {
    let mut shape = json!({"type": schema["type"]});
    if let Some(values) = schema["enum"].as_array() {
        let mut values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        shape["enum"] = json!(values);
    }
    if let Some(fields) = schema["properties"].as_object() {
        let fields: serde_json::Map<String, Value> =
            fields.iter().map(|(name, field)| (name.clone(), self::shape(field))).collect();
        shape["properties"] = fields.into();
        let mut required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        required.sort_unstable();
        shape["required"] = json!(required);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            shape[inner] = self::shape(&schema[inner]);
        }
    }
    shape
}

/// So that an object of one cluster fits into another one, and no field is lost.
#[test]
fn the_definitions_have_the_fields_of_veleros() {
    let [folder] = binaries::get(["velero-crds"]).unwrap();
    for ours in berth_api::crd::pod_volumes() {
        let ours = json!(ours);
        let file =
            folder.join(format!("velero.io_{}.yaml", ours["spec"]["names"]["plural"].as_str().unwrap()));
        let theirs: Value = serde_saphyr::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(ours["metadata"]["name"], theirs["metadata"]["name"]);
        for names in ["kind", "plural"] {
            assert_eq!(ours["spec"]["names"][names], theirs["spec"]["names"][names]);
        }
        let of = |definition: &Value, part: &str| {
            let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            shape(&schema["properties"][part])
        };
        for part in ["spec", "status"] {
            let (ours, theirs) = (of(&ours, part), of(&theirs, part));
            assert_eq!(ours, theirs, "{} {part}", file.display());
        }
    }
}
