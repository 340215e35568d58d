//! `postrider instances`, `partitions` and `relay pause|resume`.

use anyhow::Context;
use clap::Subcommand;

use crate::cli::blocked;
use crate::cli::existing;
use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output::{self, OutputArgs};
use crate::partition::fleet::{Fleet, FleetView};
use crate::telemetry::printable;

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
        let fleet = Fleet::new(existing::outbox(&plan).await?, plan.partitions.stale_after);
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
                let view = fleet.view().await.context("cannot read the instances")?;
                output::text(&describe_pause(paused, &relaying(&view)))
            }
        }
    })
}

/// The instances that a pause reaches, by their names.
fn relaying(view: &FleetView) -> Vec<String> {
    let members = view.members.values().filter(|member| member.relays);
    let name = |id| {
        let names = view.names.iter().find(|(_, entry)| entry.holder == id);
        names.map(|(name, _)| name.clone())
    };
    let names = members.map(|member| name(member.id).unwrap_or_else(|| member.id.to_string()));
    names.map(|name| printable(&name).into_owned()).collect()
}

fn describe_pause(paused: bool, reached: &[String]) -> String {
    match (paused, reached) {
        (true, []) => "paused: no instance is alive; the pause holds when one starts\n".to_owned(),
        (false, []) => "resumed: no instance is alive\n".to_owned(),
        (true, all) => {
            format!(
                "paused: every instance stops publishing within a second ({})\n",
                all.join(", ")
            )
        }
        (false, all) => format!(
            "resumed: every instance publishes again within a second ({})\n",
            all.join(", ")
        ),
    }
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
