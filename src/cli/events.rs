//! `postrider events end` and `postrider events erase`.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output;
use crate::cli::store::{aggregate, invalid, open};
use crate::events::{AppendError, EndError, PendingRecords, StreamEnding};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// End a stream: refuse further appends and reads, and mark its snapshot as deleted
    #[command(
        after_help = "Example:\n  postrider events end order o-1 --request-id merge-o-1 --reason 'merged into o-2'"
    )]
    End(EndOptions),
    /// Erase a stream: end it, and remove the content of its events, snapshot and outbox records
    #[command(
        after_help = "Example:\n  postrider events erase customer c-7 --request-id erase-c-7 --reason 'request 4711' --actor ann"
    )]
    Erase {
        #[command(flatten)]
        end: EndOptions,
        /// Discard pending records of the stream instead of delivering them first
        #[arg(long)]
        discard_pending: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct EndOptions {
    /// Aggregate name, for example order
    name: String,
    /// Aggregate id
    id: String,
    /// Idempotency key: a repeated request with the same id returns the result of the first one
    #[arg(long, value_name = "ID")]
    request_id: String,
    /// Reason, stored in the final event and logged
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Person or system that requests it, stored in the final event and logged
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
        Ok(done) => output::json(&done),
        Err(EndError::Append(AppendError::Invalid(flaws))) => Err(invalid(&flaws)),
        Err(error) => Err(Failure::Failed(error.into())),
    }
}
