//! Arguments, failures and connections that the commands share.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::config::load::{ConfigLoadError, Inputs, LoadedConfig, load};
use crate::config::resolve::beyond;
use crate::config::variable::PREFIX;
use crate::config::{ConfigProblem, Resolved, resolve};
use crate::outbox::collections::Collections;
use crate::store::connect;
use crate::telemetry::{chain, printable};

/// The heading of the options of every command.
pub(super) const HEADING: &str = "Global options";

/// Where the configuration comes from, for every command.
#[derive(Debug, Args)]
pub(super) struct GlobalArgs {
    /// Configuration file (TOML, YAML or JSON). Without one, only defaults and the environment apply
    #[arg(short, long, value_name = "FILE", env = "POSTRIDER_CONFIG", global = true, help_heading = HEADING)]
    pub(super) config: Option<PathBuf>,
    /// Override one key, for example --set relay.batch_size=100 (repeatable)
    #[arg(long, value_name = "KEY=VALUE", global = true, help_heading = HEADING)]
    pub(super) set: Vec<String>,
}

/// Why a command failed.
#[derive(Debug)]
pub(super) enum Failure {
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

impl From<Vec<ConfigProblem>> for Failure {
    fn from(problems: Vec<ConfigProblem>) -> Self {
        Self::Usage(problems.iter().map(ToString::to_string).collect())
    }
}

impl GlobalArgs {
    /// The configuration. From here on the process has secrets in its memory, which the kernel shows to no other
    /// process of its user: it writes no core file, whatever `ulimit -c` and `core_pattern` are, and refuses
    /// debuggers.
    pub(super) fn load(&self) -> Result<LoadedConfig, Failure> {
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
        let loaded = load(&inputs).map_err(|error| match error {
            ConfigLoadError::Problems { mut problems, rest } => {
                warn(&rest.warnings);
                problems.extend(beyond(&problems, &rest));
                Failure::from(problems)
            }
            error => {
                warn(&inputs.warnings());
                Failure::Usage(vec![chain(&error)])
            }
        })?;
        if !loaded.config.ops.core_dumps {
            // (It runs on a kernel that cannot do it too.)
            let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        }
        Ok(loaded)
    }

    /// The configuration, and the plan that the parts are built from.
    pub(super) fn resolve(&self) -> Result<(LoadedConfig, Resolved), Failure> {
        let loaded = self.load()?;
        let resolved = resolved(&loaded)?;
        Ok((loaded, resolved))
    }

    /// The plan for commands that relay and serve nothing, and so need no sink and no token.
    pub(super) fn resolve_without_relay(&self) -> Result<Resolved, Failure> {
        let mut loaded = self.load()?;
        loaded.config.relay.enabled = false;
        loaded.config.api.enabled = false;
        resolved(&loaded)
    }
}

/// The plan that the parts are built from. Prints the warnings before an error.
fn resolved(loaded: &LoadedConfig) -> Result<Resolved, Failure> {
    resolve(loaded).map_err(|problems| {
        warn(&loaded.warnings);
        Failure::from(problems)
    })
}

/// Prints warnings: they often explain the errors after them.
pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {}", printable(warning));
    }
}

/// The outbox's collections. Sends nothing.
pub(super) async fn collections(plan: &Resolved) -> Result<Collections, Failure> {
    let client = connect::client(&plan.mongo).await.context("cannot use mongo.uri")?;
    Ok(Collections::new(client, &plan.database, &plan.prefix))
}

/// How long Kafka's clients may take to end.
#[cfg(feature = "kafka")]
const KAFKA_SHUTDOWN_GRACE: std::time::Duration = std::time::Duration::from_secs(3);

/// Runs a command that needs a server.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Failed(error.into()))?;
    let done = runtime.block_on(connect::with_shutdown(work));
    // Blocked threads are not awaited: a write to a full pipe, a resolver.
    runtime.shutdown_background();
    // Kafka's clients are, or the process ends under their threads.
    #[cfg(feature = "kafka")]
    crate::sink::kafka::live_clients::wait_until_none(KAFKA_SHUTDOWN_GRACE);
    done
}
