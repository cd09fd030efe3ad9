//! berth's node agents: whether they are installed, and on how many nodes they are ready.

use anyhow::bail;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, DeploymentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::settings::Executor;

/// Name of the agents' DaemonSet, and of everything else that they have.
pub const AGENT: &str = "berth-node-agent";
/// Folders of `manifests/`, in the order of installation.
pub const COMPONENTS: [&str; 2] = ["components/pod-volumes/crd", "components/pod-volumes"];
/// The folder that is added where the agents see nothing of their nodes.
pub const BY_MOVERS: &str = "components/files-by-movers";
/// The flag of such agents.
const FILES_BY_MOVERS: &str = "--files-by-movers";

/// # Errors
/// When Velero runs the backups: it has files read by its own node-agents alone. When the agents
/// are not to be installed, and it is said where they leave the files.
pub fn ensure_fits(pod_volumes: bool, files_by_movers: bool, executor: Executor) -> anyhow::Result<()> {
    if files_by_movers && !pod_volumes {
        bail!(
            "--files-by-movers: it is for berth's node agents, which are not installed. Say --pod-volumes, too. Nothing was changed"
        );
    }
    if pod_volumes && executor == Executor::Velero {
        bail!(
            "--pod-volumes: with --executor=velero nothing gives berth's node agents work, because Velero has files of volumes read by its own (velero install --use-node-agent). Say --pod-volumes=false, or --executor=berth. Nothing was changed"
        );
    }
    Ok(())
}

/// The agents as a Deployment: their metadata and the template of their pods, which is all that
/// installations read of either.
pub fn as_deployment(agents: &DaemonSet) -> Deployment {
    let spec = agents.spec.as_ref().map(|spec| DeploymentSpec {
        selector: spec.selector.clone(),
        template: spec.template.clone(),
        ..DeploymentSpec::default()
    });
    let ObjectMeta { name, namespace, labels, annotations, .. } = agents.metadata.clone();
    let metadata = ObjectMeta { name, namespace, labels, annotations, ..ObjectMeta::default() };
    Deployment { metadata, spec, status: None }
}

/// Do these agents leave the files of volumes to data mover pods?
pub fn leaves_files(agents: &DaemonSet) -> bool {
    let pod = agents.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let mut args = pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|one| one.args.iter().flatten());
    args.any(|arg| arg == FILES_BY_MOVERS)
}

/// On how many nodes agents run, and on how many they should. `None`: nobody has counted yet.
pub fn ready(agents: &DaemonSet) -> Option<(i32, i32)> {
    let status = agents.status.as_ref()?;
    let seen = status.observed_generation.unwrap_or_default();
    (seen >= agents.metadata.generation.unwrap_or_default())
        .then_some((status.number_ready, status.desired_number_scheduled))
}

/// One line about agents that are not ready on all nodes. Nodes come and go, so nothing waits for
/// them.
pub fn not_ready_message(agents: &DaemonSet) -> Option<String> {
    match ready(agents) {
        Some((ready, wanted)) if ready >= wanted => None,
        Some((ready, wanted)) => Some(format!(
            "node agents are ready on {ready} of {wanted} nodes, and files of the other nodes' volumes are not backed up until they are"
        )),
        None => Some("node agents are being started".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::install::{InstallSettings, render};

    fn rendered(settings: &InstallSettings) -> Vec<Value> {
        let mut objects = render(settings).unwrap();
        objects.retain(|object| object["metadata"]["name"] == AGENT);
        objects
    }

    #[test]
    fn agents_are_installed_where_they_are_asked_for_with_the_image_and_no_flag_of_the_queue() {
        assert!(rendered(&InstallSettings::new("velero")).is_empty());
        let settings = InstallSettings {
            pod_volumes: true,
            image: Some("mirror/berth:1".to_owned()),
            args: vec!["--concurrent-backups=3".to_owned()],
            ..InstallSettings::new("elsewhere")
        };
        let objects = rendered(&settings);
        let agents = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
        let container = &agents["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(
            container["args"],
            json!(["node-agent", "--namespace=$(POD_NAMESPACE)", "--node-name=$(NODE_NAME)"])
        );
        assert_eq!(container["image"], "mirror/berth:1");
        let kinds: Vec<_> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
        for kind in ["ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"] {
            assert!(kinds.contains(&kind), "{kinds:?}");
        }
        let text = json!(objects).to_string();
        assert!(!text.contains("\"velero\"") && text.contains("\"elsewhere\""), "{text}");
    }

    #[test]
    fn agents_that_leave_files_to_data_movers_see_nothing_of_their_nodes_and_are_nobody() {
        let agents = |files_by_movers| {
            let settings =
                InstallSettings { pod_volumes: true, files_by_movers, ..InstallSettings::new("velero") };
            let mut objects = rendered(&settings);
            objects.retain(|object| object["kind"] == "DaemonSet");
            objects.remove(0)
        };
        let (usual, without) = (agents(false), agents(true));
        let of = |agents: &Value| leaves_files(&serde_json::from_value(agents.clone()).unwrap());
        assert_eq!((of(&usual), of(&without)), (false, true));
        let pod = &without["spec"]["template"]["spec"];
        assert!(usual.to_string().contains("/var/lib/kubelet") && !pod.to_string().contains("hostPath"));
        assert_eq!((&pod["volumes"], &pod["containers"][0]["volumeMounts"]), (&json!([]), &json!([])));
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        let container = &pod["containers"][0]["securityContext"];
        assert_eq!(container["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(container["allowPrivilegeEscalation"], false);
    }

    #[test]
    fn pods_that_see_their_node_may_run_in_berths_namespace_and_nowhere_else() {
        let level = |pod_volumes| {
            let objects = render(&InstallSettings { pod_volumes, ..InstallSettings::new("here") }).unwrap();
            let is_it = |one: &&Value| one["kind"] == "Namespace" && one["metadata"]["name"] == "here";
            let namespace = objects.iter().find(is_it).unwrap();
            namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"].clone()
        };
        assert_eq!((level(false), level(true)), (json!("restricted"), json!("privileged")));
    }

    #[test]
    fn definitions_are_brought_unless_somebody_else_did() {
        let names = |settings: &InstallSettings| -> Vec<String> {
            let objects = render(settings).unwrap();
            let definitions = objects.iter().filter(|one| one["kind"] == "CustomResourceDefinition");
            let names = definitions.map(|one| one["metadata"]["name"].as_str().unwrap().to_owned());
            names.filter(|name| name.starts_with("podvolume") || name.starts_with("backuprepo")).collect()
        };
        let settings = InstallSettings { pod_volumes: true, ..InstallSettings::new("velero") };
        let all = ["backuprepositories", "podvolumebackups", "podvolumerestores"];
        let all = all.map(|plural| format!("{plural}.velero.io"));
        assert_eq!(names(&settings), all);
        assert_eq!(names(&InstallSettings { foreign: all[..1].to_vec(), ..settings.clone() }), all[1..]);
        assert!(names(&InstallSettings { bring_definitions: false, ..settings.clone() }).is_empty());
        assert!(names(&InstallSettings { pod_volumes: false, ..settings }).is_empty());
    }

    #[test]
    fn where_velero_runs_the_backups_nothing_gives_the_agents_work() {
        for (executor, pod_volumes, files_by_movers, fits) in [
            (Executor::Berth, true, false, true),
            (Executor::Berth, true, true, true),
            (Executor::Berth, false, true, false),
            (Executor::Velero, true, false, false),
            (Executor::Velero, false, false, true),
        ] {
            let fit = ensure_fits(pod_volumes, files_by_movers, executor);
            assert_eq!(fit.is_ok(), fits, "{executor:?} {pod_volumes} {files_by_movers}");
        }
    }

    #[test]
    fn agents_that_are_missing_on_nodes_are_told_and_nothing_else() {
        let agents = |generation: i64, ready: i32| -> DaemonSet {
            serde_json::from_value(json!({
                "metadata": {"name": AGENT, "namespace": "n", "generation": generation},
                "status": {
                    "observedGeneration": 2, "numberReady": ready, "desiredNumberScheduled": 3,
                    "currentNumberScheduled": 3, "numberMisscheduled": 0,
                },
            }))
            .unwrap()
        };
        assert_eq!(not_ready_message(&agents(2, 3)), None);
        assert!(not_ready_message(&agents(2, 1)).unwrap().contains("ready on 1 of 3 nodes"));
        assert!(not_ready_message(&agents(3, 3)).unwrap().contains("being started"));
    }
}
