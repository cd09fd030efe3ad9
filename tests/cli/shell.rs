//! What a user's shell and files have to do with the commands: completion of names, Velero's
//! configuration, and templates, beside what kubectl and Velero make of the same.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{common, refused, said, without_proxies};
use crate::admission::program;
use crate::support::{ControlPlane, binaries};

/// As bash asks when the last of these words is being typed.
fn completed(words: &[&str]) -> Output {
    let script = r#"
        source <("$0" completion bash) || exit 1
        COMP_WORDS=("$0" "$@")
        COMP_CWORD=$#
        COMPREPLY=()
        _berth_names "$0" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", script]).arg(program()).args(words).stdin(Stdio::null());
    without_proxies(&mut command);
    command.output().unwrap()
}

#[test]
fn names_of_the_cluster_complete_a_command_and_without_one_there_are_none() {
    let berth = common();
    let held = ["--include-namespaces", "none", "--annotations", "berth.dev/hold=true"];
    for name in ["alpha-1", "alpha-2", "beta"] {
        said(&berth, &[&["backup", "create", name][..], &held].concat());
    }
    said(&berth, &["schedule", "create", "alpine", "--schedule", "@yearly", "--paused"]);
    let kubeconfig = berth.plane().kubeconfig().display().to_string();
    let target = ["--namespace", berth.namespace(), "--kubeconfig", &kubeconfig];
    for (words, offered) in [
        (&["backup", "describe", "al"][..], "alpha-1\nalpha-2\n"),
        (&["get", "backups", "b"], "beta\n"),
        (&["schedule", "pause", "al"], "alpine\n"),
        (&["backup", "create", "x", "--from-schedule", "a"], "alpine\n"),
        (&["backup", "create", "x", "--storage-location", ""], "default\n"),
    ] {
        let words = [&target[..], words].concat();
        let output = completed(&words);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, offered, "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let flags = completed(&["backup", "describe", "--det"]);
    assert_eq!(String::from_utf8_lossy(&flags.stdout), "--details\n");
    for (args, says) in [
        (&["queue", "explain", "btea"][..], "Backup btea neither waits nor runs: did you mean beta?"),
        (&["queue", "hold", "btea"], "there is no Backup btea in namespace cli: did you mean beta?"),
    ] {
        let text = refused(&berth, args);
        assert!(text.contains(says), "{args:?}: {text}");
    }
    // A cluster that takes the connection and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = berth.plane().folder().join("cli-complete-silent.json");
    let server = format!("http://{}", silent.local_addr().unwrap());
    let nowhere = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&file, nowhere.to_string()).unwrap();
    for kubeconfig in [file.as_path(), Path::new("/does/not/exist")] {
        let begun = Instant::now();
        let output = Command::new(program())
            .args(["complete-names", "--", "backup", "describe", "--kubeconfig"])
            .arg(kubeconfig)
            .output()
            .unwrap();
        assert!(
            output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
        // Each call of the client may take 30 s.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}

/// As a person sets it up by two links, with kubectl's own completion.
#[test]
fn kubectl_completes_what_stands_behind_its_plugin() {
    let berth = common();
    let held = ["--include-namespaces", "none", "--annotations", "berth.dev/hold=true"];
    said(&berth, &[&["backup", "create", "of-kubectl"][..], &held].concat());
    let [kubectl] = binaries::get(["kubectl"]).unwrap();
    let folder = berth.plane().folder().join("cli-kubectl-complete");
    std::fs::create_dir_all(&folder).unwrap();
    for link in ["kubectl-berth", "kubectl_complete-berth"] {
        std::os::unix::fs::symlink(program(), folder.join(link)).unwrap();
    }
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    for (words, offered) in [
        (&["backup", "describe", "of-ku"][..], &["of-kubectl", ":4"][..]),
        (&["get", "backups", "of-ku"], &["of-kubectl", ":4"]),
        (&["backup-l"], &["backup-location", ":4"]),
        (&["backup", "describe", "--det"], &["--details", ":4"]),
        (&["backup", "create", "x", "--storage-location", ""], &["default", ":4"]),
    ] {
        let mut command = Command::new(&kubectl);
        command.args(["__complete", "berth"]).args(words).env("PATH", &path).env("HOME", &folder);
        command.env("KUBECONFIG", berth.plane().kubeconfig()).env("VELERO_NAMESPACE", berth.namespace());
        without_proxies(&mut command);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let words_of: Vec<&str> =
            text.lines().map(|line| line.split('\t').next().unwrap_or_default()).collect();
        assert_eq!(words_of, offered, "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut command = Command::new(&kubectl);
    command.args(["berth", "get", "backups", "of-kubectl", "-o", "name"]).env("PATH", &path);
    command.env("HOME", &folder).env("KUBECONFIG", berth.plane().kubeconfig());
    command.env("VELERO_NAMESPACE", berth.namespace());
    without_proxies(&mut command);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "of-kubectl\n", "{output:?}");
}

#[test]
fn velero_s_configuration_counts_as_it_does_for_velero_and_flags_outrank_it() {
    let plane = ControlPlane::shared().unwrap();
    let [stock] = binaries::get(["velero"]).unwrap();
    let home = plane.folder().join("cli-config-home");
    std::fs::create_dir_all(&home).unwrap();
    let run = |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env("HOME", &home).env("KUBECONFIG", plane.kubeconfig()).stdin(Stdio::null());
        without_proxies(&mut command);
        command
    };
    let written =
        run(&stock, &["client", "config", "set", "namespace=of-the-file", "colorized=false"]).output();
    assert!(written.unwrap().status.success());
    let make = ["backup", "create", "x", "--include-namespaces", "a", "-o", "json"];
    for (environment, flags) in
        [(None, &[][..]), (Some("of-the-environment"), &[]), (None, &["-n", "of-the-flag"])]
    {
        let namespace = |program: &Path| {
            let mut command = run(program, &[&make[..], flags].concat());
            match environment {
                Some(name) => command.env("VELERO_NAMESPACE", name),
                None => command.env_remove("VELERO_NAMESPACE"),
            };
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let made: Value = serde_json::from_slice(&output.stdout).unwrap();
            made["metadata"]["namespace"].as_str().unwrap().to_owned()
        };
        let ours = namespace(program().as_ref());
        assert_eq!(ours, namespace(&stock), "{environment:?} {flags:?}");
        assert_eq!(ours.starts_with("of-the-flag"), !flags.is_empty());
    }
    std::fs::write(home.join(".config/velero/config.json"), "{").unwrap();
    let output = run(program().as_ref(), &make).output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Warning: ") && said.contains("config.json"), "{said}");
}

#[test]
fn templates_print_what_they_print_with_kubectl() {
    let berth = common();
    let held = ["--annotations", "berth.dev/hold=true", "--labels", "example.com/team=web"];
    for (name, namespaces) in [("one", "a,b"), ("two", "c")] {
        said(&berth, &[&["backup", "create", name, "--include-namespaces", namespaces][..], &held].concat());
    }
    let list = [
        "{.items[*].metadata.name}",
        "{.items[?(@.metadata.name==\"two\")].spec.includedNamespaces}",
        "{range .items[*]}{.metadata.name}{\"\\t\"}{.spec.includedNamespaces[0]}{\"\\n\"}{end}",
        "{.items[0].metadata.labels.example\\.com/team}",
        "{.items[0].metadata.labels['example\\.com/team']}",
        "{.items[-1:].metadata.name}",
        "{.items[0].spec.includedNamespaces[0:1]}",
        "{.items[*].nothing}",
        "{.kind}: {.items[0].kind}",
    ];
    let one = ["{.metadata.name}", "{.spec.includedNamespaces[*]}", "{.spec.includedNamespaces}"];
    let all = list
        .iter()
        .map(|template| (None, template))
        .chain(one.iter().map(|template| (Some("one"), template)));
    // Other tests have Backups there, too.
    let web = ["-l", "example.com/team=web"];
    for (name, template) in all {
        let which = name.as_ref().map_or(&web[..], std::slice::from_ref);
        let output = format!("jsonpath={template}");
        let mut args = vec!["get", "backups.velero.io", "-n", berth.namespace(), "-o", &output];
        args.extend(which);
        let theirs = berth.kubectl().answer_by_process(&args, "").unwrap();
        assert!(theirs.status.success(), "{template}: {}", theirs.stderr);
        let mut args = vec!["backup", "get", "-o", &output];
        args.extend(which);
        // kubectl's list of one kind is of kind List.
        let ours = said(&berth, &args).replace("BackupList: ", "List: ");
        assert_eq!(ours, theirs.stdout, "{template}");
    }
    let columns = "custom-columns=NAME:.metadata.name,FIRST:.spec.includedNamespaces[0]";
    let args = [&["get", "backups.velero.io", "-n", berth.namespace(), "-o", columns], &web[..]].concat();
    let theirs = berth.kubectl().answer_by_process(&args, "").unwrap().stdout;
    let words = |text: &str| {
        text.lines()
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect::<Vec<Vec<String>>>()
    };
    assert_eq!(words(&said(&berth, &[&["backup", "get", "-o", columns], &web[..]].concat())), words(&theirs));
}
