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
mod feed;
mod fleet;
mod global;
mod healthcheck;
mod outbox;
mod output;
mod run;
mod schema;
mod store;
mod subscriptions;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::cli::fleet::FleetRequest;
use crate::cli::global::{Failure, GlobalArgs};
use crate::telemetry::chain;

/// Transactional outbox relay for MongoDB: delivers pending records to RabbitMQ or Kafka, in
/// the order of their keys.
#[derive(Debug, Parser)]
#[command(name = "postrider", version, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Relay until SIGTERM
    Run,
    /// Probe everything that `run` needs, and say what to repair
    Check(check::Options),
    /// Collections and indexes
    #[command(subcommand)]
    Schema(schema::Command),
    /// The outbox's records
    #[command(subcommand)]
    Outbox(outbox::Command),
    /// The subscriptions to the feed
    #[command(subcommand)]
    Subscriptions(subscriptions::Command),
    /// Copy the undelivered documents of another outbox into this one
    Adopt(adopt::Options),
    /// Append events to an aggregate, and enqueue each as a message, in one transaction
    Append(append::Options),
    /// The end of event streams
    #[command(subcommand)]
    Events(events::Command),
    /// The feed: one position for each event
    #[command(subcommand)]
    Feed(feed::Command),
    /// The instances that run, and those that have stopped without a word
    Instances(output::OutputArgs),
    /// Which instance has which partition
    Partitions(output::OutputArgs),
    /// Pause and resume, for all instances; the blocked keys of one
    #[command(subcommand)]
    Relay(fleet::RelayCommand),
    /// The configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Whether the `run` of the same configuration lives: exit 0, for a container's health check
    Healthcheck(healthcheck::Options),
    /// Completions for a shell, on standard output
    Completions(completions::Options),
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
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(problems)) => {
            for problem in problems {
                eprintln!("error: {problem}");
            }
            ExitCode::from(2)
        }
        Err(Failure::Failed(error)) => {
            eprintln!("error: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
        Err(Failure::AlreadyReported) => ExitCode::FAILURE,
    }
}
