//! A pod's status, from how its containers do.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

pub struct Status {
    host: Ipv4Addr,
    began: Timestamp,
    /// Conditions, and since when they are as they are.
    conditions: BTreeMap<&'static str, (bool, Timestamp)>,
}

impl Status {
    pub fn new(host: Ipv4Addr) -> Self {
        Self { host, began: Timestamp::now(), conditions: BTreeMap::new() }
    }

    /// What is leaving is not ready, whatever it says itself.
    pub fn of(
        &mut self,
        pod: &Pod,
        mut containers: Vec<ContainerStatus>,
        address: Option<Ipv4Addr>,
        is_leaving: bool,
    ) -> Value {
        containers.iter_mut().for_each(|container| container.ready &= !is_leaving);
        let is_ready = containers.iter().all(|container| container.ready);
        let mut conditions: Vec<Value> = vec![json!(scheduled(pod))];
        for (kind, is_so) in [("Initialized", true), ("ContainersReady", is_ready), ("Ready", is_ready)] {
            conditions.push(self.condition(kind, is_so, &containers));
        }
        let mut status = json!({
            "phase": phase(pod, &containers, is_leaving),
            "startTime": Time(self.began),
            "hostIP": self.host,
            "hostIPs": [{"ip": self.host}],
            "conditions": conditions,
            "containerStatuses": containers,
        });
        if let Some(address) = address {
            status["podIP"] = json!(address);
            status["podIPs"] = json!([{"ip": address}]);
        }
        status
    }

    fn condition(&mut self, kind: &'static str, is_so: bool, containers: &[ContainerStatus]) -> Value {
        let now = Timestamp::now();
        let (was, since) = self.conditions.entry(kind).or_insert((is_so, now));
        if *was != is_so {
            (*was, *since) = (is_so, now);
        }
        let status = if is_so { "True" } else { "False" };
        let mut condition = json!({"type": kind, "status": status, "lastTransitionTime": Time(*since)});
        if !is_so {
            let unready = containers.iter().filter(|c| !c.ready).map(|c| c.name.as_str());
            let unready: Vec<&str> = unready.collect();
            condition["reason"] = json!("ContainersNotReady");
            condition["message"] = json!(format!("containers with unready status: [{}]", unready.join(" ")));
        }
        condition
    }
}

/// The scheduler's own condition stays.
fn scheduled(pod: &Pod) -> PodCondition {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let known = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    known.cloned().unwrap_or_else(|| PodCondition {
        type_: "PodScheduled".to_owned(),
        status: "True".to_owned(),
        ..PodCondition::default()
    })
}

fn phase(pod: &Pod, containers: &[ContainerStatus], is_leaving: bool) -> &'static str {
    let state = |container: &ContainerStatus| container.state.clone().unwrap_or_default();
    let has_run = |container: &ContainerStatus| {
        let ContainerState { running, terminated, .. } = state(container);
        running.is_some() || terminated.is_some() || container.last_state.is_some()
    };
    if !containers.iter().all(has_run) {
        return "Pending";
    }
    let codes: Option<Vec<i32>> =
        containers.iter().map(|container| state(container).terminated.map(|ended| ended.exit_code)).collect();
    let Some(codes) = codes else { return "Running" };
    let is_well = codes.iter().all(|code| *code == 0);
    let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    match policy {
        Some("Never") => {}
        Some("OnFailure") if is_well => {}
        _ if is_leaving => {}
        _ => return "Running",
    }
    if is_well { "Succeeded" } else { "Failed" }
}
