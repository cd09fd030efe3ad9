//! A hub and a member cluster, and the agent between them.

use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use berth_api::keys::SEEDS_NAMESPACE;
use berth_garden_api::crd;
use serde_json::{Value, json};

use crate::admission::program;
pub use crate::support::PATIENCE;
use crate::support::process::in_own_session;
use crate::support::shared::Shared;
use crate::support::{ControlPlane, Kubectl, Process, port, project, wait_for};

pub const HUB_BUCKETS: &str = "backupbuckets.garden.berth.dev";
pub const HUB_ENTRIES: &str = "backupentries.garden.berth.dev";
pub const BUCKETS: &str = "backupbuckets.extensions.gardener.cloud";
pub const ENTRIES: &str = "backupentries.extensions.gardener.cloud";
pub const LOCATIONS: &str = "backupstoragelocations.velero.io";

/// As fast as time passes for hubs and agents of tests that wait for silences, which are ten
/// seconds then, and for what settles.
pub const QUICK: &str = "4";
/// As it passes elsewhere: for those that are killed again and again, and must not seem to be gone.
pub const USUAL: &str = "1";

/// A cluster that backs up, and its agent.
pub struct Member {
    pub plane: ControlPlane,
    /// Ends with it.
    _agent: Process,
}

impl Member {
    /// # Errors
    /// When it does not come up.
    pub fn start(hub: &ControlPlane, seed: &str) -> anyhow::Result<Self> {
        Self::start_in(start_member()?, hub, seed)
    }

    fn start_in(plane: ControlPlane, hub: &ControlPlane, seed: &str) -> anyhow::Result<Self> {
        let agent = start_agent(hub, &plane, seed, QUICK)?;
        Ok(Self { plane, _agent: agent })
    }

    pub fn kubectl(&self) -> &Kubectl {
        self.plane.kubectl()
    }
}

/// Who the agent of a seed is in the hub, and its group.
pub fn user_of(seed: &str) -> (String, &'static str) {
    (format!("system:serviceaccount:{SEEDS_NAMESPACE}:{seed}"), "system:serviceaccounts:garden-seeds")
}

/// The agent of a member cluster. In the hub it may do what a seed may, and no more; it has the
/// hub's pace.
///
/// # Errors
/// When it cannot be started.
pub fn start_agent(
    hub: &ControlPlane,
    member: &ControlPlane,
    seed: &str,
    pace: &str,
) -> anyhow::Result<Process> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": seed, "namespace": SEEDS_NAMESPACE},
    });
    apply(hub.kubectl(), &account)?;
    let mut command = in_own_session(&program());
    command.args(["garden", "agent", "--namespace=velero"]).env("BERTH_PACE", pace);
    command.arg("--kubeconfig").arg(member.kubeconfig());
    command.arg("--hub-kubeconfig").arg(hub.service_account_kubeconfig(SEEDS_NAMESPACE, seed)?);
    command.arg(format!("--seed={seed}"));
    command.arg(format!("--health-address=127.0.0.1:{}", port::free()?));
    Process::start("berth garden agent", command, &member.folder().join("agent.log"))
}

/// Gardener's kinds, as far as a member cluster needs them.
///
/// # Errors
/// When the API server refuses them.
pub fn define_member(plane: &ControlPlane) -> anyhow::Result<()> {
    define(plane, &crd::member(), &["garden"])
}

/// Velero's, where no berth brings them.
///
/// # Errors
/// When the API server refuses them.
fn define_velero(plane: &ControlPlane) -> anyhow::Result<()> {
    define(plane, &berth_api::crd::velero(), &["velero"])
}

/// Both, for tests that do not disturb them. This hub has no leader and this member cluster no
/// executor: the tests act as both, with a provider that the agent does not serve.
pub struct Played {
    pub hub: ControlPlane,
    pub member: Member,
}

impl Played {
    /// # Errors
    /// When it does not come up, the same to everybody.
    pub fn shared() -> anyhow::Result<Arc<Self>> {
        static SHARED: Shared<Played> = Shared::unstarted();
        SHARED.get(Self::start)
    }

    /// Of the hub, and of the member cluster.
    pub fn clusters(&self) -> (&Kubectl, &Kubectl) {
        (self.hub.kubectl(), self.member.kubectl())
    }

    fn start() -> anyhow::Result<Self> {
        let plane = std::thread::spawn(start_member);
        let hub = start_hub()?;
        apply(
            hub.kubectl(),
            &json!({
                "apiVersion": "garden.berth.dev/v1alpha1", "kind": "Seed", "metadata": {"name": "ship"},
                "spec": {"cloudProfileName": "packet", "region": "ewr1"},
            }),
        )?;
        // What a hub gives to a seed. No leader decides here.
        let (user, _) = user_of("ship");
        hub.kubectl().run(&[
            "create",
            "role",
            "played",
            "-n",
            "garden",
            "--verb=get",
            "--resource=secrets",
        ])?;
        let of = format!("--user={user}");
        hub.kubectl().run(&["create", "rolebinding", "played", "-n", "garden", "--role=played", &of])?;
        let plane = plane.join().map_err(|_| anyhow!("a thread of the tests panicked"))??;
        let member = Member::start_in(plane, &hub, "ship")?;
        Ok(Self { hub, member })
    }
}

/// A control plane with the hub's kinds.
///
/// # Errors
/// When it does not come up.
pub fn start_hub() -> anyhow::Result<ControlPlane> {
    let hub = ControlPlane::start()?;
    define(&hub, &[crd::hub(), berth_api::crd::velero()].concat(), &["garden", "garden-dev", "velero"])?;
    let seeds = project().join("manifests/garden/seeds.yaml");
    hub.kubectl().run(&["apply", "--server-side", "-f", &seeds.display().to_string()])?;
    Ok(hub)
}

/// A control plane with the kinds of a member cluster. [`Member`] has an agent, too.
///
/// # Errors
/// When it does not come up.
pub fn start_member() -> anyhow::Result<ControlPlane> {
    let plane = ControlPlane::start()?;
    define_velero(&plane)?;
    define_member(&plane)?;
    Ok(plane)
}

fn define(
    plane: &ControlPlane,
    definitions: &[k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition],
    namespaces: &[&str],
) -> anyhow::Result<()> {
    let mut objects: Vec<Value> = definitions.iter().map(|crd| json!(crd)).collect();
    let named = |name: &&str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    objects.extend(namespaces.iter().map(named));
    plane.apply(objects)?;
    plane.kubectl().await_definitions()
}

/// # Errors
/// When the API server refuses it.
pub fn apply(kubectl: &Kubectl, object: &Value) -> anyhow::Result<()> {
    kubectl.run_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &object.to_string())?;
    Ok(())
}

/// `kind/name`, or `None`. In `namespace`, where that is not empty.
///
/// # Errors
/// When kubectl fails otherwise.
pub fn get(kubectl: &Kubectl, kind: &str, name: &str, namespace: &str) -> anyhow::Result<Option<Value>> {
    let mut args = vec!["get", kind, name, "-o", "json", "--ignore-not-found"];
    if !namespace.is_empty() {
        args.extend(["--namespace", namespace]);
    }
    let text = kubectl.run(&args)?;
    if text.trim().is_empty() { Ok(None) } else { Ok(Some(serde_json::from_str(&text)?)) }
}

/// Waits until an object is as `is_so` wants it; gives it. `Value::Null` stands for none.
///
/// # Errors
/// When it takes too long: with what it was last.
pub fn becomes(
    kubectl: &Kubectl,
    (kind, name, namespace): (&str, &str, &str),
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> anyhow::Result<Value> {
    let mut last = Value::Null;
    let waited = wait_for(&format!("{kind}/{name}: {what}"), PATIENCE, || {
        last = get(kubectl, kind, name, namespace)?.unwrap_or_default();
        Ok(is_so(&last).then(|| last.clone()))
    });
    waited.with_context(|| format!("it is {last:#}"))
}

/// Merges into the object, or its status.
///
/// # Errors
/// When the API server refuses it.
pub fn merge(
    kubectl: &Kubectl,
    (kind, name, namespace): (&str, &str, &str),
    patch: &Value,
) -> anyhow::Result<()> {
    let text = patch.to_string();
    let mut args = vec!["patch", kind, name, "--type=merge", "-p", &text];
    if !namespace.is_empty() {
        args.extend(["--namespace", namespace]);
    }
    if patch.get("status").is_some() && kind != LOCATIONS {
        args.push("--subresource=status");
    }
    kubectl.run(&args)?;
    Ok(())
}
