//! Installation: fits the manifests in this binary to a cluster, and applies, compares and removes
//! them.

pub mod apply;
pub mod arguments;
pub mod certificates;
pub mod cluster;
pub mod diff;
pub mod engine;
pub mod finalizers;
pub mod hub;
pub mod kept;
pub mod member;
pub mod member_objects;
pub mod pod_volumes;
pub mod probe;
pub mod remove;
pub mod render;
pub mod reviews;
pub mod running;
pub mod sources;
pub mod velero;

pub use cluster::{ClusterFindings, InstallCluster, Installed};
pub use engine::BackedUpTypes;
pub use member::MemberParts;
pub use render::{InstallSettings, render};
pub use reviews::Reviews;
pub use running::RunningBackups;

use kube::api::{ApiResource, DynamicObject};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::{Api, Client, Resource};
use serde_json::Value;

/// Field manager of installed objects. Fields that the controller writes (caBundle) have another
/// manager.
pub const INSTALLER: &str = "berth-install";

/// `apiVersion`, `kind`, namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub api_version: String,
    pub kind: String,
    /// `None` for cluster-scoped ones.
    pub namespace: Option<String>,
    pub name: String,
}

impl Reference {
    /// Reads a reference from an object. `None`: the value is not an object.
    pub fn of(object: &Value) -> Option<Self> {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            api_version: text("/apiVersion")?,
            kind: text("/kind")?,
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name")?,
        })
    }

    /// A reference to an object of a namespace, by its type.
    pub fn to<K: Resource<DynamicType = ()>>(namespace: &str, name: &str) -> Self {
        Self {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }
    }

    pub fn resource(&self) -> ApiResource {
        resource(&self.api_version, &self.kind)
    }

    pub fn api(&self, client: &Client) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource()),
            None => Api::all_with(client.clone(), &self.resource()),
        }
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.kind.to_lowercase(), self.name)?;
        match &self.namespace {
            Some(namespace) => write!(f, " in {namespace}"),
            None => Ok(()),
        }
    }
}

/// The API endpoint of a kind that berth installs; all their plurals are regular.
fn resource(api_version: &str, kind: &str) -> ApiResource {
    let meta = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let kind = GroupVersionKind::try_from(&meta).unwrap_or_else(|_| GroupVersionKind::gvk("", "v1", kind));
    ApiResource::from_gvk(&kind)
}
