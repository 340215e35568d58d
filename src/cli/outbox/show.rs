//! `postrider outbox show`: one record, and why it waits.

use std::time::Duration;

use anyhow::{Context, anyhow};
use bson::raw::RawDocumentBuf;
use bson::{Bson, Document};
use serde::Serialize;

use crate::cli::global::Failure;
use crate::cli::outbox::ids::find;
use crate::cli::outbox::list::id;
use crate::cli::output::{self, Format};
use crate::config::Resolved;
use crate::json_view::{self, StoredDocument};
use crate::outbox::collections::Collections;
use crate::outbox::fields::TYPE;
use crate::outbox::inspect::Inspector;
use crate::outbox::record::Record;
use crate::outbox::undecoded::DecodedRecord;
use crate::partition::owner::PartitionOwner;
use crate::relay::explain::{Explainer, Explanation, WaitsFor};
use crate::relay::instance_state::{fields, state_name};
use crate::routing::RouteInput;
use crate::run;
use crate::sink::{Address, Sink};

/// How long a sink is probed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn show(
    plan: &Resolved,
    collections: Collections,
    id: &str,
    format: Format,
) -> Result<(), Failure> {
    let inspector = Inspector::new(collections.clone());
    let Some(record) = find(&inspector, id).await? else {
        return Err(Failure::Failed(anyhow!(
            "unknown record: there is no record with the id {id:?}"
        )));
    };
    let explainer = Explainer {
        collections,
        ordered: plan.relay.is_ordered(),
        max_attempts: plan.relay.max_attempts,
        stale_after: plan.partitions.stale_after,
    };
    let waiting = explainer
        .explain(&record.document)
        .await
        .context("cannot determine why the record waits")?;
    let waiting = match waiting {
        Some(waiting) => Some(at_its_sink(plan, waiting).await),
        None => None,
    };
    print(&record, waiting.as_ref(), format)
}

/// Adds the sink, and whether it is up, if nothing else blocks the record.
async fn at_its_sink(plan: &Resolved, mut waiting: Explanation) -> Explanation {
    let kind = waiting.front.get_str(TYPE).unwrap_or_default();
    let Some(name) = plan.router.sink(kind) else { return waiting };
    let Some(sink) = plan.sinks.get(name) else { return waiting };
    waiting.sink = Some(name.to_string());
    // (A quarantined record waits for its sink too.)
    let (WaitsFor::Scan | WaitsFor::DestinationDown | WaitsFor::Quarantined) = waiting.waits_for
    else {
        return waiting;
    };
    if let Some(owner) = waiting.owner.as_ref().filter(|owner| owner.relay.is_some()) {
        if let Some(cause) = down(owner, name.as_str()) {
            let detail = format!(
                "waits for its sink {name}, which is down according to {} ({}): {cause}",
                owner.name(),
                owner.as_of()
            );
            waiting.waits(WaitsFor::SinkDown, &detail);
        } else if let Some(paused) = unconfirmed(owner, name.as_str(), plan, &waiting.front) {
            let detail = format!(
                "waits for its destination, which does not confirm according to {} ({}): {paused}",
                owner.name(),
                owner.as_of()
            );
            waiting.waits(WaitsFor::DestinationDown, &detail);
        }
        return waiting;
    }
    // The owner is of a version that does not report its sinks.
    let trouble = match run::build(name, &sink.for_check(PROBE_TIMEOUT)) {
        Ok(sink) => {
            let trouble = match tokio::time::timeout(PROBE_TIMEOUT, sink.check()).await {
                Ok(Ok(_)) => None,
                Ok(Err(down)) => Some(down.to_string()),
                Err(_) => Some(format!("no response within {PROBE_TIMEOUT:?}")),
            };
            let _ = tokio::time::timeout(PROBE_TIMEOUT, sink.close()).await;
            trouble
        }
        Err(error) => Some(error.to_string()),
    };
    if let Some(trouble) = trouble {
        let detail =
            format!("waits for its sink {name}, which this command cannot reach: {trouble}");
        waiting.waits(WaitsFor::SinkDown, &detail);
    }
    waiting
}

/// Why this sink is down, as the instance reports.
fn down(owner: &PartitionOwner, sink: &str) -> Option<String> {
    let down = owner.relay.as_ref()?.get_array(fields::SINKS_DOWN).ok()?;
    let down = down.iter().filter_map(Bson::as_document);
    let mut of_it = down.filter(|down| down.get_str(fields::SINK).is_ok_and(|name| name == sink));
    let cause = of_it.next()?.get_str(fields::CAUSE).unwrap_or("cause unknown");
    Some(cause.to_owned())
}

/// The record's destination and why it does not confirm, as the instance reports. (The partition of a
/// topic is unknown here.)
fn unconfirmed(
    owner: &PartitionOwner,
    sink: &str,
    plan: &Resolved,
    front: &Document,
) -> Option<String> {
    let raw = RawDocumentBuf::try_from(front).ok()?;
    let content = Record::read(&raw).content().ok()?;
    let Address { destination, key } =
        plan.router.address(&RouteInput::from(&content)).ok()?.address;
    let paused = owner.relay.as_ref()?.get_array(fields::DESTINATIONS_PAUSED).ok()?;
    let is = |paused: &Document, field: &str, name: Option<&str>| {
        paused.get_str(field).ok() == name.map(state_name).as_deref()
    };
    let mut its_own = paused.iter().filter_map(Bson::as_document).filter(|paused| {
        is(paused, fields::SINK, Some(sink))
            && is(paused, fields::DESTINATION, Some(&destination))
            && is(paused, fields::KEY, key.as_deref())
    });
    let cause = its_own.next()?.get_str(fields::CAUSE).unwrap_or("cause unknown");
    let key = key.map(|key| format!(" ({key:?})")).unwrap_or_default();
    Some(format!("{destination:?}{key}: {cause}"))
}

/// A record with why it waits, as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    record: StoredDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<&'a Explanation>,
}

fn print(
    record: &DecodedRecord,
    waiting: Option<&Explanation>,
    format: Format,
) -> Result<(), Failure> {
    match format {
        Format::Json => output::json(&Shown { record: json_view::decoded(record), waits: waiting }),
        Format::Table => {
            let row = |(name, value): (&String, &Bson)| match name.as_str() {
                "_id" => vec!["id".to_owned(), id(record)],
                _ => vec![name.clone(), output::cell(Some(value))],
            };
            let mut rows: Vec<Vec<String>> = record.document.iter().map(row).collect();
            let invalid = record.invalid.iter();
            rows.extend(invalid.map(|detail| vec!["invalid".to_owned(), detail.clone()]));
            if let Some(waiting) = waiting {
                rows.push(vec!["waits".to_owned(), waiting.detail.clone()]);
                let sink = waiting.sink.clone().unwrap_or_else(|| "(no route matches)".into());
                rows.push(vec!["sink".to_owned(), sink]);
            }
            output::table(&["field", "value"], &rows)
        }
    }
}
