//! What no account of berth may, by the API server's own word: roles only add up, so a rule too
//! many breaks nothing that other tests see.

use serde_json::json;

use super::plane;
use crate::support::{Kubectl, manifest};

/// Verb, resource and namespace. The last is `-` for what is in none.
pub type Right = (&'static str, &'static str, &'static str);

/// What nobody of berth may: to get more rights, to be somebody else, to run something, or to take
/// away what is not berth's. Two accounts may one of these each, and their tests name it.
pub const NOBODY: &[Right] = &[
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

/// `berth node-agent` and the data mover pods, which have the same account: they act on what is
/// asked of them, and ask for nothing.
pub const NODE_AGENT: &[Right] = &[
    ("list", "secrets", "-"),
    ("list", "secrets", "OWN"),
    ("watch", "secrets", "OWN"),
    ("patch", "secrets", "OWN"),
    ("update", "secrets", "OWN"),
    ("get", "secrets", "default"),
    ("get", "secrets", "garden"),
    ("get", "configmaps", "default"),
    ("list", "configmaps", "OWN"),
    ("create", "configmaps", "OWN"),
    ("update", "configmaps/berth-mover-grants", "OWN"),
    ("get", "pods/exec", "default"),
    ("create", "pods/exec", "default"),
    ("create", "pods/exec", "OWN"),
    ("delete", "pods", "OWN"),
    ("patch", "pods", "default"),
    ("list", "nodes", "-"),
    ("get", "nodes/proxy", "-"),
    ("list", "persistentvolumeclaims", "default"),
    ("create", "persistentvolumeclaims", "OWN"),
    ("delete", "persistentvolumeclaims", "OWN"),
    ("patch", "persistentvolumeclaims", "default"),
    ("patch", "persistentvolumes", "-"),
    ("get", "backups.velero.io", "OWN"),
    ("create", "backups.velero.io", "OWN"),
    ("patch", "backups.velero.io", "OWN"),
    ("delete", "backups.velero.io", "OWN"),
    ("create", "deletebackuprequests.velero.io", "OWN"),
    ("create", "downloadrequests.velero.io", "OWN"),
    ("patch", "schedules.velero.io", "OWN"),
    ("list", "backupstoragelocations.velero.io", "OWN"),
    ("patch", "backupstoragelocations.velero.io", "OWN"),
    ("create", "podvolumebackups.velero.io", "OWN"),
    ("delete", "podvolumebackups.velero.io", "OWN"),
    ("create", "podvolumerestores.velero.io", "OWN"),
    ("create", "datauploads.velero.io", "OWN"),
    ("list", "datauploads.velero.io", "OWN"),
    ("update", "datauploads.velero.io", "OWN"),
    ("create", "datadownloads.velero.io", "OWN"),
    ("update", "datadownloads.velero.io", "OWN"),
    ("delete", "backuprepositories.velero.io", "OWN"),
    ("get", "volumesnapshots.snapshot.storage.k8s.io", "default"),
    ("create", "volumesnapshotcontents.snapshot.storage.k8s.io", "-"),
    ("create", "leases.coordination.k8s.io", "OWN"),
];

/// `berth garden agent` with the rights of a courier: storage locations, their keys, and buckets,
/// and nothing that runs backups.
pub const GARDEN_AGENT: &[Right] = &[
    ("list", "secrets", "-"),
    ("get", "secrets", "default"),
    ("update", "secrets", "OWN"),
    ("update", "secrets", "garden"),
    ("get", "configmaps", "OWN"),
    ("create", "configmaps", "OWN"),
    ("get", "configmaps", "garden"),
    ("delete", "configmaps", "garden"),
    ("create", "roles.rbac.authorization.k8s.io", "garden"),
    ("create", "rolebindings.rbac.authorization.k8s.io", "garden"),
    ("list", "namespaces", "-"),
    ("list", "pods", "-"),
    ("list", "pods", "OWN"),
    ("get", "pods/exec", "default"),
    ("create", "pods/exec", "OWN"),
    ("list", "nodes", "-"),
    ("get", "nodes/proxy", "-"),
    ("get", "persistentvolumeclaims", "default"),
    ("create", "backups.velero.io", "OWN"),
    ("patch", "backups.velero.io", "OWN"),
    ("create", "deletebackuprequests.velero.io", "OWN"),
    ("create", "downloadrequests.velero.io", "OWN"),
    ("patch", "schedules.velero.io", "OWN"),
    ("create", "backupstoragelocations.velero.io", "default"),
    ("update", "backupstoragelocations.velero.io", "OWN"),
    ("create", "backuprepositories.velero.io", "OWN"),
    ("create", "podvolumebackups.velero.io", "OWN"),
    ("patch", "datauploads.velero.io", "OWN"),
    ("update", "backupbuckets.extensions.gardener.cloud", "-"),
    ("update", "backupentries.extensions.gardener.cloud", "-"),
    ("list", "cloudprofiles.garden.berth.dev", "-"),
    ("patch", "seeds.garden.berth.dev", "-"),
    ("patch", "backupentries.garden.berth.dev", "default"),
    ("get", "leases.coordination.k8s.io/berth-controller", "OWN"),
    ("update", "leases.coordination.k8s.io/berth-controller", "OWN"),
    ("delete", "leases.coordination.k8s.io", "OWN"),
    ("delete", "volumesnapshots.snapshot.storage.k8s.io", "default"),
    ("patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "-"),
];

/// The controller where it makes data mover pods (`berth-data-movers`): it makes pods and claims in
/// its own namespace alone, and runs nothing in them.
pub const DATA_MOVERS: &[Right] = &[
    ("patch", "pods", "OWN"),
    ("update", "pods", "OWN"),
    ("patch", "pods", "default"),
    ("create", "pods/attach", "OWN"),
    ("create", "pods/portforward", "OWN"),
    ("create", "pods/ephemeralcontainers", "OWN"),
    ("patch", "pods/ephemeralcontainers", "OWN"),
    ("create", "persistentvolumeclaims", "default"),
    ("update", "persistentvolumeclaims", "default"),
    ("create", "persistentvolumes", "-"),
    ("update", "persistentvolumes", "-"),
    ("create", "storageclasses.storage.k8s.io", "-"),
    ("update", "volumesnapshotcontents.snapshot.storage.k8s.io", "-"),
    ("create", "daemonsets.apps", "OWN"),
    ("patch", "daemonsets.apps", "OWN"),
    ("create", "datadownloads.velero.io", "OWN"),
    ("create", "podvolumerestores.velero.io", "OWN"),
    ("delete", "datauploads.velero.io", "OWN"),
    ("delete", "datadownloads.velero.io", "OWN"),
];

/// Those of `rights` that the account of this name has. `own`: its namespace.
pub fn granted(
    kubectl: &Kubectl,
    own: &str,
    account: &str,
    rights: impl IntoIterator<Item = &'static Right>,
) -> Vec<Right> {
    let user = format!("system:serviceaccount:{own}:{account}");
    let who = format!("--as={user}");
    let is_granted = |&&(verb, resource, namespace): &&Right| {
        let namespace = namespace.replace("OWN", own);
        let place = match namespace.as_str() {
            "-" => "--all-namespaces".to_owned(),
            namespace => format!("--namespace={namespace}"),
        };
        // kubectl takes what is behind a slash for a name.
        let (resource, part) = match resource.split_once('/') {
            Some((whole, part)) if !part.starts_with("berth-") => {
                (whole, Some(format!("--subresource={part}")))
            }
            _ => (resource, None),
        };
        let mut args = vec!["auth", "can-i", verb, resource, who.as_str(), place.as_str()];
        args.extend(part.as_deref());
        let answer = kubectl.answer(&args, "").unwrap();
        if answer.stderr.contains("doesn't have a resource type") {
            // kubectl does not tell the API server the group of a type that it does not find.
            return is_granted_of_group(kubectl, &user, verb, resource, &namespace);
        }
        let said = answer.stdout.trim();
        assert!(said == "yes" || said.starts_with("no"), "{verb} {resource}: {said} {}", answer.stderr);
        said == "yes"
    };
    rights.into_iter().filter(is_granted).copied().collect()
}

/// Whether a user has a right to a type that need not exist.
fn is_granted_of_group(kubectl: &Kubectl, user: &str, verb: &str, resource: &str, namespace: &str) -> bool {
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": user, "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource,
                "namespace": if namespace == "-" { "" } else { namespace },
            },
        },
    });
    let args = ["create", "-f", "-", "-o", "jsonpath={.status.allowed}"];
    let answer = kubectl.answer_by_process(&args, &review.to_string()).unwrap();
    let said = answer.stdout.trim();
    assert!(said == "true" || said == "false", "{verb} {resource}: {said} {}", answer.stderr);
    said == "true"
}

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
        for (account, rights) in [("berth-webhook", WEBHOOK), ("berth-controller", beside)] {
            let too_many = granted(kubectl, own, account, NOBODY.iter().chain(rights));
            assert!(too_many.is_empty(), "{account}, beside Velero: {beside_velero}: {too_many:?}");
        }
    }
}
