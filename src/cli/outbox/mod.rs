//! `postrider outbox`: what is in it, and what a person does about it.

mod look;
mod redrive;
mod show;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::output::Format;
use crate::cli::{Failure, Given, block_on, collections};
use crate::outbox::inspect::Inspector;
use crate::outbox::redrive::Redrive;
use crate::outbox::undecoded::{RawId, Shown as Record};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Count records by status, or pending and dead ones by type, reason or key
    Stats {
        #[command(flatten)]
        counted: look::Counted,
        #[command(flatten)]
        shown: Shown,
    },
    /// List records without payloads: oldest first where the status has an age, else by id
    List {
        #[command(flatten)]
        chosen: look::Chosen,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show one record, payload and all, and why it waits
    Show {
        /// Its id: a UUID, ObjectId, integer or string (uuid:, oid:, int:, str:, raw: force one)
        id: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Make dead records pending again, in their old place
    Requeue(redrive::Requeue),
    /// Remove dead, scheduled, pending and invalid records that nobody holds
    Discard(redrive::Discard),
    /// Remove delivered or dead records that are older than an age
    Prune(redrive::Prune),
}

#[derive(Debug, Args)]
pub(super) struct Shown {
    /// Form of the output
    #[arg(long, value_enum, default_value = "table")]
    output: Format,
}

pub(super) fn run(given: &Given, command: &Command) -> Result<(), Failure> {
    let plan = given.resolve_without_relay()?;
    block_on(async {
        let collections = collections(&plan).await?;
        match command {
            Command::Stats { counted, shown } => {
                look::stats(&Inspector::new(collections), counted, shown.output).await
            }
            Command::List { chosen, shown } => {
                look::list(&plan, &collections, chosen, shown.output).await
            }
            Command::Show { id, shown } => show::show(&plan, collections, id, shown.output).await,
            Command::Requeue(asked) => {
                let redrive = match asked.redeliver {
                    true => Redrive::Redeliver,
                    false => Redrive::Requeue,
                };
                redrive::redrive(collections, redrive, None, &asked.chosen).await
            }
            Command::Discard(asked) => {
                let status = asked.status;
                redrive::redrive(collections, Redrive::Discard, status, &asked.chosen).await
            }
            Command::Prune(asked) => redrive::prune(&plan, &collections, asked).await,
        }
    })
}

/// The ids that a text can mean: one at least.
fn readings(text: &str) -> Result<Vec<RawId>, Failure> {
    let ids = RawId::readings(text);
    if ids.is_empty() {
        let prefix = text.split(':').next().unwrap_or_default();
        let detail = json!(text);
        return Err(Failure::Usage(vec![format!("{detail} is no id of the kind {prefix:?}")]));
    }
    Ok(ids)
}

async fn find(inspector: &Inspector, text: &str) -> Result<Option<Record>, Failure> {
    Ok(inspector.show(&readings(text)?).await.context("the record cannot be read")?)
}
