//! When the Schedules of the namespace are due and what they take, for warnings.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::velero::Schedule;
use berth_core::schedule::preview::{Others, PlannedSchedule};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use parking_lot::RwLock;

use crate::guarded::Guarded;
use crate::watch::{WatchEvent, of_namespace, reflect_by};

/// Most that the namespaces of all of them may weigh together: some 280 bytes for each name. Their
/// creators decide how many there are.
const MAX_WEIGHT: usize = 50_000;
/// What one weighs without its namespaces.
const OWN_WEIGHT: usize = 2;

/// What is kept of a Schedule.
enum CachedSchedulePlan {
    Planned(Arc<PlannedSchedule>),
    /// It is never due, because it is paused or faulty.
    Idle,
    /// There was no room for it.
    LeftOut,
}

impl CachedSchedulePlan {
    fn of(schedule: &Schedule, weight: usize) -> Self {
        match schedule.planned() {
            None => Self::Idle,
            Some(planned) if weight + weight_of(&planned) > MAX_WEIGHT => Self::LeftOut,
            Some(planned) => Self::Planned(Arc::new(planned)),
        }
    }

    fn weight(&self) -> usize {
        match self {
            Self::Planned(planned) => weight_of(planned),
            Self::Idle | Self::LeftOut => 0,
        }
    }
}

fn weight_of(planned: &PlannedSchedule) -> usize {
    OWN_WEIGHT + planned.namespaces.weight()
}

/// A watch cache. A process is ready without it, because it only serves warnings.
#[derive(Default)]
pub struct Plans {
    /// `None`: not listed yet.
    kept: RwLock<Option<BTreeMap<String, CachedSchedulePlan>>>,
}

impl Plans {
    /// `None`: not known.
    pub fn known(&self) -> Option<Others> {
        let kept = self.kept.read();
        let mut others = Others::default();
        for one in kept.as_ref()?.values() {
            match one {
                CachedSchedulePlan::Planned(planned) => others.plans.push(Arc::clone(planned)),
                CachedSchedulePlan::LeftOut => others.left_out += 1,
                CachedSchedulePlan::Idle => {}
            }
        }
        Some(others)
    }

    /// Watches them. Never returns.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let weight = Cell::new(0);
        let keep = |schedule: Schedule| {
            let kept = CachedSchedulePlan::of(&schedule, weight.get());
            weight.set(weight.get() + kept.weight());
            (schedule.name_any(), kept)
        };
        let name = |schedule: &Guarded<Schedule>| schedule.name_any();
        let begin = || weight.set(0);
        let api = of_namespace(client, namespace);
        reflect_by(api, watcher::Config::default(), name, begin, keep, |event| {
            weight.set(self.observe(event));
        })
        .await;
    }

    /// Returns what all of them weigh now.
    fn observe(&self, event: WatchEvent<(String, CachedSchedulePlan)>) -> usize {
        let mut kept = self.kept.write();
        if kept.is_some() || matches!(event, WatchEvent::Replaced(_)) {
            event.apply_to(kept.get_or_insert_default());
        }
        kept.iter().flat_map(BTreeMap::values).map(CachedSchedulePlan::weight).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_test_scripted::{Scripted, Watch, get, list, watch};
    use serde_json::{Value, json};
    use tokio::time::{sleep, timeout};

    use super::*;

    const SCHEDULES: &str = "/apis/velero.io/v1/namespaces/velero/schedules";

    fn schedule(name: &str, version: &str, namespaces: usize) -> Value {
        let names: Vec<String> = (0..namespaces).map(|i| format!("{name}-{i}")).collect();
        json!({
            "apiVersion": "velero.io/v1", "kind": "Schedule",
            "metadata": {"name": name, "namespace": "velero", "uid": name, "resourceVersion": version},
            "spec": {"schedule": "0 2 * * *", "template": {"includedNamespaces": names}},
        })
    }

    fn known(plans: &Plans) -> Option<(Vec<String>, usize)> {
        let known = plans.known()?;
        Some((known.plans.iter().map(|planned| planned.name.clone()).collect(), known.left_out))
    }

    #[tokio::test(start_paused = true)]
    async fn it_follows_the_schedules_that_are_due() {
        let events = Watch::new();
        let mut paused = schedule("p", "1", 1);
        paused["spec"]["paused"] = json!(true);
        let api = Scripted::new()
            .next(get(SCHEDULES).answers(list("5", &[schedule("a", "1", 1), paused])))
            .next(watch(SCHEDULES).streams(&events));
        let plans = Plans::default();
        assert_eq!(known(&plans), None);
        let client = api.client("velero");
        let looking = async {
            sleep(Duration::from_secs(1)).await;
            assert_eq!(known(&plans), Some((vec!["a".to_owned()], 0)));
            events.added(&schedule("b", "6", 1));
            events.deleted(&schedule("a", "7", 1));
            sleep(Duration::from_secs(1)).await;
            assert_eq!(known(&plans), Some((vec!["b".to_owned()], 0)));
        };
        tokio::select! {
            () = plans.follow(&client, "velero") => {}
            () = looking => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_too_much_room_is_left_out_and_counted() {
        let all: Vec<Value> = (0..60).map(|i| schedule(&format!("s{i:02}"), "1", 1000)).collect();
        let api = Scripted::new()
            .next(get(SCHEDULES).answers(list("5", &all)))
            .next(watch(SCHEDULES).never_answers());
        let (plans, client) = (Plans::default(), api.client("velero"));
        let following = timeout(Duration::from_secs(1), plans.follow(&client, "velero"));
        assert!(following.await.is_err());
        let (there, left_out) = known(&plans).unwrap();
        assert_eq!((there.len(), left_out), (49, 11));
    }
}
