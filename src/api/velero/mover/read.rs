//! Reads the values on which decisions about data movers depend from an object of each kind.

use berth_core::mover::MoverKind;
use berth_core::mover::grant::{Mover, MoverPhase};
use berth_core::mover::own;
use berth_core::pod_volume::is_own;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Resource, ResourceExt};

use super::{DataDownload, DataMoverStatus, DataUpload, PodReference, PodVolumeBackup, PodVolumeRestore};
use crate::keys;

/// The common interface of the four kinds.
pub trait DataMover: Resource {
    const KIND: MoverKind;

    /// `status.phase` as written; an absent one is the empty text.
    fn phase_text(&self) -> &str;

    /// The values that the object itself has. The caller adds the others: the node to which a
    /// PodVolumeRestore is bound, and the mover pod.
    fn mover(&self) -> Mover;

    fn phase(&self) -> MoverPhase {
        MoverPhase::parse(self.phase_text())
    }

    /// Does it carry a grant?
    fn is_granted(&self) -> bool {
        is_granted(self)
    }

    /// Is it handled by another data mover than Velero's or berth's: another vendor's, or a node
    /// agent of berth's, which prepares nothing for it?
    fn is_third_party(&self) -> bool {
        false
    }

    /// Is it carried by a data mover pod of berth's, which the leader makes?
    fn is_own(&self) -> bool {
        false
    }

    /// The pod to whose node it is bound, if only that pod has the name of the node.
    fn target_pod(&self) -> Option<PodReference> {
        None
    }
}

fn is_granted(object: &(impl Resource + ?Sized)) -> bool {
    object.meta().annotations.as_ref().is_some_and(|annotations| keys::is_set(annotations, keys::GRANTED))
}

/// Is a PodVolumeBackup or PodVolumeRestore of berth's carried by a data mover pod?
fn is_by_mover(object: &(impl Resource + ?Sized)) -> bool {
    object.meta().annotations.as_ref().is_some_and(|annotations| keys::is_set(annotations, keys::BY_MOVER))
}

/// A malformed number counts as zero.
fn resets(meta: &ObjectMeta) -> u32 {
    let mark = meta.annotations.as_ref().and_then(|annotations| annotations.get(keys::BEGUN_ANEW));
    mark.and_then(|mark| mark.parse().ok()).unwrap_or(0)
}

/// Everything except the values from the status.
fn unread<K: DataMover>(object: &K, cancel: Option<bool>) -> Mover {
    let meta = object.meta();
    let created = meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    Mover {
        phase: object.phase(),
        granted: object.is_granted(),
        // A node-agent cancels a data mover that is being deleted.
        canceled: cancel == Some(true) || meta.deletion_timestamp.is_some(),
        third_party: object.is_third_party(),
        own: object.is_own(),
        resets: resets(meta),
        ..Mover::new(K::KIND, object.name_any(), object.uid().unwrap_or_default(), created)
    }
}

/// An empty name means no node.
fn named(node: &Option<String>) -> Option<String> {
    node.clone().filter(|node| !node.is_empty())
}

fn at(time: &Option<Time>) -> Option<Timestamp> {
    time.as_ref().map(|time| time.0)
}

fn data_mover<K: DataMover>(object: &K, cancel: Option<bool>, status: Option<&DataMoverStatus>) -> Mover {
    let Some(status) = status else { return unread(object, cancel) };
    Mover {
        accepted_by: named(&status.accepted_by_node),
        accepted_at: at(&status.accepted_timestamp),
        running_on: named(&status.node),
        ..unread(object, cancel)
    }
}

/// The two kinds that move snapshot data have the same fields by the same names.
macro_rules! snapshot_mover {
    ($kind:ident) => {
        impl DataMover for $kind {
            const KIND: MoverKind = MoverKind::$kind;

            fn phase_text(&self) -> &str {
                self.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
            }

            fn mover(&self) -> Mover {
                data_mover(self, self.spec.cancel, self.status.as_ref())
            }

            fn is_third_party(&self) -> bool {
                own::is_foreign(self.spec.datamover.as_deref())
            }

            fn is_own(&self) -> bool {
                own::is_own(self.spec.datamover.as_deref())
            }
        }
    };
}

snapshot_mover!(DataUpload);
snapshot_mover!(DataDownload);

impl DataMover for PodVolumeBackup {
    const KIND: MoverKind = MoverKind::PodVolumeBackup;

    fn phase_text(&self) -> &str {
        self.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }

    fn is_third_party(&self) -> bool {
        is_own(self.spec.uploader_type.as_deref()) && !is_by_mover(self)
    }

    fn is_own(&self) -> bool {
        is_own(self.spec.uploader_type.as_deref()) && is_by_mover(self)
    }

    fn mover(&self) -> Mover {
        Mover {
            bound_node: named(&self.spec.node),
            accepted_at: self.status.as_ref().and_then(|status| at(&status.accepted_timestamp)),
            ..unread(self, self.spec.cancel)
        }
    }
}

impl DataMover for PodVolumeRestore {
    const KIND: MoverKind = MoverKind::PodVolumeRestore;

    fn phase_text(&self) -> &str {
        self.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }

    fn is_third_party(&self) -> bool {
        is_own(self.spec.uploader_type.as_deref()) && !is_by_mover(self)
    }

    fn is_own(&self) -> bool {
        is_own(self.spec.uploader_type.as_deref()) && is_by_mover(self)
    }

    fn mover(&self) -> Mover {
        let node = self.status.as_ref().and_then(|status| named(&status.node));
        Mover {
            // The node agent that handed it over has written which node that is.
            bound_node: node.clone().filter(|_| self.is_own()),
            accepted_by: node.clone(),
            accepted_at: self.status.as_ref().and_then(|status| at(&status.accepted_timestamp)),
            running_on: node,
            ..unread(self, self.spec.cancel)
        }
    }

    fn target_pod(&self) -> Option<PodReference> {
        self.spec.pod.clone()
    }
}

#[cfg(test)]
mod tests {
    use kube::core::DynamicObject;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn read<K: DataMover + serde::de::DeserializeOwned>(object: Value) -> Mover {
        serde_json::from_value::<K>(object).unwrap().mover()
    }

    /// An object as a stock node-agent leaves it.
    fn accepted(kind: MoverKind, spec: Value, status: Value) -> Value {
        json!({
            "apiVersion": kind.api_version(), "kind": kind.as_str(),
            "metadata": {"name": "m-1", "namespace": "velero", "uid": "u-1",
                "creationTimestamp": "2026-01-02T03:04:05Z", "resourceVersion": "7",
                "labels": {"velero.io/expose-on-going": "true"},
                "annotations": {"berth.dev/granted": "2026-01-02T03:04:06Z"}},
            "spec": spec, "status": status,
        })
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn expected(kind: MoverKind) -> Mover {
        Mover {
            phase: MoverPhase::Accepted,
            granted: true,
            accepted_at: Some(time("2026-01-02T03:04:07Z")),
            ..Mover::new(kind, "m-1", "u-1", time("2026-01-02T03:04:05Z"))
        }
    }

    #[test]
    fn the_kinds_are_called_as_velero_calls_them() {
        fn check<K: DataMover<DynamicType = ()>>() {
            assert_eq!(K::kind(&()), K::KIND.as_str());
            assert_eq!(K::plural(&()), K::KIND.plural());
            assert_eq!(K::version(&()), K::KIND.version());
            assert_eq!(K::api_version(&()), K::KIND.api_version());
            assert_eq!(K::group(&()), MoverKind::GROUP);
        }
        check::<DataUpload>();
        check::<DataDownload>();
        check::<PodVolumeBackup>();
        check::<PodVolumeRestore>();
    }

    #[test]
    fn an_accepted_one_of_each_kind_is_read() {
        let accepted_at = "2026-01-02T03:04:07Z";
        let status = json!({"phase": "Accepted", "acceptedByNode": "n1", "acceptedTimestamp": accepted_at, "progress": {}});
        let upload = json!({"snapshotType": "CSI", "csiSnapshot": {"volumeSnapshot": "vs", "storageClass": "fast"},
            "sourcePVC": "data", "sourceNamespace": "shop", "backupStorageLocation": "default",
            "operationTimeout": "10m0s", "dataMoverConfig": null});
        let object = accepted(MoverKind::DataUpload, upload, status.clone());
        let by_n1 = |kind| Mover { accepted_by: Some("n1".to_owned()), ..expected(kind) };
        assert_eq!(read::<DataUpload>(object.clone()), by_n1(MoverKind::DataUpload));
        let spec = serde_json::from_value::<DataUpload>(object).unwrap().spec;
        assert_eq!(
            (spec.source_namespace.as_deref(), spec.source_pvc.as_deref()),
            (Some("shop"), Some("data"))
        );
        assert_eq!(spec.csi_snapshot.and_then(|snapshot| snapshot.storage_class).as_deref(), Some("fast"));

        let download =
            json!({"targetVolume": {"namespace": "shop", "pvc": "data", "pv": ""}, "datamover": "velero"});
        let object = accepted(MoverKind::DataDownload, download, status);
        assert_eq!(read::<DataDownload>(object), by_n1(MoverKind::DataDownload));

        let pod = json!({"kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "p"});
        let backup = json!({"node": "n2", "pod": pod, "volume": "data", "repoIdentifier": ""});
        let status = json!({"phase": "Accepted", "acceptedTimestamp": accepted_at});
        let on_n2 = Some("n2".to_owned());
        assert_eq!(
            read::<PodVolumeBackup>(accepted(MoverKind::PodVolumeBackup, backup, status)),
            Mover { bound_node: on_n2.clone(), ..expected(MoverKind::PodVolumeBackup) }
        );
        let status = json!({"phase": "Accepted", "acceptedTimestamp": accepted_at, "node": "n2"});
        let object = accepted(MoverKind::PodVolumeRestore, json!({"pod": pod}), status);
        assert_eq!(
            read::<PodVolumeRestore>(object),
            Mover { accepted_by: on_n2.clone(), running_on: on_n2, ..expected(MoverKind::PodVolumeRestore) }
        );
    }

    #[test]
    fn what_is_absent_empty_or_null_is_as_new_as_can_be() {
        let new = Mover::new(MoverKind::DataUpload, "", "", Timestamp::UNIX_EPOCH);
        for object in [
            json!({"metadata": {}, "spec": {}}),
            json!({"metadata": {}, "spec": {"csiSnapshot": null, "cancel": null}, "status": null}),
            json!({"metadata": {}, "spec": {}, "status": {"phase": "", "node": "", "acceptedTimestamp": null}}),
            json!({"metadata": {"annotations": {"berth.dev/granted": "false"}}, "spec": {"datamover": ""}}),
        ] {
            let mut object = object;
            object["apiVersion"] = json!("velero.io/v2alpha1");
            object["kind"] = json!("DataUpload");
            assert_eq!(read::<DataUpload>(object.clone()), new, "{object}");
        }
    }

    #[test]
    fn what_is_odd_is_told() {
        let object = |metadata: Value, spec: Value, phase: &str| {
            let object = json!({"apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "metadata": metadata,
                "spec": spec, "status": {"phase": phase}});
            read::<DataUpload>(object)
        };
        assert_eq!(object(json!({}), json!({}), "Exposing").phase, MoverPhase::Unknown);
        assert!(object(json!({}), json!({"datamover": "acme"}), "New").third_party);
        let ours = object(json!({}), json!({"datamover": "berth"}), "New");
        assert!(ours.own && !ours.third_party);
        for (uploader, is_own) in [("restic", true), ("kopia", false), ("", false)] {
            let files = json!({"apiVersion": "velero.io/v1", "kind": "PodVolumeBackup", "metadata": {},
                "spec": {"uploaderType": uploader}});
            assert_eq!(read::<PodVolumeBackup>(files.clone()).third_party, is_own, "{uploader}");
            let mut by_mover = files;
            by_mover["metadata"]["annotations"] = json!({"berth.dev/by-mover": "true"});
            let found = read::<PodVolumeBackup>(by_mover.clone());
            assert_eq!((found.own, found.third_party), (is_own, false), "{uploader}, by a data mover");
            by_mover["kind"] = json!("PodVolumeRestore");
            by_mover["status"] = json!({"phase": "New", "node": "n1"});
            let found = read::<PodVolumeRestore>(by_mover);
            assert_eq!((found.own, found.third_party), (is_own, false), "{uploader}, by a data mover");
            assert_eq!(found.bound_node, is_own.then(|| "n1".to_owned()), "{uploader}");
        }
        assert!(object(json!({}), json!({"cancel": true}), "New").canceled);
        assert!(object(json!({"deletionTimestamp": "2026-01-02T03:04:05Z"}), json!({}), "New").canceled);
        let resets = |mark: &str| {
            object(json!({"annotations": {"berth.dev/begun-anew": mark}}), json!({}), "New").resets
        };
        assert_eq!([resets("2"), resets("-2"), resets("often")], [2, 0, 0]);
    }

    proptest! {
        /// Holds for any text in any of the fields.
        #[test]
        fn no_text_breaks_the_reader(phase in ".*", node in ".*", mark in ".*") {
            let object = json!({
                "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
                "metadata": {"name": node, "annotations": {"berth.dev/granted": mark}},
                "spec": {"node": node}, "status": {"phase": phase},
            });
            prop_assert!(serde_json::from_value::<DynamicObject>(object.clone()).is_ok());
            let mover = read::<PodVolumeBackup>(object);
            prop_assert_eq!(mover.granted, mark != "false");
            prop_assert_eq!(mover.bound_node, Some(node).filter(|node| !node.is_empty()));
        }
    }
}
