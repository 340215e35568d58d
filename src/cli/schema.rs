//! `postrider schema`: collections and indexes.

use anyhow::Context;
use clap::Subcommand;

use crate::cli::{Failure, Given, block_on, collections, output};
use crate::schema::{self, SchemaOptions};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create what is missing; adjust the retention
    Apply,
    /// Print a mongosh script that does the same (needs no server)
    Print {
        /// Instead the script that creates least-privilege roles: postrider_relay, postrider_schema,
        /// postrider_operator, postrider_producer
        #[arg(long)]
        roles: bool,
    },
    /// Print a line per difference; exit code 1 if there is any
    Verify,
}

pub(super) fn run(given: &Given, command: &Command) -> Result<(), Failure> {
    if let Command::Print { roles } = command {
        let config = given.load()?.config;
        let (outbox, follow) = (config.outbox, config.relay.follow);
        let prefix = &outbox.collection_prefix;
        return output::text(&match roles {
            true => schema::roles_script(prefix, outbox.retention, follow),
            false => schema::script(prefix, &SchemaOptions::from(&outbox)),
        });
    }
    let plan = given.resolve_without_relay()?;
    let options = plan.schema_options();
    block_on(async {
        let collections = collections(&plan).await?;
        match command {
            Command::Print { .. } => Ok(()),
            Command::Apply => {
                let applied = schema::apply(&collections, &options).await;
                let applied = applied.context("the schema cannot be applied")?;
                let mut lines = String::new();
                for collection in &applied.collections {
                    lines.push_str(&format!("created collection {collection}\n"));
                }
                for index in &applied.indexes {
                    lines.push_str(&format!("created index {index}\n"));
                }
                if let Some(seconds) = applied.expire_after_seconds {
                    lines.push_str(&format!("adjusted the retention to {seconds} s\n"));
                }
                if lines.is_empty() {
                    lines.push_str("nothing was missing\n");
                }
                output::text(&lines)
            }
            Command::Verify => {
                let differences = schema::verify(&collections, &options).await;
                let differences = differences.context("the schema cannot be verified")?;
                let lines: String =
                    differences.iter().map(|difference| format!("{difference}\n")).collect();
                output::text(&lines)?;
                match differences.is_empty() {
                    true => Ok(()),
                    false => Err(Failure::Told),
                }
            }
        }
    })
}
