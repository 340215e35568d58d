//! `postrider schema`: collections and indexes, of the outbox or of aggregates.

use std::collections::HashSet;

use anyhow::Context as _;
use clap::{Args, Subcommand};

use crate::cli::global::{Failure, GlobalArgs, block_on, collections, warn};
use crate::cli::output;
use crate::config::Resolved;
use crate::context::{CollectionKind, Context};
use crate::names::{AggregateName, check_name};
use crate::schema::{self, Applied, Difference, Hazard, SchemaError};
use crate::store::connect;
use crate::telemetry::printable;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create missing collections and indexes, and adjust the retention
    #[command(
        after_help = "Examples:\n  postrider schema apply\n  postrider schema apply --aggregate order --prepare user-names"
    )]
    Apply(Named),
    /// Print a mongosh script that creates the schema or the roles. Connects to no server
    #[command(
        after_help = "Examples:\n  postrider schema print > schema.js\n  postrider schema print --roles > roles.js"
    )]
    Print {
        #[command(flatten)]
        named: Named,
        /// Print the script that creates least-privilege roles instead: postrider_relay, postrider_append,
        /// postrider_feed, postrider_schema, postrider_operator, postrider_producer, postrider_adopt
        #[arg(long, conflicts_with_all = ["aggregate", "prepare"])]
        roles: bool,
    },
    /// Print one line for each difference from the expected schema. Exit code 1 if there is any
    Verify(Named),
}

/// The collections of a command; the outbox, without any.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Use the event and snapshot collections of this aggregate instead of the outbox (repeatable)
    #[arg(long, value_name = "NAME", value_parser = aggregate)]
    aggregate: Vec<String>,
    /// Use the collection of these prepare keys instead of the outbox (repeatable)
    #[arg(long, value_name = "NAME", value_parser = prepare)]
    prepare: Vec<String>,
}

fn aggregate(text: &str) -> Result<String, String> {
    AggregateName::new(text).map(|name| name.to_string()).map_err(|error| error.to_string())
}

fn prepare(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

impl Named {
    fn is_empty(&self) -> bool {
        self.aggregate.is_empty() && self.prepare.is_empty()
    }

    fn collections(&self) -> impl Iterator<Item = (CollectionKind, &str)> {
        let of_aggregates = self.aggregate.iter().flat_map(|name| {
            [CollectionKind::Events, CollectionKind::Snapshots].map(|kind| (kind, name.as_str()))
        });
        of_aggregates
            .chain(self.prepare.iter().map(|name| (CollectionKind::Prepare, name.as_str())))
    }
}

pub(super) fn run(global: &GlobalArgs, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Print { named, roles } => print(global, named, *roles),
        Command::Apply(named) => {
            let plan = global.resolve_without_relay()?;
            block_on(apply(&plan, named))
        }
        Command::Verify(named) => {
            let plan = global.resolve_without_relay()?;
            block_on(verify(&plan, named))
        }
    }
}

fn print(global: &GlobalArgs, named: &Named, roles: bool) -> Result<(), Failure> {
    let config = global.load()?.config;
    let outbox = &config.outbox;
    output::text(&if roles {
        schema::roles_script(&config)
    } else if named.is_empty() {
        schema::script(&outbox.collection_prefix, &outbox.schema_options())
    } else {
        schema::aggregate_script(&config, &named.aggregate, &named.prepare)
    })
}

async fn apply(plan: &Resolved, named: &Named) -> Result<(), Failure> {
    let with_context = |applied: Result<Applied, SchemaError>| {
        applied.context("cannot apply the schema").map_err(Failure::from)
    };
    let mut lines = String::new();
    if named.is_empty() {
        let collections = collections(plan).await?;
        let applied = with_context(schema::apply(&collections, &plan.schema).await)?;
        lines.push_str(&describe(&applied, ""));
    }
    let context = context(plan).await?;
    for (kind, name) in named.collections() {
        let applied = with_context(context.apply(kind, name).await)?;
        lines.push_str(&describe(&applied, &format!(" of {}", kind.collection(name))));
    }
    if lines.is_empty() {
        lines.push_str("the schema is complete\n");
    }
    output::text(&lines)
}

/// One line for each change.
fn describe(applied: &Applied, of: &str) -> String {
    let mut lines = String::new();
    if let Some(database) = &applied.claimed {
        lines.push_str(&format!("database {database} now belongs to the context\n"));
    }
    for collection in &applied.collections {
        lines.push_str(&format!("created collection {collection}\n"));
    }
    for index in &applied.indexes {
        lines.push_str(&format!("created index {index}{of}\n"));
    }
    if let Some(seconds) = applied.expire_after_seconds {
        lines.push_str(&format!("adjusted the retention to {seconds} s\n"));
    }
    lines
}

async fn verify(plan: &Resolved, named: &Named) -> Result<(), Failure> {
    let with_context = |differences: Result<Vec<Difference>, SchemaError>| {
        differences.context("cannot verify the schema").map_err(Failure::from)
    };
    let mut lines: Vec<String> = Vec::new();
    let context = context(plan).await?;
    if named.is_empty() {
        let collections = collections(plan).await?;
        let differences = with_context(schema::verify(&collections, &plan.schema).await)?;
        lines.extend(differences.iter().map(ToString::to_string));
        let hazards = schema::hazards(plan, &collections, Some(&context)).await;
        let hazards = hazards.context("cannot verify the schema")?;
        // A collection that cannot be used is a difference already.
        let is_news = |hazard: &&Hazard| {
            !differences.iter().any(|difference| difference.subject == hazard.subject)
        };
        lines.extend(hazards.found.iter().filter(is_news).map(ToString::to_string));
        warn(&hazards.note().into_iter().collect::<Vec<_>>());
    }
    for (kind, name) in named.collections() {
        let differences = with_context(context.verify(kind, name).await)?;
        lines.extend(differences.iter().map(ToString::to_string));
    }
    // A database without a context is a difference of each of its collections.
    let mut seen = HashSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    output::text(&lines.iter().map(|line| format!("{}\n", printable(line))).collect::<String>())?;
    if lines.is_empty() { Ok(()) } else { Err(Failure::AlreadyReported) }
}

async fn context(plan: &Resolved) -> Result<Context, Failure> {
    let client = connect::client(&plan.mongo).await.context("cannot use mongo.uri")?;
    Ok(Context::new(client, plan.context.clone()))
}
