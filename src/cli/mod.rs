//! The command line: arguments → configuration → a command → an exit code.
//!
//! 0 is success, 1 a failure, 2 wrong usage or configuration.

mod append;
mod blocked;
mod check;
mod completions;
mod config;
mod fleet;
mod healthcheck;
mod outbox;
mod output;
mod run;
mod schema;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};

use crate::cli::fleet::FleetRequest;
use crate::config::load::{Inputs, LoadError, Loaded, load};
use crate::config::resolve::beyond;
use crate::config::variable::PREFIX;
use crate::config::{Problem, Resolved, resolve};
use crate::outbox::collections::Collections;
use crate::sink::kafka::alive;
use crate::store::connect;
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

/// Where the configuration comes from, for every command.
#[derive(Debug, Args)]
struct GlobalArgs {
    /// Configuration file (TOML); without one: defaults and environment
    #[arg(long, value_name = "FILE", env = "POSTRIDER_CONFIG", global = true)]
    config: Option<PathBuf>,
    /// Override one key, as in --set relay.batch_size=100 (repeatable)
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    set: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Relay until SIGTERM
    Run,
    /// Probe everything that `run` needs, and say what to mend
    Check(check::Options),
    /// Collections and indexes
    #[command(subcommand)]
    Schema(schema::Command),
    /// The outbox's records
    #[command(subcommand)]
    Outbox(outbox::Command),
    /// Append events to an aggregate, and enqueue each as a message, in one transaction
    Append(append::Options),
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

/// Why a command failed.
#[derive(Debug)]
enum Failure {
    /// Usage or configuration: exit code 2. One line each.
    Usage(Vec<String>),
    /// Anything else: exit code 1.
    Failed(anyhow::Error),
    /// Reported already, on standard output: exit code 1.
    AlreadyReported,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Vec<Problem>> for Failure {
    fn from(problems: Vec<Problem>) -> Self {
        Self::Usage(problems.iter().map(ToString::to_string).collect())
    }
}

impl GlobalArgs {
    fn load(&self) -> Result<Loaded, Failure> {
        let mut environment = Vec::new();
        for (name, value) in std::env::vars_os() {
            match (name.into_string(), value.into_string()) {
                (Ok(name), Ok(value)) => environment.push((name, value)),
                (Ok(name), Err(_)) if name.starts_with(PREFIX) => {
                    let detail = "is not UTF-8; correct it, or unset it";
                    return Err(Failure::Usage(vec![format!("{name}: {detail}")]));
                }
                _ => {}
            }
        }
        let inputs = Inputs { file: self.config.clone(), environment, set: self.set.clone() };
        load(&inputs).map_err(|error| match error {
            LoadError::Problems { mut problems, rest } => {
                warn(&rest.warnings);
                problems.extend(beyond(&problems, &rest));
                Failure::from(problems)
            }
            error => {
                warn(&inputs.warnings());
                Failure::Usage(vec![chain(&error)])
            }
        })
    }

    /// The configuration, and the plan that the parts are built from.
    fn resolve(&self) -> Result<(Loaded, Resolved), Failure> {
        let loaded = self.load()?;
        let resolved = resolved(&loaded)?;
        Ok((loaded, resolved))
    }

    /// The plan for commands that relay and serve nothing, and so need no sink and no token.
    fn resolve_without_relay(&self) -> Result<Resolved, Failure> {
        let mut loaded = self.load()?;
        loaded.config.relay.enabled = false;
        loaded.config.api.enabled = false;
        resolved(&loaded)
    }
}

/// The plan that the parts are built from. Prints the warnings before an error.
fn resolved(loaded: &Loaded) -> Result<Resolved, Failure> {
    resolve(loaded).map_err(|problems| {
        warn(&loaded.warnings);
        Failure::from(problems)
    })
}

/// Prints warnings: they often explain the errors after them.
fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
}

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Run => run::run(&cli.global),
        Command::Check(options) => check::run(&cli.global, options),
        Command::Schema(command) => schema::run(&cli.global, command),
        Command::Outbox(command) => outbox::run(&cli.global, command),
        Command::Append(options) => append::run(&cli.global, options),
        Command::Instances(args) => fleet::run(&cli.global, FleetRequest::Instances(*args)),
        Command::Partitions(args) => fleet::run(&cli.global, FleetRequest::Partitions(*args)),
        Command::Relay(command) => fleet::relay(&cli.global, command),
        Command::Config(command) => config::run(&cli.global, command),
        Command::Healthcheck(options) => healthcheck::run(&cli.global, options),
        Command::Completions(options) => completions::run(options),
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

/// The outbox's collections. Sends nothing.
async fn collections(plan: &Resolved) -> Result<Collections, Failure> {
    let client = connect::client(&plan.mongo).await.context("cannot use mongo.uri")?;
    Ok(Collections::new(client, &plan.database, &plan.prefix))
}

/// How long Kafka's clients may take to end.
const KAFKA_SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

/// Runs a command that needs a server.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Failed(error.into()))?;
    let done = runtime.block_on(work);
    // Blocked threads are not awaited: a write to a full pipe, a resolver.
    runtime.shutdown_background();
    // Kafka's clients are, or the process ends under their threads.
    alive::until_none(KAFKA_SHUTDOWN_GRACE);
    done
}
