//! `berth backup create --dry-run=plan`: what the Backup would store and wait for.

use std::io::Write as _;
use std::time::Duration;

use berth_api::velero::Backup;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::super::person::Person;
use super::super::queue::{Explanation, read_with, write_explanation};
use crate::args::Output;
use crate::args::backup::MadeOutput;
use crate::backup::rehearsal::rehearse;
use crate::cli::plan::{Admission, BackupPlan, Like};
use crate::cli::print;
use crate::cli::{object, rights};
use crate::text::chain;

/// How long reading may take in all.
const LASTS: Duration = Duration::from_secs(120);

pub async fn run(person: &Person, backup: &Backup, output: Option<MadeOutput>) -> anyhow::Result<()> {
    let client = person.client().await?;
    let (namespace, name) = (person.namespace(), backup.name_any());
    let (rehearsed, admission, queue) = tokio::join!(
        rehearse(&client, namespace, backup, LASTS),
        admission(person, backup),
        queue(person, backup)
    );
    let rehearsed = rehearsed?;
    let (sentences, explained, like) = match queue {
        Ok((explained, like)) => {
            let mut sentences = Vec::new();
            write_explanation(&mut sentences, &explained, Timestamp::now())?;
            (String::from_utf8_lossy(&sentences).into_owned(), Some(serde_json::to_value(explained)?), like)
        }
        Err(error) => (format!("unknown: {}", chain(error.as_ref())), None, None),
    };
    let plan = BackupPlan::new((namespace, &name), rehearsed, admission, (explained, like));
    let mut out = print::stdout();
    match output {
        Some(MadeOutput::Json) => print::value(&mut out, &plan, Output::Json)?,
        Some(MadeOutput::Yaml) => print::value(&mut out, &plan, Output::Yaml)?,
        Some(MadeOutput::Table) | None => out.write_all(plan.text(&sentences).as_bytes())?,
    }
    Ok(())
}

/// Has the API server and the webhooks check it.
async fn admission(person: &Person, backup: &Backup) -> Admission {
    match person.create::<Backup>(&object::json(backup), true).await {
        Ok(_) => Admission { accepted: true, why: None },
        Err(error) => {
            let error = rights::explained(error, person.namespace());
            Admission { accepted: false, why: Some(chain(error.as_ref())) }
        }
    }
}

/// Where it would stand if it were created now, by the queue's own decisions.
async fn queue(person: &Person, backup: &Backup) -> anyhow::Result<(Explanation, Option<Like>)> {
    let name = backup.name_any();
    let mut newcomer = backup.clone();
    newcomer.metadata.uid = Some("planned".to_owned());
    newcomer.metadata.creation_timestamp = Some(Time(Timestamp::now()));
    let (situation, like) = read_with(&person.here().await?, Some(&newcomer)).await?;
    Ok((situation.explain(&name)?, like))
}
