//! The pod whose volume an object names: whether a pod is that one, and whether its node has its
//! volumes.

/// Why a pod of the right name is not the one that is named, to stand behind its name; `None`: it
/// is. `uid`: that the object names, if it names one. `node`: on which the volumes are looked for.
pub fn mismatch(uid: Option<&str>, node: &str, found_uid: &str, found_node: Option<&str>) -> Option<String> {
    if uid.is_some_and(|uid| !uid.is_empty() && uid != found_uid) {
        return Some("is another one by now".to_owned());
    }
    (node.is_empty() || found_node != Some(node)).then(|| format!("is not on node {node:?}"))
}

/// Why the node has no folder of the volumes of a pod, or not for long, to stand behind its name. A
/// pod that mounts what is not there is never started, and would take a data path until its time is
/// over. `is_mirror`: it stands for a static pod of its node, whose folder is named after another
/// UID.
pub fn folderless(phase: &str, is_going: bool, is_mirror: bool) -> Option<&'static str> {
    match phase {
        "Succeeded" | "Failed" => Some("has ended"),
        _ if is_going => Some("is being deleted"),
        _ => is_mirror
            .then_some("is a static pod of its node, of whose volumes no files are taken by data mover pods"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pod_that_is_named_is_the_one_and_only_on_its_node() {
        let another = Some("is another one by now");
        let elsewhere = Some("is not on node \"n1\"");
        for (uid, node, found, why) in [
            (Some("u"), "n1", ("u", Some("n1")), None),
            (Some(""), "n1", ("u", Some("n1")), None),
            (None, "n1", ("u", Some("n1")), None),
            (Some("u"), "n1", ("v", Some("n1")), another),
            (Some("u"), "n1", ("u", Some("n2")), elsewhere),
            (Some("u"), "n1", ("u", None), elsewhere),
            (Some("u"), "", ("u", Some("")), Some("is not on node \"\"")),
        ] {
            let told = mismatch(uid, node, found.0, found.1);
            assert_eq!(told.as_deref(), why, "{uid:?} {node} {found:?}");
        }
    }

    #[test]
    fn a_node_has_the_folders_of_pods_that_have_not_ended_and_are_its_own() {
        for (phase, is_going, is_mirror, why) in [
            ("Running", false, false, None),
            ("Pending", false, false, None),
            ("Succeeded", false, false, Some("has ended")),
            ("Failed", true, true, Some("has ended")),
            ("Running", true, false, Some("is being deleted")),
            ("Running", false, true, Some("is a static pod")),
        ] {
            let told = folderless(phase, is_going, is_mirror);
            let is_so = match why {
                Some(why) => told.is_some_and(|told| told.starts_with(why)),
                None => told.is_none(),
            };
            assert!(is_so, "{phase} {is_going} {is_mirror}: {told:?}");
        }
    }
}
