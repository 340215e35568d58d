//! `postrider subscriptions`: creates, lists, pauses, replays and deletes subscriptions to the feed.

use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::cli::existing;
use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output::{self, FILTERS, Format, MAX_CELL_CHARS, OutputArgs, shortened};
use crate::context::Context;
use crate::events::Flaw;
use crate::events::feed::{Feed, FeedFilter};
use crate::events::subscriptions::new::{DEFAULT_LEASE, DEFAULT_MAX_PENDING};
use crate::events::subscriptions::{
    NewSubscription, ParkedEvent, SubscriptionDelivery, SubscriptionEntry, SubscriptionError,
    Subscriptions,
};
use crate::store::page::PageSize;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create a subscription: --push copies events to the outbox, --pull lets members read them
    #[command(
        after_help = "Examples:\n  postrider subscriptions create billing --push billing.events --aggregate order\n  postrider subscriptions create reports --pull --lease 30s"
    )]
    Create {
        #[command(flatten)]
        args: CreateArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// List all subscriptions with their lag
    List(OutputArgs),
    /// Show one subscription and its lag
    Show {
        /// Subscription name
        name: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Restart a subscription after an earlier position; required after `feed renew`
    #[command(after_help = "Example:\n  postrider subscriptions replay billing --position 0")]
    Replay {
        /// Subscription name
        name: String,
        /// Position after which the subscription restarts; 0 replays all events
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
        position: i64,
    },
    /// Pause a subscription: no event is read or copied until it is resumed
    Pause {
        /// Subscription name
        name: String,
    },
    /// Resume a paused subscription at its position
    Resume {
        /// Subscription name
        name: String,
    },
    /// List or discard parked events (pull), or list events whose records are dead (push)
    #[command(
        after_help = "Examples:\n  postrider subscriptions parked billing\n  postrider subscriptions parked reports --discard 42"
    )]
    Parked {
        #[command(flatten)]
        args: ParkedArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Delete a subscription and its parked events. Records that it has copied stay in the outbox
    Delete {
        /// Subscription name
        name: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// Subscription name
    name: String,
    /// Copy events to the outbox, with this destination: an exchange or topic
    #[arg(long, value_name = "DESTINATION", required_unless_present = "pull")]
    push: Option<String>,
    /// With --push: maximum number of pending copies
    #[arg(long, value_name = "COUNT", requires = "push")]
    max_pending: Option<i64>,
    /// Let members read and acknowledge events over HTTP
    #[arg(long, conflicts_with = "push")]
    pull: bool,
    /// With --pull: time without a request after which another member takes over, for example 30s
    #[arg(long, value_name = "DURATION", requires = "pull", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,
    /// Only events of this aggregate name (repeatable)
    #[arg(long, value_name = "NAME", help_heading = FILTERS)]
    aggregate: Vec<String>,
    /// Only events with this name (repeatable)
    #[arg(long, value_name = "NAME", help_heading = FILTERS)]
    event: Vec<String>,
    /// Only events of this tenant
    #[arg(long, help_heading = FILTERS)]
    tenant: Option<String>,
    /// Only events after this position; 0 includes all events
    #[arg(long, value_name = "POSITION", default_value_t = 0, help_heading = FILTERS, value_parser = clap::value_parser!(i64).range(0..))]
    after: i64,
}

#[derive(Debug, Args)]
pub(super) struct ParkedArgs {
    /// Subscription name
    name: String,
    /// Only events after this position
    #[arg(long, value_name = "POSITION", default_value_t = 0, help_heading = FILTERS)]
    after: i64,
    /// Maximum number of events, from 1 to 1000
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Discard the parked event at this position
    #[arg(long, value_name = "POSITION", conflicts_with = "discard_all")]
    discard: Option<i64>,
    /// Discard all parked events
    #[arg(long)]
    discard_all: bool,
}

impl CreateArgs {
    fn subscription(&self) -> NewSubscription {
        let delivery = match &self.push {
            Some(destination) => SubscriptionDelivery::Push {
                destination: destination.clone(),
                max_pending: self.max_pending.unwrap_or(DEFAULT_MAX_PENDING),
            },
            None => SubscriptionDelivery::Pull { lease: self.lease.unwrap_or(DEFAULT_LEASE) },
        };
        let filter = FeedFilter {
            aggregates: self.aggregate.clone(),
            events: self.event.clone(),
            tenant_id: self.tenant.clone(),
        };
        NewSubscription { name: self.name.clone(), delivery, filter, after: self.after }
    }
}

pub(super) fn run(global: &GlobalArgs, command: &Command) -> Result<(), Failure> {
    let plan = global.resolve_without_relay()?;
    block_on(async {
        let outbox = existing::outbox(&plan).await?;
        let context = Context::new(outbox.client().clone(), plan.context.clone());
        let subscriptions = Subscriptions::new(&context, Feed::new(context.clone()));
        match command {
            Command::Create { args, output } => {
                let created = subscriptions.create(&args.subscription()).await.map_err(failed)?;
                show(&created, output)
            }
            Command::List(output) => list(&subscriptions.list().await.map_err(failed)?, output),
            Command::Show { name, output } => {
                show(&subscriptions.show(name).await.map_err(failed)?, output)
            }
            Command::Replay { name, position } => {
                let replayed = subscriptions.replay(name, *position).await.map_err(failed)?;
                let state = replayed.state.word();
                output::text(&format!(
                    "{name}: restarts after position {position}; it is {state}\n"
                ))
            }
            Command::Pause { name } => {
                subscriptions.pause(name).await.map_err(failed)?;
                output::text(&format!("{name}: paused\n"))
            }
            Command::Resume { name } => {
                subscriptions.resume(name).await.map_err(failed)?;
                output::text(&format!("{name}: resumed\n"))
            }
            Command::Parked { args, output } => {
                if args.discard.is_some() || args.discard_all {
                    let discarding = subscriptions.discard_parked(&args.name, args.discard);
                    let discarded = discarding.await.map_err(failed)?;
                    return output::text(&format!("{}: discarded {discarded}\n", args.name));
                }
                let size = PageSize::of_any_size(args.limit);
                let found = subscriptions.parked(&outbox, &args.name, args.after, size);
                let page = found.await.map_err(failed)?;
                parked(&page.events, output)?;
                if let Some(note) = &page.note {
                    eprintln!("note: {note}");
                }
                Ok(())
            }
            Command::Delete { name } => {
                subscriptions.delete(name).await.map_err(failed)?;
                output::text(&format!("{name}: deleted\n"))
            }
        }
    })
}

/// Invalid fields are wrong usage, by the names of the options.
fn failed(error: SubscriptionError) -> Failure {
    match error {
        SubscriptionError::Invalid(flaws) => Failure::Usage(flaws.iter().map(usage).collect()),
        error => Failure::Failed(error.into()),
    }
}

fn usage(flaw: &Flaw) -> String {
    let option = match flaw.field.as_str() {
        "destination" => "--push",
        "maxPending" => "--max-pending",
        "aggregates" => "--aggregate",
        "events" => "--event",
        "tenantId" => "--tenant",
        "lease" => "--lease",
        "after" => "--after",
        "position" => "--position",
        other => other,
    };
    format!("{option}: {}", flaw.detail)
}

fn list(entries: &[SubscriptionEntry], output: &OutputArgs) -> Result<(), Failure> {
    if output.output == Format::Json {
        return output::json(&json(entries)?);
    }
    let heading = [
        "name",
        "kind",
        "state",
        "position",
        "lagEvents",
        "lagSeconds",
        "owner",
        "parked",
        "error",
    ];
    let row = |entry: &SubscriptionEntry| {
        let report = match entry {
            SubscriptionEntry::Valid(report) => report,
            SubscriptionEntry::Invalid(report) => {
                let mut row = vec![String::new(); heading.len()];
                row[0].clone_from(&report.name);
                report.state.clone_into(&mut row[2]);
                row[8] = shortened(report.error.clone(), MAX_CELL_CHARS);
                return row;
            }
        };
        vec![
            report.name.clone(),
            report.kind.word().to_owned(),
            report.state.word().to_owned(),
            report.position.to_string(),
            report.lag_events.map(|lag| lag.to_string()).unwrap_or_default(),
            report.lag_seconds.map(|lag| format!("{lag:.1}")).unwrap_or_default(),
            report.owner.clone().unwrap_or_default(),
            report.parked.map(|parked| parked.to_string()).unwrap_or_default(),
            shortened(report.error.clone().unwrap_or_default(), MAX_CELL_CHARS),
        ]
    };
    output::table(&heading, &entries.iter().map(row).collect::<Vec<_>>())
}

fn show(report: &impl serde::Serialize, output: &OutputArgs) -> Result<(), Failure> {
    let report = json(report)?;
    match (output.output, &report) {
        (Format::Table, Value::Object(fields)) => {
            let cell = |value: &Value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let rows = fields.iter().map(|(name, value)| vec![name.clone(), cell(value)]);
            output::table(&["field", "value"], &rows.collect::<Vec<_>>())
        }
        _ => output::json(&report),
    }
}

fn parked(events: &[ParkedEvent], output: &OutputArgs) -> Result<(), Failure> {
    if output.output == Format::Json {
        return output::json(&json(events)?);
    }
    let heading = ["position", "aggregate", "version", "event", "record", "reason"];
    let row = |event: &ParkedEvent| {
        let row = vec![
            event.position.to_string(),
            format!("{} {}", event.aggregate_name, event.aggregate_id),
            event.version.to_string(),
            event.name.clone(),
            event.record_id.clone().unwrap_or_default(),
            event.reason.clone(),
        ];
        row.into_iter().map(|cell| shortened(cell, MAX_CELL_CHARS)).collect()
    };
    output::table(&heading, &events.iter().map(row).collect::<Vec<_>>())
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<Value, Failure> {
    Ok(serde_json::to_value(value).context("cannot format the result")?)
}
