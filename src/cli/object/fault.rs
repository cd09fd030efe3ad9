//! What is wrong with flags, each named as it was typed.

use berth_api::parse;
use berth_api::velero::BackupSpec;

/// Fields of the spec, and the flags that set them.
const FLAGS: [(&str, &str); 15] = [
    ("spec.includedNamespaces", "--include-namespaces"),
    ("spec.excludedNamespaces", "--exclude-namespaces"),
    ("spec.includedResources", "--include-resources"),
    ("spec.excludedResources", "--exclude-resources"),
    ("spec.includeClusterResources", "--include-cluster-resources"),
    ("spec.includedClusterScopedResources", "--include-cluster-scoped-resources"),
    ("spec.excludedClusterScopedResources", "--exclude-cluster-scoped-resources"),
    ("spec.includedNamespaceScopedResources", "--include-namespace-scoped-resources"),
    ("spec.excludedNamespaceScopedResources", "--exclude-namespace-scoped-resources"),
    ("spec.labelSelector", "--selector"),
    ("spec.orLabelSelectors", "--or-selector"),
    ("spec.ttl", "--ttl"),
    ("spec.resourcePolicy.name", "--resource-policies-configmap"),
    ("spec.orderedResources", "--ordered-resources"),
    ("spec", "the label selectors"),
];

/// Every fault of a spec that flags made.
pub fn check(spec: &BackupSpec) -> Vec<String> {
    let mut spec = spec.clone();
    // An empty entry stands for no namespace, and Velero takes it.
    for list in [&mut spec.included_namespaces, &mut spec.excluded_namespaces].into_iter().flatten() {
        list.retain(|entry| !entry.is_empty());
    }
    let found = parse::check(&spec);
    let told = found
        .iter()
        .map(|fault| format!("{}: {}", flag_of(&fault.field.to_string()), flags_in(&fault.message)));
    told.collect()
}

/// The flag that sets a field.
fn flag_of(field: &str) -> String {
    let begins = |name: &str| {
        field.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let known = FLAGS.iter().find(|(name, _)| begins(name));
    known.map_or_else(|| field.to_owned(), |(_, flag)| (*flag).to_owned())
}

/// A message that names fields as flags.
fn flags_in(message: &str) -> String {
    let mut message = message.to_owned();
    for (field, flag) in FLAGS {
        if let Some(name) = field.strip_prefix("spec.") {
            message = message.replace(&format!("together with {name}:"), &format!("together with {flag}:"));
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_by_their_flags() {
        assert_eq!(flag_of("spec.includedNamespaces[3]"), "--include-namespaces");
        assert_eq!(flag_of("spec.orLabelSelectors[0].matchLabels.a"), "--or-selector");
        assert_eq!(flag_of("spec"), "the label selectors");
        assert_eq!(flag_of("spec.hooks"), "the label selectors");
        assert_eq!(
            flags_in("does not go together with includedResources: x"),
            "does not go together with --include-resources: x"
        );
    }
}
