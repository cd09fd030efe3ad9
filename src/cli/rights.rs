//! What a person may not do, and the Role that would let them.

use anyhow::anyhow;

use crate::client::is_forbidden;
use crate::text::chain;

/// The Role of `manifests/rbac/people.yaml` with the right that reading or changing an object of a
/// kind needs. Where backups go, and asking the server for its version, is for administrators.
fn role(resource: &str, verb: &str) -> Option<&'static str> {
    let reads = matches!(verb, "get" | "list" | "watch");
    match resource {
        "downloadrequests" => Some("berth-reader"),
        "backupstoragelocations" | "backuprepositories" | "serverstatusrequests" if !reads => None,
        _ if reads => Some("berth-viewer"),
        "deletebackuprequests" => Some("berth-deleter"),
        "backups" if verb == "delete" => Some("berth-deleter"),
        "schedules" => Some("berth-scheduler"),
        _ => Some("berth-user"),
    }
}

/// Names the Role, if the API server refused what the user may not do.
pub fn explained(error: anyhow::Error, namespace: &str) -> anyhow::Error {
    let is_refused = error.chain().any(|cause| cause.downcast_ref::<kube::Error>().is_some_and(is_forbidden));
    if !is_refused {
        return error;
    }
    let text = chain(error.as_ref());
    match hint(&text, namespace) {
        Some(hint) => anyhow!("{text}\n{hint}"),
        None => error,
    }
}

/// From the API server's own words: `User "u" cannot VERB resource "RESOURCE" in API group …`.
fn hint(text: &str, namespace: &str) -> Option<String> {
    let (before, after) = text.split_once(" cannot ")?;
    let user = before.rsplit_once("User \"").map(|(_, user)| user.trim_end_matches('"'));
    let (verb, rest) = after.split_once(" resource \"")?;
    let (resource, _) = rest.split_once('"')?;
    let Some(role) = role(resource, verb) else {
        return Some(format!("no Role of berth has this right: to {verb} {resource} is for administrators"));
    };
    let user = user.unwrap_or("USER");
    let who = match user.strip_prefix("system:serviceaccount:") {
        Some(account) => format!("--serviceaccount {account}"),
        None => format!("--user {user}"),
    };
    Some(format!(
        "the Role {role} has this right; an administrator gives it by: kubectl create rolebinding NAME --namespace {namespace} --role {role} {who}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_names_the_role_that_has_it() {
        let text = |user: &str, verb: &str, resource: &str| {
            format!(
                "failed: {resource}.velero.io is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"velero.io\" in the namespace \"velero\" (403)"
            )
        };
        for (user, verb, resource, role, who) in [
            ("anna", "list", "backups", "berth-viewer", "--user anna"),
            ("anna", "create", "backups", "berth-user", "--user anna"),
            (
                "system:serviceaccount:ci:bot",
                "create",
                "downloadrequests",
                "berth-reader",
                "--serviceaccount ci:bot",
            ),
            ("anna", "create", "deletebackuprequests", "berth-deleter", "--user anna"),
            ("anna", "delete", "backups", "berth-deleter", "--user anna"),
            ("anna", "patch", "schedules", "berth-scheduler", "--user anna"),
            ("anna", "get", "schedules", "berth-viewer", "--user anna"),
        ] {
            let said = hint(&text(user, verb, resource), "velero").unwrap_or_default();
            assert!(said.contains(&format!("--role {role} {who}")), "{said}");
        }
        for resource in ["backupstoragelocations", "serverstatusrequests"] {
            let said = hint(&text("anna", "create", resource), "velero").unwrap_or_default();
            assert!(said.contains("for administrators"), "{said}");
        }
        assert_eq!(hint("something else", "velero"), None);
    }
}
