//! The description of a Schedule.

use berth_api::velero::Schedule;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::align::align;
use super::{Text, asked_and_wrong, green, metadata, red};
use crate::cli::table::{schedule_phase, time};

/// The description; `next`: the times at which it is due next, as far as they are known.
pub fn text(schedule: &Schedule, next: &[String], colour: bool) -> String {
    let mut text = Text::default();
    let status = schedule.status.clone().unwrap_or_default();
    metadata(&mut text, &schedule.metadata);
    text.blank();
    let phase = schedule_phase(schedule);
    let shown = match phase {
        "Enabled" => green(phase, colour),
        "FailedValidation" => red(phase, colour),
        _ => phase.to_owned(),
    };
    text.coloured(&format!("Phase:\t{shown}"));
    let faults = status.validation_errors.as_deref();
    asked_and_wrong(&mut text, &schedule.spec.template, faults, colour);
    text.blank();
    text.row("Paused", &(schedule.spec.paused == Some(true)).to_string());
    text.blank();
    text.row("Schedule", &schedule.spec.schedule);
    let mut name = "Next:";
    for when in next {
        text.line(&format!("{name}\t{when}"));
        name = "";
    }
    text.blank();
    // The template's lines stand one step to the right.
    let mut template = Text::default();
    super::spec::describe(&mut template, &schedule.spec.template);
    text.line("Backup Template:");
    for line in template.0.lines() {
        text.line(&if line.is_empty() { String::new() } else { format!("\t{line}") });
    }
    text.blank();
    text.row("Last Backup", &status.last_backup.as_ref().map_or_else(|| "<never>".to_owned(), time));
    if let Some(skipped) = &status.last_skipped {
        text.row("Last Skipped", &time(skipped));
    }
    align(&text.0)
}

/// The description as a structure.
pub fn json(schedule: &Schedule, next: &[String]) -> Value {
    let status = schedule.status.clone().unwrap_or_default();
    json!({
        "metadata": {
            "name": schedule.name_any(), "namespace": schedule.namespace(),
            "labels": schedule.metadata.labels, "annotations": schedule.metadata.annotations,
        },
        "phase": schedule_phase(schedule),
        "validationErrors": status.validation_errors.unwrap_or_default(),
        "paused": schedule.spec.paused == Some(true),
        "schedule": schedule.spec.schedule,
        "next": next,
        "template": super::backup_json::spec(&schedule.spec.template),
        "lastBackup": status.last_backup,
        "lastSkipped": status.last_skipped,
    })
}
