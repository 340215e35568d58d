//! Whether brokers are reached, and have the destinations that the configuration names.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tokio::time::timeout;

use crate::check::finding::{Finding, PROBE_TIMEOUT};
use crate::config::Resolved;
use crate::ids::SinkName;
use crate::routing::Template;
use crate::run;
use crate::sink::configured::ConfiguredSink;
use crate::sink::registry::AnySink;
use crate::sink::{PublishError, PublishFailure, Sink, SinkDown};

/// All sinks side by side; none where nothing is relayed.
pub(super) async fn probe(plan: &Resolved) -> Vec<Finding> {
    if !plan.relay.enabled {
        return Vec::new();
    }
    let probing = plan.sinks.iter().map(|(name, sink)| probe_one(plan, name, sink));
    join_all(probing).await.concat()
}

async fn probe_one(plan: &Resolved, name: &SinkName, configured: &ConfiguredSink) -> Vec<Finding> {
    let part = format!("sink {name}");
    let sink = match run::build(name, &configured.for_check(PROBE_TIMEOUT)) {
        Ok(sink) => sink,
        Err(error) => {
            return vec![Finding::bad(part, error.to_string(), format!("correct sinks.{name}"))];
        }
    };
    let findings = async {
        let found = match sink.check().await {
            Ok(found) => found,
            Err(down) => {
                let remedy = remedy(name, configured, &down);
                return unreached(&part, configured, down.cause(), remedy);
            }
        };
        let mut findings = vec![Finding::good(part.as_str(), found)];
        findings.extend(destinations(plan, name, configured, &sink).await);
        findings
    };
    let findings = timeout(PROBE_TIMEOUT * 2, findings).await.unwrap_or_else(|_| {
        let down = SinkDown::new(format!("no response within {:?}", PROBE_TIMEOUT * 2));
        unreached(&part, configured, down.cause(), remedy(name, configured, &down))
    });
    // It may have stopped answering; the process ends soon.
    let _ = timeout(PROBE_TIMEOUT, sink.close()).await;
    findings
}

/// The finding of a sink that is down; its destinations are skipped.
fn unreached(
    part: &str,
    configured: &ConfiguredSink,
    cause: impl Into<String>,
    remedy: String,
) -> Vec<Finding> {
    let why = format!("since {part} was not reached");
    let destinations = configured.kind.destination();
    let skipped = destinations.map(|_| Finding::skipped(format!("{part} destinations"), why));
    std::iter::once(Finding::bad(part, cause, remedy)).chain(skipped).collect()
}

fn remedy(name: &SinkName, configured: &ConfiguredSink, down: &SinkDown) -> String {
    let help = configured.kind.connection_help();
    format!("{} (sinks.{name}: {})", down.remedy().unwrap_or(help.remedy), help.keys)
}

/// Looks for every destination that is the same for all records. What records name themselves,
/// and templates, depend on the record.
async fn destinations(
    plan: &Resolved,
    name: &SinkName,
    configured: &ConfiguredSink,
    sink: &AnySink,
) -> Option<Finding> {
    let kind = configured.kind.destination()?;
    let declared = configured.kind.declared();
    let dead_letters = plan.relay.dead_letter.as_ref().filter(|dead| dead.sink == *name);
    let dead_letters = dead_letters.map(|dead| &dead.destination);
    let named: BTreeMap<String, &Template> = plan
        .router
        .destinations(name)
        .chain(dead_letters)
        .map(|template| (template.to_string(), template))
        .collect();
    let mut report = Vec::new();
    let mut missing = Vec::new();
    for (text, template) in &named {
        let Some(destination) = template.literal() else {
            report.push(format!("{text} depends on the record"));
            continue;
        };
        let shown = match destination {
            "" => format!("the default {kind}"),
            destination => format!("{kind} {destination:?}"),
        };
        match sink.look_up(destination).await {
            Ok(()) => report.push(format!("{shown} exists")),
            Err(PublishError { failure: PublishFailure::Retryable, .. })
                if declared.contains(&destination) =>
            {
                report.push(format!("`run` creates {shown} (declare)"));
            }
            Err(error) => missing.push(format!("{shown}: {error}")),
        }
    }
    let part = format!("sink {name} destinations");
    Some(if missing.is_empty() {
        Finding::good(part, report.join("; "))
    } else {
        Finding::bad(
            part,
            missing.join("; "),
            format!(
                "create it, list it in sinks.{name}.declare, or change the destination in the \
                 configuration (sinks.{name}, routes, relay.dead_letter)"
            ),
        )
    })
}
