//! CustomResourceDefinitions, generated from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::velero::{Backup, BackupStorageLocation};
use crate::{extensions, garden};

/// Velero's kinds, for a cluster without Velero. None has a status subresource, as Velero's have none: a write to
/// `/status` gets 404 there, so it must here.
pub fn velero() -> Vec<CustomResourceDefinition> {
    let as_velero_has_it = |mut crd: CustomResourceDefinition| {
        crd.metadata.labels.get_or_insert_default().insert("component".to_owned(), "velero".to_owned());
        crd.spec.versions.iter_mut().for_each(|version| version.subresources = None);
        crd
    };
    [Backup::crd(), BackupStorageLocation::crd()].map(ours).into_iter().map(as_velero_has_it).collect()
}

/// Kinds of shared buckets, in the cluster that decides.
pub fn hub() -> Vec<CustomResourceDefinition> {
    [
        garden::BackupBucket::crd(),
        garden::BackupEntry::crd(),
        garden::CloudProfile::crd(),
        garden::Seed::crd(),
    ]
    .map(ours)
    .into()
}

/// Kinds of shared buckets, in a cluster that executes; only where Gardener has not brought them.
pub fn member() -> Vec<CustomResourceDefinition> {
    [extensions::BackupBucket::crd(), extensions::BackupEntry::crd()].map(ours).into()
}

fn ours(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    // By this, an installation knows its own again.
    let label = ("app.kubernetes.io/part-of".to_owned(), "berth".to_owned());
    crd.metadata.labels = Some([label].into());
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            schema.description = None;
            as_kubernetes_takes_it(schema);
        }
    }
    crd
}

/// An optional enum is generated with `null` among its values, which kubectl's own validation refuses: absent is enough,
/// nobody writes null there. Of formats of unsigned numbers the API server warns.
fn as_kubernetes_takes_it(schema: &mut JSONSchemaProps) {
    if let Some(values) = &mut schema.enum_ {
        values.retain(|value| !value.0.is_null());
        schema.nullable = None;
    }
    if schema.format.as_ref().is_some_and(|format| format.starts_with("uint")) {
        schema.format = Some("int64".to_owned());
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        as_kubernetes_takes_it(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => as_kubernetes_takes_it(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(as_kubernetes_takes_it),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        as_kubernetes_takes_it(values);
    }
}

/// One YAML file per definition: file name and text.
///
/// # Errors
/// When a definition cannot be written as YAML.
pub fn files(
    definitions: &[CustomResourceDefinition],
) -> Result<Vec<(String, String)>, serde_saphyr::ser::Error> {
    definitions
        .iter()
        .map(|crd| {
            let name = crd.metadata.name.clone().unwrap_or_default();
            Ok((format!("{name}.yaml"), serde_saphyr::to_string(crd)?))
        })
        .collect()
}
