//! `postrider adopt`: the bridge from the outbox of another system.

use std::sync::Arc;

use anyhow::Context as _;
use bson::DateTime;
use clap::Args;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::adopt::bridge::Bridge;
use crate::adopt::mapping::Mapping;
use crate::adopt::old_relay;
use crate::adopt::presets::Preset;
use crate::adopt::report::AdoptReport;
use crate::adopt::source::StartPoint;
use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output::{self, Format, OutputArgs};
use crate::cli::run::Signals;
use crate::cli::store;
use crate::config::{ConfigProblem, Resolved};
use crate::descriptors;
use crate::ids::RecordId;
use crate::json_view::{self, StoredDocument};
use crate::ops::{BlockedKeys, Health, HealthPart, MAX_CONNECTIONS, OpsServer};
use crate::outbox::collections::Collections;
use crate::store::connect;
use crate::telemetry;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The shape of the old outbox; `fields`: all of it is in [adopt.fields]
    #[arg(long, value_parser = preset_of, value_name = "debezium|namastack|cap|go-article|fields")]
    preset: Preset,
    /// Show what would be copied, and write nothing
    #[arg(long, conflicts_with = "once")]
    dry_run: bool,
    /// Copy what is there, and end
    #[arg(long)]
    once: bool,
    /// The old relay is stopped, and stays so: else both relays send every message
    #[arg(long)]
    old_relay_stopped: bool,
    /// Where to begin, for documents without a status: with what is inserted from now on, or since a time
    /// (2026-01-31T12:00:00Z), or after the document with this _id
    #[arg(long, value_parser = start_of, value_name = "now|TIME|ID", allow_hyphen_values = true)]
    from: Option<StartPoint>,
    /// Ignore the stored resume token: start again at --from, or with a scan
    #[arg(long, conflicts_with_all = ["once", "dry_run"])]
    restart: bool,
    #[command(flatten)]
    output: OutputArgs,
}

fn preset_of(name: &str) -> Result<Preset, String> {
    let found = Preset::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, preset)| *preset).ok_or_else(|| {
        let names: Vec<&str> = Preset::ALL.iter().map(|(name, _)| *name).collect();
        format!("unknown preset; there is {}", names.join(", "))
    })
}

fn start_of(text: &str) -> Result<StartPoint, String> {
    if text.eq_ignore_ascii_case("now") {
        return Ok(StartPoint::Now);
    }
    if let Ok(time) = DateTime::parse_rfc3339_str(text) {
        return Ok(StartPoint::Time(time));
    }
    if RecordId::parse_candidates(text).is_empty() || text.is_empty() {
        return Err(
            "is neither now, nor a time, nor an _id; ids are written as `outbox list` shows them"
                .to_owned(),
        );
    }
    Ok(StartPoint::Id(text.to_owned()))
}

pub(super) fn run(global: &GlobalArgs, options: &Options) -> Result<(), Failure> {
    let mut loaded = global.load()?;
    loaded.config.relay.enabled = false;
    loaded.config.api.enabled = false;
    let plan = crate::config::resolve(&loaded)?;
    let mapping = Mapping::new(options.preset, &loaded.config.adopt, &plan.database);
    let mapping = mapping.map_err(|violations| {
        let located = |violation| loaded.located(ConfigProblem::from(violation));
        Failure::from(violations.into_iter().map(located).collect::<Vec<_>>())
    })?;
    old_relay::check_collections(&mapping, &plan.database, &plan.prefix)
        .map_err(|violation| Failure::from(vec![loaded.located(violation.into())]))?;
    if options.from.is_some() && mapping.has_state() {
        let detail = "--from: has no effect, because the documents have a status, which shows what must be copied; remove \
                      --from";
        return Err(Failure::Usage(vec![detail.to_owned()]));
    }
    if options.dry_run {
        return block_on(dry_run(&plan, mapping, options));
    }
    if options.once {
        return block_on(copy_once(&plan, mapping, options));
    }
    let log = &loaded.config.log;
    telemetry::init(log.format.as_json(), &log.level)
        .map_err(|detail| Failure::Usage(vec![format!("log.level: {detail}")]))?;
    let metrics = telemetry::metrics::install().context("failed to install the metrics")?;
    block_on(run_on(&plan, mapping, options, metrics))
}

async fn dry_run(plan: &Resolved, mapping: Mapping, options: &Options) -> Result<(), Failure> {
    let client = connect::client(&plan.mongo).await.context("cannot use mongo.uri")?;
    let outbox = Collections::new(client, &plan.database, &plan.prefix);
    let bridge = opened(outbox, mapping).await?;
    let report = bridge.dry_run(options.from.as_ref()).await;
    let report = report.context("failed to read the other outbox")?;
    let sample = report.sample.iter().map(json_view::record).collect();
    show(&report, "would be copied", Some(sample), options)
}

async fn copy_once(plan: &Resolved, mapping: Mapping, options: &Options) -> Result<(), Failure> {
    let (bridge, stop) = started(plan, mapping, options).await?;
    let report = bridge.once(options.from.as_ref(), &stop).await;
    let report = report.context("failed to copy the other outbox")?;
    show(&report, "copied", None, options)?;
    let detail = match report.left {
        _ if report.is_partial => {
            "stopped before the end; start it again to copy the rest".to_owned()
        }
        0 => return Ok(()),
        left => format!(
            "{left} documents arrived during the copy and were left; start it again, or without --once"
        ),
    };
    Err(Failure::Failed(anyhow::Error::msg(detail)))
}

async fn run_on(
    plan: &Resolved,
    mapping: Mapping,
    options: &Options,
    metrics: PrometheusHandle,
) -> Result<(), Failure> {
    let (bridge, stop) = started(plan, mapping, options).await?;
    let bridge = Arc::new(bridge);
    descriptors::raise();
    let ops = OpsServer::bind(&plan.ops_listen).await.map_err(anyhow::Error::from)?;
    info!(address = %ops.address(), "serving /livez, /readyz and /metrics");
    let health = Health::default();
    let watched = bridge.clone();
    health.watch("adopt", move || match watched.trouble() {
        None => HealthPart::ok(),
        Some(trouble) => HealthPart::degraded(trouble),
    });
    tokio::select! {
        ended = bridge.run(options.from.as_ref(), options.restart, &stop) => {
            show(&ended.context("the bridge ended")?, "copied", None, options)
        }
        () = ops.serve(MAX_CONNECTIONS, health, metrics, BlockedKeys::default()) => {
            Err(Failure::Failed(anyhow::Error::msg("the ops server ended")))
        }
    }
}

/// The bridge that may copy, and the token that a signal cancels.
async fn started(
    plan: &Resolved,
    mapping: Mapping,
    options: &Options,
) -> Result<(Bridge, CancellationToken), Failure> {
    let outbox = store::outbox(plan).await?;
    let stopped = old_relay::check_stopped(outbox.client(), &mapping, options.old_relay_stopped);
    let stopped = stopped.await.context("failed to examine the old relay")?;
    stopped.map_err(|error| Failure::Failed(error.into()))?;
    let bridge = opened(outbox, mapping).await?;
    let stop = CancellationToken::new();
    let signals = Signals::listen().context("failed to listen for signals")?;
    tokio::spawn(signals.watch(stop.clone()));
    Ok((bridge, stop))
}

/// The bridge, if its source exists: with a wrong name it would copy nothing, without a word.
async fn opened(outbox: Collections, mapping: Mapping) -> Result<Bridge, Failure> {
    let bridge = Bridge::new(outbox, mapping);
    let checked = bridge.check_source().await.context("failed to read the other outbox")?;
    checked.map_err(|error| Failure::Failed(error.into()))?;
    Ok(bridge)
}

/// Prints the report; `copied` says what became of the documents that are not skipped.
/// What a bridge has copied, as JSON.
#[derive(Serialize)]
struct Shown {
    copied: u64,
    skipped: serde_json::Map<String, Value>,
    documents: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<Vec<StoredDocument>>,
}

fn show(
    report: &AdoptReport,
    copied: &str,
    sample: Option<Vec<StoredDocument>>,
    options: &Options,
) -> Result<(), Failure> {
    let skipped: serde_json::Map<String, Value> = report
        .skipped
        .iter()
        .map(|(reason, count)| (reason.label().to_owned(), (*count).into()))
        .collect();
    let listed: Vec<Value> = report
        .listed
        .iter()
        .map(|one| json!({ "id": one.id, "reason": one.reason.label(), "detail": one.detail }))
        .collect();
    if let Format::Json = options.output.output {
        return output::json(&Shown { copied: report.copied, skipped, documents: listed, sample });
    }
    let mut rows = vec![vec![copied.to_owned(), report.copied.to_string(), String::new()]];
    for one in &report.listed {
        rows.push(vec![one.reason.label().to_owned(), one.id.clone(), one.detail.clone()]);
    }
    output::table(&["what", "document", "detail"], &rows)
}
