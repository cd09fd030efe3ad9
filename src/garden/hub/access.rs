//! What each Seed may read in the hub: a Role and its RoleBinding.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::keys;
use berth_garden_core::hub::SeedAccess;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::{Client, Resource, ResourceExt};

use crate::objects::{PART_OF, PART_OF_BERTH};
use crate::write::{Write, WriteResult, apply, delete};

const PREFIX: &str = "berth-garden-seed:";
const GROUP: &str = "rbac.authorization.k8s.io";

/// By Seed.
pub fn found(roles: &[Arc<Role>], bindings: &[Arc<RoleBinding>]) -> BTreeMap<String, SeedAccess> {
    let mut access: BTreeMap<String, SeedAccess> = BTreeMap::new();
    for role in roles {
        let name = role.name_any();
        let Some(seed) = name.strip_prefix(PREFIX) else { continue };
        let secrets: BTreeSet<String> =
            role.rules.iter().flatten().filter_map(|rule| rule.resource_names.clone()).flatten().collect();
        // Rules that a person added there were not granted by berth.
        let is_as_given = role.rules.clone().unwrap_or_default() == rules(&secrets);
        access.insert(seed.to_owned(), SeedAccess { secrets, is_bound: is_as_given });
    }
    for (seed, access) in &mut access {
        let wanted = binding("", seed);
        let is_given =
            |one: &RoleBinding| (&one.subjects, &one.role_ref) == (&wanted.subjects, &wanted.role_ref);
        access.is_bound &=
            bindings.iter().any(|one| one.metadata.name == wanted.metadata.name && is_given(one));
    }
    // What is left of a Role that was only half removed.
    for binding in bindings {
        if let Some(seed) = binding.name_any().strip_prefix(PREFIX) {
            access.entry(seed.to_owned()).or_default();
        }
    }
    access
}

/// Writes the Role and its RoleBinding, or removes them (`None`). Returns what they grant then.
///
/// # Errors
/// When the API server refuses, or does not answer in time.
pub async fn write(
    client: &Client,
    namespace: &str,
    seed: &str,
    secrets: Option<&BTreeSet<String>>,
) -> anyhow::Result<Option<(Role, RoleBinding)>> {
    let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let name = format!("{PREFIX}{seed}");
    match secrets {
        Some(secrets) => {
            let role = Role { metadata: metadata(namespace, seed), rules: Some(rules(secrets)) };
            let role = apply(&roles, Write::to(&name), &role).await.written()?;
            let binding = binding(namespace, seed);
            let binding = apply(&bindings, Write::to(&name), &binding).await.written()?;
            Ok(Some((role, binding)))
        }
        None => {
            gone(delete(&bindings, Write::to(&name)).await)?;
            gone(delete(&roles, Write::to(&name)).await)?;
            Ok(None)
        }
    }
}

fn gone(answer: WriteResult<()>) -> Result<(), kube::Error> {
    match answer {
        WriteResult::Gone(_) => Ok(()),
        answer => answer.written(),
    }
}

/// A rule without names would grant all Secrets.
fn rules(secrets: &BTreeSet<String>) -> Vec<PolicyRule> {
    if secrets.is_empty() {
        return Vec::new();
    }
    vec![PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["secrets".to_owned()]),
        resource_names: Some(secrets.iter().cloned().collect()),
        verbs: vec!["get".to_owned()],
        ..PolicyRule::default()
    }]
}

fn binding(namespace: &str, seed: &str) -> RoleBinding {
    let subjects = vec![
        Subject {
            kind: "ServiceAccount".to_owned(),
            name: seed.to_owned(),
            namespace: Some(keys::SEEDS_NAMESPACE.to_owned()),
            api_group: None,
        },
        Subject {
            kind: "User".to_owned(),
            name: format!("{}{seed}", keys::SEED_USER),
            namespace: None,
            api_group: Some(GROUP.to_owned()),
        },
    ];
    RoleBinding {
        metadata: metadata(namespace, seed),
        role_ref: RoleRef {
            api_group: GROUP.to_owned(),
            kind: Role::kind(&()).into_owned(),
            name: format!("{PREFIX}{seed}"),
        },
        subjects: Some(subjects),
    }
}

fn metadata(namespace: &str, seed: &str) -> ObjectMeta {
    let labels = [(PART_OF, PART_OF_BERTH), (keys::SEED_ACCESS, "true")];
    ObjectMeta {
        name: Some(format!("{PREFIX}{seed}")),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(seed: &str, secrets: &[&str]) -> (Arc<Role>, Arc<RoleBinding>, SeedAccess) {
        let secrets: BTreeSet<String> = secrets.iter().map(|name| (*name).to_owned()).collect();
        let role = Role { metadata: metadata("garden", seed), rules: Some(rules(&secrets)) };
        (Arc::new(role), Arc::new(binding("garden", seed)), SeedAccess { secrets, is_bound: true })
    }

    #[test]
    fn what_was_given_is_found_again_and_nothing_that_was_changed_counts() {
        for secrets in [&["a", "b"][..], &[]] {
            let (role, binding, wanted) = given("ship", secrets);
            let found = |role: &Arc<Role>, bindings: &[Arc<RoleBinding>]| {
                found(std::slice::from_ref(role), bindings).remove("ship")
            };
            assert_eq!(found(&role, std::slice::from_ref(&binding)), Some(wanted.clone()));
            assert!(!found(&role, &[]).is_some_and(|access| access.is_bound));
            let mut more = (*role).clone();
            let all = PolicyRule { verbs: vec!["*".to_owned()], ..PolicyRule::default() };
            more.rules.get_or_insert_default().push(all);
            assert!(!found(&Arc::new(more), std::slice::from_ref(&binding)).is_some_and(|one| one.is_bound));
            let mut other = (*binding).clone();
            other.subjects = None;
            assert!(!found(&role, &[Arc::new(other)]).is_some_and(|access| access.is_bound));
        }
        let (_, binding, _) = given("left", &[]);
        assert_eq!(found(&[], &[binding]), BTreeMap::from([("left".to_owned(), SeedAccess::default())]));
    }

    #[test]
    fn no_names_are_not_all_names() {
        assert_eq!(rules(&BTreeSet::new()), []);
    }
}
