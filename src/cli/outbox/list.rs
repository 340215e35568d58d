//! `postrider outbox stats` and `list`.

use std::time::Duration;

use anyhow::Context;
use bson::{Bson, DateTime};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::cli::global::Failure;
use crate::cli::output::{self, FILTERS, Format, MAX_CELL_CHARS, shortened};
use crate::config::Resolved;
use crate::json_view;
use crate::outbox::collections::Collections;
use crate::outbox::fields::{
    ATTEMPT, CREATED_AT, DEAD, DEAD_AT, DEAD_REASON, DONE, DONE_AT, KEY, LAST_ERROR, PENDING, SEQ,
    STATUS, TYPE, VISIBLE_AT,
};
use crate::outbox::inspect::Inspector;
use crate::outbox::list::{Filter, Sort, StatusFilter};
use crate::outbox::stats::{Accuracy, GroupBy};
use crate::outbox::undecoded::DecodedRecord;
use crate::store::ServerClock;
use crate::store::page::PageSize;
use crate::telemetry::printable;

#[derive(Debug, Args)]
pub(in crate::cli) struct StatsArgs {
    /// Group pending and dead records, and list the largest groups instead; reason: beginning of deadReason
    #[arg(long, value_enum, value_name = "FIELD")]
    by: Option<By>,
    /// With --by: maximum number of groups of each status
    #[arg(long, value_name = "COUNT", default_value_t = 20, requires = "by", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    top: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    // Record type
    Type,
    // Beginning of deadReason, for example "attempts exhausted"
    Reason,
    // Record key
    Key,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    /// Only records with this status; invalid: with an unknown status
    #[arg(long, help_heading = FILTERS, value_parser = PossibleValuesParser::new(StatusFilter::WORDS).try_map(|word| StatusFilter::of(&word).ok_or("unknown")))]
    status: Option<StatusFilter>,
    /// Only records with this key
    #[arg(long, help_heading = FILTERS)]
    key: Option<String>,
    /// Only records of this type
    #[arg(long = "type", value_name = "TYPE", help_heading = FILTERS)]
    kind: Option<String>,
    /// Only dead records whose deadReason starts with this text, for example "attempts exhausted"
    #[arg(long, value_name = "TEXT", help_heading = FILTERS)]
    reason: Option<String>,
    /// Only records that have been pending, dead, done or overdue for longer than this, for example 1h
    #[arg(long, value_name = "AGE", help_heading = FILTERS, value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Sort order [default: by age if the status has one (seq, deadAt, visibleAt), else by id]. attempt sorts
    /// the highest number first
    #[arg(long, value_name = "ORDER", value_parser = PossibleValuesParser::new(Sort::WORDS).try_map(|word| Sort::of(&word).ok_or("unknown")))]
    sort: Option<Sort>,
    /// Start after this id, or after the position that the previous list printed
    #[arg(long, value_name = "POSITION")]
    after: Option<String>,
    /// Maximum number of records, from 1 to 100000
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

pub(super) async fn stats(
    inspector: &Inspector,
    args: &StatsArgs,
    format: Format,
) -> Result<(), Failure> {
    if let Some(by) = args.by {
        return groups(inspector, by, args.top, format).await;
    }
    let stats = inspector.stats().await.context("cannot count the outbox")?;
    let mismatches = inspector.mismatches().await.context("cannot sample the outbox")?;
    let mut figures = serde_json::to_value(&stats).context("cannot format the result")?;
    figures["partitionsSampled"] = json!(mismatches.sampled);
    figures["partitionsMismatched"] = json!(mismatches.mismatched);
    if let Some(example) = &mismatches.example {
        eprintln!(
            "warning: {} of {} sampled records have a partition that is not the hash of their key, for example \
             {example}: their key has no order across instances; change the producer to write the documented \
             murmur3 hash, or to omit the partition",
            mismatches.mismatched,
            mismatches.sampled,
            example = printable(&example.to_string()),
        );
    }
    if let (Format::Table, Value::Object(fields)) = (format, &mut figures) {
        fields.remove("accuracy");
        for (name, accuracy) in &stats.accuracy {
            let words = match accuracy {
                Accuracy::AtLeast => "at least",
                Accuracy::AtMost => "at most",
                Accuracy::Estimate => "about",
            };
            if let Some(figure) = fields.get_mut(name) {
                *figure = json!(format!("{words} {figure}"));
            }
        }
    }
    output::figures(&figures, format)
}

async fn groups(inspector: &Inspector, by: By, top: u32, format: Format) -> Result<(), Failure> {
    let (by, name) = match by {
        By::Type => (GroupBy::Type, "type"),
        By::Reason => (GroupBy::Reason, "reason"),
        By::Key => (GroupBy::Key, "key"),
    };
    let found = inspector.groups(by, top).await.context("cannot group the records")?;
    for status in &found.partial {
        eprintln!("note: only the first 100000 {status} records were counted; there are more");
    }
    match format {
        Format::Json => output::json(&found),
        Format::Table => {
            let row = |group: &crate::outbox::stats::Group| {
                let value = match &group.value {
                    Bson::Null => "(none)".to_owned(),
                    value => output::cell(Some(value)),
                };
                vec![
                    group.status.clone(),
                    shortened(value, MAX_CELL_CHARS),
                    group.count.to_string(),
                ]
            };
            let rows: Vec<_> = found.groups.iter().map(row).collect();
            output::table(&["status", name, "count"], &rows)
        }
    }
}

pub(super) async fn list(
    plan: &Resolved,
    collections: &Collections,
    args: &ListArgs,
    format: Format,
) -> Result<(), Failure> {
    let inspector = Inspector::new(collections.clone());
    let filter = Filter {
        status: args.status,
        key: args.key.clone(),
        kind: args.kind.clone(),
        reason: args.reason.clone(),
        older_than: args.older_than,
        sort: args.sort,
    };
    let size = PageSize::of_any_size(args.limit);
    let listed = inspector.list(&filter, args.after.as_deref(), size).await;
    let page = listed.context("cannot list the records")?.map_err(|unlistable| {
        let option = match unlistable.0 {
            "olderThan" => "older-than",
            other => other,
        };
        Failure::Usage(vec![format!("--{option}: {}", unlistable.1)])
    })?;
    match format {
        Format::Json => {
            output::json(&page.records.iter().map(json_view::decoded).collect::<Vec<_>>())?
        }
        Format::Table => {
            let now = ServerClock::asked(collections.database()).await;
            table(plan, &page.records, now.context("cannot read the time of MongoDB")?)?;
        }
    }
    if let Some(note) = &page.note {
        eprintln!("note: {note}");
    }
    if let Some(next) = &page.next {
        eprintln!("more: --after '{}'", printable(next));
    }
    Ok(())
}

fn table(plan: &Resolved, records: &[DecodedRecord], now: DateTime) -> Result<(), Failure> {
    let mut heading =
        vec!["id", STATUS, "age", KEY, TYPE, "sink", ATTEMPT, VISIBLE_AT, LAST_ERROR, DEAD_REASON];
    let has_invalid = records.iter().any(|record| !record.invalid.is_empty());
    if has_invalid {
        heading.push("invalid");
    }
    let row = |record: &DecodedRecord| {
        let field = |name| output::cell(record.document.get(name));
        let sink = record.document.get_str(TYPE).ok().and_then(|kind| plan.router.sink(kind));
        let mut row = vec![
            id(record),
            field(STATUS),
            age(record, now),
            field(KEY),
            field(TYPE),
            sink.map(ToString::to_string).unwrap_or_default(),
            field(ATTEMPT),
            field(VISIBLE_AT),
            field(LAST_ERROR),
            field(DEAD_REASON),
        ];
        if has_invalid {
            row.push(record.invalid.join("; "));
        }
        row.into_iter().map(|cell| shortened(cell, MAX_CELL_CHARS)).collect()
    };
    output::table(&heading, &records.iter().map(row).collect::<Vec<_>>())
}

/// The text by which commands identify the record.
pub(super) fn id(record: &DecodedRecord) -> String {
    match record.id.decoded() {
        Some(id) => id.to_string(),
        None => record.id.text(),
    }
}

/// How long a record has had its status, in the two largest units.
fn age(record: &DecodedRecord, now: DateTime) -> String {
    let document = &record.document;
    let date = |field| document.get_datetime(field).ok().map(|date| date.timestamp_millis());
    let since = match document.get_str(STATUS) {
        Ok(PENDING) => match document.get(SEQ) {
            Some(Bson::Timestamp(seq)) if seq.time > 0 => Some(i64::from(seq.time) * 1_000),
            _ => None,
        },
        Ok(DONE) => date(DONE_AT),
        Ok(DEAD) => date(DEAD_AT),
        _ => date(CREATED_AT),
    };
    let Some(since) = since else { return String::new() };
    let seconds = now.timestamp_millis().saturating_sub(since).max(0) / 1_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}
