//! The command line: arguments → configuration → a command → an exit code.
//!
//! 0 is success, 1 a failure, 2 wrong usage or configuration.

mod adopt;
mod append;
mod blocked;
mod check;
mod completions;
mod config;
mod events;
mod existing;
mod feed;
mod fleet;
mod global;
mod healthcheck;
mod help;
mod man;
mod outbox;
mod output;
#[cfg(test)]
mod reference;
mod run;
mod schema;
mod store;
mod subscriptions;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing::{Level, error};

use crate::cli::fleet::FleetRequest;
use crate::cli::global::{Failure, GlobalArgs};
use crate::telemetry::{self, chain, printable};

/// Transactional outbox relay for MongoDB: delivers records to RabbitMQ or Kafka, in the order of their keys.
#[derive(Debug, Parser)]
#[command(name = "postrider", version)]
#[command(help_template = help::template(), after_help = help::EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the relay, and the API if it is enabled, until SIGTERM
    #[command(
        after_help = "Examples:\n  postrider run -c postrider.toml\n  postrider run -c postrider.toml --set log.level=debug"
    )]
    Run,
    /// Check the configuration and everything that `run` needs, with a remedy for each failure
    #[command(
        after_help = "Examples:\n  postrider check -c postrider.toml\n  postrider check -c postrider.toml --offline"
    )]
    Check(check::Options),
    /// Create, print or verify collections and indexes
    #[command(subcommand)]
    Schema(schema::Command),
    /// List, requeue, discard and prune outbox records
    #[command(subcommand)]
    Outbox(outbox::Command),
    /// Create, list, replay and delete subscriptions to the feed
    #[command(subcommand)]
    Subscriptions(subscriptions::Command),
    /// Copy the undelivered documents of another outbox into this one
    #[command(
        after_help = "Examples:\n  postrider adopt --preset cap --dry-run\n  postrider adopt --preset cap --old-relay-stopped\n  postrider adopt --preset debezium --old-relay-stopped --from now"
    )]
    Adopt(adopt::Options),
    /// Append events to an aggregate, and enqueue one record for each, in one transaction
    #[command(
        after_help = "Examples:\n  postrider append order o-1 events.json\n  postrider append order o-1 --expected-version 3 --request-id pay-o-1 < events.json"
    )]
    Append(append::Options),
    /// End or erase event streams
    #[command(subcommand)]
    Events(events::Command),
    /// Show the state of the feed, or renew it after a restore
    #[command(subcommand)]
    Feed(feed::Command),
    /// List running instances, and instances whose heartbeat has expired
    Instances(output::OutputArgs),
    /// List the partitions and the instance that owns each
    Partitions(output::OutputArgs),
    /// Pause or resume all instances, and list blocked keys
    #[command(subcommand)]
    Relay(fleet::RelayCommand),
    /// Print the configuration in force
    #[command(subcommand)]
    Config(config::Command),
    /// Check whether the local `postrider run` is alive (for container health checks)
    #[command(after_help = "Examples:\n  postrider healthcheck\n  postrider healthcheck --ready")]
    Healthcheck(healthcheck::Options),
    /// Print the completion script of a shell
    #[command(
        after_help = "Example:\n  postrider completions bash > /etc/bash_completion.d/postrider"
    )]
    Completions(completions::Options),
    /// Print the man page, or write the man pages of all commands to a folder
    #[command(
        after_help = "Examples:\n  postrider man | man -l -\n  postrider man /usr/local/share/man/man1"
    )]
    Man(man::Options),
}

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Run => run::run(&cli.global),
        Command::Check(options) => check::run(&cli.global, options),
        Command::Schema(command) => schema::run(&cli.global, command),
        Command::Outbox(command) => outbox::run(&cli.global, command),
        Command::Subscriptions(command) => subscriptions::run(&cli.global, command),
        Command::Adopt(options) => adopt::run(&cli.global, options),
        Command::Append(options) => append::run(&cli.global, options),
        Command::Events(command) => events::run(&cli.global, command),
        Command::Feed(command) => feed::run(&cli.global, command),
        Command::Instances(args) => fleet::run(&cli.global, FleetRequest::Instances(*args)),
        Command::Partitions(args) => fleet::run(&cli.global, FleetRequest::Partitions(*args)),
        Command::Relay(command) => fleet::relay(&cli.global, command),
        Command::Config(command) => config::run(&cli.global, command),
        Command::Healthcheck(options) => healthcheck::run(&cli.global, options),
        Command::Completions(options) => completions::run(options, &mut Cli::command()),
        Command::Man(options) => man::run(options, Cli::command()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(problems)) => {
            let line = |problem: &String| format!("error: {}\n", printable(problem));
            to_stderr(&problems.iter().map(line).collect::<String>());
            ExitCode::from(2)
        }
        Err(Failure::Failed(error)) => {
            let error = chain(error.as_ref());
            if telemetry::is_json() && tracing::enabled!(Level::ERROR) {
                error!(error, "ended with a failure");
            } else {
                to_stderr(&format!("error: {}\n", printable(&error)));
            }
            ExitCode::FAILURE
        }
        Err(Failure::AlreadyReported) => ExitCode::FAILURE,
    }
}

/// Writes lines by one call: in pieces, they would mix with those of the log.
fn to_stderr(lines: &str) {
    // (A closed stderr is not a reason to fail.)
    let _ = std::io::stderr().write_all(lines.as_bytes());
}
