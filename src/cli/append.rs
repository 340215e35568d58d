//! `postrider append`: appends events in the JSON form of HTTP.

use std::io::Read;

use anyhow::Context as _;
use bson::Document;
use clap::Args;

use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output;
use crate::context::Context;
use crate::events::json::{AppendRequest, BodyError, read_body};
use crate::events::{Append, AppendError, EventStore, Flaw, Trace};
use crate::names::{AggregateId, AggregateName};
use crate::outbox::collections::Collections;
use crate::run::RunError;
use crate::schema;
use crate::store::connect::{self, Topology};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The kind of aggregate, such as order
    name: String,
    /// The aggregate
    id: String,
    /// The version before this append: a number, any, none or exists
    #[arg(long, value_name = "V")]
    expected_version: Option<String>,
    /// Identifies the request: the same again is answered with what came of the first
    #[arg(long, value_name = "R")]
    request_id: Option<String>,
    /// A JSON body as over HTTP, {"requestId", "events": [{"name", "body"}]}; - is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    file: String,
}

pub(super) fn run(global: &GlobalArgs, options: &Options) -> Result<(), Failure> {
    let plan = global.resolve_without_relay()?;
    let append = read(options)?;
    block_on(async {
        let reached = connect::reach(&plan.mongo, &plan.database).await;
        let (client, topology) = reached.map_err(anyhow::Error::from)?;
        if topology == Topology::Standalone {
            return Err(Failure::Failed(RunError::Standalone.into()));
        }
        let outbox = Collections::new(client.clone(), &plan.database, &plan.prefix);
        // As `run` does: MongoDB would insert into a missing collection too, without indexes.
        let options = plan.schema;
        let missing = if plan.auto_init_schema {
            schema::apply(&outbox, &options).await.map(|_| Vec::new())
        } else {
            schema::verify(&outbox, &options).await
        };
        let missing = missing.context("the outbox's schema can't be used")?;
        if let Some(difference) = missing.first() {
            let error = anyhow::anyhow!("{difference}; run `postrider schema apply`");
            return Err(Failure::Failed(error));
        }
        let store = EventStore::new(Context::new(client, plan.context.clone()), outbox);
        match store.append(append).await {
            Ok(done) => output::json(&serde_json::to_value(done).map_err(anyhow::Error::from)?),
            Err(AppendError::Invalid(flaws)) => Err(invalid(&flaws)),
            Err(error) => Err(Failure::Failed(error.into())),
        }
    })
}

fn read(options: &Options) -> Result<Append, Failure> {
    let usage = |what: &str, wrong: String| Failure::Usage(vec![format!("{what}: {wrong}")]);
    let name = AggregateName::new(&options.name);
    let name = name.map_err(|wrong| usage("the name", wrong.to_string()))?;
    let id = AggregateId::new(&options.id);
    let id = id.map_err(|wrong| usage("the id", wrong.to_string()))?;
    let text = match options.file.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        file => std::fs::read_to_string(file),
    };
    let text = text.with_context(|| format!("{} cannot be read", options.file))?;
    let mut members = Document::new();
    if let Some(version) = &options.expected_version {
        match version.parse::<i64>() {
            Ok(number) => members.insert("expectedVersion", number),
            Err(_) => members.insert("expectedVersion", version),
        };
    }
    if let Some(request) = &options.request_id {
        members.insert("requestId", request);
    }
    let request = read_body::<AppendRequest>(&text, members).map_err(|error| match error {
        BodyError::Syntax(error) => usage("the body", format!("invalid JSON: {error}")),
        BodyError::Invalid(flaws) => invalid(&flaws),
    })?;
    Ok(request.into_append(name, id, Trace::default()))
}

fn invalid(flaws: &[Flaw]) -> Failure {
    Failure::Usage(flaws.iter().map(ToString::to_string).collect())
}
