//! `postrider run`: builds every part, supervises them, and ends them in good order.
//!
//! ```text
//! ops server, API → sinks → MongoDB (waits) → context → schema → heartbeat → partitions → relay ← follower
//!                                                                                               start
//! signal → stop taking → settle or release what is in flight → let go of partitions
//!        → sign off                                                                           stop
//! ```
//!
//! A part that ends on its own ends the process with failure.

mod error;
mod guarding;
mod health;
mod instance;
mod pushing;
mod startup;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::try_join;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::change_stream::Follower;
use crate::config::Resolved;
use crate::descriptors::{self, DescriptorBudget};
use crate::events::metrics::{AppendMetrics, ErasureMetrics};
use crate::http::{Api, ApiServer};
use crate::ids::{InstanceId, SinkName};
use crate::listener::Drained;
use crate::ops::{BlockedKeys, Health, HealthPart, OpsServer, survey};
use crate::outbox::inspect::Inspector;
use crate::partition::heartbeat::Heartbeat;
use crate::partition::metrics::store_up;
use crate::partition::names::WantedName;
use crate::partition::owned;
use crate::relay::Relay;
use crate::relay::metrics::RelayMetrics;
use crate::relay::report::RelayReport;
use crate::run::health::{
    watch_change_stream, watch_draining, watch_feed, watch_partitions, watch_pools, watch_relay,
    watch_sinks, watch_store,
};
use crate::run::instance::{
    Instance, RelayComponents, SHUTDOWN_GRACE, until_broken, until_replaced,
};
use crate::run::startup::prepare;
use crate::sink::configured::ConfiguredSink;
use crate::sink::registry::AnySink;

pub use error::RunError;

/// Name of a part, for the error when it ends on its own.
const LANE: &str = "a lane of the event store";

/// Name of a part, for the error when it ends on its own.
const SEQUENCER: &str = "the sequencer of the feed";

/// Name of a part, for the error when it ends on its own.
const PUSHER: &str = "the pusher of subscriptions";

/// Name of a part, for the error when it ends on its own.
const GUARD: &str = "the search for settings that lose documents";

/// Interval of histogram upkeep if no client scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Runs until `stop`, then shuts down in order. A relay takes the name `name`.
///
/// # Errors
///
/// [`RunError`]: a failed start, a shutdown that took too long, or a part that ended.
pub async fn run(
    mut plan: Resolved,
    name: WantedName,
    metrics: PrometheusHandle,
    stop: CancellationToken,
) -> Result<(), RunError> {
    for warning in &plan.warnings {
        warn!("{warning}");
    }
    let budget = divide_descriptors(&mut plan);
    let health = Health::default();
    health.set("store", HealthPart::down("not connected to MongoDB yet"));
    let ops = OpsServer::bind(&plan.ops_listen).await?;
    info!(address = %ops.address(), "serving /livez, /readyz, /metrics and /blocked-keys");
    let blocked = BlockedKeys::default();
    let connections = budget.ops_connections();
    let serving = ops.serve(connections, health.clone(), metrics.clone(), blocked.clone());
    let api = match &plan.api {
        Some((api, tokens)) => {
            let readers = plan.feed.as_ref().map_or(0, |feed| feed.max_readers);
            Some(ApiServer::bind(api, tokens.clone(), readers, stop.clone()).await?)
        }
        None => None,
    };
    if let Some(api) = &api {
        info!(address = %api.address(), tls = api.is_secure(), "serving the HTTP API");
    }
    let opened = api.as_ref().map(ApiServer::state);
    let working = async {
        let answering = serve_api(api, &health, plan.relay.shutdown_timeout);
        // Both end at the stop; a failure of either ends both at once.
        match try_join(work(&plan, &name, &health, &blocked, opened, &stop), answering).await? {
            ((), Drained::Whole) => Ok(()),
            ((), Drained::Cut(connections)) => Err(RunError::Cut(connections)),
        }
    };
    tokio::select! {
        ended = working => ended,
        () = serving => Err(RunError::Uninvited("the ops server")),
        () = keep_histograms(&metrics) => Err(RunError::Uninvited("the upkeep of metrics")),
    }
}

/// Raises the limit of file descriptors, and lowers the limits of the listeners if that is not enough.
fn divide_descriptors(plan: &mut Resolved) -> DescriptorBudget {
    let budget = DescriptorBudget::new(plan, descriptors::raise());
    if !budget.is_enough() {
        warn!(remedy = budget.remedy(), "{budget}");
    }
    if let Some((api, _)) = &mut plan.api {
        api.max_connections = budget.api_connections();
    }
    budget
}

/// Serves the API until the stop, then waits up to `grace` for its requests and its appends.
async fn serve_api(
    api: Option<ApiServer>,
    health: &Health,
    grace: Duration,
) -> Result<Drained, RunError> {
    let Some(api) = api else { return Ok(Drained::Whole) };
    let state = api.state();
    let drained = api.serve(health, grace).await;
    if let Some(events) = state.events() {
        // For a client that did not wait for its response.
        let _ = tokio::time::timeout(grace, events.close()).await;
    }
    Ok(drained)
}

async fn keep_histograms(metrics: &PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP_INTERVAL).await;
        metrics.run_upkeep();
    }
}

/// The life of an instance: waits for MongoDB, announces itself, works until the stop or until a part
/// ends, and signs off.
async fn work(
    plan: &Resolved,
    name: &WantedName,
    health: &Health,
    blocked: &BlockedKeys,
    api: Option<Api>,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    let id = InstanceId::fresh();
    report_start(plan, id);
    // Their series exist even while MongoDB is unreachable.
    let sinks = if plan.relay.enabled { sinks(plan)? } else { BTreeMap::new() };
    // All checks that can fail are complete before this instance announces itself.
    let prepared = tokio::select! {
        prepared = prepare(plan, id, name, health) => prepared?,
        () = stop.cancelled() => return Ok(()),
    };
    let instance = Instance::start(plan, id, prepared, health, stop);
    watch_store(health, instance.heartbeat.pulse());
    watch_pools(health);
    if let Some(status) = &instance.sequencing.status {
        watch_feed(health, status.clone());
    }
    if let Some(api) = api {
        api.open(instance.services(plan));
    }
    if plan.relay.enabled {
        relay(plan, instance, sinks, health, blocked, stop).await
    } else {
        serve_only(instance, stop).await
    }
}

/// Logs the start, and registers the series: they exist even while MongoDB is unreachable.
fn report_start(plan: &Resolved, id: InstanceId) {
    info!(
        instance = %id,
        version = env!("CARGO_PKG_VERSION"),
        mongo = %plan.mongo,
        database = plan.database,
        prefix = plan.prefix,
        sinks = ?plan.sinks.keys().map(|name| name.as_str()).collect::<Vec<_>>(),
        partitions = plan.profile.partitions,
        "starting"
    );
    if plan.relay.enabled {
        RelayMetrics::new(plan.sinks.keys().map(SinkName::as_str));
    }
    if plan.events_enabled {
        AppendMetrics::new();
        ErasureMetrics::new();
    }
    store_up(false);
}

/// Lives without a relay: for the API alone.
async fn serve_only(mut instance: Instance, stop: &CancellationToken) -> Result<(), RunError> {
    info!("relay.enabled = false: this instance relays no records");
    let ended = tokio::select! {
        () = stop.cancelled() => Ok(()),
        _ = &mut instance.beating => Err(RunError::Uninvited("the heartbeat")),
        () = until_broken(instance.events.as_ref()) => Err(RunError::Uninvited(LANE)),
        () = instance.sequencing.ended() => Err(RunError::Uninvited(SEQUENCER)),
        _ = &mut instance.erasing => Err(RunError::Uninvited("the eraser of streams")),
        () = instance.pushing.ended() => Err(RunError::Uninvited(PUSHER)),
        _ = &mut instance.guarding => Err(RunError::Uninvited(GUARD)),
    };
    // (No records are drained: there is time.)
    instance.leave(Instant::now() + SHUTDOWN_GRACE).await;
    ended
}

/// Relays until the stop or until a part ends, then ends the parts in order.
async fn relay(
    plan: &Resolved,
    mut instance: Instance,
    sinks: BTreeMap<String, AnySink>,
    health: &Health,
    blocked: &BlockedKeys,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    let RelayComponents { relay, follower, coordinator, assigned, suspension, owned } =
        RelayComponents::new(plan, &instance, sinks, stop);
    watch_relay(health, instance.heartbeat.pulse(), &relay);
    report(&relay, blocked, &instance.heartbeat);
    watch_partitions(health, coordinator.status());
    let drained = CancellationToken::new();
    let mut coordinating =
        tokio::spawn(instance.coordinate(coordinator, stop.clone(), drained.clone()));
    watch_sinks(health, plan.sinks.keys(), &relay);
    watch_draining(health, stop);
    let inspector = Inspector::new(instance.collections.clone());
    let counting = survey(inspector, instance.heartbeat.pulse(), assigned.clone());
    let stale_after = plan.partitions.stale_after;
    let keeping =
        owned::keep_updated(assigned, &instance.heartbeat, &suspension, stale_after, owned);
    let ended = tokio::select! {
        ended = relay.run() => ended.map_err(RunError::from),
        _ = &mut instance.beating => Err(RunError::Uninvited("the heartbeat")),
        _ = &mut coordinating => Err(RunError::Uninvited("the assignment of partitions")),
        replaced = until_replaced(&mut instance.name_keeper) => Err(RunError::Replaced(replaced)),
        () = until_broken(instance.events.as_ref()) => Err(RunError::Uninvited(LANE)),
        () = instance.sequencing.ended() => Err(RunError::Uninvited(SEQUENCER)),
        _ = &mut instance.erasing => Err(RunError::Uninvited("the eraser of streams")),
        () = instance.pushing.ended() => Err(RunError::Uninvited(PUSHER)),
        _ = &mut instance.guarding => Err(RunError::Uninvited(GUARD)),
        () = keeping => Err(RunError::Uninvited("the refresh of owned partitions")),
        () = counting => Err(RunError::Uninvited("the survey of the outbox")),
        () = follow(follower, health, stop) => {
            Err(RunError::Uninvited("the follower of the change stream"))
        }
    };
    if let Err(RunError::Replaced(_)) = &ended {
        // Other instances must not wait until it is stale.
        instance.leave(Instant::now()).await;
    } else if stop.is_cancelled() {
        drained.cancel();
        // It logs its own failures.
        let _ = coordinating.await;
        instance.sign_off().await;
    }
    if ended.is_ok() {
        info!("stopped; all records in flight were settled or released");
    }
    ended
}

/// Gives the relay's report to `/blocked-keys` and to the heartbeat.
fn report(relay: &Relay<AnySink>, blocked: &BlockedKeys, heartbeat: &Heartbeat) {
    let context = relay.context();
    blocked.set(move |key, limit| RelayReport::new(&context).blocked_keys(key, limit));
    let context = relay.context();
    heartbeat.report_state(move || RelayReport::new(&context).state());
}

/// Follows the change stream; never returns without a follower.
async fn follow(follower: Option<Follower>, health: &Health, stop: &CancellationToken) {
    let Some(follower) = follower else { return std::future::pending().await };
    watch_change_stream(health, follower.status());
    // A task: what wakes the relay must not wait for it.
    let following = tokio::spawn(follower.run(stop.clone()));
    let _ = following.await;
}

/// Builds the sinks by name.
fn sinks(plan: &Resolved) -> Result<BTreeMap<String, AnySink>, RunError> {
    let built = plan.sinks.iter().map(|(name, sink)| Ok((name.to_string(), build(name, sink)?)));
    built.collect()
}

/// Builds one sink, without contacting the broker.
///
/// # Errors
///
/// [`RunError::Sink`].
pub fn build(name: &SinkName, sink: &ConfiguredSink) -> Result<AnySink, RunError> {
    let wrong = |detail: String| RunError::Sink { name: name.to_string(), detail };
    sink.build(name).map_err(wrong)
}
