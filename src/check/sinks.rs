//! Whether brokers are reached, and have the destinations that the configuration names.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use tokio::time::timeout;

use crate::check::finding::{Finding, PROBE_TIMEOUT};
use crate::config::Resolved;
use crate::ids::SinkName;
use crate::routing::{ConfiguredAddress, UnroutableRecords};
use crate::run;
use crate::sink::configured::ConfiguredSink;
use crate::sink::registry::AnySink;
use crate::sink::{Address, PublishError, PublishFailure, Sink, SinkDown};

/// All sinks side by side; none where nothing is relayed.
pub(super) async fn probe(plan: &Resolved) -> Vec<Finding> {
    if !plan.relay.enabled {
        return Vec::new();
    }
    let probing = plan.sinks.iter().map(|(name, sink)| probe_one(plan, name, sink));
    let found = join_all(probing).await.concat();
    unroutable(plan).into_iter().chain(found).collect()
}

/// Whether every record has a sink; `None` if it has.
fn unroutable(plan: &Resolved) -> Option<Finding> {
    match plan.router.unroutable() {
        UnroutableRecords::None => None,
        UnroutableRecords::Unmatched => Some(Finding::good(
            "routes",
            "a record whose type matches no route is dead at once, since relay.default_sink is \
             not set",
        )),
        UnroutableRecords::All => {
            let count = plan.sinks.len();
            Some(Finding::bad(
                "routes",
                format!(
                    "{count} sinks, no route to one of them, and relay.default_sink is not set: \
                     every record is dead at once"
                ),
                "set relay.default_sink, or add routes",
            ))
        }
    }
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

/// A destination that the configuration names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    /// It is the same for all records.
    Fixed(Address),
    /// It depends on the record.
    Template(String),
    /// At RabbitMQ: the queue that the routing key names, which depends on the record.
    DefaultExchange { routing_key: String },
}

impl Named {
    fn new(address: &ConfiguredAddress<'_>) -> Self {
        match (address.destination.literal(), address.key) {
            (None, _) => Self::Template(address.destination.to_string()),
            (Some(""), Some(key)) => match address.fixed_key() {
                Some(queue) => Self::Fixed(to(String::new(), Some(queue))),
                None => Self::DefaultExchange { routing_key: key.to_string() },
            },
            (Some(destination), _) => Self::Fixed(to(destination.to_owned(), None)),
        }
    }
}

fn to(destination: String, key: Option<String>) -> Address {
    Address { destination, key }
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
    let dead_letters = plan.relay.dead_letter.as_ref().filter(|dead| dead.sink == *name);
    let dead_letters = dead_letters.map(|dead| ConfiguredAddress {
        kind: None,
        destination: &dead.destination,
        key: None,
    });
    let named: BTreeSet<Named> =
        plan.router.addresses(name).chain(dead_letters).map(|it| Named::new(&it)).collect();
    let mut report = Vec::new();
    let mut missing = Vec::new();
    for named in &named {
        let address = match named {
            Named::Fixed(address) => address,
            Named::Template(template) => {
                report.push(format!("{template} depends on the record"));
                continue;
            }
            Named::DefaultExchange { routing_key } => {
                report.push(format!(
                    "no {kind} is set: a message goes to the queue of the name {routing_key}, and \
                     none of these queues is checked"
                ));
                continue;
            }
        };
        let shown = match (address.destination.as_str(), &address.key) {
            ("", Some(queue)) => format!("queue {queue:?}"),
            ("", None) => format!("the default {kind}"),
            (destination, _) => format!("{kind} {destination:?}"),
        };
        match sink.look_up(address).await {
            Ok(()) => report.push(format!("{shown} exists")),
            Err(PublishError { failure: PublishFailure::Retryable, .. })
                if configured.kind.declares(address) =>
            {
                report.push(format!("`run` creates {shown} (declare)"));
            }
            Err(PublishError { detail, .. }) => {
                // The sink may have named it.
                let cause = detail.strip_prefix(&format!("{shown}: ")).unwrap_or(&detail);
                missing.push(format!("{shown}: {cause}"));
            }
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
