//! What no account of berth may, by the API server's own word: roles only add up, so a rule too
//! many breaks nothing that other tests see.

use super::plane;
use crate::support::manifest;

/// Verb, resource and namespace. The last is `-` for what is in none.
type Right = (&'static str, &'static str, &'static str);

/// What nobody of berth may: to get more rights, to be somebody else, to run something, or to take
/// away what is not berth's.
const NOBODY: &[Right] = &[
    ("escalate", "roles.rbac.authorization.k8s.io", "default"),
    ("escalate", "roles.rbac.authorization.k8s.io", "garden"),
    ("escalate", "clusterroles.rbac.authorization.k8s.io", "-"),
    ("bind", "roles.rbac.authorization.k8s.io", "garden"),
    ("bind", "clusterroles.rbac.authorization.k8s.io", "-"),
    ("create", "clusterroles.rbac.authorization.k8s.io", "-"),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", "-"),
    ("create", "rolebindings.rbac.authorization.k8s.io", "default"),
    ("create", "rolebindings.rbac.authorization.k8s.io", "OWN"),
    ("impersonate", "users", "-"),
    ("impersonate", "groups", "-"),
    ("impersonate", "serviceaccounts", "default"),
    ("impersonate", "serviceaccounts", "OWN"),
    ("create", "serviceaccounts/token", "default"),
    ("create", "serviceaccounts/token", "OWN"),
    ("create", "secrets", "default"),
    ("patch", "secrets", "default"),
    ("update", "secrets", "default"),
    ("delete", "secrets", "default"),
    ("delete", "secrets", "OWN"),
    ("create", "pods", "default"),
    ("create", "pods", "OWN"),
    ("delete", "pods", "default"),
    ("create", "pods/attach", "default"),
    ("create", "pods/portforward", "default"),
    ("create", "pods/ephemeralcontainers", "default"),
    ("create", "nodes/proxy", "-"),
    ("patch", "nodes", "-"),
    ("patch", "deployments.apps", "OWN"),
    ("delete", "namespaces", "-"),
    ("delete", "persistentvolumeclaims", "default"),
    ("delete", "persistentvolumes", "-"),
    ("patch", "customresourcedefinitions.apiextensions.k8s.io", "-"),
    ("delete", "validatingadmissionpolicybindings.admissionregistration.k8s.io", "-"),
    ("create", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "-"),
    ("update", "backups.velero.io", "OWN"),
    ("delete", "backups.velero.io", "default"),
    ("use", "priorityclasses.berth.dev", "OWN"),
];

const WEBHOOK: &[Right] = &[
    ("list", "secrets", "-"),
    ("list", "secrets", "default"),
    ("list", "secrets", "garden"),
    ("get", "secrets", "default"),
    ("get", "secrets", "OWN"),
    ("get", "secrets/berth-webhook-authority", "OWN"),
    ("list", "secrets", "OWN"),
    ("create", "secrets", "OWN"),
    ("update", "secrets/berth-webhook-certs", "OWN"),
    ("get", "pods/exec", "default"),
    ("create", "pods/exec", "default"),
    ("create", "pods/exec", "OWN"),
    ("get", "nodes/proxy", "-"),
    ("list", "configmaps", "default"),
    ("create", "backups.velero.io", "OWN"),
    ("patch", "backups.velero.io", "OWN"),
    ("delete", "backups.velero.io", "OWN"),
    ("create", "deletebackuprequests.velero.io", "OWN"),
    ("create", "downloadrequests.velero.io", "OWN"),
    ("patch", "schedules.velero.io", "OWN"),
    ("patch", "backupstoragelocations.velero.io", "OWN"),
    ("delete", "volumesnapshots.snapshot.storage.k8s.io", "default"),
    ("patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "-"),
];

/// Beside a Velero that runs the backups berth reads no more than its queue wants, and removes
/// nothing that is stored.
const CONTROLLER_BESIDE_VELERO: &[Right] = &[
    ("get", "secrets", "default"),
    ("list", "secrets", "-"),
    ("get", "secrets", "OWN"),
    ("list", "configmaps", "default"),
    ("get", "pods/exec", "default"),
    ("create", "pods/exec", "default"),
    ("get", "nodes/proxy", "-"),
    ("create", "backups.velero.io", "OWN"),
    ("delete", "backups.velero.io", "OWN"),
    ("create", "deletebackuprequests.velero.io", "OWN"),
    ("create", "podvolumebackups.velero.io", "OWN"),
    ("delete", "volumesnapshots.snapshot.storage.k8s.io", "default"),
    ("delete", "volumesnapshotcontents.snapshot.storage.k8s.io", "-"),
];

#[test]
fn no_account_of_berth_has_more_rights_than_are_told() {
    let kubectl = plane().kubectl();
    for (own, beside_velero) in [("told-rights", false), ("told-rights-beside", true)] {
        let mut objects = manifest::objects_with_garden(own, "https://127.0.0.1:1", beside_velero).unwrap();
        objects.retain(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            kind == "Namespace" || kind == "ServiceAccount" || kind.contains("Role")
        });
        plane().install(objects).unwrap();
        let account = |duty: &str| format!("system:serviceaccount:{own}:berth-{duty}");
        for (duty, verb, resource) in [
            ("controller", "patch", "backups.velero.io"),
            ("controller", "list", "nodes"),
            ("webhook", "list", "backups.velero.io"),
            ("webhook", "list", "nodes"),
        ] {
            kubectl.await_right(&account(duty), own, verb, resource).unwrap();
        }
        kubectl.await_right(&account("webhook"), "garden", "get", "secrets").unwrap();
        kubectl.await_right(&account("webhook"), own, "get", "secrets/berth-webhook-certs").unwrap();
        if !beside_velero {
            kubectl.await_right(&account("controller"), "default", "get", "secrets").unwrap();
        }
        let beside: &[Right] = if beside_velero { CONTROLLER_BESIDE_VELERO } else { &[] };
        let mut granted = Vec::new();
        for (duty, rights) in [("webhook", [NOBODY, WEBHOOK]), ("controller", [NOBODY, beside])] {
            let user = format!("--as={}", account(duty));
            for &(verb, resource, namespace) in rights.into_iter().flatten() {
                let namespace = format!("--namespace={}", namespace.replace("OWN", own));
                // kubectl takes what is behind a slash for a name.
                let (resource, part) = match resource.split_once('/') {
                    Some((whole, part)) if !part.starts_with("berth-") => {
                        (whole, Some(format!("--subresource={part}")))
                    }
                    _ => (resource, None),
                };
                let mut args: Vec<&str> = vec!["auth", "can-i", verb, resource, &user];
                args.extend(part.as_deref());
                if namespace == "--namespace=-" {
                    args.push("--all-namespaces");
                } else {
                    args.push(&namespace);
                }
                let said = kubectl.answer(&args, "").unwrap().stdout;
                if !said.trim_start().starts_with("no") {
                    granted.push(format!("{duty}: {verb} {resource} {part:?} {namespace}: {said}"));
                }
            }
        }
        assert!(granted.is_empty(), "beside Velero: {beside_velero}: {granted:#?}");
    }
}
