//! `postrider append`: appends events in the JSON form of HTTP.

use std::io::Read;

use anyhow::Context as _;
use bson::Document;
use clap::Args;

use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output;
use crate::cli::store::{aggregate, invalid, open};
use crate::events::json::{AppendRequest, BodyError, read_body};
use crate::events::{Append, AppendError, Trace};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Aggregate name, for example order
    name: String,
    /// Aggregate id
    id: String,
    /// Version before this append: a number, any, none or exists
    #[arg(long, value_name = "VERSION")]
    expected_version: Option<String>,
    /// Idempotency key: a repeated request with the same id returns the result of the first one
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// File with the JSON body of the HTTP API, {"events": [{"name": …, "body": …}]}; - reads standard input
    #[arg(value_name = "FILE", default_value = "-")]
    file: String,
}

pub(super) fn run(global: &GlobalArgs, options: &Options) -> Result<(), Failure> {
    let plan = global.resolve_without_relay()?;
    let append = read(options)?;
    block_on(async {
        let store = open(&plan).await?;
        match store.append(append).await {
            Ok(done) => output::json(&done),
            Err(AppendError::Invalid(flaws)) => Err(invalid(&flaws)),
            Err(error) => Err(Failure::Failed(error.into())),
        }
    })
}

fn read(options: &Options) -> Result<Append, Failure> {
    let usage = |what: &str, wrong: String| Failure::Usage(vec![format!("{what}: {wrong}")]);
    let (name, id) = aggregate(&options.name, &options.id)?;
    let text = match options.file.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        file => std::fs::read_to_string(file),
    };
    let text = text.with_context(|| format!("cannot read {}", options.file))?;
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
