//! Archives that are huge, cut off, or no backup's: `backup contents` reads them as a stream, in
//! little memory, and says what is wrong with them.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use berth::backup::archive::closing;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::{command, refused, said};
use crate::admission::program;
use crate::queue::ended;
use crate::support::{Berth, ControlPlane, Options, port};

const MIB: u64 = 1 << 20;
/// What a command may hold.
const MOST: u64 = 64 * MIB;
/// Of an object that is too large to be printed.
const LARGE: u64 = 100 * MIB;
/// Objects of a gzip member, and characters of each. A reader that kept them would hold more than
/// it may, and of ten GiB also one that kept only their names.
const OBJECTS: usize = 4096;
const CHARACTERS: usize = 4000;
const TRUST: &str = "--insecure-skip-tls-verify";

/// A berth that serves downloads, with a Backup `huge` in a folder.
fn with_backup(namespace: &str) -> Berth {
    let port = port::free().unwrap();
    let mut options = Options::new(program(), namespace);
    options.controller_args.extend([
        format!("--download-address=127.0.0.1:{port}"),
        format!("--download-url=https://127.0.0.1:{port}/"),
    ]);
    let berth = Berth::start(ControlPlane::shared().unwrap(), options).unwrap();
    said(&berth, &["backup", "create", "huge", "--include-namespaces", "default"]);
    ended(&berth, &["huge"]);
    berth
}

/// Entries of an archive without its end.
fn tar_of(files: &[(String, String)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, text.as_bytes()).unwrap();
    }
    let mut tar = builder.into_inner().unwrap();
    tar.truncate(tar.len() - END.len());
    tar
}

/// What ends an archive.
const END: [u8; 1024] = [0; 1024];

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

fn config_map(name: &str, text: &str) -> (String, String) {
    let object = json!({"kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}});
    (format!("resources/configmaps/namespaces/many/{name}.json"), object.to_string())
}

/// Puts an archive in place of that of the Backup: a large object, so many bytes of others, and one
/// more, `last`.
fn store(at: &Path, bytes: u64) {
    let mut file = File::create(at).unwrap();
    file.write_all(&packed(&tar_of(&[("metadata/version".to_owned(), "1.1.0\n".to_owned())]))).unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_path("resources/configmaps/namespaces/many/large.json").unwrap();
    header.set_size(LARGE);
    header.set_cksum();
    let mut gzip = GzEncoder::new(&mut file, Compression::fast());
    gzip.write_all(header.as_bytes()).unwrap();
    io::copy(&mut io::repeat(b'x').take(LARGE), &mut gzip).unwrap();
    gzip.finish().unwrap();
    let text = "text ".repeat(CHARACTERS / 5);
    let objects: Vec<_> = (0..OBJECTS).map(|i| config_map(&format!("object-{i:04}"), &text)).collect();
    let objects = tar_of(&objects);
    let member = packed(&objects);
    let mut stored = 0;
    while stored < bytes {
        file.write_all(&member).unwrap();
        stored += objects.len() as u64;
    }
    file.write_all(&packed(&tar_of(&[config_map("last", "it is the last one")]))).unwrap();
    file.write_all(&packed(&END)).unwrap();
}

/// The most that a process ever held, without what it has mapped of files, because a program that
/// is not optimised is itself large.
fn held(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kib = |what: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(what))?.trim().trim_end_matches(" kB").parse().ok()
    };
    Some(kib("VmHWM:")?.saturating_sub(kib("RssFile:")?) * 1024)
}

/// What a command prints, and how much it held. What it prints has to fit into a pipe.
fn measured(berth: &Berth, args: &[&str]) -> (String, u64) {
    let mut child = command(berth, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut most = 0;
    // The system keeps the peak, and forgets it when the process ends.
    while child.try_wait().unwrap().is_none() {
        most = most.max(held(child.id()).unwrap_or(0));
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(most > 0, "nothing was measured");
    (String::from_utf8(output.stdout).unwrap(), most)
}

/// Lists and prints the last object of an archive with so many bytes of contents, of which there is
/// no index.
fn passes(namespace: &str, bytes: u64) {
    let berth = with_backup(namespace);
    store(&berth.archive("huge"), bytes);
    let contents = ["backup", "contents", "huge", TRUST, "--timeout=1h"];
    let (listed, by_list) = measured(&berth, &[&contents[..], &["--grep", "/las"]].concat());
    assert_eq!(listed, "configmaps/many/last\n");
    let object = ["configmaps/many/last", "--output=json"];
    let (printed, by_object) = measured(&berth, &[&contents[..], &object].concat());
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["data"]["text"], "it is the last one");
    eprintln!("{} and {} MiB held for {} MiB of contents", by_list / MIB, by_object / MIB, bytes / MIB);
    assert!(by_list <= MOST && by_object <= MOST, "{by_list} and {by_object} bytes held");
    let text = refused(&berth, &[&contents[..], &["configmaps/many/large"]].concat());
    assert!(text.contains(&format!("configmaps/many/large has {LARGE} bytes")), "{text}");
}

#[test]
fn an_archive_of_a_gibibyte_is_listed_and_searched_in_64_mib() {
    passes("cli-huge", 1 << 30);
}

#[test]
#[ignore = "reads twenty GiB: make test-large"]
fn an_archive_of_ten_gibibytes_is_listed_and_searched_in_64_mib() {
    passes("cli-huger", 10 << 30);
}

#[test]
fn what_is_cut_off_or_no_archive_of_a_backup_is_told() {
    let berth = with_backup("cli-cut");
    let at = berth.archive("huge");
    let whole = std::fs::read(&at).unwrap();
    let foreign = [tar_of(&[("etc/motd".to_owned(), "hello\n".to_owned())]), END.to_vec()].concat();
    let object = [tar_of(&[config_map("a", "b")]), END.to_vec()].concat();
    for (what, bytes, says) in [
        ("half of it", whole[..whole.len() / 2].to_vec(), "cut off"),
        ("all but its end", whole[..whole.len() - closing().unwrap().len()].to_vec(), "cut off"),
        ("nothing", Vec::new(), "cut off"),
        ("a text", "this is a text\n".repeat(100).into_bytes(), "no archive of a backup"),
        ("a text that is packed", packed(&[b'x'; 5000]), "no archive of a backup"),
        ("another archive", packed(&foreign), "it has no metadata/version"),
        ("objects of nobody", object, "it has no metadata/version"),
    ] {
        std::fs::write(&at, bytes).unwrap();
        let wanted = ["configmaps/none/none", TRUST];
        let text = refused(&berth, &[&["backup", "contents", "huge"][..], &wanted].concat());
        assert!(text.contains(says), "{what}: {text}");
        let text = refused(&berth, &["backup", "diff", "huge", "huge", TRUST]);
        assert!(text.contains(says), "{what}: {text}");
    }
}
