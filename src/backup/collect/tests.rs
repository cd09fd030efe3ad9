//! How far a list is read while nothing of it is packed.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use berth_api::{parse, policy};
use berth_core::violation::Field;
use berth_test_scripted::{Scripted, get, list, page};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::*;
use crate::backup::hooks::Tally;
use crate::backup::volumes::outcomes::Outcomes;

const MAPS: &str = "/api/v1/namespaces/app/configmaps";
const PAGES: usize = 6;
/// Two batches.
const PAGE: usize = 500;
/// Batches that wait for the workers, as a run with two of them has it.
const WAITING: usize = 4;

/// So the API server reads while the workers pack, and what is read ahead is bounded.
#[tokio::test(start_paused = true)]
async fn pages_are_asked_for_while_those_before_them_wait_to_be_packed_and_only_so_many() {
    let api = Scripted::new();
    for at in 0..PAGES {
        let map = |i: usize| json!({"metadata": {"name": format!("map-{at}-{i:03}"), "namespace": "app"}});
        let (maps, next) = ((0..PAGE).map(map).collect::<Vec<Value>>(), at + 1);
        let asked = if at == 0 { get(MAPS) } else { get(MAPS).page(&at.to_string()) };
        let last = next == PAGES;
        api.next(asked.answers(if last { list("5", &maps) } else { page("5", &next.to_string(), &maps) }));
    }
    let wanted =
        parse::backup(&serde_json::from_value(json!({"includedNamespaces": ["app"]})).unwrap()).unwrap();
    let text = BTreeMap::from([("policy".to_owned(), "version: v1\n".to_owned())]);
    let policies = policy::parse(&text, &Field::root("p")).unwrap();
    let types = [ResourceType::regular("", "v1", "ConfigMap", true)];
    let (batches, mut taken) = mpsc::channel(WAITING);
    let (log, tally) = (BackupLog::new(String::new()), Tally::default());
    let counters = Counters { total: AtomicU64::new(0), done: Arc::default() };
    let outcomes = Outcomes::default();
    let (volumes, _jobs) = RunVolumes::idle(policies.volumes.clone(), &log, &outcomes);
    let collector = Collector {
        lister: Lister::new(api.client("velero"), 500, Duration::ZERO, Arc::new(Semaphore::new(4))),
        wanted: &wanted,
        selection: &wanted.resources.resolve(&types, false),
        filters: &Filters::resolve(&policies, &types, ["app"]),
        backup: "nightly",
        types: &types,
        namespaces: &[],
        resolved: &HashSet::from(["app".to_owned()]),
        log: &log,
        counters: &counters,
        volumes: &volumes,
        ledger: &ObjectLedger::new(&types),
        batches,
        holder: PodHolder::new(&[], &log, &tally).0,
    };
    let pack = async {
        // The clock moves on when everything waits.
        sleep(Duration::from_secs(1)).await;
        assert_eq!(api.asked().len(), WAITING / 2 + 1, "what waits, and the page in hand");
        let mut packed = 0;
        while let Some(batch) = taken.recv().await {
            packed += batch.items.len();
        }
        packed
    };
    let (listed, packed) = tokio::join!(collector.run(), pack);
    assert!(listed.is_ok());
    assert_eq!((api.asked().len(), packed), (PAGES, PAGES * PAGE));
}
