//! `postrider instances`, `partitions` and `relay pause|resume`.

use anyhow::Context;
use clap::Subcommand;

use crate::cli::blocked;
use crate::cli::global::{Failure, GlobalArgs, block_on, collections};
use crate::cli::output::{self, OutputArgs};
use crate::partition::fleet::Fleet;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum RelayCommand {
    /// Pause publishing on all instances. The pause persists across restarts
    Pause,
    /// Resume publishing on all instances
    Resume,
    /// List the blocked keys that the local `postrider run` has found, and the blocker of each
    #[command(
        after_help = "Examples:\n  postrider relay blocked-keys --limit 10\n  postrider relay blocked-keys --key o-1 --output json"
    )]
    BlockedKeys(blocked::Options),
}

pub(super) fn relay(global: &GlobalArgs, command: &RelayCommand) -> Result<(), Failure> {
    match command {
        RelayCommand::Pause => run(global, FleetRequest::Pause(true)),
        RelayCommand::Resume => run(global, FleetRequest::Pause(false)),
        RelayCommand::BlockedKeys(options) => blocked::run(global, options),
    }
}

/// A request to the fleet.
#[derive(Clone, Copy, Debug)]
pub(super) enum FleetRequest {
    Instances(OutputArgs),
    Partitions(OutputArgs),
    /// Whether to pause or to resume.
    Pause(bool),
}

pub(super) fn run(global: &GlobalArgs, request: FleetRequest) -> Result<(), Failure> {
    let plan = global.resolve_without_relay()?;
    block_on(async {
        let fleet = Fleet::new(collections(&plan).await?, plan.partitions.stale_after);
        match request {
            FleetRequest::Instances(args) => {
                let found = fleet.instances().await.context("cannot read the instances")?;
                output::documents(&found, &INSTANCE_FIELDS, args.output)
            }
            FleetRequest::Partitions(args) => {
                let found = fleet.partitions().await.context("cannot read the partitions")?;
                output::documents(&found, &PARTITION_FIELDS, args.output)
            }
            FleetRequest::Pause(paused) => {
                fleet.pause(paused).await.context("cannot change the pause")?;
                output::text(if paused {
                    "paused: every instance stops publishing within a second\n"
                } else {
                    "resumed: every instance publishes again within a second\n"
                })
            }
        }
    })
}

const INSTANCE_FIELDS: [&str; 9] = [
    "_id",
    "name",
    "hostname",
    "status",
    "stale",
    "startedAt",
    "lastHeartbeat",
    "version",
    "partitionsOwned",
];

const PARTITION_FIELDS: [&str; 5] = ["_id", "instanceId", "hostname", "epoch", "updatedAt"];
