//! `postrider instances`, `partitions` and `relay pause|resume`.

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::cli::output::{self, Format};
use crate::cli::{Failure, Given, block_on, blocked, collections};
use crate::partition::fleet::Fleet;

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Shown {
    /// How it is shown
    #[arg(long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum Relay {
    /// Stop publishing, on all instances and until resumed, whatever restarts
    Pause,
    /// Go on
    Resume,
    /// The keys that the `run` of the same configuration has found blocked, and by which record
    BlockedKeys(blocked::Options),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Switch {
    Pause,
    Resume,
}

pub(super) fn relay(given: &Given, command: &Relay) -> Result<(), Failure> {
    match command {
        Relay::Pause => run(given, Asked::Relay(Switch::Pause)),
        Relay::Resume => run(given, Asked::Relay(Switch::Resume)),
        Relay::BlockedKeys(options) => blocked::run(given, options),
    }
}

/// What is asked of the fleet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Instances(Shown),
    Partitions(Shown),
    Relay(Switch),
}

pub(super) fn run(given: &Given, asked: Asked) -> Result<(), Failure> {
    let plan = given.resolve_without_relay()?;
    block_on(async {
        let fleet = Fleet::new(collections(&plan).await?, plan.fleet.stale_after);
        match asked {
            Asked::Instances(shown) => {
                let found = fleet.instances().await.context("the instances cannot be read")?;
                output::documents(&found, &INSTANCE, shown.output)
            }
            Asked::Partitions(shown) => {
                let found = fleet.partitions().await.context("the partitions cannot be read")?;
                output::documents(&found, &PARTITION, shown.output)
            }
            Asked::Relay(switch) => {
                let paused = matches!(switch, Switch::Pause);
                fleet.pause(paused).await.context("the switch cannot be written")?;
                output::text(match switch {
                    Switch::Pause => "paused: every instance stops publishing within a second\n",
                    Switch::Resume => "resumed: every instance goes on within a second\n",
                })
            }
        }
    })
}

const INSTANCE: [&str; 9] = [
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

const PARTITION: [&str; 5] = ["_id", "instanceId", "hostname", "epoch", "updatedAt"];
