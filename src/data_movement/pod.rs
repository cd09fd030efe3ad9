//! The pod that moves the data: a copy of the pod of berth's node agents, without the folder of the
//! node, and with the one volume, or the folder of the volumes of one pod.

use std::collections::BTreeMap;

use berth_api::keys::label_value;
use berth_api::node_agent::{MoverPods, PodResources};
use berth_core::mover::MoverKind;
use berth_core::mover::grant::Mover;
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, HostPathVolumeSource, NodeAffinity, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolumeClaimVolumeSource, Pod, PodSpec,
    PodTemplateSpec, ResourceRequirements, SELinuxOptions, SecurityContext, Toleration, Volume, VolumeDevice,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::node_agent::mover::{DEVICE, NODE_PODS, OF_DEVICE, VOLUME};
use crate::objects::{NODE_AGENT_ROLE, PART_OF};
use crate::patch::digest;

/// The key of [`super::PODS`], which the pods of node agents have, too.
const NAME: &str = "app.kubernetes.io/name";
const DATA_MOVER: &str = "berth-data-mover";
/// Name of the node agents' container, and of their volume with the kubelet's folder of pods.
const CONTAINER: &str = "berth";
const HOST_PODS: &str = "pods";
/// Name of the volume whose data is moved.
const MOVED: &str = "berth-moved-volume";
const NODE_NAME: &str = "metadata.name";
/// The SELinux type of a process that may read files with any label, so that the labels of the
/// volume need not be changed.
const SUPER_PRIVILEGED: &str = "spc_t";
/// Seconds that a pod has to remove the lock of the repository when it is told to stop.
const GRACE: i64 = 30;

/// Capabilities of a process that only reads. DAC_READ_SEARCH would do as well, and would open
/// every file of the node's file systems by its handle.
const TO_READ: [&str; 1] = ["DAC_OVERRIDE"];
/// Those of a process that restores files of any owner and mode, devices, and capabilities of
/// files.
const TO_RESTORE: [&str; 6] = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP"];

/// The volumes of a pod on the node of that pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeVolumes {
    /// Their folder on the node.
    pub folder: String,
    /// UID of that pod.
    pub pod: String,
}

/// What the pod mounts, and where the pod may run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PodPlace {
    /// The claim, unless the pod mounts `node_volumes`.
    pub claim: String,
    pub node_volumes: Option<NodeVolumes>,
    pub is_read_only: bool,
    /// The claim can only be mounted read-only.
    pub is_claim_read_only: bool,
    /// The volume is a block device.
    pub is_block: bool,
    /// The SELinux labels of the volume must not be changed.
    pub no_relabeling: bool,
    pub node: Option<String>,
    /// The node affinity of the volume that is backed up, together with `loadAffinity`.
    pub terms: Vec<NodeSelectorTerm>,
    pub tolerations: Vec<Toleration>,
}

/// The pod. `template`: the pod template of the node agents, from which image, account, settings
/// and stores are taken. `made`: the metadata of everything that is created for the movement.
/// `own`: settings for the pods of movers in the node agents' configuration, which replace those of
/// the template.
///
/// # Errors
/// When the template is not one of berth's node agents.
pub(super) fn pod(
    template: &PodTemplateSpec,
    mover: &Mover,
    namespace: &str,
    made: ObjectMeta,
    own: &MoverPods,
    place: &PodPlace,
) -> Result<Pod, String> {
    let Mover { kind, name, uid, .. } = mover;
    let of_agents = template.spec.as_ref();
    let container = of_agents.and_then(|spec| spec.containers.iter().find(|one| one.name == CONTAINER));
    let (Some(of_agents), Some(container)) = (of_agents, container) else {
        return Err(format!("the DaemonSet of berth's node agents has no container {CONTAINER}"));
    };
    let metadata = template.metadata.clone().unwrap_or_default();
    let either = |own: &BTreeMap<String, String>, of_agents: Option<BTreeMap<String, String>>| {
        if own.is_empty() { of_agents } else { Some(own.clone()) }
    };
    let mut labels = either(&own.labels, metadata.labels).unwrap_or_default();
    // The label marks objects that an installation applies and removes, and this pod is not one.
    labels.remove(PART_OF);
    // With this one it would count as a node-agent of Velero's.
    labels.retain(|key, value| (key.as_str(), value.as_str()) != NODE_AGENT_ROLE);
    labels.extend(made.labels.clone().unwrap_or_default());
    let known_by = [(NAME, DATA_MOVER.to_owned()), (kind.pod_label(), label_value(name, digest))];
    labels.extend(known_by.map(|(key, value)| (key.to_owned(), value)));
    let is_kept = |mount: &&VolumeMount| mount.name != HOST_PODS;
    let mut mounts: Vec<VolumeMount> =
        container.volume_mounts.iter().flatten().filter(is_kept).cloned().collect();
    let mut devices = container.volume_devices.clone().unwrap_or_default();
    let mut args = container.args.clone().unwrap_or_default();
    if let Some(NodeVolumes { pod, .. }) = &place.node_volumes {
        // A volume that is unmounted on the node goes here, too, so that nothing keeps it in use.
        mounts.push(VolumeMount {
            name: MOVED.to_owned(),
            mount_path: format!("{NODE_PODS}/{pod}/volumes"),
            mount_propagation: Some("HostToContainer".to_owned()),
            read_only: Some(place.is_read_only),
            ..VolumeMount::default()
        });
        args.push(format!("--host-pods-path={NODE_PODS}"));
    } else if place.is_block {
        devices.push(VolumeDevice { name: MOVED.to_owned(), device_path: DEVICE.to_owned() });
    } else {
        mounts.push(VolumeMount {
            name: MOVED.to_owned(),
            mount_path: VOLUME.to_owned(),
            read_only: Some(place.is_read_only),
            ..VolumeMount::default()
        });
    }
    let is_kept = |volume: &&Volume| volume.name != HOST_PODS;
    let mut volumes: Vec<Volume> = of_agents.volumes.iter().flatten().filter(is_kept).cloned().collect();
    let host_path = place.node_volumes.as_ref().map(|volumes| HostPathVolumeSource {
        path: volumes.folder.clone(),
        type_: Some("Directory".to_owned()),
    });
    let claim = PersistentVolumeClaimVolumeSource {
        claim_name: place.claim.clone(),
        read_only: Some(true).filter(|_| place.is_claim_read_only),
    };
    volumes.push(Volume {
        name: MOVED.to_owned(),
        persistent_volume_claim: Some(claim).filter(|_| host_path.is_none()),
        host_path,
        ..Volume::default()
    });
    let device = if place.is_block { OF_DEVICE } else { "" };
    args.push(format!("--carry={}/{name}/{uid}{device}", kind.as_str()));
    let container = Container {
        args: Some(args),
        volume_mounts: Some(mounts),
        volume_devices: Some(devices).filter(|devices| !devices.is_empty()),
        ports: None,
        startup_probe: None,
        readiness_probe: None,
        liveness_probe: None,
        resources: own.resources.as_ref().map(requirements).or_else(|| container.resources.clone()),
        security_context: Some(security(
            *kind,
            container.security_context.clone().unwrap_or_default(),
            own.privileged_for_files && place.node_volumes.is_some(),
        )),
        ..container.clone()
    };
    let mut terms = place.terms.clone();
    if let Some(node) = &place.node {
        if terms.is_empty() {
            terms.push(NodeSelectorTerm::default());
        }
        // Matches the node's name, because the label with the host's name may have another value.
        for term in &mut terms {
            term.match_fields.get_or_insert_default().push(NodeSelectorRequirement {
                key: NODE_NAME.to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![node.clone()]),
            });
        }
    }
    let has_terms = !terms.is_empty();
    let required = NodeSelector { node_selector_terms: terms };
    let affinity = Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(required),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    };
    let mut security = of_agents.security_context.clone();
    if place.no_relabeling {
        security.get_or_insert_default().se_linux_options =
            Some(SELinuxOptions { type_: Some(SUPER_PRIVILEGED.to_owned()), ..SELinuxOptions::default() });
    }
    let tolerations = match place.node_volumes {
        // The pod whose volumes they are runs there, whatever taints the node has, as an agent
        // does.
        Some(_) => of_agents.tolerations.clone(),
        // A node agent runs on every node, and a data mover only where other pods may.
        None => Some(place.tolerations.clone()).filter(|all| !all.is_empty()),
    };
    let spec = PodSpec {
        containers: vec![container],
        init_containers: None,
        volumes: Some(volumes),
        affinity: Some(affinity).filter(|_| has_terms),
        tolerations,
        priority_class_name: own.priority_class.clone().or_else(|| of_agents.priority_class_name.clone()),
        security_context: security,
        // A container that dies starts again on its node, which still has the volume mounted.
        restart_policy: Some("OnFailure".to_owned()),
        termination_grace_period_seconds: Some(GRACE),
        ..of_agents.clone()
    };
    let metadata = ObjectMeta {
        namespace: Some(namespace.to_owned()),
        labels: Some(labels),
        annotations: either(&own.annotations, metadata.annotations),
        ..made
    };
    Ok(Pod { metadata, spec: Some(spec), status: None })
}

/// The process is root, because the files of volumes belong to anybody, and has the capabilities
/// for its work beside those that the agents have.
fn security(kind: MoverKind, of_agents: SecurityContext, is_privileged: bool) -> SecurityContext {
    let needed: &[&str] = match kind {
        MoverKind::DataUpload | MoverKind::PodVolumeBackup => &TO_READ,
        MoverKind::DataDownload | MoverKind::PodVolumeRestore => &TO_RESTORE,
    };
    let Capabilities { add, drop } = of_agents.capabilities.unwrap_or_default();
    let mut add = add.unwrap_or_default();
    for capability in needed {
        if !add.iter().any(|one| one == capability) {
            add.push((*capability).to_owned());
        }
    }
    SecurityContext {
        capabilities: Some(Capabilities { add: Some(add), drop }),
        run_as_user: Some(0),
        run_as_group: Some(0),
        run_as_non_root: Some(false),
        privileged: if is_privileged { Some(true) } else { of_agents.privileged },
        // Kubernetes does not take both.
        allow_privilege_escalation: of_agents.allow_privilege_escalation.filter(|_| !is_privileged),
        ..of_agents
    }
}

fn requirements(resources: &PodResources) -> ResourceRequirements {
    let bounds = |all: &BTreeMap<String, String>| {
        let all = all.iter().map(|(resource, amount)| (resource.clone(), Quantity(amount.clone())));
        Some(all.collect::<BTreeMap<_, _>>()).filter(|all| !all.is_empty())
    };
    ResourceRequirements {
        requests: bounds(&resources.requests),
        limits: bounds(&resources.limits),
        ..ResourceRequirements::default()
    }
}

#[cfg(test)]
mod tests {
    use berth_api::keys::MADE_FOR;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::install::pod_volumes::AGENT;
    use crate::install::{InstallSettings, render};

    fn made(place: &PodPlace) -> Value {
        made_with(&MoverPods::default(), place)
    }

    fn made_with(own: &MoverPods, place: &PodPlace) -> Value {
        made_of(MoverKind::DataUpload, false, own, place)
    }

    fn made_of(kind: MoverKind, files_by_movers: bool, own: &MoverPods, place: &PodPlace) -> Value {
        let settings =
            InstallSettings { pod_volumes: true, files_by_movers, ..InstallSettings::new("velero") };
        let objects = render(&settings).unwrap();
        let is_it = |one: &&Value| one["kind"] == "DaemonSet" && one["metadata"]["name"] == AGENT;
        let mut template = objects.iter().find(is_it).unwrap()["spec"]["template"].clone();
        template["metadata"]["annotations"] = json!({"some/role": "r"});
        let containers = &mut template["spec"]["containers"][0];
        containers["args"].as_array_mut().unwrap().push(json!("--filesystem-root=/stores"));
        containers["volumeMounts"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "stores", "mountPath": "/stores"}));
        template["spec"]["volumes"].as_array_mut().unwrap().push(json!({"name": "stores", "emptyDir": {}}));
        let template = serde_json::from_value(template).unwrap();
        let mover = Mover::new(kind, "up", "u", Timestamp::UNIX_EPOCH);
        let metadata = ObjectMeta {
            name: Some("up".to_owned()),
            labels: Some([(MADE_FOR.to_owned(), "u".to_owned())].into()),
            ..ObjectMeta::default()
        };
        serde_json::to_value(pod(&template, &mover, "velero", metadata, own, place).unwrap()).unwrap()
    }

    #[test]
    fn a_mover_has_what_an_agent_has_but_for_its_node() {
        let place = PodPlace { claim: "up".to_owned(), is_read_only: true, ..PodPlace::default() };
        let pod = made(&place);
        let labels = &pod["metadata"]["labels"];
        assert_eq!(
            (
                &labels["app.kubernetes.io/name"],
                &labels["velero.io/data-upload"],
                &labels["berth.dev/made-for"]
            ),
            (&json!("berth-data-mover"), &json!("up"), &json!("u"))
        );
        assert!(labels["app.kubernetes.io/part-of"].is_null(), "or an uninstallation would wait for it");
        assert!(labels["role"].is_null(), "or it would count as a node-agent of Velero's");
        assert_eq!(pod["metadata"]["annotations"], json!({"some/role": "r"}));
        let spec = &pod["spec"];
        let container = &spec["containers"][0];
        assert_eq!(
            container["args"],
            json!([
                "node-agent",
                "--namespace=$(POD_NAMESPACE)",
                "--node-name=$(NODE_NAME)",
                "--filesystem-root=/stores",
                "--carry=DataUpload/up/u",
            ])
        );
        assert_eq!(
            container["volumeMounts"],
            json!([
                {"name": "stores", "mountPath": "/stores"},
                {"name": "berth-moved-volume", "mountPath": "/volume", "readOnly": true},
            ])
        );
        let volumes = json!([
            {"name": "stores", "emptyDir": {}},
            {"name": "berth-moved-volume", "persistentVolumeClaim": {"claimName": "up"}},
        ]);
        assert_eq!(spec["volumes"], volumes, "nothing of the node");
        for field in ["tolerations", "affinity"] {
            assert!(spec[field].is_null(), "{field}");
        }
        assert!(container["readinessProbe"].is_null() && container["ports"].is_null());
        assert_eq!(spec["serviceAccountName"], AGENT);
        assert_eq!(spec["restartPolicy"], "OnFailure");
    }

    #[test]
    fn a_block_volume_is_a_device_of_its_pod_and_not_mounted() {
        let place =
            PodPlace { claim: "up".to_owned(), is_read_only: true, is_block: true, ..PodPlace::default() };
        let spec = made(&place)["spec"].clone();
        let container = &spec["containers"][0];
        assert_eq!(
            container["volumeDevices"],
            json!([{"name": "berth-moved-volume", "devicePath": "/volume/device"}])
        );
        assert_eq!(container["volumeMounts"], json!([{"name": "stores", "mountPath": "/stores"}]));
        let args = container["args"].as_array().unwrap();
        assert_eq!(args.last().unwrap(), "--carry=DataUpload/up/u/Block");
        let volume = spec["volumes"].as_array().unwrap().last().unwrap();
        assert_eq!(volume["persistentVolumeClaim"], json!({"claimName": "up"}));
        let files = made(&PodPlace { is_block: false, ..place });
        assert!(files["spec"]["containers"][0]["volumeDevices"].is_null());
    }

    #[test]
    fn a_mover_is_root_and_may_do_what_its_work_needs_whoever_the_agents_are() {
        let files = PodPlace {
            node_volumes: Some(NodeVolumes { folder: "/pods/p/volumes".to_owned(), pod: "p".to_owned() }),
            ..PodPlace::default()
        };
        for (kind, place, add) in [
            (MoverKind::DataUpload, PodPlace::default(), &TO_READ[..]),
            (MoverKind::DataDownload, PodPlace::default(), &TO_RESTORE),
            (MoverKind::PodVolumeBackup, files.clone(), &TO_READ),
            (MoverKind::PodVolumeRestore, files.clone(), &TO_RESTORE),
        ] {
            let context = |files_by_movers: bool, privileged_for_files: bool| {
                let own = MoverPods { privileged_for_files, ..MoverPods::default() };
                let pod = made_of(kind, files_by_movers, &own, &place);
                pod["spec"]["containers"][0]["securityContext"].clone()
            };
            let wanted = json!({
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": false,
                "runAsUser": 0, "runAsGroup": 0, "capabilities": {"add": add, "drop": ["ALL"]},
            });
            assert_eq!(context(true, false), wanted, "{kind}");
            // What the agents may do besides stays.
            assert_eq!(context(false, false)["capabilities"]["add"], json!(TO_RESTORE), "{kind}");
            let privileged = context(true, true);
            let is_of_files = place.node_volumes.is_some();
            assert_eq!(privileged["privileged"] == true, is_of_files, "{kind}");
            assert_eq!(privileged["allowPrivilegeEscalation"].is_null(), is_of_files, "{kind}");
        }
    }

    #[test]
    fn a_mover_runs_where_its_volume_can_be() {
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]});
        let place = PodPlace {
            node: Some("n2".to_owned()),
            terms: vec![serde_json::from_value(term.clone()).unwrap()],
            ..PodPlace::default()
        };
        let spec = made(&place)["spec"].clone();
        assert_eq!(spec["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
        let terms = |spec: &Value| {
            spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
                .clone()
        };
        let named = json!([{"key": "metadata.name", "operator": "In", "values": ["n2"]}]);
        assert_eq!(
            terms(&spec),
            json!([{"matchExpressions": term["matchExpressions"], "matchFields": named}])
        );
        let spec = made(&PodPlace { terms: Vec::new(), ..place })["spec"].clone();
        assert_eq!(terms(&spec), json!([{"matchFields": named}]));
    }

    #[test]
    fn a_mover_has_what_the_configuration_says_instead_of_what_an_agent_has() {
        let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let own = MoverPods {
            resources: Some(PodResources { requests: [text("cpu", "2")].into(), limits: BTreeMap::new() }),
            priority_class: Some("low".to_owned()),
            labels: [text("team", "storage"), text("velero.io/data-upload", "another"), text(PART_OF, "x")]
                .into(),
            annotations: [text("a/b", "c")].into(),
            privileged_for_files: true,
        };
        let place = PodPlace {
            is_read_only: true,
            is_claim_read_only: true,
            no_relabeling: true,
            tolerations: vec![serde_json::from_value(json!({"key": "k", "operator": "Exists"})).unwrap()],
            ..PodPlace::default()
        };
        let pod = made_with(&own, &place);
        let labels = json!({
            "team": "storage", "velero.io/data-upload": "up", "berth.dev/made-for": "u",
            "app.kubernetes.io/name": "berth-data-mover",
        });
        assert_eq!(pod["metadata"]["labels"], labels, "those by which it is known are its own");
        assert_eq!(pod["metadata"]["annotations"], json!({"a/b": "c"}));
        let spec = &pod["spec"];
        assert_eq!(spec["containers"][0]["resources"], json!({"requests": {"cpu": "2"}}));
        assert_eq!(spec["priorityClassName"], "low");
        assert_eq!(spec["tolerations"], json!([{"key": "k", "operator": "Exists"}]));
        assert_eq!(spec["securityContext"]["seLinuxOptions"], json!({"type": "spc_t"}));
        assert!(spec["containers"][0]["securityContext"]["privileged"].is_null(), "it mounts its volume");
        let claim = spec["volumes"].as_array().unwrap().last().unwrap()["persistentVolumeClaim"].clone();
        assert_eq!(claim["readOnly"], true);
        let plain = made(&PodPlace::default());
        assert!(plain["spec"]["securityContext"]["seLinuxOptions"].is_null());
    }
}
