//! `postrider outbox`: what is in it.

use anyhow::{Context, anyhow};
use bson::Document;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::output::{self, Format};
use crate::cli::{Failure, Given, block_on, collections};
use crate::ids::RecordId;
use crate::outbox::inspect::{Filter, Inspector};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Count records by status
    Stats {
        #[command(flatten)]
        shown: Shown,
    },
    /// List records in the order of their ids, without payloads
    List {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show one record, payload and all
    Show {
        /// Its id: a UUID, ObjectId, integer or string (uuid:, oid:, int:, str: force one)
        id: String,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Args)]
pub(super) struct Shown {
    /// Form of the output
    #[arg(long, value_enum, default_value = "table")]
    output: Format,
}

#[derive(Debug, Args)]
pub(super) struct Chosen {
    /// Of this status: pending, scheduled, done or dead
    #[arg(long)]
    status: Option<String>,
    /// Of this key
    #[arg(long)]
    key: Option<String>,
    /// Of this type
    #[arg(long = "type")]
    kind: Option<String>,
    /// Behind this id, to go on with a list
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// How many at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

pub(super) fn run(given: &Given, command: &Command) -> Result<(), Failure> {
    let plan = given.resolve_without_relay()?;
    block_on(async {
        let inspector = Inspector::new(collections(&plan).await?);
        match command {
            Command::Stats { shown } => stats(&inspector, shown.output).await,
            Command::List { chosen, shown } => list(&inspector, chosen, shown.output).await,
            Command::Show { id, shown } => show(&inspector, id, shown.output).await,
        }
    })
}

async fn stats(inspector: &Inspector, format: Format) -> Result<(), Failure> {
    let stats = inspector.stats().await.context("the outbox cannot be counted")?;
    let stats = serde_json::to_value(stats).context("figures cannot be shown")?;
    match (format, &stats) {
        (Format::Table, Value::Object(fields)) => {
            let rows = fields.iter().map(|(name, value)| match value {
                Value::Null => vec![name.clone(), "-".to_owned()],
                value => vec![name.clone(), value.to_string()],
            });
            output::table(&["what", "count"], &rows.collect::<Vec<_>>())
        }
        _ => output::json(&stats),
    }
}

async fn list(inspector: &Inspector, chosen: &Chosen, format: Format) -> Result<(), Failure> {
    let after = match &chosen.after {
        None => None,
        // Ids of different kinds sort apart: the one that there is, else the likeliest.
        Some(text) => Some(existing_or_likeliest(inspector, text).await?),
    };
    let filter = Filter {
        status: chosen.status.clone(),
        key: chosen.key.clone(),
        kind: chosen.kind.clone(),
        after,
    };
    let records =
        inspector.list(&filter, chosen.limit).await.context("records cannot be listed")?;
    match format {
        Format::Json => output::json(&records.iter().map(output::record).collect()),
        Format::Table => {
            let fields = ["_id", "status", "key", "type", "attempt", "visibleAt", "lastError"];
            let rows: Vec<Vec<String>> = records
                .iter()
                .map(|record| fields.iter().map(|field| output::cell(record.get(field))).collect())
                .collect();
            output::table(
                &["id", "status", "key", "type", "attempt", "visibleAt", "lastError"],
                &rows,
            )
        }
    }
}

async fn existing_or_likeliest(inspector: &Inspector, text: &str) -> Result<RecordId, Failure> {
    let mut ids = readings(text)?;
    let found = inspector.show(&ids).await.context("the record cannot be read")?;
    // It may be gone since the list that ended with it.
    Ok(found.and_then(|mut record| record.remove("_id")).map_or_else(|| ids.remove(0), Into::into))
}

async fn show(inspector: &Inspector, id: &str, format: Format) -> Result<(), Failure> {
    let record = find(inspector, id).await?;
    match format {
        Format::Json => output::json(&output::record(&record)),
        Format::Table => {
            let rows: Vec<Vec<String>> = record
                .iter()
                .map(|(name, value)| {
                    let name = if name == "_id" { "id" } else { name };
                    vec![name.to_owned(), output::cell(Some(value))]
                })
                .collect();
            output::table(&["field", "value"], &rows)
        }
    }
}

async fn find(inspector: &Inspector, text: &str) -> Result<Document, Failure> {
    let found = inspector.show(&readings(text)?).await.context("the record cannot be read")?;
    found.ok_or_else(|| Failure::Failed(anyhow!("there is no record with the id {text:?}")))
}

/// The ids that a text can mean: one at least.
fn readings(text: &str) -> Result<Vec<RecordId>, Failure> {
    let ids = RecordId::readings(text);
    if ids.is_empty() {
        let prefix = text.split(':').next().unwrap_or_default();
        let detail = json!(text);
        return Err(Failure::Usage(vec![format!("{detail} is no id of the kind {prefix:?}")]));
    }
    Ok(ids)
}
