use bytes::Bytes;
use serde_json::{Value, json};

use super::*;

fn found(object: &Value) -> ListedObject {
    ListedObject::parse(Bytes::from(object.to_string())).unwrap()
}

fn kind(group: &str, resource: &str) -> ResourceType {
    ResourceType {
        group: group.into(),
        version: "v1".into(),
        kind: "Any".into(),
        resource: resource.into(),
        singular: "any".into(),
        short_names: Vec::new(),
        namespaced: true,
    }
}

fn of_pods(followed: &[Related]) -> References {
    References::of(&kind("", "pods"), followed.to_vec(), "g")
}

fn of_claims(followed: &[Related]) -> References {
    References::of(&kind("", "persistentvolumeclaims"), followed.to_vec(), "g")
}

fn pod(more: &Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": more, "status": {"phase": "Running"}})
}

fn claim(volume: &str, phase: &str) -> Value {
    json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"volumeName": volume}, "status": {"phase": phase}})
}

fn needed(names: &[&str]) -> BTreeMap<String, Origin> {
    names.iter().map(|name| ((*name).to_owned(), Origin::Needed)).collect()
}

#[test]
fn a_pod_names_its_claims_and_its_priority_class() {
    let spec = json!({
        "priorityClassName": "first",
        "volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "b", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "c", "configMap": {"name": "x"}},
        ],
    });
    let mut both = of_pods(&[Related::Claim, Related::PriorityClass]);
    for _ in 0..2 {
        both.read(&found(&pod(&spec)), Origin::Listed).unwrap();
    }
    assert_eq!(both.take(Related::Claim), needed(&["ns/data"]));
    assert_eq!(both.take(Related::PriorityClass), needed(&["first"]));
    assert_eq!((both.take(Related::Claim).len(), both.count), (0, 0));
    let mut one = of_pods(&[Related::PriorityClass]);
    one.read(&found(&pod(&spec)), Origin::Listed).unwrap();
    assert!(one.take(Related::Claim).is_empty(), "what is not followed is not kept");
    let parsed = PodReferences::parse(pod(&json!({"volumes": null})).to_string().as_bytes()).unwrap();
    assert_eq!(parsed, PodReferences { is_running: true, ..PodReferences::default() });
    assert!(PodReferences::parse(br#"{"metadata":{"name":"x"}}"#).is_ok_and(|pod| !pod.is_running));
    assert!(PodReferences::parse(br#"{"spec":{"volumes":"odd"}}"#).is_err());
}

#[test]
fn what_an_object_requires_is_followed_whatever_else_is_and_outranks_what_is_needed() {
    let spec = json!({
        "priorityClassName": "first",
        "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}],
    });
    let mut none = of_pods(&[]);
    none.read(&found(&pod(&json!("odd"))), Origin::Listed).unwrap();
    none.read(&found(&pod(&spec)), Origin::Required).unwrap();
    assert_eq!(none.take(Related::Claim), BTreeMap::from([("ns/data".to_owned(), Origin::Required)]));
    let mut some = of_pods(&[Related::Claim]);
    for origin in [Origin::Required, Origin::Listed] {
        some.read(&found(&pod(&spec)), origin).unwrap();
    }
    assert_eq!(some.take(Related::Claim), BTreeMap::from([("ns/data".to_owned(), Origin::Required)]));
    let mut accounts = References::of(&kind("", "serviceaccounts"), Vec::new(), "g");
    let account = json!({"metadata": {"name": "sa", "namespace": "ns"}});
    accounts.read(&found(&account), Origin::Needed).unwrap();
    assert!(accounts.take(Related::Account).is_empty());
    accounts.read(&found(&account), Origin::Required).unwrap();
    assert_eq!(accounts.take(Related::Account).len(), 1);
}

#[test]
fn a_claim_names_its_volume_once_it_is_bound() {
    let mut volumes = of_claims(&[Related::Volume]);
    for (volume, phase) in [("pv-1", "Bound"), ("pv-2", "Pending"), ("", "Bound"), ("pv-3", "Lost")] {
        volumes.read(&found(&claim(volume, phase)), Origin::Listed).unwrap();
    }
    assert_eq!(volumes.take(Related::Volume), needed(&["pv-1"]));
    assert_eq!((volumes.lost, volumes.impossible), (0, 0));
}

#[test]
fn a_group_of_claims_is_looked_for_once() {
    let grouped = |group: &str, phase: &str| {
        let mut claim = claim("pv", phase);
        claim["metadata"]["labels"] = json!({"g": group, "other": "x"});
        claim
    };
    let mut claims = of_claims(&[Related::Volume, Related::Claim]);
    for (group, phase) in [("one", "Bound"), ("one", "Bound"), ("", "Bound"), ("two", "Pending")] {
        claims.read(&found(&grouped(group, phase)), Origin::Listed).unwrap();
    }
    assert_eq!(claims.take_groups(), BTreeSet::from(["ns/one".to_owned()]));
    claims.read(&found(&grouped("one", "Bound")), Origin::Needed).unwrap();
    assert!(claims.take_groups().is_empty());
    let mut alone = of_claims(&[Related::Volume]);
    alone.read(&found(&grouped("one", "Bound")), Origin::Listed).unwrap();
    assert!(alone.take_groups().is_empty(), "lists bring all claims");
}

#[test]
fn a_name_that_would_lead_elsewhere_is_none() {
    let mut volumes = of_claims(&[Related::Volume]);
    let long = "v".repeat(254);
    for odd in ["../namespaces/a/secrets/b", "pv/status", "pv%2fstatus", ".", "..", long.as_str()] {
        volumes.read(&found(&claim(odd, "Bound")), Origin::Listed).unwrap();
    }
    assert_eq!((volumes.take(Related::Volume).len(), volumes.impossible), (0, 6));
    assert!(is_name("system:node") && is_name("pv-1.example"));
    let mut classes =
        References::of(&kind("snapshot.storage.k8s.io", "volumesnapshotclasses"), Vec::new(), "g");
    let class = |namespace: &str| {
        let annotations = json!({
            "csi.storage.k8s.io/snapshotter-list-secret-name": "s",
            "csi.storage.k8s.io/snapshotter-list-secret-namespace": namespace,
        });
        json!({"metadata": {"name": "c", "annotations": annotations}})
    };
    for namespace in ["kube-system", "../x"] {
        classes.read(&found(&class(namespace)), Origin::Required).unwrap();
    }
    let secret = ("kube-system/s".to_owned(), Origin::Required);
    assert_eq!((classes.take(Related::Secret), classes.impossible), (BTreeMap::from([secret]), 1));
}

#[test]
fn what_there_is_no_room_for_is_counted() {
    let mut full = of_claims(&[Related::Volume]);
    full.note(Related::Volume, Origin::Needed, None, "known");
    full.count = MOST;
    for name in ["known", "a", "b"] {
        full.read(&found(&claim(name, "Bound")), Origin::Listed).unwrap();
    }
    assert_eq!((full.lost, full.names[&Related::Volume].len()), (2, 1));
}

#[test]
fn labels_are_read_of_whatever_there_is() {
    let read = |object: Value| labels(object.to_string().as_bytes()).ok().map(|labels| labels.len());
    let odd = json!({"metadata": {"labels": {"a": "b"}}, "spec": 1, "status": {"phase": {}}});
    assert_eq!(read(odd), Some(1));
    for none in [json!({}), json!({"metadata": {"labels": null}}), json!({"metadata": {}})] {
        assert_eq!(read(none), Some(0));
    }
    assert_eq!(read(json!({"metadata": {"labels": {"a": 1}}})), None);
}

#[test]
fn a_binding_names_accounts_one_by_one() {
    let binding = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
        "subjects": [
            {"kind": "ServiceAccount", "name": "sa", "namespace": "ns"},
            {"kind": "Group", "name": "system:serviceaccounts:ns"},
            {"kind": "User", "name": "ns/sa"},
        ],
    });
    let expected = BindingReferences { role: "r".to_owned(), accounts: vec!["ns/sa".to_owned()] };
    assert_eq!(BindingReferences::parse(binding.to_string().as_bytes()).unwrap(), expected);
    let nobody = BindingReferences::parse(br#"{"roleRef":{"name":"r"},"subjects":null}"#).unwrap();
    assert!(nobody.accounts.is_empty());
}
