//! The hub hears that this seed's controllers are at work.

use std::time::Duration;

use berth_api::garden::Seed;
use berth_api::keys::FIELD_MANAGER;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use crate::client::is_not_found;
use crate::telemetry::chain;

/// The hub takes a seed for gone that was silent for four of these.
const PERIOD: Duration = Duration::from_secs(10);

/// For ever.
pub async fn run(hub: &Client, seed: &str) {
    let api: Api<Seed> = Api::all(hub.clone());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silent = false;
    loop {
        ticks.tick().await;
        // Nothing is decided by it that somebody else could have decided meanwhile: no version.
        let beat = json!({"status": {"lastHeartbeatTime": Time(Timestamp::now())}});
        let sent = timeout(PERIOD, api.patch_status(seed, &params, &Patch::Merge(beat))).await;
        let failed = match sent {
            Ok(Ok(_)) => None,
            Ok(Err(error)) if is_not_found(&error) => {
                Some("the hub has no Seed of this name: register it".to_owned())
            }
            Ok(Err(error)) => Some(chain(&error)),
            Err(_) => Some("the hub did not answer in time".to_owned()),
        };
        match (&failed, silent) {
            (Some(why), _) => warn!(seed, why, "the hub does not hear of us; what runs goes on"),
            (None, true) => info!(seed, "the hub hears of us again"),
            (None, false) => {}
        }
        silent = failed.is_some();
    }
}
