//! `postrider events end` and `postrider events erase`.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output;
use crate::cli::store::{aggregate, invalid, open};
use crate::events::{AppendError, EndError, PendingRecords, StreamEnding};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// End a stream: no further appends, no reads of its events, and its snapshot is deleted
    End(EndOptions),
    /// Erase a stream: end it, and empty its events, its snapshot and its outbox records
    Erase {
        #[command(flatten)]
        end: EndOptions,
        /// Remove the records that were not delivered yet, instead of delivering them first
        #[arg(long)]
        discard_pending: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct EndOptions {
    /// The kind of aggregate, such as order
    name: String,
    /// The aggregate
    id: String,
    /// Identifies the request: the same again is answered with what came of the first
    #[arg(long, value_name = "R")]
    request_id: String,
    /// Why: it is in the event and in the log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who asks for it: in the event and in the log
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
}

pub(super) fn run(global: &GlobalArgs, command: &Command) -> Result<(), Failure> {
    let options = match command {
        Command::End(options) | Command::Erase { end: options, .. } => options,
    };
    let (name, id) = aggregate(&options.name, &options.id)?;
    let request = StreamEnding {
        actor: options.actor.clone(),
        ..StreamEnding::new(options.request_id.as_str(), options.reason.as_str())
    };
    let flaws = request.flaws();
    if !flaws.is_empty() {
        return Err(invalid(&flaws));
    }
    let plan = global.resolve_without_relay()?;
    block_on(async {
        let store = open(&plan).await?;
        match command {
            Command::End(_) => print(store.end(&name, &id, request).await),
            Command::Erase { discard_pending, .. } => {
                let pending = if *discard_pending {
                    PendingRecords::Discard
                } else {
                    PendingRecords::Deliver
                };
                print(store.erase(&name, &id, request, pending).await)
            }
        }
    })
}

fn print(answer: Result<impl Serialize, EndError>) -> Result<(), Failure> {
    match answer {
        Ok(done) => output::json(&serde_json::to_value(done).map_err(anyhow::Error::from)?),
        Err(EndError::Append(AppendError::Invalid(flaws))) => Err(invalid(&flaws)),
        Err(error) => Err(Failure::Failed(error.into())),
    }
}
