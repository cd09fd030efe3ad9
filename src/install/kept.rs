//! Flags that were added to berth's Deployments by hand. Later installations keep them.

use anyhow::{Context as _, bail};
use berth_core::violation::tellable;
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

use super::arguments::{MOST, RENDERED, containers, flags, recorded};
use super::render::is_workload;
use super::{Installed, Reference, reviews};
use crate::args::Args;

/// Flags that `berth install` decides itself, whatever was added by hand.
const DECIDED: [&str; 9] = [
    "--namespace",
    "--executor",
    "--without-velero",
    "--certificates",
    "--concurrent-backups",
    "--item-block-worker-count",
    "--hub-kubeconfig",
    "--seed",
    "--files-by-movers",
];
/// Most bytes of flags that are kept. Nobody adds more by hand.
const MOST_BYTES: usize = 32 * 1024;

/// The arguments of a Deployment that berth did not install, each flag with its value as one
/// argument.
#[derive(Debug, Default, PartialEq, Eq)]
struct Added {
    /// Kept.
    kept: Vec<String>,
    /// `berth install` decides otherwise.
    replaced: Vec<String>,
}

/// Adds the flags of the live Deployments that were added by hand to the Deployments of an
/// installation, and a longer terminationGracePeriodSeconds. Returns messages for the user.
///
/// # Errors
/// When pods would not start with these flags, with the way out.
pub fn keep(objects: &mut [Value], installed: Option<&Installed>) -> anyhow::Result<Vec<String>> {
    let mut told = Vec::new();
    for object in objects.iter_mut().filter(|object| is_workload(object)) {
        let reference = Reference::of(object).context("a Deployment without a name")?;
        let container = object
            .pointer_mut("/spec/template/spec/containers/0")
            .context("a Deployment without a container")?;
        let rendered: Vec<String> =
            serde_json::from_value(container["args"].clone()).context("a container without arguments")?;
        if let Some(live) = installed.and_then(|installed| installed.deployment(&reference.name)) {
            let name = container["name"].as_str().unwrap_or_default();
            let (args, added) = match together(live, name, &rendered) {
                Ok(together) => together,
                Err(why) => bail!(
                    "berth {} cannot start with the arguments of {reference}: {why}. Nothing was changed. Take out of them what it does not know, and run this again: kubectl edit {} {} --namespace {}",
                    env!("CARGO_PKG_VERSION"),
                    reference.kind.to_lowercase(),
                    reference.name,
                    reference.namespace.as_deref().unwrap_or_default()
                ),
            };
            for (flags, what) in [
                (&added.kept, "keeps what somebody added"),
                (&added.replaced, "loses what `berth install` says otherwise"),
            ] {
                let flags: Vec<_> = flags.iter().map(|flag| tellable(flag)).collect();
                if !flags.is_empty() {
                    told.push(format!("{reference} {what}: {}", flags.join(" ")));
                }
            }
            container["args"] = json!(args);
            told.extend(keep_grace(object, live).map(|seconds| {
                format!("{reference} keeps what somebody set: terminationGracePeriodSeconds {seconds}")
            }));
        }
        object["metadata"]["annotations"][RENDERED] = json!(json!(rendered).to_string());
    }
    Ok(told)
}

/// Kubernetes' default of terminationGracePeriodSeconds.
const GRACE: i64 = 30;

/// Keeps a longer terminationGracePeriodSeconds, because `--drain-timeout` is of no use without it.
fn keep_grace(object: &mut Value, live: &Deployment) -> Option<i64> {
    let pod = object.pointer_mut("/spec/template/spec")?;
    let rendered = pod["terminationGracePeriodSeconds"].as_i64().unwrap_or(GRACE);
    let seconds = live.spec.as_ref()?.template.spec.as_ref()?.termination_grace_period_seconds?;
    if seconds <= rendered {
        return None;
    }
    pod["terminationGracePeriodSeconds"] = json!(seconds);
    Some(seconds)
}

/// All arguments of a container, and those that were added by hand; or why it cannot start with
/// them.
fn together(live: &Deployment, container: &str, rendered: &[String]) -> Result<(Vec<String>, Added), String> {
    let args = containers(live).find(|one| one.name == container).and_then(|one| one.args.as_deref());
    let args = args.unwrap_or_default();
    let bytes: usize = args.iter().map(String::len).sum();
    if args.len() > MOST || bytes > MOST_BYTES {
        return Err(format!(
            "there are {} of {bytes} bytes, and {MOST} of {MOST_BYTES} are kept at most",
            args.len()
        ));
    }
    let recorded = recorded(live);
    // Without the annotation (kustomize, Helm, an earlier version) it is unknown who added which
    // argument.
    let added = beside(args, recorded.as_deref().unwrap_or(rendered), rendered);
    let args = [rendered, added.kept.as_slice()].concat();
    match fault(&args) {
        Some(fault) => Err(fault),
        None => Ok((args, added)),
    }
}

/// The arguments in `live` that berth neither installed (`ours`) nor decides now.
fn beside(live: &[String], ours: &[String], rendered: &[String]) -> Added {
    let (mut ours, rendered) = (flags(ours), flags(rendered));
    let mut added = Added::default();
    for flag in flags(live) {
        if let Some(at) = ours.iter().position(|one| *one == flag) {
            ours.swap_remove(at);
        } else if !is_decided(&flag, &rendered) {
            added.kept.push(flag);
        } else if !rendered.contains(&flag) {
            added.replaced.push(flag);
        }
    }
    added
}

fn is_decided(flag: &str, rendered: &[String]) -> bool {
    let name = name_of(flag);
    // Where nothing says who callers must be, a file of somebody else's does.
    let is_authority = name == name_of(reviews::FLAG)
        && (flag == reviews::FLAG || rendered.iter().any(|one| name_of(one) == name));
    is_authority || DECIDED.contains(&name) || flag.starts_with("-n")
}

fn name_of(flag: &str) -> &str {
    flag.split('=').next().unwrap_or_default()
}

/// Why a pod would not start with these arguments, in one line.
fn fault(args: &[String]) -> Option<String> {
    let mut args = args.to_vec();
    loop {
        let error =
            Args::try_parse_from(["berth"].into_iter().chain(args.iter().map(String::as_str))).err()?;
        let value = match (error.kind(), error.get(ContextKind::InvalidValue)) {
            (ErrorKind::ValueValidation | ErrorKind::InvalidValue, Some(ContextValue::String(value))) => {
                value.as_str()
            }
            _ => "",
        };
        let before = args.len();
        // An argument with a variable is skipped, because only the pod knows the variable's value.
        args.retain(|arg| !(value.contains("$(") && arg.contains(value)));
        if args.len() == before {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            return Some(tellable(line.trim_start_matches("error: ")).into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Certificates, Executor};

    const RENDERED_NOW: [&str; 4] =
        ["controller", "--namespace=$(POD_NAMESPACE)", "--drain-timeout=55m", "--concurrent-backups=3"];

    fn texts(args: &[&str]) -> Vec<String> {
        args.iter().map(|&arg| arg.to_owned()).collect()
    }

    fn deployment(name: &str, args: &[String], recorded: Option<&str>) -> Deployment {
        let annotations = recorded.map(|recorded| json!({RENDERED: recorded}));
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "velero", "annotations": annotations},
            "spec": {"selector": {}, "template": {"spec": {"containers": [
                {"name": "sidecar", "args": ["--theirs"]}, {"name": "berth", "args": args},
            ]}}},
        }))
        .unwrap()
    }

    fn installed(deployment: Deployment) -> Installed {
        Installed {
            executor: Executor::Berth,
            certificates: Certificates::SelfManaged,
            member: None,
            agents: None,
            deployments: vec![deployment],
        }
    }

    fn objects() -> Vec<Value> {
        vec![json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "berth-controller", "namespace": "velero"},
            "spec": {"template": {"spec": {"containers": [{"name": "berth", "args": RENDERED_NOW}]}}},
        })]
    }

    /// The arguments after an installation, and what it said; or what it refused.
    fn after(live: &[&str], recorded: Option<&str>) -> Result<(Vec<String>, Vec<String>), String> {
        let installed = installed(deployment("berth-controller", &texts(live), recorded));
        let mut objects = objects();
        let told = keep(&mut objects, Some(&installed)).map_err(|error| format!("{error:#}"))?;
        let object = &objects[0];
        let record = object["metadata"]["annotations"][RENDERED].as_str().unwrap_or_default();
        assert_eq!(record, json!(RENDERED_NOW).to_string());
        let args = &object["spec"]["template"]["spec"]["containers"][0]["args"];
        Ok((serde_json::from_value(args.clone()).unwrap(), told))
    }

    #[test]
    fn what_somebody_added_stays_and_what_berth_put_there_goes() {
        let recorded =
            json!(["controller", "--namespace=$(POD_NAMESPACE)", "--drain-timeout=40m", "--retired"]);
        let recorded = recorded.to_string();
        for (more, kept) in [
            (
                &["--bucket-quota", "aws=100", "--fair-share"][..],
                &["--bucket-quota=aws=100", "--fair-share"][..],
            ),
            (
                &["--bucket-quota=aws=1", "--bucket-quota=gcp=1"],
                &["--bucket-quota=aws=1", "--bucket-quota=gcp=1"],
            ),
            (&["--disable-controllers", "gc,schedule"], &["--disable-controllers=gc,schedule"]),
            // The last value of a flag counts.
            (&["--drain-timeout=20m"], &["--drain-timeout=20m"]),
            (&["--health-address=$(POD_IP):8085"], &["--health-address=$(POD_IP):8085"]),
            // Decided, the same as installed.
            (&["--concurrent-backups=3"], &[]),
            (&[], &[]),
        ] {
            let before = ["controller", "--namespace=$(POD_NAMESPACE)", "--drain-timeout=40m", "--retired"];
            let (args, told) = after(&[&before[..], more].concat(), Some(&recorded)).unwrap();
            assert_eq!(args, [&RENDERED_NOW[..], kept].concat(), "{more:?}");
            assert_eq!(told.len(), usize::from(!kept.is_empty()), "{told:?}");
            assert!(kept.iter().all(|flag| told[0].contains(flag)), "{told:?}");
            // The same flag twice.
            let live: Vec<&str> = args.iter().map(String::as_str).collect();
            let again = after(&live, Some(&json!(RENDERED_NOW).to_string()));
            assert_eq!(again, Ok((args.clone(), told)), "{more:?}");
        }
    }

    #[test]
    fn what_was_installed_without_a_record_is_told_by_what_is_rendered_now() {
        for recorded in [None, Some("no JSON"), Some("{}")] {
            let live = ["controller", "--namespace=$(POD_NAMESPACE)", "--drain-timeout=55m", "--fair-share"];
            let (args, told) = after(&live, recorded).unwrap();
            assert_eq!(args, [&RENDERED_NOW[..], &["--fair-share"]].concat());
            assert_eq!(
                told,
                ["deployment/berth-controller in velero keeps what somebody added: --fair-share"]
            );
        }
    }

    #[test]
    fn what_an_installation_decides_wins_and_is_named() {
        let live = ["controller", "-n", "other", "--concurrent-backups", "4", "--executor=velero"];
        let (args, told) = after(&live, None).unwrap();
        assert_eq!(args, RENDERED_NOW);
        assert_eq!(
            told,
            [
                "deployment/berth-controller in velero loses what `berth install` says otherwise: -n=other --concurrent-backups=4 --executor=velero"
            ]
        );
        let of =
            |live: &str, rendered: &[&str]| beside(&texts(&["webhook", live]), &[], &texts(rendered)).kept;
        assert_eq!(of("--client-ca=/theirs/ca.crt", &["webhook"]), ["--client-ca=/theirs/ca.crt"]);
        assert!(of("--client-ca=/theirs/ca.crt", &["webhook", reviews::FLAG]).is_empty());
        // The installation removes its volume.
        assert!(of(reviews::FLAG, &["webhook"]).is_empty());
    }

    #[test]
    fn pods_keep_the_longer_time_to_end() {
        for (live, rendered, expected) in [
            (Some(3420), Some(120), Some(3420)),
            (Some(60), Some(120), None),
            (Some(120), Some(120), None),
            (None, Some(120), None),
            (Some(30), None, None),
            (Some(31), None, Some(31)),
        ] {
            let args = texts(&RENDERED_NOW);
            let mut there = deployment("berth-controller", &args, Some(&json!(RENDERED_NOW).to_string()));
            let pod = there.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
            pod.termination_grace_period_seconds = live;
            let mut objects = objects();
            let grace = "terminationGracePeriodSeconds";
            objects[0]["spec"]["template"]["spec"][grace] = json!(rendered);
            let told = keep(&mut objects, Some(&installed(there))).unwrap();
            assert_eq!(
                objects[0]["spec"]["template"]["spec"][grace],
                json!(expected.or(rendered)),
                "{live:?}"
            );
            assert_eq!(told.iter().any(|line| line.contains(grace)), expected.is_some(), "{told:?}");
        }
    }

    #[test]
    fn pods_that_would_not_start_are_refused_by_name() {
        for (flag, named) in [
            ("--no-such-flag=1", "unexpected argument '--no-such-flag'"),
            ("--no-such-flag=$(VARIABLE)", "unexpected argument '--no-such-flag'"),
            ("--bucket-quota=many", "invalid value 'many' for '--bucket-quota"),
            ("--fair-share=$(X)", "unexpected value"),
            ("--no\u{1b}[2J", "--no"),
        ] {
            let refused = after(&["controller", flag], None).unwrap_err();
            for words in
                [named, "Nothing was changed", "kubectl edit deployment berth-controller --namespace velero"]
            {
                assert!(refused.contains(words), "{words}: {refused}");
            }
            assert!(!refused.contains('\u{1b}'), "{refused}");
        }
    }

    #[test]
    fn so_many_are_refused() {
        let many: Vec<String> = (0..MOST).map(|i| format!("--bucket-quota=p{i}=1")).collect();
        let long = ["--fair-share-label=".to_owned() + &"x".repeat(MOST_BYTES)];
        for flags in [many.as_slice(), &long] {
            let live: Vec<&str> =
                ["controller"].into_iter().chain(flags.iter().map(String::as_str)).collect();
            let refused = after(&live, None).unwrap_err();
            assert!(refused.contains("are kept at most") && refused.len() < 600, "{refused}");
        }
    }

    #[test]
    fn a_first_installation_keeps_nothing_and_notes_what_is_its_own() {
        let other = installed(deployment("berth-webhook", &texts(&["webhook", "--fair-share"]), None));
        for installed in [None, Some(&other)] {
            let mut objects = objects();
            assert_eq!(keep(&mut objects, installed).unwrap(), Vec::<String>::new());
            let object = &objects[0];
            assert_eq!(object["spec"]["template"]["spec"]["containers"][0]["args"], json!(RENDERED_NOW));
            assert!(object["metadata"]["annotations"][RENDERED].is_string());
        }
    }
}
