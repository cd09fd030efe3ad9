//! Data movers as untyped API objects, for all four kinds.

use berth_core::mover::MoverKind;
use berth_core::mover::grant::Mover;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;

/// An API of one kind that reads and writes any fields.
pub fn api(client: &Client, namespace: &str, kind: MoverKind) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource(kind))
}

/// How the API server names one kind.
pub fn resource(kind: MoverKind) -> ApiResource {
    let gvk = GroupVersionKind::gvk(MoverKind::GROUP, kind.version(), kind.as_str());
    ApiResource::from_gvk_with_plural(&gvk, kind.plural())
}

pub fn reference(namespace: &str, mover: &Mover) -> ObjectReference {
    ObjectReference {
        api_version: Some(mover.kind.api_version().to_owned()),
        kind: Some(mover.kind.as_str().to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(mover.name.clone()),
        uid: Some(mover.uid.clone()),
        ..ObjectReference::default()
    }
}
