//! Two controllers: what the leader has begun when it is killed or paused, the other one ends, and
//! nothing is done twice.

use berth::leader::LEASE;
use berth_api::velero::BackupPhase;
use kube::ResourceExt;
use nix::sys::signal::Signal;
use serde_json::json;

use super::deletion::{create, delete, files, hold, is_deleted, release, requests, start};
use crate::queue::ended;
use crate::support::backup::backup_of;
use crate::support::berth::Server;
use crate::support::{Berth, PATIENCE, backup, wait_for};

const HOLD: &str = "berth-test-hold-leaders";
/// More than are deleted at one time in one location.
const EXPIRING: [&str; 6] = ["one", "two", "three", "four", "five", "six"];

/// One of the two.
fn pick<'a>(is_second: bool, berth: &'a mut Berth, second: &'a mut Server) -> &'a mut Server {
    if is_second { second } else { &mut berth.controller }
}

/// Waits until a Backup is in the middle of its deletion, its files being gone.
fn wait_middle(berth: &Berth, name: &str) {
    let folder = berth.archives().join("backups").join(name);
    wait_for(&format!("the files of {name} to go"), PATIENCE, || {
        let phase = berth.kubectl().phase(berth.namespace(), name)?;
        Ok((phase == BackupPhase::Deleting && !folder.exists()).then_some(()))
    })
    .unwrap();
}

#[test]
fn deletions_of_a_leader_that_is_killed_or_paused_are_ended_by_the_other_one_alone() {
    let mut berth = start("deletion-leaders", &[], &[("BERTH_PACE", "60")]);
    let (kubectl, ns) = (berth.kubectl().clone(), berth.namespace().to_owned());
    // They expire once all of them are there.
    let expiring = |name: &str| {
        let mut expiring = backup(name, json!({"includedNamespaces": ["default"], "ttl": "1s"}));
        expiring["metadata"]["annotations"] = json!({"berth.dev/keep": "until all are there"});
        expiring
    };
    create(&berth, &EXPIRING.map(expiring));
    create(&berth, &[backup_of("lasting", &["default"])]);
    ended(&berth, &[&EXPIRING[..], &["lasting"]].concat());
    let mut second = berth.start_another_controller("controller-2").unwrap();
    hold(&berth, HOLD);
    for name in EXPIRING {
        kubectl.run(&["annotate", "backups.velero.io", name, "-n", &ns, "berth.dev/keep-"]).unwrap();
    }
    wait_for("all deletions to be asked for, and some to have removed files", PATIENCE, || {
        let gone = EXPIRING.iter().filter(|name| !berth.archives().join("backups").join(name).exists());
        Ok((requests(&berth).len() == EXPIRING.len() && gone.count() >= 2).then_some(()))
    })
    .unwrap();

    // The leader is killed in the middle of some, and before it has begun with others.
    let second_led = second.leads(&kubectl, &ns).unwrap();
    assert!(pick(second_led, &mut berth, &mut second).kill(&kubectl, &ns).unwrap(), "it led");
    release(&berth, HOLD);
    for name in EXPIRING {
        is_deleted(&berth, name);
        assert!(!berth.archives().join("backups").join(name).exists(), "{name}");
    }
    let logs = [&berth.controller, &second].map(|server| server.process.log_text().unwrap()).concat();
    for name in EXPIRING {
        let of_it = format!(" backup={name} ");
        let asked =
            |line: &&str| line.contains("asked for the deletion of a backup") && line.contains(&of_it);
        assert_eq!(logs.lines().filter(asked).count(), 1, "{name} was asked for once: {logs}");
    }
    assert_eq!(kubectl.phase(&ns, "lasting").unwrap(), BackupPhase::Completed);
    assert!(berth.archive("lasting").exists());

    // The next leader is paused in the middle of a deletion, and wakes when the name is taken anew.
    pick(second_led, &mut berth, &mut second).process.restart().unwrap();
    create(&berth, &[backup_of("one", &["default"])]);
    ended(&berth, &["one"]);
    hold(&berth, HOLD);
    delete(&berth, "one");
    wait_middle(&berth, "one");
    let second_leads = second.leads(&kubectl, &ns).unwrap();
    pick(second_leads, &mut berth, &mut second).process.signal(Signal::SIGSTOP).unwrap();
    kubectl.run(&["delete", "lease", LEASE, "-n", &ns]).unwrap();
    wait_for("the other one to lead", PATIENCE, || {
        let leads = pick(!second_leads, &mut berth, &mut second).leads(&kubectl, &ns)?;
        Ok(leads.then_some(()))
    })
    .unwrap();
    release(&berth, HOLD);
    is_deleted(&berth, "one");
    create(&berth, &[backup_of("one", &["default"])]);
    let anew = ended(&berth, &["one"]).remove("one").unwrap();
    assert_eq!(anew.phase(), BackupPhase::Completed, "{:?}", anew.status);
    let folder = berth.archives().join("backups/one");
    let stored = files(&folder);
    assert!(stored.contains(&"velero-backup.json".to_owned()), "{stored:?}");
    let paused = pick(second_leads, &mut berth, &mut second);
    let before = paused.process.log_text().unwrap().len();
    paused.process.signal(Signal::SIGCONT).unwrap();
    wait_for("the paused one to lead no longer", PATIENCE, || {
        let log = paused.process.log_text()?;
        Ok(log.get(before..).is_some_and(|log| log.contains("no longer leading")).then_some(()))
    })
    .unwrap();
    assert_eq!(files(&folder), stored);
    let found = kubectl.backup(&ns, "one").unwrap();
    assert_eq!((found.uid(), found.phase()), (anew.uid(), BackupPhase::Completed));
    assert!(requests(&berth).is_empty(), "{:#?}", requests(&berth));
}
