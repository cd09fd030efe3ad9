//! Objects as lists and watches show them, which may be unreadable: one bad object must not hide
//! the others. [`kube::core::DeserializeGuard`] serves for that, too, but it copies the whole
//! object twice before it reads it, and most of many objects is the record of who wrote which
//! field. No list and no watch here is read for that record.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde_json::Value;

/// An object, or why it cannot be read, with its metadata. Its managedFields tell who has written
/// it and when, and not which fields.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, InvalidObject>);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        let records = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut);
        for record in records.into_iter().flatten().filter_map(Value::as_object_mut) {
            record.remove("fieldsV1");
        }
        let error = match K::deserialize(&object) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error.to_string(),
        };
        let metadata = object.get("metadata").map(ObjectMeta::deserialize).transpose();
        let metadata = metadata.map_err(D::Error::custom)?.unwrap_or_default();
        Ok(Self(Err(InvalidObject { error, metadata })))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|unreadable| &unreadable.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|unreadable| &mut unreadable.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt as _;
    use kube::api::WatchEvent;
    use serde_json::json;

    use super::*;

    fn map(data: &Value) -> Value {
        let written = json!({
            "manager": "kubectl", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:key": {}}},
        });
        json!({"metadata": {"name": "m", "namespace": "n", "managedFields": [written]}, "data": data})
    }

    #[test]
    fn of_who_wrote_an_object_the_time_is_kept_and_the_fields_are_not() {
        let read: Guarded<ConfigMap> = serde_json::from_value(map(&json!({"key": "value"}))).unwrap();
        assert_eq!((read.name_any().as_str(), read.namespace().as_deref()), ("m", Some("n")));
        let read = read.0.unwrap();
        assert_eq!(read.data.unwrap()["key"], "value");
        let [written] = read.metadata.managed_fields.unwrap().try_into().unwrap();
        assert_eq!((written.manager.as_deref(), written.time.is_some()), (Some("kubectl"), true));
        assert!(written.fields_v1.is_none());
    }

    /// The API server names the type of an event first, and JSON has no order.
    #[test]
    fn an_object_that_cannot_be_read_has_its_name_in_whatever_order_an_event_comes() {
        let object = map(&json!("no map"));
        for event in [
            format!(r#"{{"type": "ADDED", "object": {object}}}"#),
            format!(r#"{{"object": {object}, "type": "ADDED"}}"#),
        ] {
            let read: WatchEvent<Guarded<ConfigMap>> = serde_json::from_str(&event).unwrap();
            let WatchEvent::Added(read) = read else { panic!("{event}") };
            assert_eq!(read.name_any(), "m");
            let why = read.0.unwrap_err().error;
            assert!(why.contains("expected a map"), "{why}");
        }
        let nameless: Guarded<ConfigMap> = serde_json::from_value(json!({"data": 7})).unwrap();
        assert!(nameless.name_any().is_empty());
        assert!(serde_json::from_value::<Guarded<ConfigMap>>(json!({"metadata": 7})).is_err());
    }
}
