//! The changes of an installation, as a unified diff.

use serde_json::{Value, json};
use similar::TextDiff;

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// The difference of two objects as YAML, without fields that the API server sets; empty if there
/// is none. Of a Secret's data it shows only which keys differ.
///
/// # Errors
/// Never in practice, because objects can always be written as YAML.
pub fn objects(name: &str, before: Option<&Value>, after: &Value) -> anyhow::Result<String> {
    let text = |object: Option<&Value>, other: Option<&Value>, which: &str| match object {
        None => Ok(String::new()),
        Some(object) => serde_saphyr::to_string(&masked(bare(object), other, which)),
    };
    let (old, new) = (text(before, Some(after), "before")?, text(Some(after), before, "after")?);
    Ok(texts(name, &old, &new))
}

/// The difference of two texts in the unified format.
pub fn texts(name: &str, before: &str, after: &str) -> String {
    let diff = TextDiff::from_lines(before, after);
    diff.unified_diff().context_radius(CONTEXT).header(name, name).to_string()
}

/// An object without the fields that change at every write.
fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"]
        {
            metadata.remove(key);
        }
    }
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    object
}

/// A Secret with its values masked as `***`, and marked as `which` where the other one has another
/// value.
fn masked(mut object: Value, other: Option<&Value>, which: &str) -> Value {
    if object["kind"] != "Secret" {
        return object;
    }
    for field in ["data", "stringData"] {
        let Some(values) = object.get_mut(field).and_then(Value::as_object_mut) else { continue };
        for (key, value) in values {
            let is_same = other.is_none_or(|other| other[field][key.as_str()] == *value);
            *value = if is_same { json!("***") } else { json!(format!("*** ({which})")) };
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(seed: &str, kubeconfig: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"},
            "data": {"seed": seed, "kubeconfig": kubeconfig},
        })
    }

    #[test]
    fn of_a_secret_it_is_told_what_differs_and_not_what_it_holds() -> anyhow::Result<()> {
        let (old, new) = (secret("c2hpcA==", "b2xk"), secret("c2hpcA==", "bmV3"));
        let difference = objects("secret/hub", Some(&old), &new)?;
        for line in ["-  kubeconfig: \"*** (before)\"", "+  kubeconfig: \"*** (after)\""] {
            let line = line.replace('"', "");
            assert!(difference.replace(['"', '\''], "").contains(&line), "{line}: {difference}");
        }
        let created = objects("secret/hub", None, &new)?;
        assert!(created.contains("kubeconfig") && created.contains("***"), "{created}");
        for text in [&difference, &created] {
            assert!(!["c2hpcA==", "b2xk", "bmV3"].iter().any(|value| text.contains(value)), "{text}");
        }
        assert_eq!(objects("secret/hub", Some(&old), &old)?, "");
        Ok(())
    }
}
