//! The Secret with which a CSI driver deletes a snapshot. The snapshot controller names it on the
//! contents that it makes, by the class of the snapshot. A content that is made for a deletion gets
//! it by the class that a backup would choose now, because nothing else in the cluster tells. The
//! store could tell, too, but whoever may write there must not say which Secrets a driver is given.

use std::collections::BTreeMap;

use berth_api::keys::{CLAIM_SNAPSHOT_CLASS, DEFAULT_SNAPSHOT_CLASS};
use berth_core::sync::is_name;
use berth_core::volume::class::{SnapshotClass, choose};
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::carrying::StoredSnapshot;

/// Parameters of a class: name and namespace of the Secret.
const OF_CLASS: [&str; 2] =
    ["csi.storage.k8s.io/snapshotter-secret-name", "csi.storage.k8s.io/snapshotter-secret-namespace"];
/// Annotations of a content: the same.
pub(super) const OF_CONTENT: [&str; 2] = [
    "snapshot.storage.kubernetes.io/deletion-secret-name",
    "snapshot.storage.kubernetes.io/deletion-secret-namespace",
];

/// The classes of the cluster, and the Secrets that they name.
#[derive(Default)]
pub(super) struct DeletionSecrets {
    classes: Vec<SnapshotClass>,
    /// By the name of the class.
    secrets: BTreeMap<String, [String; 2]>,
}

impl DeletionSecrets {
    pub(super) fn of(found: Vec<DynamicObject>) -> Self {
        let mut all = Self::default();
        for class in found {
            let text = |key: &str| class.data["parameters"][key].as_str().map(str::to_owned);
            let [name, namespace] = OF_CLASS.map(text);
            if let (Some(name), Some(namespace)) = (name, namespace) {
                all.secrets.insert(class.name_any(), [name, namespace]);
            }
            all.classes.push(SnapshotClass {
                name: class.name_any(),
                driver: class.data["driver"].as_str().unwrap_or_default().to_owned(),
                is_labelled: class.labels().contains_key(CLAIM_SNAPSHOT_CLASS),
                is_default: class.annotations().contains_key(DEFAULT_SNAPSHOT_CLASS),
            });
        }
        all
    }

    /// The annotations of a content of this snapshot; none where its driver needs no Secret, or
    /// where nobody can say which one.
    pub(super) fn annotations(&self, snapshot: &StoredSnapshot) -> BTreeMap<&'static str, String> {
        let secret = self
            .secret(&snapshot.driver)
            .and_then(|[name, namespace]| Some([resolved(name, snapshot)?, resolved(namespace, snapshot)?]));
        secret.into_iter().flat_map(|secret| OF_CONTENT.into_iter().zip(secret)).collect()
    }

    fn secret(&self, driver: &str) -> Option<&[String; 2]> {
        if let Some(class) = choose(&self.classes, driver, None, None).class {
            return self.secrets.get(&class.name);
        }
        let own = self.classes.iter().filter(|class| class.driver == driver);
        let mut named = own.filter_map(|class| self.secrets.get(&class.name));
        let first = named.next()?;
        named.all(|other| other == first).then_some(first)
    }
}

/// With the names that the snapshot controller puts into a parameter. `None`: one of them is not
/// known.
fn resolved(parameter: &str, snapshot: &StoredSnapshot) -> Option<String> {
    let StoredSnapshot { content, namespace, .. } = snapshot;
    let text = parameter
        .replace("${volumesnapshotcontent.name}", content)
        .replace("${volumesnapshot.namespace}", namespace);
    Some(text).filter(|text| is_name(text))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn class(name: &str, driver: &str, secret: Option<[&str; 2]>) -> Value {
        let mut class = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": name}, "driver": driver, "deletionPolicy": "Delete",
        });
        if let Some([name, namespace]) = secret {
            class["parameters"] = json!({OF_CLASS[0]: name, OF_CLASS[1]: namespace, "clusterID": "c"});
        }
        class
    }

    fn annotations(classes: &[Value], driver: &str) -> Vec<String> {
        let [driver, handle, content, namespace] = [driver, "h", "c1", "shop"].map(str::to_owned);
        let found = classes.iter().map(|class| serde_json::from_value(class.clone()).unwrap()).collect();
        let snapshot = StoredSnapshot { driver, handle, content, namespace };
        let annotations = DeletionSecrets::of(found).annotations(&snapshot);
        assert!(annotations.keys().all(|key| OF_CONTENT.contains(key)), "{annotations:?}");
        OF_CONTENT.into_iter().filter_map(|key| annotations.get(key).cloned()).collect()
    }

    #[test]
    fn a_driver_gets_the_secret_of_the_class_that_a_backup_would_choose() {
        let (one, other) = (Some(["s", "ceph"]), Some(["t", "ceph"]));
        let mut labelled = class("labelled", "rbd", other);
        labelled["metadata"]["labels"] = json!({CLAIM_SNAPSHOT_CLASS: "true"});
        let mut default = class("default", "rbd", None);
        default["metadata"]["annotations"] = json!({DEFAULT_SNAPSHOT_CLASS: "true"});
        let (a, b) = (class("a", "rbd", one), class("b", "rbd", one));
        let templates = Some(["s-${volumesnapshotcontent.name}", "${volumesnapshot.namespace}"]);
        let unknown = Some(["${volumesnapshot.name}", "ceph"]);
        for (classes, expected) in [
            (vec![a.clone()], vec!["s", "ceph"]),
            (vec![a.clone(), b.clone()], vec!["s", "ceph"]),
            (vec![a.clone(), class("c", "rbd", other)], vec![]),
            (vec![a.clone(), labelled], vec!["t", "ceph"]),
            (vec![a.clone(), default], vec![]),
            (vec![class("a", "nfs", one)], vec![]),
            (vec![class("a", "rbd", templates)], vec!["s-c1", "shop"]),
            (vec![class("a", "rbd", unknown)], vec![]),
            (vec![class("a", "rbd", None)], vec![]),
            (vec![], vec![]),
        ] {
            assert_eq!(annotations(&classes, "rbd"), expected, "{classes:?}");
        }
    }
}
