//! With no berth at all: what the policies refuse is what core calls a fault, word for word.

use std::collections::BTreeMap;

use berth_api::keys::{OWN_DIRECTORY, PLACED_IN, WRITER};
use berth_core::violation::Violations;
use berth_garden_api::{self as garden, extensions};
use berth_garden_core::bucket::GardenBucket;
use berth_garden_core::entry::GardenEntry;
use berth_garden_core::view::ExtensionObject;
use berth_garden_core::{Profile, Seed, check};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    CROSS, FORCE, FORGET, HUB, MEMBER, OWNER, PATIENCE, annotated, apply, bucket, entry, member_bucket,
    member_entry, object, prepare, profile, said, secret, seed,
};
use crate::support::{ControlPlane, Kubectl, manifest, wait_for};

/// An object before and after, and what core says to that; `None`: it is created.
struct Case {
    old: Option<Value>,
    new: Value,
}

fn read<W: DeserializeOwned, T: for<'w> From<&'w W>>(object: &Value) -> T {
    T::from(&serde_json::from_value::<W>(object.clone()).unwrap())
}

fn by_core(case: &Case) -> Violations {
    let Case { old, new } = case;
    let changed = old.as_ref().is_none_or(|old| old["spec"] != new["spec"]);
    let api = new["apiVersion"].as_str().unwrap();
    match (api, new["kind"].as_str().unwrap()) {
        (HUB, "CloudProfile") => read::<garden::CloudProfile, Profile>(new).faults(),
        (HUB, "Seed") => check::seed::faults(&read::<garden::Seed, Seed>(new)),
        (HUB, "BackupBucket") => {
            let read = read::<garden::BackupBucket, GardenBucket>;
            check::bucket::faults(old.as_ref().map(read).as_ref(), &read(new))
        }
        (HUB, "BackupEntry") => {
            let read = read::<garden::BackupEntry, GardenEntry>;
            check::entry::faults(old.as_ref().map(read).as_ref(), &read(new), false)
        }
        (_, "BackupBucket") => {
            let read = read::<extensions::BackupBucket, ExtensionObject>;
            check::extension::faults(old.as_ref().map(read).as_ref(), &read(new), changed)
        }
        _ => {
            let read = read::<extensions::BackupEntry, ExtensionObject>;
            check::extension::faults(old.as_ref().map(read).as_ref(), &read(new), changed)
        }
    }
}

/// Every combination of what matters to the policies.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut created = |new: Value| cases.push(Case { old: None, new });
    for provider in [json!(null), json!(""), json!("packet"), json!("aws")] {
        for region in [json!(null), json!(""), json!("r")] {
            for secret in [json!(null), json!({}), json!({"name": "n"}), secret("n")] {
                for opt_out in [None, Some("false"), Some("true"), Some("")] {
                    let fields = [("provider", &provider), ("region", &region), ("secretRef", &secret)];
                    let said = fields.into_iter().filter(|(_, value)| !value.is_null());
                    let backup: BTreeMap<&str, &Value> = said.collect();
                    let new = profile("case", json!(backup));
                    created(opt_out.map_or(new.clone(), |value| annotated(new, CROSS, value)));
                }
            }
        }
    }
    let mut nameless = profile("case", json!({"provider": "aws"}));
    nameless["spec"]["provider"] = json!("");
    created(nameless);
    created(seed("case", "", ""));
    created(seed("case", "p", ""));
    created(seed("case", "p", "r"));
    for name in ["abc", "ab", "a-b", "a.b", "0ab", &"a".repeat(63), &"a".repeat(64)] {
        created(bucket(name, "r"));
        created(entry(name, "s", ""));
    }
    for provider in ["aws", "azure", "gcp"] {
        for name in ["a--b", "a-b", "goog-a", "a-goog", "a-google", "ab"] {
            let mut one = bucket(name, "r");
            one["spec"]["provider"] = json!(provider);
            created(one);
        }
    }
    created(object(
        HUB,
        "BackupBucket",
        "x",
        json!({"provider": "", "region": "", "secretRef": {"namespace": "g"}}),
    ));
    created(object(HUB, "BackupBucket", "hollow", json!({"provider": "aws", "region": ""})));
    created(entry("source-a", "", ""));
    for reason in ["", " ", "true", "false", "because"] {
        created(annotated(entry("case", "s", ""), FORCE, reason));
        created(annotated(entry("case", "", ""), FORGET, reason));
        created(annotated(annotated(entry("case", "s", ""), FORCE, reason), FORGET, reason));
        created(annotated(bucket("case", ""), FORGET, reason));
    }
    for (provider, region) in
        [("aws", ""), ("aws", "r"), ("gcp", ""), ("azure", ""), ("swift", ""), ("berth.dev/filesystem", "")]
    {
        created(member_bucket("case", provider, region));
    }
    created(member_entry("case", "", ""));
    created(member_entry("case", "r", "b"));
    let mut bare = member_entry("case", "r", "b");
    bare["spec"]["secretRef"] = json!({"namespace": "g"});
    created(bare);
    cases
}

/// Changes of one object, which is there.
fn changes() -> Vec<Case> {
    let owned = annotated(bucket("there", "r"), OWNER, "p");
    let mut known = entry("there", "s", "b");
    known["spec"]["shootUID"] = json!("u");
    let forced = annotated(known.clone(), FORCE, "because");
    let (member, of_member) = (member_bucket("there", "aws", "r"), member_entry("there", "r", "b"));
    let mut all = Vec::new();
    let mut change = |old: &Value, change: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        all.push(Case { old: Some(old.clone()), new });
    };
    change(&owned, &|b| b["spec"]["region"] = json!("other"));
    change(&owned, &|b| b["spec"]["provider"] = json!(""));
    change(&owned, &|b| b["spec"]["secretRef"]["name"] = json!("other"));
    change(&owned, &|b| b["metadata"]["annotations"][OWNER] = json!("q"));
    change(&owned, &|b| b["metadata"]["annotations"] = json!({}));
    change(&owned, &|b| b["metadata"]["annotations"][FORGET] = json!("true"));
    change(&owned, &|b| b["metadata"]["annotations"][FORGET] = json!("because"));
    change(&owned, &|b| b["metadata"]["labels"] = json!({"a": "b"}));
    change(&known, &|e| e["spec"]["bucketName"] = json!("c"));
    change(&known, &|e| drop(e["spec"].as_object_mut().unwrap().remove("bucketName")));
    change(&known, &|e| e["spec"]["shootUID"] = json!("v"));
    change(&known, &|e| e["spec"]["seedName"] = json!("t"));
    change(&known, &|e| e["metadata"]["annotations"] = json!({FORCE: "true"}));
    change(&forced, &|e| e["metadata"]["annotations"][FORCE] = json!("otherwise"));
    change(&forced, &|e| e["metadata"]["annotations"][FORGET] = json!(""));
    change(&forced, &|e| e["metadata"]["annotations"] = json!({FORCE: "", FORGET: "true"}));
    change(&forced, &|e| e["metadata"]["labels"] = json!({"a": "b"}));
    change(&member, &|b| b["spec"]["type"] = json!("openstack"));
    change(&member, &|b| b["spec"]["region"] = json!("other"));
    change(&member, &|b| b["spec"]["secretRef"]["name"] = json!("other"));
    change(&of_member, &|e| e["spec"]["region"] = json!("other"));
    change(&of_member, &|e| e["spec"]["bucketName"] = json!(""));
    all
}

/// Who may write entries, and nothing else: as a dry run by this user is answered.
fn by(kubectl: &Kubectl, user: &str, object: &Value) -> String {
    let user = format!("--as={user}");
    let dry = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", &user];
    said(&kubectl.answer(&dry, &object.to_string()).unwrap())
}

/// Gives a user the right to create entries of this Seed, and to move entries to it.
fn let_use(kubectl: &Kubectl, seed: &str, who: &str, name: &str) {
    let rule = json!({
        "apiGroups": ["garden.berth.dev"], "resources": ["seeds"], "resourceNames": [seed], "verbs": ["use"],
    });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
        "rules": [rule],
    });
    kubectl.run_with(&["create", "-f", "-"], &role.to_string()).unwrap();
    let role = format!("--clusterrole={name}");
    kubectl.run(&["create", "clusterrolebinding", name, &role, who]).unwrap();
}

/// Its cluster gets a location for the entry, to which that cluster's backups may go.
fn who_names_a_seed_may_use_it(kubectl: &Kubectl) {
    const VELERO: &str = "system:serviceaccount:velero:velero";
    let verbs = "--verb=get,create,update,patch";
    kubectl
        .run(&["create", "clusterrole", "maker", verbs, "--resource=backupentries.garden.berth.dev"])
        .unwrap();
    let bind = ["create", "clusterrolebinding", "maker", "--clusterrole=maker"];
    let velero = format!("--user={VELERO}");
    kubectl.run(&[&bind[..], &["--user=maker", "--user=stranger", &velero]].concat()).unwrap();
    let refused = |seed: &str| {
        format!(
            "refused by berth-places: spec.seedName: whoever creates an entry of Seed \"{seed}\", or moves one to it, wants the verb use"
        )
    };
    let (plain, moved) = (entry("of-a-seed", "s", "b"), entry("of-a-seed", "t", "b"));
    wait_for("the right to write entries", PATIENCE, || {
        let refusals = ["maker", "stranger"].map(|user| by(kubectl, user, &plain).contains(&refused("s")));
        Ok((refusals == [true, true] && by(kubectl, VELERO, &plain) == "  accepted\n").then_some(()))
    })
    .unwrap();
    let_use(kubectl, "s", "--user=maker", "use-of-s");
    wait_for("the right to use the Seed", PATIENCE, || {
        Ok((by(kubectl, "maker", &plain) == "  accepted\n").then_some(()))
    })
    .unwrap();
    // Created, and then as a change of one that is there.
    for is_there in [false, true] {
        for user in ["maker", "stranger"] {
            let answer = by(kubectl, user, &moved);
            assert!(answer.contains(&refused("t")), "{is_there} {user}: {answer}");
        }
        assert_eq!(by(kubectl, VELERO, &moved), "  accepted\n", "{is_there}: a restore");
        assert_eq!(
            said(&apply(kubectl, &moved, true)),
            "  accepted\n",
            "{is_there}: who may use all of them"
        );
        if !is_there {
            assert!(apply(kubectl, &plain, false).status.success());
        }
    }
    let mut labelled = plain.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(by(kubectl, "stranger", &labelled), "  accepted\n", "it stays where it is");
}

/// Who takes the hub's finalizer off, and is not the hub.
const LETS_GO: &str = "refused by berth-finalizers: metadata.finalizers: only the hub takes";
const HUBS: &str = "system:serviceaccount:velero:berth-controller";

fn claimed(entry: &Value) -> Value {
    let mut entry = entry.clone();
    entry["metadata"]["finalizers"] = json!(["garden.berth.dev/backup"]);
    entry
}

/// A forged one would give its Seed the keys of another profile's bucket.
fn that_an_entry_has_a_place_is_the_hubs_word(kubectl: &Kubectl) {
    let by_maker = |object: &Value| by(kubectl, "maker", object);
    let plain = entry("mine", "s", "b");
    let finalized = claimed(&plain);
    let forged = [
        (annotated(plain.clone(), PLACED_IN, "b"), format!("metadata.annotations[{PLACED_IN}]: ")),
        (annotated(plain.clone(), WRITER, "s"), format!("metadata.annotations[{WRITER}]: ")),
        (annotated(plain.clone(), OWN_DIRECTORY, "mine"), format!("metadata.annotations[{OWN_DIRECTORY}]: ")),
        (finalized.clone(), "metadata.finalizers: ".to_owned()),
    ];
    // Created, and then as a change of one that is there.
    for is_there in [false, true] {
        assert_eq!(by_maker(&plain), "  accepted\n");
        for (forged, field) in &forged {
            let answer = by_maker(forged);
            assert!(answer.contains(&format!("refused by berth-places: {field}")), "{is_there} {answer}");
            assert_eq!(said(&apply(kubectl, forged, true)), "  accepted\n", "whoever may write statuses");
        }
        assert!(apply(kubectl, &plain, false).status.success());
    }
    // Policies are asked when the API server has named it.
    let mut generated = finalized.clone();
    generated["metadata"].as_object_mut().unwrap().remove("name");
    generated["metadata"]["generateName"] = json!("mine-");
    let create = |more: &[&str]| {
        let args = [&["create", "--dry-run=server", "-f", "-"][..], more].concat();
        said(&kubectl.answer(&args, &generated.to_string()).unwrap())
    };
    assert!(create(&["--as=maker"]).contains("refused by berth-places: metadata.finalizers: "));
    assert_eq!(create(&[]), "  accepted\n", "whoever may write statuses");
    // Nor is it anybody's to take back.
    assert!(apply(kubectl, &finalized, false).status.success());
    let answer = by_maker(&plain);
    assert!(answer.contains(LETS_GO), "{answer}");
    let mut labelled = finalized;
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(by_maker(&labelled), "  accepted\n", "it has it still");
    assert_eq!(by(kubectl, HUBS, &plain), "  accepted\n", "the hub, whose rights do not include deleting");
    let answer = said(&apply(kubectl, &plain, true));
    assert!(answer.contains(LETS_GO), "whoever may delete it: {answer}");
    let plain = bucket("held", "r");
    assert!(apply(kubectl, &claimed(&plain), false).status.success());
    let answer = said(&apply(kubectl, &plain, true));
    assert!(answer.contains(LETS_GO), "{answer}");
    assert_eq!(by(kubectl, HUBS, &plain), "  accepted\n");
}

#[test]
fn the_policies_and_the_checks_agree_case_by_case() {
    let plane = ControlPlane::start().unwrap();
    let _report = plane.report_on_panic();
    plane.define().unwrap();
    let member =
        berth_garden_api::crd::member().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    plane.apply(member).unwrap();
    plane.install(manifest::objects_with_garden("velero", "https://127.0.0.1:1", false).unwrap()).unwrap();
    let kubectl = plane.kubectl();
    prepare(kubectl);
    let judge = |object: &Value| said(&apply(kubectl, object, true));
    wait_for("the policies to be on", PATIENCE, || {
        let wrong = [
            profile("x", json!({})),
            seed("x", "", ""),
            bucket("x", "r"),
            entry("x", "", ""),
            member_bucket("x", "aws", ""),
        ];
        Ok(wrong.iter().all(|wrong| judge(wrong).contains("refused by berth-")).then_some(()))
    })
    .unwrap();
    let (created, changed) = (cases(), changes());
    assert!(created.len() > 200 && changed.len() > 15);
    let mut there = Value::Null;
    for case in created.iter().chain(&changed) {
        if let Some(old) = case.old.as_ref().filter(|old| **old != there) {
            let answer = apply(kubectl, old, false);
            assert!(answer.status.success(), "{}", answer.stderr);
            there.clone_from(old);
        }
        let is_served = case.new["apiVersion"] != MEMBER
            || [&case.new, case.old.as_ref().unwrap_or(&Value::Null)].into_iter().any(|one| {
                ["aws", "azure", "gcp", "berth.dev/filesystem"]
                    .iter()
                    .any(|served| one["spec"]["type"] == *served)
            });
        let matters = case.old.as_ref().is_none_or(|old| {
            old["spec"] != case.new["spec"]
                || old["metadata"]["annotations"] != case.new["metadata"]["annotations"]
        });
        let faults = if is_served && matters { by_core(case) } else { Violations::default() };
        let answer = judge(&case.new);
        let expected = if faults.is_empty() { "  accepted\n".to_owned() } else { format!(": {faults}\n") };
        assert!(answer.ends_with(&expected), "{}\nby core: {faults}\nby the policy: {answer}", case.new);
        assert!(faults.is_empty() || answer.contains("refused by berth-"), "{answer}");
    }
    only_what_is_on_record_is_deleted(kubectl);
    who_names_a_seed_may_use_it(kubectl);
    that_an_entry_has_a_place_is_the_hubs_word(kubectl);
    only_who_may_delete_lets_go(&plane);
}

/// Deletions, dry: the policy refuses what core calls a fault, word for word.
fn only_what_is_on_record_is_deleted(kubectl: &Kubectl) {
    const OURS: &str = "garden.berth.dev/backup";
    const THEIRS: &str = "example.com/other";
    let mut entries = Vec::new();
    for bucket in ["", "b"] {
        for finalizers in [json!([]), json!([THEIRS]), json!([THEIRS, OURS])] {
            for forgotten in [None, Some("false"), Some("the store is given up")] {
                let mut one = entry(&format!("end-{}", entries.len()), "s", bucket);
                one["metadata"]["finalizers"] = finalizers.clone();
                entries.push(forgotten.map_or(one.clone(), |why| annotated(one, FORGET, why)));
            }
        }
    }
    let mut going = entry("going", "s", "b");
    going["metadata"]["finalizers"] = json!([THEIRS, OURS]);
    entries.push(going);
    for one in &entries {
        let answer = apply(kubectl, one, false);
        assert!(answer.status.success(), "{}", answer.stderr);
    }
    const ENTRIES: &str = "backupentries.garden.berth.dev";
    kubectl.run(&["delete", ENTRIES, "going", "-n", "garden-dev", "--wait=false"]).unwrap();
    let mut let_go = entry("going", "s", "b");
    let_go["metadata"]["finalizers"] = json!([THEIRS]);
    let hub = format!("--as={HUBS}");
    let args = ["apply", "--server-side", "--force-conflicts", "-f", "-", &hub];
    kubectl.run_with(&args, &let_go.to_string()).unwrap();
    let delete = |name: &str| {
        let args = ["delete", ENTRIES, name, "-n", "garden-dev", "--wait=false", "--dry-run=server"];
        said(&kubectl.answer(&args, "").unwrap())
    };
    wait_for("the policy of deletions to be on", PATIENCE, || {
        Ok(delete("end-9").contains("refused by berth-backupentry-deletions").then_some(()))
    })
    .unwrap();
    let mut refused = 0;
    for one in &entries {
        let name = one["metadata"]["name"].as_str().unwrap();
        let there = kubectl.run(&["get", ENTRIES, name, "-n", "garden-dev", "-o", "json"]).unwrap();
        let there = read::<garden::BackupEntry, GardenEntry>(&serde_json::from_str(&there).unwrap());
        let faults = check::entry::check_delete(&there);
        let answer = delete(name);
        let expected = if faults.is_empty() { "  accepted\n".to_owned() } else { format!(": {faults}\n") };
        assert!(answer.ends_with(&expected), "{one}\nby core: {faults}\nby the policy: {answer}");
        refused += usize::from(!faults.is_empty());
    }
    assert_eq!(refused, 4, "with a bucket, without our finalizer, and not meant");
}

/// Forgetting data equals deleting it: a user who may write an object but not delete it may not set
/// the annotation.
fn only_who_may_delete_lets_go(plane: &ControlPlane) {
    let kubectl = plane.kubectl();
    kubectl.run(&["create", "serviceaccount", "writer", "-n", "garden-dev"]).unwrap();
    let account = "--serviceaccount=garden-dev:writer";
    let of_cluster = "--resource=backupbuckets.garden.berth.dev,backupbuckets.extensions.gardener.cloud,backupentries.extensions.gardener.cloud";
    let may = |verbs: &str, name: &str| {
        let (verbs, role) = (format!("--verb={verbs}"), format!("--role={name}"));
        let resource = "--resource=backupentries.garden.berth.dev";
        kubectl.run(&["create", "role", name, "-n", "garden-dev", &verbs, resource]).unwrap();
        kubectl.run(&["create", "rolebinding", name, "-n", "garden-dev", &role, account]).unwrap();
        let role = format!("--clusterrole={name}");
        kubectl.run(&["create", "clusterrole", name, &verbs, of_cluster]).unwrap();
        kubectl.run(&["create", "clusterrolebinding", name, &role, account]).unwrap();
    };
    may("get,create,patch", "write-entries-and-buckets");
    let_use(kubectl, "s", account, "use-of-s-by-writer");
    let writer = kubectl.with_kubeconfig(plane.service_account_kubeconfig("garden-dev", "writer").unwrap());
    let asked = [
        (FORCE, entry("let-go", "s", "")),
        (FORGET, entry("let-go", "s", "")),
        (FORGET, bucket("let-go", "r")),
        (FORGET, member_entry("let-go", "r", "b")),
        (FORGET, member_bucket("let-go", "aws", "r")),
    ]
    .map(|(key, object)| (key, annotated(object, key, "because")));
    wait_for("the right to write", PATIENCE, || {
        let plain = [entry("let-go", "s", ""), bucket("let-go", "r"), member_entry("let-go", "r", "b")];
        Ok(plain.iter().all(|one| said(&apply(&writer, one, true)) == "  accepted\n").then_some(()))
    })
    .unwrap();
    for (key, object) in &asked {
        let answer = said(&apply(&writer, object, true));
        let refused =
            format!("refused by berth-letting-go: metadata.annotations[{key}]: only who may delete");
        assert!(answer.contains(&refused), "{object}: {answer}");
    }
    let both = annotated(asked[0].1.clone(), FORGET, "because");
    let answer = said(&apply(&writer, &both, true));
    assert!(
        answer.contains(&format!("[{FORCE}]: ")) && answer.contains(&format!("[{FORGET}]: ")),
        "{answer}"
    );
    let stripped = entry("stripped", "s", "b");
    assert!(apply(kubectl, &claimed(&stripped), false).status.success());
    let answer = said(&apply(&writer, &stripped, true));
    assert!(answer.contains(LETS_GO), "{answer}");
    may("delete", "delete-entries-and-buckets");
    for (_, object) in &asked {
        wait_for("the right to delete", PATIENCE, || {
            Ok((said(&apply(&writer, object, true)) == "  accepted\n").then_some(()))
        })
        .unwrap();
    }
    let answer = said(&apply(&writer, &stripped, true));
    assert!(answer.contains(LETS_GO), "not without a record: {answer}");
    // The API server has not named it yet.
    let mut generated = both;
    generated["metadata"].as_object_mut().unwrap().remove("name");
    generated["metadata"]["generateName"] = json!("let-go-");
    let answer = writer.answer(&["create", "--dry-run=server", "-f", "-"], &generated.to_string()).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}
