//! The description of a Schedule.

use berth_api::velero::Schedule;
use berth_core::schedule::preview::{MetSchedule, Preview};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::align::align;
use super::{Text, asked_and_wrong, green, metadata, red};
use crate::cli::table::{schedule_phase, time, time_in};

/// When it is due next.
#[derive(Default)]
pub struct NextRuns {
    pub preview: Preview,
    /// Why nobody knows whom it meets.
    pub unknown: Option<String>,
}

impl NextRuns {
    fn times(&self) -> Vec<String> {
        self.preview.times.iter().map(shown).collect()
    }

    /// One line for each Schedule that it meets.
    fn meets(&self) -> Vec<String> {
        if let Some(why) = &self.unknown {
            return vec![format!("<unknown: {why}>")];
        }
        let mut lines: Vec<String> = self.preview.meets.iter().map(|met| self.line(met)).collect();
        if self.preview.left_out > 0 {
            lines.push(format!("{} Schedules were not compared: they are too many", self.preview.left_out));
        }
        lines
    }

    fn line(&self, met: &MetSchedule) -> String {
        let at = if met.at.len() == self.preview.times.len() {
            "each time".to_owned()
        } else {
            met.at.iter().map(shown).collect::<Vec<_>>().join(", ")
        };
        format!("{}, which also takes {}: {at}", met.schedule, met.namespaces.join(", "))
    }
}

fn shown(at: &Timestamp) -> String {
    time(&Time(*at))
}

/// For programs, whoever runs them.
fn structured(at: &Timestamp) -> String {
    time_in(&Time(*at), &TimeZone::UTC)
}

/// The description.
pub fn text(schedule: &Schedule, next: &NextRuns, colour: bool) -> String {
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
    asked_and_wrong(&mut text, &schedule.spec.template, None, faults, colour);
    text.blank();
    text.row("Paused", &(schedule.spec.paused == Some(true)).to_string());
    text.blank();
    text.row("Schedule", &schedule.spec.schedule);
    for (mut name, lines) in [("Next:", next.times()), ("Meets:", next.meets())] {
        for line in lines {
            text.line(&format!("{name}\t{line}"));
            name = "";
        }
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
pub fn json(schedule: &Schedule, next: &NextRuns) -> Value {
    let status = schedule.status.clone().unwrap_or_default();
    let meets = next.preview.meets.iter().map(|met| {
        let at: Vec<String> = met.at.iter().map(structured).collect();
        json!({"schedule": met.schedule, "namespaces": met.namespaces, "at": at})
    });
    json!({
        "metadata": {
            "name": schedule.name_any(), "namespace": schedule.namespace(),
            "labels": schedule.metadata.labels, "annotations": schedule.metadata.annotations,
        },
        "phase": schedule_phase(schedule),
        "validationErrors": status.validation_errors.unwrap_or_default(),
        "paused": schedule.spec.paused == Some(true),
        "schedule": schedule.spec.schedule,
        "next": next.preview.times.iter().map(structured).collect::<Vec<_>>(),
        "meets": meets.collect::<Vec<_>>(),
        "notCompared": next.preview.left_out,
        "meetsUnknown": next.unknown,
        "template": super::backup_json::spec(&schedule.spec.template),
        "lastBackup": status.last_backup,
        "lastSkipped": status.last_skipped,
    })
}
