//! `postrider feed`: the state of the feed, and its renewal after a restore.

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::existing;
use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output::{self, Format, OutputArgs};
use crate::context::Context;
use crate::events::feed::{Feed, FeedBacklog, FeedReport};
use crate::store::dates::rfc3339;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show the feed's id and head, the process that assigns positions, and waiting appends
    Status(OutputArgs),
    /// Give the feed a new id after a restore: readers and subscriptions must start again at position 0
    #[command(after_help = "Example:\n  postrider feed renew --yes")]
    Renew {
        /// Confirm the change (required)
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(super) fn run(global: &GlobalArgs, command: &Command) -> Result<(), Failure> {
    if let Command::Renew { yes: false, .. } = command {
        let detail = "feed renew: gives the feed a new id, so that every reader and subscription with a \
                      position of the old id is refused (409 wrong_feed) and must start again at \
                      position 0; after a restore, add --yes";
        return Err(Failure::Usage(vec![detail.to_owned()]));
    }
    let plan = global.resolve_without_relay()?;
    block_on(async {
        let outbox = existing::outbox(&plan).await?;
        let feed = Feed::new(Context::new(outbox.client().clone(), plan.context.clone()));
        match command {
            Command::Status(args) => {
                let report = feed.report().await.context("cannot read the feed")?;
                let backlog = feed.backlog(&report).await;
                let backlog = backlog.context("cannot count the appends without a position")?;
                show(&status(&report, &backlog), args.output)
            }
            Command::Renew { output, .. } => {
                let renewed = feed.renew().await.context("cannot renew the feed")?;
                show(&json!({ "feed": renewed.feed, "head": renewed.head }), output.output)
            }
        }
    })
}

/// The state as JSON. A feed that does not exist yet has neither id nor head.
fn status(report: &FeedReport, backlog: &FeedBacklog) -> Value {
    let state = report.state.as_ref();
    let owner = state.filter(|_| report.is_owned).and_then(|state| state.owner.clone());
    let until = state.filter(|_| report.is_owned).and_then(|state| state.owned_until);
    let names = state.map_or(&[][..], |state| &state.names);
    let unindexed: Vec<String> =
        report.collections.values().flatten().map(ToString::to_string).collect();
    json!({
        "feed": state.map(|state| &state.feed),
        "head": state.map(|state| state.head),
        "names": names.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "owner": owner,
        "ownedUntil": until.map(rfc3339),
        "waiting": backlog.appends,
        "waitingAtLeast": backlog.is_at_least,
        "oldestWaiting": backlog.oldest.map(rfc3339),
        "withoutIndex": unindexed,
    })
}

fn show(status: &Value, format: Format) -> Result<(), Failure> {
    let (Format::Table, Value::Object(fields)) = (format, status) else {
        return output::json(status);
    };
    let is_at_least = fields.get("waitingAtLeast") == Some(&Value::Bool(true));
    let rows = fields.iter().filter(|(name, _)| *name != "waitingAtLeast").map(|(name, value)| {
        let text = match value {
            Value::Null => "-".to_owned(),
            Value::Array(values) if values.is_empty() => "-".to_owned(),
            Value::Array(values) => {
                values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
            }
            Value::String(text) => text.clone(),
            value if name == "waiting" && is_at_least => format!("at least {value}"),
            value => value.to_string(),
        };
        vec![name.clone(), text]
    });
    output::table(&["field", "value"], &rows.collect::<Vec<_>>())
}
