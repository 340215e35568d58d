//! `postrider adopt`: the bridge from the outbox of another system.

use anyhow::Context as _;
use bson::{Bson, DateTime};
use clap::Args;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::adopt::bridge::{AdoptReport, Bridge};
use crate::adopt::mapping::Mapping;
use crate::adopt::old_relay;
use crate::adopt::presets::Preset;
use crate::adopt::source::StartPoint;
use crate::cli::global::{Failure, GlobalArgs, block_on};
use crate::cli::output::{self, Format, OutputArgs};
use crate::cli::run::Signals;
use crate::cli::store;
use crate::ids::RecordId;
use crate::json_view;
use crate::ops::{BlockedKeys, Health, HealthPart, OpsServer};
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
    /// The old relay does not run any longer, and will not
    #[arg(long)]
    old_relay_stopped: bool,
    /// Where to begin with documents without a status: now, a time (2026-01-31T12:00:00Z) or behind an _id
    #[arg(long, value_parser = start_of, value_name = "now|TIME|ID")]
    from: Option<StartPoint>,
    /// Begin at --from although a place in the change stream is stored
    #[arg(long)]
    forget_place: bool,
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
    if text == "now" {
        return Ok(StartPoint::Now);
    }
    if let Ok(time) = DateTime::parse_rfc3339_str(text) {
        return Ok(StartPoint::Time(time));
    }
    let id = RecordId::parse_candidates(text).into_iter().next();
    id.map(|id| StartPoint::Id(Bson::from(&id))).ok_or_else(|| "is no time and no id".to_owned())
}

pub(super) fn run(global: &GlobalArgs, options: &Options) -> Result<(), Failure> {
    let mut loaded = global.load()?;
    loaded.config.relay.enabled = false;
    loaded.config.api.enabled = false;
    let plan = crate::config::resolve(&loaded)?;
    let mapping = Mapping::new(options.preset, &loaded.config.adopt, &plan.database);
    let mapping = mapping
        .map_err(|errors| Failure::Usage(errors.iter().map(ToString::to_string).collect()))?;
    old_relay::check_collections(&mapping, &plan.database, &plan.prefix)
        .map_err(|error| Failure::Usage(vec![error.to_string()]))?;
    let runs_on = !options.once && !options.dry_run;
    if runs_on {
        let log = &loaded.config.log;
        telemetry::init(log.format.as_json(), &log.level)
            .map_err(|detail| Failure::Usage(vec![format!("log.level: {detail}")]))?;
    }
    let metrics = runs_on.then(telemetry::metrics::install).transpose();
    let metrics = metrics.context("failed to install the metrics")?;
    block_on(async {
        if options.dry_run {
            let client = connect::client(&plan.mongo).await.context("cannot use mongo.uri")?;
            let outbox = Collections::new(client, &plan.database, &plan.prefix);
            let report = Bridge::new(outbox, mapping).dry_run(options.from.as_ref()).await;
            return show(
                &report.context("the other outbox cannot be read")?,
                true,
                options.output.output,
            );
        }
        let outbox = store::outbox(&plan).await?;
        let stopped =
            old_relay::check_stopped(outbox.client(), &mapping, options.old_relay_stopped).await;
        let stopped = stopped.context("the old relay cannot be examined")?;
        stopped.map_err(|error| Failure::Failed(error.into()))?;
        let bridge = Bridge::new(outbox, mapping);
        let from = options.from.as_ref();
        let Some(metrics) = metrics else {
            let report = bridge.once(from).await.context("the bridge failed")?;
            return show(&report, false, options.output.output);
        };
        let stop = CancellationToken::new();
        let signals = Signals::listen().context("failed to listen for signals")?;
        tokio::spawn(signals.watch(stop.clone()));
        let ops = OpsServer::bind(&plan.ops_listen).await.map_err(anyhow::Error::from)?;
        info!(address = %ops.address(), "serving /livez, /readyz and /metrics");
        let health = Health::default();
        health.set("store", HealthPart::ok());
        let serving = ops.serve(health, metrics, BlockedKeys::default());
        tokio::select! {
            ended = bridge.run(from, options.forget_place, &stop) => {
                show(&ended.context("the bridge ended")?, false, options.output.output)
            }
            _ = serving => Err(Failure::Failed(anyhow::anyhow!("the ops server ended"))),
        }
    })
}

fn show(report: &AdoptReport, is_dry: bool, format: Format) -> Result<(), Failure> {
    let left: serde_json::Map<String, Value> = report
        .left
        .iter()
        .map(|(reason, count)| (reason.label().to_owned(), (*count).into()))
        .collect();
    let listed: Vec<Value> = report
        .listed
        .iter()
        .map(|one| json!({ "id": one.id, "reason": one.reason.label(), "detail": one.detail }))
        .collect();
    if let Format::Json = format {
        let mut shown = json!({ "copied": report.copied, "left": left, "documents": listed });
        if is_dry {
            let sample = report.sample.iter().map(|it| json_view::record(it));
            shown["sample"] = sample.collect();
        }
        return output::json(&shown);
    }
    let copied = if is_dry { "would be copied" } else { "copied" };
    let mut rows = vec![vec![copied.to_owned(), report.copied.to_string(), String::new()]];
    for one in &report.listed {
        rows.push(vec![one.reason.label().to_owned(), one.id.clone(), one.detail.clone()]);
    }
    output::table(&["what", "document", "detail"], &rows)
}
