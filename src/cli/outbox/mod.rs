//! `postrider outbox`: reads, requeues, discards and prunes records.

mod ids;
mod list;
mod redrive;
mod show;

use clap::Subcommand;

use crate::cli::global::{Failure, GlobalArgs, block_on, collections};
use crate::cli::output::OutputArgs;
use crate::outbox::inspect::Inspector;
use crate::outbox::redrive::Redrive;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Count records by status, or pending and dead ones by type, reason or key
    Stats {
        #[command(flatten)]
        args: list::StatsArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// List records without payloads: oldest first where the status has an age, else by id
    List {
        #[command(flatten)]
        args: list::ListArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show one record, payload and all, and why it waits
    Show {
        /// Its id: a UUID, ObjectId, integer or string (uuid:, oid:, int:, str:, raw: force one)
        id: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Make dead records pending again, in their old place
    Requeue(redrive::Requeue),
    /// Remove dead, scheduled, pending and invalid records that no instance has leased
    Discard(redrive::Discard),
    /// Remove delivered or dead records that are older than an age
    Prune(redrive::Prune),
}

pub(super) fn run(global: &GlobalArgs, command: &Command) -> Result<(), Failure> {
    let plan = global.resolve_without_relay()?;
    block_on(async {
        let collections = collections(&plan).await?;
        match command {
            Command::Stats { args, output } => {
                list::stats(&Inspector::new(collections), args, output.output).await
            }
            Command::List { args, output } => {
                list::list(&plan, &collections, args, output.output).await
            }
            Command::Show { id, output } => show::show(&plan, collections, id, output.output).await,
            Command::Requeue(args) => {
                let redrive = if args.redeliver { Redrive::Redeliver } else { Redrive::Requeue };
                redrive::redrive(collections, redrive, None, &args.chosen).await
            }
            Command::Discard(args) => {
                let status = args.status;
                redrive::redrive(collections, Redrive::Discard, status, &args.chosen).await
            }
            Command::Prune(args) => redrive::prune(&plan, &collections, args).await,
        }
    })
}
