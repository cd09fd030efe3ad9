//! What the node agents' configuration and the mode of a volume make of claim and pod.

use std::collections::BTreeMap;

use super::*;
use crate::movers::configuration::ConfigurationState;

fn configure(own: &OwnMovements, config: &Value) {
    let data = BTreeMap::from([("config.json".to_owned(), config.to_string())]);
    let config = berth_api::node_agent::parse(&data).unwrap().config;
    let state = ConfigurationState::default();
    own.node_cache.configure(ConfigurationState { config: Arc::new(config), ..state });
}

#[tokio::test(start_paused = true)]
async fn the_node_agents_configuration_says_how_claim_and_pod_are_made() {
    let api = Scripted::new()
        .next(get(AGENTS).answers(agents()))
        .next(get(&at(CLAIMS, "up")).refuses(404))
        .next(get(SOURCE).answers(source()))
        .next(get(ORIGINAL).answers(original(&json!({}))))
        .next(get(&at(CONTENTS, "content")).answers(content("s", "Filesystem")))
        .next(post(CONTENTS).takes_as("1"))
        .next(post(SNAPSHOTS).takes_as("1"))
        .next(post(CLAIMS).takes_as("1"))
        .next(post(PODS).takes_as("1"));
    let own = movements(&api);
    let backup = json!({
        "storageClass": "shared", "readOnly": true, "spcNoRelabeling": true, "annotations": {"some/hint": "x"},
    });
    let of_class = json!({"nodeSelector": {"matchLabels": {"pool": "backup"}}, "storageClass": "shared"});
    let toleration = json!({"key": "pool", "operator": "Exists"});
    configure(
        &own,
        &json!({
            "backupPVC": {"fast": backup},
            "loadAffinity": [{"nodeSelector": {"matchLabels": {"pool": "other"}}}, of_class],
            "loadTolerations": [{"tolerations": [toleration]}],
            "podLabels": {"team": "storage"},
        }),
    );
    assert_eq!(own.make(&upload()).await, Ok(()));
    let writes = api.writes();
    let [_, _, claim, pod] = writes.as_slice() else { panic!("{writes:#?}") };
    let (claim, pod) = (&claim.body, &pod.body);
    assert_eq!(claim["spec"]["accessModes"], json!(["ReadOnlyMany"]));
    assert_eq!(claim["spec"]["storageClassName"], "shared");
    assert_eq!(claim["metadata"]["annotations"], json!({"some/hint": "x"}));
    let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let pool = json!([{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["backup"]}]}]);
    assert_eq!(*terms, pool, "also where no webhook answers");
    assert_eq!(pod["spec"]["tolerations"], json!([toleration]));
    assert_eq!(pod["metadata"]["labels"]["team"], "storage");
    assert_eq!(pod["spec"]["securityContext"]["seLinuxOptions"]["type"], "spc_t");
}

#[tokio::test(start_paused = true)]
async fn a_restore_is_placed_by_the_class_of_its_claim() {
    let api = {
        let mut claim = source();
        claim["spec"]["storageClassName"] = json!("fast");
        Scripted::new()
            .next(get(AGENTS).answers(agents()))
            .next(get(&at(CLAIMS, "down")).refuses(404))
            .next(get(SOURCE).answers(claim))
            .next(post(CLAIMS).takes_as("1"))
            .next(post(PODS).takes_as("1"))
    };
    let own = movements(&api);
    configure(
        &own,
        &json!({"loadAffinity": [{"nodeSelector": {"matchLabels": {"a": "b"}}, "storageClass": "fast"}]}),
    );
    assert_eq!(own.make(&download(&json!({}))).await, Ok(()));
    let spec = api.writes()[1].body["spec"].clone();
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(required["nodeSelectorTerms"][0]["matchExpressions"][0]["key"], "a", "{required}");
}

#[tokio::test(start_paused = true)]
async fn a_priority_class_that_does_not_exist_is_ignored() {
    let mut there = made("up", "u");
    there["apiVersion"] = json!("v1");
    there["kind"] = json!("PersistentVolumeClaim");
    let message = "pods \"up\" is forbidden: no PriorityClass with name low was found";
    let refusal = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "reason": "Forbidden",
        "code": 403, "message": message,
    });
    let api = Scripted::new()
        .next(get(AGENTS).answers(agents()))
        .next(get(&at(CLAIMS, "up")).answers(there))
        .next(get(SOURCE).refuses(404))
        .next(post(PODS).refuses_with(403, refusal))
        .next(post(PODS).takes_as("1"));
    let own = movements(&api);
    configure(&own, &json!({"priorityClassName": "low"}));
    assert_eq!(own.make(&upload()).await, Ok(()));
    let classes: Vec<Value> =
        api.writes().into_iter().map(|write| write.body["spec"]["priorityClassName"].clone()).collect();
    assert_eq!(classes, [json!("low"), json!("berth")], "as the agents have it");
}

#[tokio::test(start_paused = true)]
async fn the_data_of_a_block_volume_is_moved_through_a_device() {
    let shape = |writes: &[berth_test_scripted::Write]| {
        let [.., claim, pod] = writes else { panic!("{writes:#?}") };
        let container = &pod.body["spec"]["containers"][0];
        (claim.body["spec"]["volumeMode"].clone(), container["volumeDevices"][0]["devicePath"].clone())
    };
    let wanted = (json!("Block"), json!("/volume/device"));
    let api = Scripted::new()
        .next(get(AGENTS).answers(agents()))
        .next(get(&at(CLAIMS, "up")).refuses(404))
        .next(get(SOURCE).answers(source()))
        .next(get(ORIGINAL).answers(original(&json!({}))))
        .next(get(&at(CONTENTS, "content")).answers(content("s", "Block")))
        .next(post(CONTENTS).takes_as("1"))
        .next(post(SNAPSHOTS).takes_as("1"))
        .next(post(CLAIMS).takes_as("1"))
        .next(post(PODS).takes_as("1"));
    assert_eq!(movements(&api).make(&upload()).await, Ok(()));
    assert_eq!(shape(&api.writes()), wanted);
    let mut target = source();
    target["spec"]["volumeMode"] = json!("Block");
    let api = Scripted::new()
        .next(get(AGENTS).answers(agents()))
        .next(get(&at(CLAIMS, "down")).refuses(404))
        .next(get(SOURCE).answers(target))
        .next(post(CLAIMS).takes_as("1"))
        .next(post(PODS).takes_as("1"));
    assert_eq!(movements(&api).make(&download(&json!({}))).await, Ok(()));
    assert_eq!(shape(&api.writes()), wanted);
    // The claim that a dead leader has made says it as well.
    let mut there = claim("velero", "up", "uid-up", &json!({"volumeMode": "Block"}));
    there["metadata"] = made("up", "u")["metadata"].clone();
    let api = Scripted::new()
        .next(get(AGENTS).answers(agents()))
        .next(get(&at(CLAIMS, "up")).answers(there))
        .next(get(SOURCE).refuses(404))
        .next(post(PODS).takes_as("1"));
    assert_eq!(movements(&api).make(&upload()).await, Ok(()));
    let devices = api.writes()[0].body["spec"]["containers"][0]["volumeDevices"].clone();
    assert_eq!(devices[0]["devicePath"], "/volume/device");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_only_has_the_name_of_the_one_that_was_backed_up_says_nothing_of_its_size() {
    for (uid, size) in [("c", "1Gi"), ("another", "5")] {
        let mut item = upload();
        if let Carried::Upload(object) = &mut item.object {
            let labels = [(keys::PVC_UID.to_owned(), uid.to_owned())];
            Arc::make_mut(object).metadata.labels = Some(labels.into());
        }
        let api = Scripted::new()
            .next(get(AGENTS).answers(agents()))
            .next(get(&at(CLAIMS, "up")).refuses(404))
            .next(get(SOURCE).answers(source()))
            .next(get(ORIGINAL).answers(original(&json!({}))))
            .next(get(&at(CONTENTS, "content")).answers(content("s", "Filesystem")))
            .next(post(CONTENTS).takes_as("1"))
            .next(post(SNAPSHOTS).takes_as("1"))
            .next(post(CLAIMS).takes_as("1"))
            .next(post(PODS).takes_as("1"));
        assert_eq!(movements(&api).make(&item).await, Ok(()));
        let claim = &api.writes()[2].body;
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], size, "{uid}");
    }
}

/// Snapshot controllers before version 7 do not say the mode. A claim of that name may have been
/// made again in the other one, and the bytes of a device would be mounted.
#[tokio::test(start_paused = true)]
async fn where_the_snapshot_does_not_say_it_only_the_volume_that_was_cut_says_its_mode() {
    const VOLUME: &str = "/api/v1/persistentvolumes/pv";
    let volume = |of: Value| {
        get(VOLUME).answers(json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
            "spec": {"volumeMode": "Block", "claimRef": {"namespace": "shop", "name": "data", "uid": of}},
        }))
    };
    let bound = |uid: &str| {
        let asked = json!({"requests": {"storage": "1Gi"}});
        let spec = json!({"volumeMode": "Block", "volumeName": "pv", "resources": asked});
        get(SOURCE).answers(claim("shop", "data", uid, &spec))
    };
    for (label, there, volume, is_made) in [
        (Some("c"), bound("c"), Some(volume(json!("c"))), true),
        // It was made again.
        (Some("c"), bound("another"), None, false),
        (Some("c"), get(SOURCE).refuses(404), None, false),
        (Some("c"), get(SOURCE).answers(source()), None, false),
        (Some("c"), bound("c"), Some(volume(json!("another"))), false),
        (Some("c"), bound("c"), Some(volume(Value::Null)), false),
        (Some("c"), bound("c"), Some(get(VOLUME).refuses(404)), false),
        // Nobody knows which one was backed up.
        (None, bound("c"), Some(volume(json!("c"))), false),
        (None, bound("c"), Some(volume(Value::Null)), false),
    ] {
        let mut item = upload();
        if let Carried::Upload(object) = &mut item.object {
            let labels = label.map(|uid| (keys::PVC_UID.to_owned(), uid.to_owned()));
            Arc::make_mut(object).metadata.labels = Some(labels.into_iter().collect());
        }
        let mut silent = content("s", "");
        silent["spec"].as_object_mut().unwrap().remove("sourceVolumeMode");
        let api = Scripted::new()
            .next(get(AGENTS).answers(agents()))
            .next(get(&at(CLAIMS, "up")).refuses(404))
            .next(there)
            .next(get(ORIGINAL).answers(original(&json!({}))))
            .next(get(&at(CONTENTS, "content")).answers(silent));
        if let Some(volume) = volume {
            api.next(volume);
        }
        if !is_made {
            let made = movements(&api).make(&item).await;
            let Err(Unmade::Never(why)) = made else { panic!("{made:?}") };
            assert!(why.contains("--prevent-volume-mode-conversion"), "{why}");
            assert_eq!(api.writes(), []);
            continue;
        }
        for path in [CONTENTS, SNAPSHOTS, CLAIMS, PODS] {
            api.next(post(path).takes_as("1"));
        }
        assert_eq!(movements(&api).make(&item).await, Ok(()));
        let claim = &api.writes()[2].body;
        assert_eq!(claim["spec"]["volumeMode"], "Block", "{claim:#}");
    }
}
