//! What a stock node-agent does when something is not to be Accepted yet: what a gate in front of
//! it can build on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::NAMESPACE;
use crate::support::PATIENCE;
use crate::support::movers::{Burst, KINDS, Kind, Pace};
use crate::support::pods::{Cluster, many};
use crate::support::refusal::{CONFLICT, FORBIDDEN, No, Refusal};
use crate::support::{node_agent, wait_for};

const PACE: Pace = Pace { start: Duration::from_millis(500), run: Duration::from_millis(100) };
const NODE: &str = "node-1";

/// One node-agent, and a webhook that refuses the acceptance of what is held.
struct Gate<'a> {
    burst: Burst<'a>,
    refusal: Refusal,
    held: Arc<Mutex<BTreeMap<String, No>>>,
}

/// This request makes it Accepted.
fn is_acceptance(request: &Value) -> bool {
    let phase = |object: &str| request[object]["status"]["phase"].as_str().unwrap_or_default().to_owned();
    phase("object") == "Accepted" && phase("oldObject") != "Accepted"
}

impl<'a> Gate<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let burst = Burst::new(cluster, NAMESPACE, PACE).unwrap();
        let held: Arc<Mutex<BTreeMap<String, No>>> = Arc::default();
        let known = Arc::clone(&held);
        let decide = move |request: &Value| {
            let name = request["name"].as_str().unwrap_or_default();
            known.lock().unwrap().get(name).copied().filter(|_| is_acceptance(request))
        };
        let refusal = Refusal::start(decide).unwrap();
        refusal.register(cluster.plane(), &KINDS.map(Kind::plural)).unwrap();
        node_agent::start(cluster, NAMESPACE, &json!({}), &[]).unwrap();
        Self { burst, refusal, held }
    }

    fn hold(&self, name: &str, no: No) {
        self.held.lock().unwrap().insert(name.to_owned(), no);
    }

    fn release(&self, name: &str) {
        self.held.lock().unwrap().remove(name);
    }

    fn refused(&self, name: &str) -> Vec<Instant> {
        self.refusal
            .refused()
            .iter()
            .filter(|refused| refused.name == name)
            .map(|refused| refused.at)
            .collect()
    }

    fn wait_refused(&self, name: &str, times: usize) {
        let what = format!("{name} to be refused {times} times");
        wait_for(&what, PATIENCE, || Ok((self.refused(name).len() >= times).then_some(()))).unwrap();
    }

    fn wait_phase(&self, kind: Kind, name: &str, phase: &str) {
        let what = format!("{name} to be {phase}");
        wait_for(&what, PATIENCE, || {
            self.burst.ensure_plays()?;
            Ok((self.burst.history.phase(kind, name)? == phase).then_some(()))
        })
        .unwrap();
    }

    /// A write that changes nothing else.
    fn wake(&self, kind: Kind, name: &str) {
        let times = self.refused(name).len();
        let annotation = json!({"metadata": {"annotations": {"berth.test/woken": times.to_string()}}});
        self.burst.patch(kind, name, &annotation).unwrap();
    }

    /// Lets it pass and tells it: how long until it is Accepted.
    fn let_go(&self, kind: Kind, name: &str) {
        self.release(name);
        let began = Instant::now();
        self.wake(kind, name);
        wait_for(&format!("{name} to be accepted"), PATIENCE, || {
            Ok((!self.burst.history.phase(kind, name)?.is_empty()).then_some(()))
        })
        .unwrap();
        println!("{name}: accepted {:?} after the write that woke it", began.elapsed());
        self.wait_phase(kind, name, "Completed");
    }
}

fn gaps(refused: &[Instant]) -> Vec<u128> {
    refused.iter().zip(refused.iter().skip(1)).map(|(a, b)| (*b - *a).as_millis()).collect()
}

#[test]
#[ignore = "says what the pinned Velero does, which is nothing of berth's: make test-large"]
fn what_is_refused_waits_as_its_kind_does() {
    let cluster = Cluster::start_with_nodes(BTreeMap::new(), many(1)).unwrap();
    let gate = Gate::new(&cluster);
    for kind in [Kind::DataUpload, Kind::DataDownload] {
        a_conflict_is_taken_for_another_agent(&gate, kind);
    }
    for kind in [Kind::PodVolumeBackup, Kind::PodVolumeRestore] {
        a_conflict_is_fought_over_and_holds_up_all_others(&gate, kind);
        a_prohibition_is_asked_about_again_ever_less_often(&gate, kind);
        what_is_not_for_this_node_is_left_alone(&gate, kind);
    }
}

/// It is left as it is, without error, until something else is written.
fn a_conflict_is_taken_for_another_agent(gate: &Gate, kind: Kind) {
    let prefix = format!("conflict-{}", kind.plural());
    let (held, other) = (format!("{prefix}-1"), format!("{prefix}-2"));
    gate.hold(&held, CONFLICT);
    gate.burst.create(kind, &prefix, 2).unwrap();
    gate.wait_refused(&held, 1);
    gate.wait_phase(kind, &other, "Completed");
    assert_eq!(gate.refused(&held).len(), 1);
    gate.wake(kind, &held);
    gate.wait_refused(&held, 2);
    gate.let_go(kind, &held);
    assert_eq!(gate.refused(&held).len(), 2);
}

/// It is tried again ten times a second, by the only worker that there is for the kind: what was
/// accepted before does not begin, and so never makes room for what waits. A gate must not answer
/// so here.
fn a_conflict_is_fought_over_and_holds_up_all_others(gate: &Gate, kind: Kind) {
    let (early, held) = (format!("early-{}", kind.plural()), format!("held-{}", kind.plural()));
    gate.hold(&held, CONFLICT);
    gate.burst.submit(kind, vec![gate.burst.one(kind, &early, NODE).unwrap()]).unwrap();
    gate.wait_phase(kind, &early, "Accepted");
    gate.burst.submit(kind, vec![gate.burst.one(kind, &held, NODE).unwrap()]).unwrap();
    gate.wait_refused(&held, 30);
    // Whichever the worker came to first: it has not begun since.
    let phase = gate.burst.history.phase(kind, &early).unwrap();
    assert!(["Accepted", "Prepared"].contains(&phase.as_str()), "{phase}");
    println!("{held}: refused every {:?} ms", gaps(&gate.refused(&held)));
    gate.release(&held);
    gate.wait_phase(kind, &early, "Completed");
    gate.wait_phase(kind, &held, "Completed");
}

/// An error, after which it is tried again when twice the last time has passed, or when something
/// is written.
fn a_prohibition_is_asked_about_again_ever_less_often(gate: &Gate, kind: Kind) {
    let (held, other) = (format!("forbidden-{}", kind.plural()), format!("free-{}", kind.plural()));
    gate.hold(&held, FORBIDDEN);
    let objects = [&held, &other].map(|name| gate.burst.one(kind, name, NODE).unwrap());
    gate.burst.submit(kind, objects.into()).unwrap();
    gate.wait_phase(kind, &other, "Completed");
    gate.wait_refused(&held, 8);
    let refused = gate.refused(&held);
    println!("{held}: refused again after {:?} ms", gaps(&refused));
    gate.wake(kind, &held);
    gate.wait_refused(&held, refused.len() + 1);
    gate.let_go(kind, &held);
}

/// Neither asked about nor an error until it has a place.
fn what_is_not_for_this_node_is_left_alone(gate: &Gate, kind: Kind) {
    let (hidden, other) = (format!("hidden-{}", kind.plural()), format!("seen-{}", kind.plural()));
    let mut object = gate.burst.one(kind, &hidden, NODE).unwrap();
    let (field, place) = match kind {
        Kind::PodVolumeBackup => ("/spec/node", object["spec"]["node"].take()),
        _ => ("/spec/pod/name", object["spec"]["pod"]["name"].take()),
    };
    *object.pointer_mut(field).unwrap() = json!("nowhere");
    gate.burst.submit(kind, vec![object, gate.burst.one(kind, &other, NODE).unwrap()]).unwrap();
    gate.wait_phase(kind, &other, "Completed");
    assert_eq!(gate.burst.history.phase(kind, &hidden).unwrap(), "");
    let patch = match kind {
        Kind::PodVolumeBackup => json!({"spec": {"node": place}}),
        _ => json!({"spec": {"pod": {"name": place}}}),
    };
    gate.burst.patch(kind, &hidden, &patch).unwrap();
    gate.wait_phase(kind, &hidden, "Completed");
}
