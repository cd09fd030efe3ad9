//! Hooks: two hundred commands of a tenth of a second each, in pods of a kubelet that really runs
//! them, with ten workers.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_test_support::kwok::Kwok;
use berth_test_support::{Berth, ControlPlane, Options};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, AttachParams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::backed_up::{BackedUp, back_up};
use crate::report::{Aim, Report, median};

const NAMESPACE: &str = "velero";
const PART: &str = "200 hooks of 0.1 s, 10 workers";
const HOOKS: usize = 200;
const RUNS: usize = 3;
const WORKERS: u16 = 10;
const LONGEST: Duration = Duration::from_secs(300);

pub fn measure(runtime: &Runtime, program: &Path, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("{PART}:");
    let options = Options { item_block_workers: WORKERS, ..Options::new(program, NAMESPACE) };
    let berth = Berth::start(ControlPlane::start()?, options)?;
    let kwok = Kwok::start(berth.plane(), "hooked")?;
    let client = runtime.block_on(berth.plane().client())?;
    let exec = json!([{"exec": {"command": ["sleep", "0.1"]}}]);
    for (namespace, pods, what, hooks) in [
        ("before", HOOKS, "one before each pod", json!({"pre": exec})),
        ("around", HOOKS / 2, "one before and one after each pod", json!({"pre": exec, "post": exec})),
    ] {
        let mut objects =
            vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})];
        objects.extend((0..pods).map(|i| kwok.pod(namespace, &format!("pod-{i}"), &json!({}))));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        berth.kubectl().run_with(&["create", "-f", "-"], &list.to_string())?;
        // The same pods without hooks: what no worker can make shorter.
        let without = format!("{what}, but not run");
        for (what, hooks, aim) in
            [(without.as_str(), None, Aim::None), (what, Some(&hooks), Aim::AtMost(2.4))]
        {
            let mut seconds = Vec::new();
            for run in 0..RUNS {
                let name = format!("{namespace}-{}-{run}", if hooks.is_some() { "hooked" } else { "plain" });
                seconds.push(runtime.block_on(take(&client, &name, namespace, hooks))?);
            }
            report.add(PART, &format!("{what}: wall"), median(&seconds), "s", aim);
        }
        if pods == HOOKS {
            // No backup can be faster than the commands alone.
            let mut seconds = Vec::new();
            for _ in 0..RUNS {
                seconds.push(runtime.block_on(bare(&client, namespace))?);
            }
            report.add(PART, "the same commands without any backup: wall", median(&seconds), "s", Aim::None);
        }
    }
    Ok(())
}

/// The commands of the hooks, run by a client alone, as many at one time as there are workers.
async fn bare(client: &Client, namespace: &str) -> anyhow::Result<f64> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let started = Instant::now();
    let runs = futures::stream::iter(0..HOOKS).map(|i| {
        let api = api.clone();
        async move {
            // The first one of the pod, as a hook that names none has it.
            let pod = api.get(&format!("pod-{i}")).await?;
            let container = pod.spec.and_then(|spec| Some(spec.containers.into_iter().next()?.name));
            let params = AttachParams { container, ..AttachParams::default() };
            let mut process = api.exec(&format!("pod-{i}"), ["sleep", "0.1"], &params).await?;
            let status = process.take_status().context("exec has no status")?.await;
            let status = status.and_then(|status| status.status);
            ensure!(status.as_deref() == Some("Success"), "exec in pod-{i} ended {status:?}");
            Ok(())
        }
    });
    runs.buffer_unordered(usize::from(WORKERS)).try_collect::<()>().await?;
    Ok(started.elapsed().as_secs_f64())
}

async fn take(client: &Client, name: &str, namespace: &str, hooks: Option<&Value>) -> anyhow::Result<f64> {
    let mut spec = json!({"includedNamespaces": [namespace]});
    if let Some(hooks) = hooks {
        let mut entry = hooks.clone();
        entry["name"] = json!("sleep");
        spec["hooks"] = json!({"resources": [entry]});
    }
    let BackedUp { seconds, status } = back_up(client, NAMESPACE, name, spec, LONGEST).await?;
    let attempted = status.hook_status.and_then(|hooks| hooks.hooks_attempted);
    let wanted = hooks.and_then(|_| i64::try_from(HOOKS).ok());
    ensure!(attempted == wanted, "{name} had {attempted:?} hooks");
    Ok(seconds)
}
