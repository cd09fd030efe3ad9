//! The commands of a velero user, beside stock Velero's.

mod both_ways;
mod flags;
mod follow;
mod huge;
mod plan;
mod shell;
mod stock;
mod versions;
mod week;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::ended;
use crate::support::peers::velero;
use crate::support::process::without_proxies;
use crate::support::shared::{Shared, SharedBerth};
use crate::support::{Berth, ControlPlane, Options, PATIENCE, binaries, port, project, wait_for};

/// One for the tests that mind no Backup of others. Names of Backups in it are the tests' own.
fn common() -> SharedBerth {
    static COMMON: Shared<Berth> = Shared::unstarted();
    COMMON.berth(|| Berth::start(ControlPlane::shared()?, Options::new(program(), "cli"))).unwrap()
}

/// One command line, and what stock Velero prints with `-o json`, or says.
#[derive(Serialize, Deserialize)]
struct Recorded {
    args: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// What stock Velero makes of a command line now.
fn printed(program: &Path, kubeconfig: &Path, authority: &Path, args: Vec<String>) -> Recorded {
    let mut command = Command::new(program);
    let given = args.iter().map(|arg| if arg == "/CACERT" { authority.to_str().unwrap() } else { arg });
    command.args(given).args(["-o", "json"]).env("KUBECONFIG", kubeconfig).stdin(Stdio::null());
    without_proxies(&mut command);
    let output = command.output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
        return Recorded { args, object: None, refused: Some(said) };
    }
    let mut object: Value = serde_json::from_slice(&output.stdout).unwrap();
    object["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
    if object["status"] == json!({}) {
        object.as_object_mut().unwrap().remove("status");
    }
    Recorded { args, object: Some(object), refused: None }
}

/// `BERTH_RECORD=1` records every command line again, after a bump of Velero.
#[test]
fn stock_velero_still_prints_what_is_recorded_of_it() {
    let plane = ControlPlane::shared().unwrap();
    let [program] = binaries::get(["velero"]).unwrap();
    let authority = plane.folder().join("cli-authority.pem");
    std::fs::write(&authority, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n").unwrap();
    let path = project().join("src/cli/tests/velero.json");
    let recorded: Vec<Recorded> = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let again = |one: &Recorded| printed(&program, &plane.kubeconfig(), &authority, one.args.clone());
    if std::env::var_os("BERTH_RECORD").is_some() {
        let lines: Vec<String> =
            recorded.iter().map(|one| format!("  {}", serde_json::to_string(&again(one)).unwrap())).collect();
        std::fs::write(&path, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
        return;
    }
    for one in recorded.iter().step_by(11) {
        assert_eq!(again(one).object, one.object, "{:?}", one.args);
    }
}

/// `berth …` as a person types it.
fn command(berth: &Berth, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .args(args)
        .args(["--namespace", berth.namespace(), "--kubeconfig"])
        .arg(berth.plane().kubeconfig());
    // Whoever runs the tests may have set something for Velero's command line.
    command.env("HOME", berth.plane().folder()).env("TZ", "UTC");
    command.current_dir(berth.plane().folder()).stdin(Stdio::null());
    without_proxies(&mut command);
    command
}

fn run(berth: &Berth, args: &[&str]) -> Output {
    command(berth, args).output().unwrap()
}

/// Runs a command that must succeed; gives what it prints.
pub fn said(berth: &Berth, args: &[&str]) -> String {
    let output = run(berth, args);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{args:?}: {out}{err}");
    out
}

/// Runs a command that must fail; gives what it says.
fn refused(berth: &Berth, args: &[&str]) -> String {
    let output = run(berth, args);
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{args:?}: {}{err}", String::from_utf8_lossy(&output.stdout));
    err
}

fn object(berth: &Berth, kind: &str, name: &str) -> Value {
    let args = ["get", &format!("{kind}.velero.io"), name, "-n", berth.namespace(), "-o", "json"];
    serde_json::from_str(&berth.kubectl().run(&args).unwrap()).unwrap()
}

/// Labels, annotations and spec of what Velero's command made under one name and berth's under
/// another.
fn are_made_alike(berth: &Berth, kind: &str, theirs: &str, ours: &str) {
    let made = |name: &str| {
        let mut object = object(berth, kind, name);
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.retain(|key, _| !key.starts_with("berth.dev/"));
        }
        (object["metadata"]["labels"].take(), object["spec"].take())
    };
    assert_eq!(made(ours), made(theirs), "{kind} {ours} and {theirs}");
}

/// Runs stock Velero's command, which must succeed; gives what it prints.
fn stock(berth: &Berth, args: &[&str]) -> String {
    let answer = velero(berth.plane(), berth.namespace(), args).unwrap();
    assert!(answer.status.success(), "{args:?}: {}{}", answer.stdout, answer.stderr);
    answer.stdout
}

/// The columns of a table, by the start of each.
fn cells(table: &str) -> Vec<Vec<String>> {
    let split = |line: &str| {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect()
    };
    table.lines().map(split).collect()
}

#[test]
fn a_velero_users_week_goes_the_same_way_with_berth() {
    let berth = Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "cli-week")).unwrap();
    let stock = |args: &[&str]| stock(&berth, args);
    // Monday: backups, by both commands.
    for (i, flags) in [
        &["--include-namespaces", "default", "--ttl", "48h", "--labels", "team=web"][..],
        &["--include-namespaces", "default", "-l", "app in (a,b),!c", "--snapshot-volumes=false"],
        &[
            "--include-namespaces",
            "default",
            "--include-resources",
            "configmaps",
            "--storage-location",
            "default",
        ],
    ]
    .iter()
    .enumerate()
    {
        let (theirs, ours) = (format!("v-{i}"), format!("b-{i}"));
        stock(&[&["backup", "create", theirs.as_str()], *flags].concat());
        let text = said(&berth, &[&["backup", "create", ours.as_str()], *flags].concat());
        assert!(text.starts_with(&format!("Backup request \"{ours}\" submitted successfully.\n")), "{text}");
        ended(&berth, &[&theirs, &ours]);
        are_made_alike(&berth, "backup", &theirs, &ours);
    }
    // The same columns and cells.
    assert_eq!(cells(&said(&berth, &["get", "backups"])), cells(&stock(&["backup", "get"])));
    assert_eq!(said(&berth, &["backup", "get", "-l", "team=web", "-o", "name"]), "b-0\nv-0\n");
    // The objects themselves: one where one is named, else a list.
    let whole: Value = serde_json::from_str(&said(&berth, &["backup", "get", "b-0", "-o", "json"])).unwrap();
    let there = object(&berth, "backup", "b-0");
    let text = said(&berth, &["backup", "get", "b-0", "-o", "yaml"]);
    let yaml: Value = serde_saphyr::from_str(&text).unwrap();
    for field in ["apiVersion", "kind", "spec", "status"] {
        assert_eq!((&whole[field], &yaml[field]), (&there[field], &there[field]), "{field}: {text}");
    }
    let list: Value = serde_json::from_str(&said(&berth, &["backup", "get", "-o", "json"])).unwrap();
    let of = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().filter_map(|one| one["metadata"]["name"].as_str()).collect();
    assert_eq!((&list["kind"], names.len()), (&json!("BackupList"), 6), "{list:#}");
    assert_eq!(of(&said(&berth, &["backup", "get", "-o", "name"])), names);
    for selector in ["team!=web", "team notin (web),!no", "team"] {
        let args = ["backup", "get", "-l", selector];
        assert_eq!(cells(&said(&berth, &args)), cells(&stock(&args)), "{selector}");
    }
    // Times are those of whoever reads.
    let [theirs, ours] = [binaries::get(["velero"]).unwrap()[0].clone(), program()].map(|program| {
        let mut command = Command::new(program);
        command.args(["backup", "get", "--namespace", berth.namespace(), "--kubeconfig"]);
        command.arg(berth.plane().kubeconfig()).env("HOME", berth.plane().folder()).stdin(Stdio::null());
        command.env("TZ", "Asia/Kolkata");
        without_proxies(&mut command);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    });
    assert!(ours.contains(" +0530 IST"), "{ours}");
    // Velero has the zones of this machine, if there are some.
    if theirs.contains(" +0530 IST") {
        assert_eq!(cells(&ours), cells(&theirs));
    }
    // Tuesday: waiting, and how it ends.
    let text = said(&berth, &["backup", "create", "waited", "--include-namespaces", "default", "--wait"]);
    assert!(text.contains("Backup completed with status: Completed"), "{text}");
    for (name, end, code) in [("canceled", &["queue", "cancel"][..], 6), ("gone", &[], 7)] {
        let hold = ["--annotations", "berth.dev/hold=true", "--include-namespaces", "default", "--wait"];
        let child = command(&berth, &[&["backup", "create", name][..], &hold].concat())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for("the backup to be held", PATIENCE, || {
            let found = berth.kubectl().backups(berth.namespace())?;
            Ok(found.contains_key(name).then_some(()))
        })
        .unwrap();
        if end.is_empty() {
            berth.kubectl().run(&["delete", "backups.velero.io", name, "-n", berth.namespace()]).unwrap();
        } else {
            said(&berth, &[end, &[name]].concat());
        }
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(code), "{name}: {text}");
    }
    let text =
        said(&berth, &["backup", "create", "dry", "--include-namespaces", "default", "--dry-run=server"]);
    assert!(text.contains("would be accepted, at position 1"), "{text}");
    // Wednesday: schedules.
    stock(&[
        "schedule",
        "create",
        "v-s",
        "--schedule",
        "0 1 * * *",
        "--ttl",
        "24h",
        "--labels",
        "a=b",
        "--include-namespaces",
        "default",
    ]);
    let text = said(
        &berth,
        &[
            "create",
            "schedule",
            "b-s",
            "--schedule",
            "0 1 * * *",
            "--ttl",
            "24h",
            "--labels",
            "a=b",
            "--include-namespaces",
            "default",
        ],
    );
    assert_eq!(text, "Schedule \"b-s\" created successfully.\n");
    are_made_alike(&berth, "schedule", "v-s", "b-s");
    assert_eq!(said(&berth, &["schedule", "pause", "b-s"]), "Schedule b-s paused successfully\n");
    assert_eq!(said(&berth, &["schedule", "pause", "b-s"]), "Schedule b-s is already paused, skip\n");
    assert!(stock(&["schedule", "get", "b-s"]).contains("true"));
    said(&berth, &["schedule", "unpause", "b-s"]);
    // What is chosen by labels, and all.
    let text = said(&berth, &["schedule", "pause", "-l", "a=b"]);
    assert_eq!(text, "Schedule b-s paused successfully\nSchedule v-s paused successfully\n");
    let text = said(&berth, &["schedule", "unpause", "--all"]);
    assert_eq!(text, "Schedule b-s unpaused successfully\nSchedule v-s unpaused successfully\n");
    let text = said(&berth, &["schedule", "describe", "b-s"]);
    assert_eq!(text.matches(" 01:00:00 +0000 UTC").count(), 5, "{text}");
    stock(&["backup", "create", "v-f", "--from-schedule", "v-s", "--annotations", "note=x"]);
    said(&berth, &["backup", "create", "b-f", "--from-schedule", "v-s", "--annotations", "note=x"]);
    ended(&berth, &["v-f", "b-f"]);
    are_made_alike(&berth, "backup", "v-f", "b-f");
    // Without a terminal nobody can be asked.
    for args in [&["schedule", "delete", "b-s"][..], &["backup-location", "delete", "default"]] {
        let text = refused(&berth, args);
        assert!(text.contains("nobody can be asked") && text.contains("--confirm"), "{args:?}: {text}");
    }
    assert_eq!(object(&berth, "schedule", "b-s")["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!(object(&berth, "backupstoragelocation", "default")["metadata"]["name"], "default");
    said(&berth, &["schedule", "delete", "--all", "--confirm"]);
    // Friday: locations, mistakes, and cleaning up.
    for (name, run) in [("v-l", true), ("b-l", false)] {
        let args = ["backup-location", "create", name, "--provider", "berth.dev/filesystem", "--bucket", "x"];
        let args = [&args[..], &["--config", "path=/nowhere", "--access-mode=ReadOnly"]].concat();
        if run {
            stock(&args)
        } else {
            said(&berth, &args)
        };
    }
    let specs = ["v-l", "b-l"].map(|name| object(&berth, "backupstoragelocation", name)["spec"].take());
    assert_eq!(specs[0], specs[1]);
    let text = refused(&berth, &["backup-location", "set", "b-l", "--default"]);
    assert!(text.contains("backup-location set default --default=false"), "{text}");
    said(&berth, &["backup-location", "delete", "v-l", "b-l", "--confirm"]);
    let text = refused(&berth, &["backup", "describe", "waitde"]);
    assert!(text.contains("did you mean waited?"), "{text}");
    let text = refused(&berth, &["backup", "create", "x", "--storage-location", "defualt"]);
    assert!(text.contains("--storage-location") && text.contains("did you mean default?"), "{text}");
    let text = refused(&berth, &["backup", "delete", "b-0"]);
    assert!(text.contains("--confirm") && text.contains("Completed"), "{text}");
    said(&berth, &["backup", "delete", "b-0", "--confirm"]);
    wait_for("b-0 to be deleted", PATIENCE, || {
        Ok((!berth.kubectl().backups(berth.namespace())?.contains_key("b-0")).then_some(()))
    })
    .unwrap();
    assert!(!berth.archive("b-0").exists());
    said(&berth, &["backup", "delete", "-l", "team=web", "--confirm"]);
    wait_for("v-0 to be deleted, and no other", PATIENCE, || {
        Ok((!berth.kubectl().backups(berth.namespace())?.contains_key("v-0")).then_some(()))
    })
    .unwrap();
    assert!(berth.archive("b-1").exists() && berth.archive("v-1").exists());
    // A name that is not there hides no other, and neither does a reader who has had enough.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut deletes = command(&berth, &["backup", "delete", "b-1", "nowhere", "v-1", "b-1", "--confirm"]);
    let status = deletes.stdout(writer.try_clone().unwrap()).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1), "one of the names is not there");
    wait_for("b-1 and v-1 to be deleted", PATIENCE, || {
        let left = berth.kubectl().backups(berth.namespace())?;
        Ok((!left.contains_key("b-1") && !left.contains_key("v-1")).then_some(()))
    })
    .unwrap();
}

#[test]
fn what_is_stored_is_read_as_with_velero() {
    let port = port::free().unwrap();
    let mut options = Options::new(program(), "cli-stored");
    options.controller_args.extend([
        format!("--download-address=127.0.0.1:{port}"),
        format!("--download-url=https://127.0.0.1:{port}/"),
    ]);
    let berth = Berth::start(ControlPlane::shared().unwrap(), options).unwrap();
    let stock = |args: &[&str]| stock(&berth, args);
    let only = ["--include-namespaces", "default"];
    for (name, more) in
        [("b-0", &[][..]), ("v-0", &[]), ("b-1", &[]), ("b-2", &["--include-resources", "configmaps"])]
    {
        said(&berth, &[&["backup", "create", name][..], &only, more].concat());
    }
    ended(&berth, &["b-0", "v-0", "b-1", "b-2"]);
    let args = ["get", "secret", "berth-webhook-certs", "-n", berth.namespace(), "-o", "json"];
    let secret: Value = serde_json::from_str(&berth.kubectl().run(&args).unwrap()).unwrap();
    let file = berth.plane().folder().join("cli-stored-ca.crt");
    std::fs::write(&file, STANDARD.decode(secret["data"]["ca.crt"].as_str().unwrap()).unwrap()).unwrap();
    let trust = format!("--cacert={}", file.display());
    assert_eq!(said(&berth, &["backup", "logs", "b-0", &trust]), stock(&["backup", "logs", "b-0", &trust]));
    let text = refused(&berth, &["backup", "logs", "b-0", "--timeout=20s"]);
    assert!(text.contains("--cacert") && text.contains("--insecure-skip-tls-verify"), "{text}");
    said(&berth, &["backup", "logs", "b-0", "--insecure-skip-tls-verify"]);
    let to = berth.plane().folder().join("cli-stored.tar.gz");
    let output = to.display().to_string();
    said(&berth, &["backup", "download", "b-0", "-o", &output, &trust]);
    assert_eq!(std::fs::read(&to).unwrap(), std::fs::read(berth.archive("b-0")).unwrap());
    let text = refused(&berth, &["backup", "download", "b-0", "-o", &output, &trust]);
    assert!(text.contains("--force"), "{text}");
    said(&berth, &["backup", "download", "b-1", "-o", &output, "--force", &trust]);
    assert_eq!(std::fs::read(&to).unwrap(), std::fs::read(berth.archive("b-1")).unwrap());
    let text = said(&berth, &["backup", "contents", "b-0", "--grep", "namespaces/", &trust]);
    assert_eq!(text, "namespaces/default\n");
    let text = said(&berth, &["backup", "contents", "b-0", "namespaces/default", "-o", "json", &trust]);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["metadata"]["name"], "default");
    let text = refused(&berth, &["backup", "contents", "b-0", "pods/no/such", &trust]);
    assert!(text.contains("--grep"), "{text}");
    let text = said(&berth, &["backup", "diff", "b-0", "v-0", &trust]);
    assert_eq!(text, "", "both took the same");
    let text = said(&berth, &["backup", "diff", "b-0", "b-2", &trust]);
    assert!(text.lines().any(|line| line == "- namespaces/default"), "{text}");
    let (ours, theirs) = (
        said(&berth, &["backup", "describe", "b-0", "--details", &trust]),
        stock(&["backup", "describe", "b-0", "--details", "--colorized=false", &trust]),
    );
    let lines = |text: &str| {
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.filter(|line| !line.is_empty()).collect::<Vec<_>>()
    };
    let missing: Vec<String> =
        lines(&theirs).into_iter().filter(|line| !lines(&ours).contains(line)).collect();
    assert!(missing.is_empty(), "not told: {missing:#?}\n{ours}\n{theirs}");
    let text = said(&berth, &["backup", "describe", "-l", "velero.io/storage-location=default", &trust]);
    let named = text.lines().filter_map(|line| Some(line.strip_prefix("Name:")?.trim()));
    assert_eq!(named.collect::<Vec<_>>(), ["b-0", "b-1", "b-2", "v-0"], "{text}");
    let left =
        berth.kubectl().run(&["get", "downloadrequests.velero.io", "-n", berth.namespace(), "-o", "json"]);
    let left: Value = serde_json::from_str(&left.unwrap()).unwrap();
    // Those that stock Velero's commands leave behind end in a hash of another form.
    let of_berth =
        left["items"].as_array().unwrap().iter().filter(|one| one["metadata"]["generateName"].is_string());
    assert_eq!(of_berth.count(), 0, "{left:#}");
    follow::follows_those_that_wait(&berth, &trust);
}

/// What may be seen and done with each Role, and what the others are told.
#[test]
fn a_right_that_lacks_is_named_with_its_role() {
    let berth = common();
    let ns = berth.namespace();
    let answer = berth.kubectl().create(
        ns,
        &[json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"},
        })],
    );
    assert!(answer.unwrap().status.success());
    let kubeconfig = berth.plane().service_account_kubeconfig(ns, "nobody").unwrap();
    for (args, role) in [
        (&["backup", "get"][..], "berth-viewer"),
        (&["backup", "create", "x"], "berth-user"),
        (&["schedule", "create", "x", "--schedule", "@daily"], "berth-scheduler"),
    ] {
        let mut command = Command::new(program());
        command.args(args).args(["--namespace", ns, "--kubeconfig"]).arg(&kubeconfig);
        without_proxies(&mut command);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{text}");
        let wanted = format!("--role {role} --serviceaccount {ns}:nobody");
        assert!(text.contains(&wanted), "{args:?}: {text}");
    }
}

/// Nothing that a command prints is lost or fails when its reader has had enough.
#[test]
fn completion_and_help_need_no_cluster() {
    let mut all = BTreeMap::new();
    for args in
        [&["completion", "bash"][..], &["completion", "zsh"], &["--help"], &["backup", "create", "--help"]]
    {
        let mut child = Command::new(program()).args(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success(), "{args:?}");
        all.insert(args.join(" "), text);
    }
    assert!(all["completion bash"].contains("backup-location"));
    assert!(all["backup create --help"].contains("Example: berth backup create nightly"), "{all:#?}");
}

#[test]
fn a_reader_who_has_had_enough_is_no_fault() {
    let unread = |command: &mut Command| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for args in [
        &["version", "--client-only"][..],
        &["--help"],
        &["completion", "fish"],
        &["crd"],
        &["krew"],
        &["install", "--output=yaml", "--image=registry.example/berth:1"],
    ] {
        let (code, text) = unread(Command::new(program()).args(args));
        assert!(code == Some(0) && !text.contains("panicked"), "{args:?}: {text}");
    }
    let berth = common();
    for args in [
        &["check"][..],
        &["install", "--dry-run", "--image=registry.example/berth:1"],
        &["uninstall", "--dry-run"],
        &["queue", "list"],
        &["node-agent", "check"],
    ] {
        let whole = run(&berth, args).status.code();
        let (code, text) = unread(&mut command(&berth, args));
        assert!(code == whole && !text.contains("panicked"), "{args:?}: {code:?}, {whole:?}: {text}");
    }
    // A full disk is another matter: it is told, and what was asked for is done.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let create = ["backup", "create", "untold", "--include-namespaces", "none"];
    let create = [&create[..], &["--annotations", "berth.dev/hold=true"]].concat();
    let output = command(&berth, &create).stdout(full).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("the output cannot be written"), "{text}");
    assert_eq!(object(&berth, "backup", "untold")["spec"]["includedNamespaces"][0], "none");
}
