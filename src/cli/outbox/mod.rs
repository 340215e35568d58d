//! `postrider outbox`: reads, requeues, discards and prunes records.

mod ids;
mod list;
mod redrive;
mod show;

use clap::Subcommand;

use crate::cli::existing;
use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::outbox::ids::parse_ids;
use crate::cli::output::OutputArgs;
use crate::outbox::inspect::Inspector;
use crate::outbox::redrive::Redrive;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Count records by status, or pending and dead records by type, reason or key
    #[command(
        after_help = "Examples:\n  postrider outbox stats\n  postrider outbox stats --by reason"
    )]
    Stats {
        #[command(flatten)]
        args: list::StatsArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// List records without their payloads, oldest first where the status has an age
    #[command(
        after_help = "Examples:\n  postrider outbox list --status pending --limit 1\n  postrider outbox list --status dead --reason 'attempts exhausted'\n  postrider outbox list --key o-1 --output json"
    )]
    List {
        #[command(flatten)]
        args: list::ListArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show one record with its payload, and why it waits
    #[command(
        after_help = "Examples:\n  postrider outbox show 6650f0c2a1b2c3d4e5f60718\n  postrider outbox show str:order-1 --output json"
    )]
    Show {
        /// Record id: a UUID, ObjectId, integer or string (prefix uuid:, oid:, int:, str: or raw: forces a type)
        id: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Make dead records pending again, with their original seq
    #[command(
        after_help = "Examples:\n  postrider outbox requeue 6650f0c2a1b2c3d4e5f60718\n  postrider outbox requeue --all --reason 'attempts exhausted' --dry-run\n  postrider outbox requeue --all --type OrderPlaced --yes"
    )]
    Requeue(redrive::Requeue),
    /// Remove dead, scheduled, pending or invalid records that no instance has leased
    #[command(
        after_help = "Examples:\n  postrider outbox discard 6650f0c2a1b2c3d4e5f60718\n  postrider outbox discard str:order-1 --yes\n  postrider outbox discard --all --status scheduled --key o-1 --yes"
    )]
    Discard(redrive::Discard),
    /// Remove delivered or dead records older than an age
    #[command(
        after_help = "Examples:\n  postrider outbox prune --status dead --older-than 30d --dry-run\n  postrider outbox prune --status dead --older-than 30d --yes"
    )]
    Prune(redrive::Prune),
}

fn ids_of(command: &Command) -> &[String] {
    match command {
        Command::Show { id, .. } => std::slice::from_ref(id),
        Command::Requeue(args) => &args.chosen.ids,
        Command::Discard(args) => &args.chosen.ids,
        Command::Stats { .. } | Command::List { .. } | Command::Prune(_) => &[],
    }
}

pub(super) fn run(global: &GlobalArgs, command: &Command) -> Result<(), Failure> {
    if let Command::Prune(args) = command {
        args.confirmed()?;
    }
    // Wrong usage is reported before anything is read.
    for id in ids_of(command) {
        parse_ids(id)?;
    }
    let plan = global.resolve_without_relay()?;
    block_on(async {
        let collections = existing::outbox(&plan).await?;
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
