//! How objects are printed that are listed, or that are not created.

use std::io::Write as _;

use anyhow::ensure;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde::Serialize;
use serde_json::{Value, json};

use super::WrongFlags;
use crate::args::Output;
use crate::args::backup::{DryRun, GetArgs, MadeArgs, MadeOutput};
use crate::args::listed::ListOutput;
use crate::cli::print;
use crate::cli::table::{More, Table};
use crate::text::escaped;

/// Prints a list as its flags say.
pub fn print_list(
    objects: &[DynamicObject],
    kind: &str,
    get: &GetArgs,
    table: impl FnOnce(&More) -> Table,
) -> anyhow::Result<()> {
    let args = &get.output;
    let mut out = print::stdout();
    let more = More {
        wide: args.output == ListOutput::Wide,
        label_columns: args.label_columns.clone(),
        show_labels: args.show_labels,
    };
    match &args.output {
        ListOutput::Table | ListOutput::Wide => {
            let Table { heads, rows } = table(&more);
            print::table(&mut out, &heads, &rows)?;
        }
        ListOutput::Name => {
            for object in objects {
                writeln!(out, "{}", object.name_any())?;
            }
        }
        ListOutput::JsonPath(template) => {
            // As with kubectl, what a template is of does not depend on how many there are.
            let value = match objects {
                [one] if get.names.len() == 1 => serde_json::to_value(one)?,
                all => list_of(kind, all),
            };
            write!(out, "{}", escaped(&template.print(&value), &['\n', '\t']))?;
        }
        ListOutput::Columns(columns) => {
            let heads: Vec<print::ColumnHead> =
                columns.iter().map(|column| print::ColumnHead::Named(column.head.clone())).collect();
            let mut rows = Vec::new();
            for object in objects {
                let value = serde_json::to_value(object)?;
                rows.push(columns.iter().map(|column| column.cell(&value)).collect());
            }
            print::table(&mut out, &heads, &rows)?;
        }
        ListOutput::Json | ListOutput::Yaml => {
            let value = match objects {
                [one] => serde_json::to_value(one)?,
                all => list_of(kind, all),
            };
            let output = if args.output == ListOutput::Yaml { Output::Yaml } else { Output::Json };
            print::value(&mut out, &value, output)?;
        }
    }
    Ok(())
}

fn list_of(kind: &str, all: &[DynamicObject]) -> Value {
    json!({"apiVersion": "velero.io/v1", "kind": format!("{kind}List"), "metadata": {}, "items": all})
}

/// How a command that creates something prints instead, if it does. A dry run of the server prints
/// what the server made of it.
pub fn printed_instead(made: &MadeArgs) -> Option<MadeOutput> {
    match made.dry_run {
        Some(DryRun::Client) => Some(made.output.unwrap_or(MadeOutput::Yaml)),
        Some(DryRun::Server | DryRun::Plan) => None,
        None => made.output,
    }
}

/// Only of a Backup it is known what it would store.
pub fn refuse_plan(made: &MadeArgs, kind: &str) -> anyhow::Result<()> {
    let message = format!("--dry-run=plan is of Backups, not of {kind}: give --dry-run=server");
    ensure!(made.dry_run != Some(DryRun::Plan), WrongFlags(message));
    Ok(())
}

/// Prints an object that was not created.
pub fn print_object(
    object: &impl Serialize,
    output: MadeOutput,
    made: &MadeArgs,
    table: impl FnOnce(&More) -> Table,
) -> anyhow::Result<()> {
    let mut out = print::stdout();
    match output {
        MadeOutput::Json => print::value(&mut out, object, Output::Json)?,
        MadeOutput::Yaml => print::value(&mut out, object, Output::Yaml)?,
        MadeOutput::Table => {
            let more = More {
                wide: false,
                label_columns: made.label_columns.clone(),
                show_labels: made.show_labels,
            };
            let Table { heads, rows } = table(&more);
            print::table(&mut out, &heads, &rows)?;
        }
    }
    Ok(())
}
