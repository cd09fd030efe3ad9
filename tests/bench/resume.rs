//! A backup whose controller is killed at half of it: how much of that the next controller does
//! once more.
//!
//! A run loses what it has read since its last checkpoint, which is at most a part of the archive
//! (8 MiB) and five seconds, or a twentieth of its time so far. So the backup must be large and
//! long for the share to say anything: the first controller reads pages of a few objects, as from
//! an API server that is slow.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_api::velero::Backup;
use berth_test_support::{Berth, wait_for};
use kube::Client;
use kube::api::Api;
use kube::runtime::wait::await_condition;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::engine::{Controller, LOCATION, NAMESPACE, Site, await_end, create};
use crate::load::Cargo;
use crate::report::{Aim, Report};

const NAME: &str = "resumed";
const PAGE: &str = "--client-page-size=4";
const LONGEST: Duration = Duration::from_secs(1800);
const PATIENCE: Duration = Duration::from_secs(120);

pub fn measure(runtime: &Runtime, program: &Path, objects: usize, report: &mut Report) -> anyhow::Result<()> {
    let cargo = Cargo::Objects(objects);
    let part = format!("a killed controller, {}", cargo.text());
    eprintln!("The {part}:");
    let site = Site::start(runtime, program, cargo)?;
    let mut first = Controller::start(&site.berth, program, "killed", &[PAGE.to_owned()])?;
    let started = Instant::now();
    runtime.block_on(create(&site.client, NAMESPACE, LOCATION, NAME, &cargo.included()))?;
    runtime.block_on(await_half(&site.client, objects))?;
    first.0.kill()?;
    let killed = started.elapsed().as_secs_f64();
    // What it wrote last, at most a second before its end.
    let read = runtime.block_on(stored(&site.client))?;
    let second = Controller::start(&site.berth, program, "next", &[])?;
    let done = runtime.block_on(await_end(&site.client, &site.s3, NAMESPACE, NAME, started));
    let done = done.with_context(|| format!("see {}", second.0.log().display()))?;
    let kept = kept(&site.berth)?;
    report.add(&part, "until it was killed", killed, "s", Aim::None);
    report.add(&part, "wall, both runs", done.seconds, "s", Aim::None);
    let twice = 100.0 * (read - kept).max(0.0) / done.items;
    report.add(&part, "a resumed run: work done twice", twice, "% of the objects", Aim::AtMost(5.0));
    Ok(())
}

fn progress(backup: &Backup) -> i64 {
    let progress = backup.status.as_ref().and_then(|status| status.progress.as_ref());
    progress.and_then(|progress| progress.items_backed_up).unwrap_or(0)
}

/// Waits until half of the objects are packed, by what the Backup says.
async fn await_half(client: &Client, objects: usize) -> anyhow::Result<()> {
    let half = i64::try_from(objects / 2)?;
    let is_at_half = |backup: Option<&Backup>| backup.is_some_and(|backup| progress(backup) >= half);
    let api: Api<Backup> = Api::namespaced(client.clone(), NAMESPACE);
    tokio::time::timeout(LONGEST, await_condition(api, NAME, is_at_half))
        .await
        .context("it takes too long")??;
    Ok(())
}

/// Objects that the Backup says are packed.
async fn stored(client: &Client) -> anyhow::Result<f64> {
    let api: Api<Backup> = Api::namespaced(client.clone(), NAMESPACE);
    Ok(f64::from(i32::try_from(progress(&api.get(NAME).await?))?))
}

/// Objects that the second run did not read again, by the Event that says how it went on.
fn kept(berth: &Berth) -> anyhow::Result<f64> {
    wait_for("the Event of the resume", PATIENCE, || {
        let selector = "reason=Resumed,reportingController=berth.dev";
        let args =
            ["get", "events.events.k8s.io", "-n", NAMESPACE, "--field-selector", selector, "-o", "json"];
        let events: Value = serde_json::from_str(&berth.kubectl().run(&args)?)?;
        let Some(note) = events["items"][0]["note"].as_str() else { return Ok(None) };
        if note.contains("begins anew") {
            return Ok(Some(0.0));
        }
        let count = note.split("with ").nth(1).and_then(|rest| rest.split(' ').next());
        let count = count.and_then(|count| count.parse().ok());
        Ok(Some(count.with_context(|| format!("no number of objects in {note:?}"))?))
    })
}
