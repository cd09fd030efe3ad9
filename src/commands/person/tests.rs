use berth_api::velero::Backup;
use berth_test_scripted::{Scripted, get, list, page};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::json;

use super::*;
use crate::args::backup::MadeOutput;
use crate::text::chain;

const NOBODY_LISTENS: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "u", "user": {}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}"#;

#[tokio::test]
async fn an_api_server_that_does_not_answer_is_named_with_the_flags_that_choose_it() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    std::fs::write(&file, NOBODY_LISTENS).unwrap();
    let target = ClusterArgs { namespace: "velero".to_owned(), kubeconfig: Some(file), context: None };
    let person = Person::new(target).unwrap();
    let error = person.list::<Backup>(None).await.unwrap_err();
    let said = chain(person.explained(error).await.as_ref());
    for wanted in ["http://127.0.0.1:1/", "--context", "failed to list backups"] {
        assert!(said.contains(wanted), "{said}");
    }
}

const BACKUPS: &str = "/apis/velero.io/v1/namespaces/velero/backups";

fn backup(name: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup", "spec": {},
        "metadata": {"name": name, "namespace": "velero", "uid": name},
    })
}

fn which(names: &[&str]) -> SelectArgs {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    SelectArgs { names, all: false, selector: None }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_not_there_hides_no_other_and_each_counts_once() {
    let one = |name: &str| format!("{BACKUPS}/{name}");
    let api = Scripted::new()
        .next(get(&one("a")).answers(backup("a")))
        .next(get(&one("gone")).refuses(404))
        .next(get(&one("b")).answers(backup("b")))
        .next(get(BACKUPS).answers(list("5", &[backup("a"), backup("b")])));
    let person = Person::of(api.client("velero"));
    let selected = person.selected::<Backup>(&which(&["a", "gone", "b", "a"])).await.unwrap();
    let names: Vec<String> = selected.found.iter().map(ResourceExt::name_any).collect();
    assert_eq!((names.join(" ").as_str(), selected.missing), ("a b", 1));
    // Where nothing is left to act on, that is the error.
    let api = Scripted::new()
        .next(get(&one("nightl")).refuses(404))
        .next(get(&one("gone")).refuses(404))
        .next(get(BACKUPS).answers(list("5", &[backup("nightly")])));
    let person = Person::of(api.client("velero"));
    let refused = person.selected::<Backup>(&which(&["nightl", "gone"])).await.err().unwrap();
    let said = refused.to_string();
    assert!(said.contains("did you mean nightly?") && said.contains("no Backup gone"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn nothing_chosen_is_not_everything() {
    let api = Scripted::new();
    let person = Person::of(api.client("velero"));
    for (selector, says) in [(None, "nothing is chosen"), (Some(LabelSelector::default()), "--all")] {
        let refused = person.selected::<Backup>(&SelectArgs { selector, ..which(&[]) }).await;
        let refused = refused.err().unwrap();
        assert!(refused.is::<WrongFlags>() && refused.to_string().contains(says), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_of_which_the_pages_expire_begins_again_and_not_for_ever() {
    let first = |name: &str| get(BACKUPS).answers(page("5", "more", &[backup(name)]));
    let api = Scripted::new()
        .next(first("old"))
        .next(get(BACKUPS).page("more").refuses(410))
        .next(first("a"))
        .next(get(BACKUPS).page("more").answers(list("9", &[backup("b")])));
    let all = Person::of(api.client("velero")).list::<Backup>(None).await.unwrap();
    assert_eq!(all.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["a", "b"]);
    let api = Scripted::new().always(first("a")).always(get(BACKUPS).page("more").refuses(410));
    assert!(Person::of(api.client("velero")).list::<Backup>(None).await.is_err());
    assert_eq!(api.asked().len(), 6, "three times two pages");
}

#[tokio::test(start_paused = true)]
async fn a_list_leaves_out_what_its_type_cannot_have_and_nothing_else() {
    let mut bad = backup("bad");
    bad["spec"] = json!({"includedNamespaces": "no list"});
    let api = Scripted::new().next(get(BACKUPS).answers(list("5", &[bad, backup("good")])));
    let found = Person::of(api.client("velero")).list_typed::<Backup>(None).await.unwrap();
    assert_eq!(found.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["good"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_cut_off_or_is_none_is_no_shorter_list() {
    let whole = list("5", &[backup("a"), backup("b")]).to_string();
    let half = whole.get(..whole.len() - 20).unwrap();
    for (line, says) in [
        (get(BACKUPS).breaks_after(half), "failed to list backups"),
        (get(BACKUPS).answers(json!({"hello": "world"})), "it has no items"),
    ] {
        let api = Scripted::new().next(line);
        let error = Person::of(api.client("velero")).list_typed::<Backup>(None).await.unwrap_err();
        assert!(chain(error.as_ref()).contains(says), "{error:?}");
    }
    // Whoever explains an error has to find the client's.
    let api = Scripted::new().next(get(BACKUPS).breaks_after(half));
    let error = Person::of(api.client("velero")).list::<Backup>(None).await.unwrap_err();
    assert!(error.chain().any(|cause| cause.is::<kube::Error>()), "{error:?}");
}

#[test]
fn an_object_is_printed_instead_of_created_where_that_is_asked_for() {
    use crate::args::backup::BackupCommand;
    use crate::args::{Args, Command};
    use clap::Parser as _;
    for (flags, printed) in [
        (&[][..], None),
        (&["--dry-run=client"], Some(MadeOutput::Yaml)),
        (&["--dry-run=client", "-o", "json"], Some(MadeOutput::Json)),
        (&["-o", "table"], Some(MadeOutput::Table)),
        (&["--dry-run=server"], None),
        (&["--dry-run=server", "-o", "json"], None),
        (&["--dry-run=plan", "-o", "json"], None),
    ] {
        let args = Args::try_parse_from([&["berth", "backup", "create", "x"][..], flags].concat()).unwrap();
        let Command::Backup(backup) = args.command else { unreachable!() };
        let BackupCommand::Create(create) = backup.command else { unreachable!() };
        assert!(printed_instead(&create.made) == printed, "{flags:?}");
    }
}

#[test]
fn colours_are_where_nobody_says_no() {
    let of = |said, no_color: Option<&str>, terminal: Option<&str>| {
        is_colourful(said, &[no_color, terminal].map(|text| text.map(OsString::from)))
    };
    let terminal = Some("xterm");
    assert!(of(None, None, terminal) && of(Some(true), Some(""), terminal));
    for (said, no_color, terminal) in [
        (Some(false), None, terminal),
        (None, Some("1"), terminal),
        (Some(true), Some("0"), terminal),
        (None, None, Some("dumb")),
        (None, None, None),
    ] {
        assert!(!of(said, no_color, terminal), "{said:?} {no_color:?} {terminal:?}");
    }
}

#[test]
fn nothing_is_asked_without_a_terminal_and_only_a_yes_deletes() {
    let mut asked: Vec<u8> = Vec::new();
    let said = answered(false, &b"y\n"[..], &mut asked).unwrap_err().to_string();
    assert!(said.contains("nobody can be asked") && said.contains("--confirm"), "{said}");
    assert!(asked.is_empty(), "{asked:?}");
    for (answer, deletes) in [
        ("y\n", true),
        (" Yes \n", true),
        ("Y", true),
        ("n\n", false),
        ("\n", false),
        ("yesterday\n", false),
        // The terminal was closed.
        ("", false),
    ] {
        asked.clear();
        assert_eq!(answered(true, answer.as_bytes(), &mut asked).unwrap(), deletes, "{answer:?}");
        assert!(asked.ends_with(b"(Y/N)? "), "{asked:?}");
    }
    // What cannot be read is no yes.
    assert!(answered(true, &b"\xff\n"[..], &mut asked).is_err());
    assert!(confirmed(true).unwrap());
}

#[test]
fn the_text_of_a_warning_is_read() {
    assert_eq!(warning_text("299 - \"at position 3\"").as_deref(), Some("at position 3"));
    assert_eq!(warning_text("299 - \"a \\\"b\\\" \\\\\" \"date\"").as_deref(), Some("a \"b\" \\"));
    for bad in ["", "299", "299 - text", "299 - \"text", "299 - \"text\\"] {
        assert_eq!(warning_text(bad), None, "{bad}");
    }
}

#[test]
fn several_faults_are_told_at_once() {
    assert!(faults(Vec::new()).is_ok());
    assert_eq!(faults(vec!["a".into()]).unwrap_err().to_string(), "a");
    let said = faults(vec!["a".into(), "b".into()]).unwrap_err().to_string();
    assert_eq!(said, "2 flags are wrong:\n  a\n  b");
    let namespace = "No".to_owned();
    let target = ClusterArgs { namespace, kubeconfig: None, context: None };
    let wrong = [faults(vec!["a".into()]).err(), Person::new(target).err(), check_name("Backup", "No").err()];
    for error in wrong.map(Option::unwrap) {
        assert!(error.context("more").is::<WrongFlags>(), "it ends with exit code 2");
    }
}
