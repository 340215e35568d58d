//! `postrider run`: builds every part, supervises them, and ends them in good order.
//!
//! ```text
//! ops server, API → MongoDB (waits) → context → schema → sinks → heartbeat → partitions → relay ← follower
//!                                                                                               start
//! signal → stop taking → settle or release what is in flight → let go of partitions
//!        → sign off                                                                           stop
//! ```
//!
//! A part that ends on its own ends the process with failure.

mod error;
mod health;
mod startup;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::try_join;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, error, info, warn};

use crate::change_stream::Follower;
use crate::config::Resolved;
use crate::context::Context;
use crate::events::EventStore;
use crate::events::metrics::AppendMetrics;
use crate::http::{Api, ApiServer, Drained, Services};
use crate::ids::{InstanceId, SinkName};
use crate::ops::{BlockedKeys, Health, HealthPart, OpsServer, survey};
use crate::outbox::collections::Collections;
use crate::outbox::inspect::Inspector;
use crate::outbox::lease::OwnerId;
use crate::partition::coordinator::Coordinator;
use crate::partition::fleet::Fleet;
use crate::partition::heartbeat::{Heartbeat, InstanceInfo, Pulse};
use crate::partition::metrics::store_up;
use crate::partition::names::{self, HeldName, Replaced, WantedName};
use crate::partition::owned::{self, AssignedPartitions, OwnedPartitions};
use crate::partition::suspension::SuspensionDetector;
use crate::relay::metrics::RelayMetrics;
use crate::relay::report::RelayReport;
use crate::relay::{Relay, RelayParts};
use crate::run::health::{confirming, watch_following, watch_partitions, watch_relay, watch_store};
use crate::run::startup::{until_guarded, until_named, until_reached, until_schema};
use crate::sink::configured::ConfiguredSink;
use crate::sink::registry::AnySink;
use crate::store::connect;
use crate::telemetry::chain;
use crate::wakeup::Wakeup;

pub use error::RunError;

/// Name of a part, for the error when it ends on its own.
const LANE: &str = "a lane of the event store";

/// Interval of histogram upkeep if no client scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Runs until `stop`, then shuts down in order. A relay takes the name `name`.
///
/// # Errors
///
/// [`RunError`]: a failed start, a shutdown that took too long, or a part that ended.
pub async fn run(
    plan: Resolved,
    name: WantedName,
    metrics: PrometheusHandle,
    stop: CancellationToken,
) -> Result<(), RunError> {
    for warning in &plan.warnings {
        warn!("{warning}");
    }
    let health = Health::default();
    health.set("store", HealthPart::down("MongoDB was not reached yet"));
    let ops = OpsServer::bind(&plan.ops_listen).await?;
    info!(address = %ops.address(), "serving /livez, /readyz, /metrics and /blocked-keys");
    let blocked = BlockedKeys::default();
    let serving = ops.serve(health.clone(), metrics.clone(), blocked.clone());
    let api = match &plan.api {
        Some((api, tokens)) => Some(ApiServer::bind(api, tokens.clone(), stop.clone()).await?),
        None => None,
    };
    if let Some(api) = &api {
        info!(address = %api.address(), tls = api.is_secure(), "serving the HTTP API");
    }
    let opened = api.as_ref().map(ApiServer::state);
    let answering = async {
        let Some(api) = api else { return Ok(Drained::Whole) };
        let (state, patience) = (api.state(), plan.relay.shutdown_timeout);
        let drained = api.serve(&health, patience).await;
        if let Some(events) = state.events() {
            // For a client that did not wait for its response.
            let _ = tokio::time::timeout(patience, events.close()).await;
        }
        Ok(drained)
    };
    let working = async {
        // Both end at the stop; a failure of either ends both at once.
        match try_join(work(&plan, &name, &health, &blocked, opened, &stop), answering).await? {
            ((), Drained::Whole) => Ok(()),
            ((), Drained::Cut(connections)) => Err(RunError::Cut(connections)),
        }
    };
    let upkeep = async {
        loop {
            tokio::time::sleep(UPKEEP_INTERVAL).await;
            metrics.run_upkeep();
        }
    };
    tokio::select! {
        ended = working => ended,
        ended = serving => {
            if let Err(error) = ended {
                error!(error = chain(&error), "the ops server failed");
            }
            Err(RunError::Uninvited("the ops server"))
        }
        () = upkeep => Err(RunError::Uninvited("the upkeep of metrics")),
    }
}

async fn work(
    plan: &Resolved,
    name: &WantedName,
    health: &Health,
    blocked: &BlockedKeys,
    api: Option<Api>,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    let instance = InstanceId::fresh();
    info!(
        %instance,
        version = env!("CARGO_PKG_VERSION"),
        mongo = %plan.mongo,
        database = plan.database,
        prefix = plan.prefix,
        sinks = ?plan.sinks.keys().map(|name| name.as_str()).collect::<Vec<_>>(),
        partitions = plan.profile.partitions,
        "starting"
    );
    if plan.relay.enabled {
        // Counters exist from the start, even while MongoDB is unreachable.
        RelayMetrics::new(plan.sinks.keys().map(SinkName::as_str));
    }
    if plan.events_enabled {
        AppendMetrics::new();
    }
    store_up(false);
    let starting = async {
        let collections = until_reached(plan, health).await?;
        let context = Context::new(collections.client().clone(), plan.context.clone());
        if plan.events_enabled {
            until_guarded(plan, &context, health).await?;
        }
        until_schema(plan, &collections, health).await?;
        // A separate client: slow reads of the API must not delay heartbeats and leases.
        let own = connect::relay_client(&plan.mongo).await.map_err(RunError::Mongo)?;
        let protocol = collections.through(own);
        let held =
            if plan.relay.enabled { until_named(&protocol, instance, name).await? } else { None };
        Ok::<_, RunError>((collections, protocol, context, held))
    };
    let (collections, protocol, context, held) = tokio::select! {
        started = starting => started?,
        () = stop.cancelled() => return Ok(()),
    };
    // All checks that can fail are complete before this instance announces itself.
    let sinks = if plan.relay.enabled { sinks(plan)? } else { BTreeMap::new() };
    let wake = Wakeup::default();
    let events = plan
        .events_enabled
        .then(|| EventStore::with_wakeup(context, collections.clone(), wake.clone()));
    let broken = async {
        match &events {
            Some(events) => events.broken().await,
            None => std::future::pending().await,
        }
    };
    let mut broken = std::pin::pin!(broken);
    let (name, predecessor) = match held {
        Some(HeldName { name, predecessor }) => (Some(name), predecessor),
        None => (None, None),
    };
    let keeper = name.clone().map(|name| {
        let keeping = names::answer_questions(protocol.clone(), name, instance);
        // A task: new instances must not wait for other work of this process.
        AbortOnDropHandle::new(tokio::spawn(keeping))
    });
    let mut keeping_name = std::pin::pin!(kept(keeper));
    let owner = OwnerId::new(instance);
    let profile = InstanceInfo { name: name.clone(), ..plan.profile.clone() };
    let heartbeat = Heartbeat::new(
        protocol.clone(),
        instance,
        owner.clone(),
        profile,
        plan.partitions.heartbeat,
    );
    let mut beating = tokio::spawn(heartbeat.clone().run(stop.clone()));
    let deadline = tokio::spawn(deadline(stop.clone(), plan.relay.shutdown_timeout));
    watch_store(health, heartbeat.pulse());
    if let Some(api) = api {
        api.open(Services {
            collections: collections.clone(),
            fleet: Fleet::new(collections.clone(), plan.partitions.stale_after),
            events: events.clone(),
            wake: plan.relay.enabled.then(|| wake.clone()),
        });
    }
    if !plan.relay.enabled {
        info!("relay.enabled = false: nothing is relayed");
        let ended = tokio::select! {
            () = stop.cancelled() => Ok(()),
            _ = beating => Err(RunError::Uninvited("the heartbeat")),
            () = &mut broken => Err(RunError::Uninvited(LANE)),
        };
        // (No records are drained: there is time.)
        sign_off(&heartbeat, None, Instant::now() + SHUTDOWN_GRACE).await;
        return ended;
    }
    let (owned_sender, owned) = watch::channel(OwnedPartitions::default());
    let follower = || Follower::new(protocol.clone(), wake.clone());
    let follower = plan.relay.follow.then(follower);
    let suspension = SuspensionDetector::new();
    let parts = RelayParts {
        settings: plan.relay.clone(),
        collections: protocol.clone(),
        owner,
        router: plan.router.clone(),
        sinks,
        owned,
        wakeup: wake,
        delete_done: plan.schema.retention.is_zero(),
        suspension: suspension.clone(),
        predecessor,
    };
    let relay = Relay::new(parts, stop.clone());
    watch_relay(health, heartbeat.pulse(), &relay);
    let fleet = Fleet::new(protocol.clone(), plan.partitions.stale_after);
    let (assigned, partitions) = watch::channel(AssignedPartitions::default());
    let context = relay.context();
    blocked.set(move |key, limit| RelayReport::new(&context).blocked_keys(key, limit));
    let context = relay.context();
    heartbeat.report_state(move || RelayReport::new(&context).state());
    let context = relay.context();
    let in_flight = move || context.state.key_table.partitions_in_flight();
    let coordinator = Coordinator::new(
        fleet,
        instance,
        plan.partitions.clone(),
        heartbeat.clone(),
        assigned,
        in_flight,
    );
    watch_partitions(health, coordinator.status());
    let drained = CancellationToken::new();
    let (beats, stopping, ending) = (heartbeat.clone(), stop.clone(), drained.clone());
    let replacing = name.clone().map(|name| (protocol.clone(), name));
    let mut coordinating = tokio::spawn(async move {
        // Other instances see this one before its predecessor is gone, so that none claims the
        // partitions between the two.
        if let Some((collections, name)) = replacing {
            tokio::select! {
                () = remove_predecessors(&collections, &name, instance, &beats) => {}
                () = stopping.cancelled() => {}
            }
        }
        coordinator.run(stopping, ending).await
    });
    let stale_after = plan.partitions.stale_after;
    let keeping =
        owned::keep_updated(partitions.clone(), &heartbeat, &suspension, stale_after, owned_sender);
    for name in plan.sinks.keys() {
        let (context, name) = (relay.context(), name.as_str().to_owned());
        let part = format!("sink {name}");
        health.watch(&part, move || match context.sinks.get(&name) {
            Some(handle) => match handle.circuit.trouble() {
                Some(down) => HealthPart::degraded(down.detail),
                None => confirming(&handle.destinations.open()),
            },
            None => HealthPart::ok(),
        });
    }
    let draining = stop.clone();
    health.watch("relay", move || {
        if draining.is_cancelled() {
            HealthPart::down("draining: what is in flight is settled or released")
        } else {
            HealthPart::ok()
        }
    });
    let counting = survey(Inspector::new(collections), heartbeat.pulse(), partitions);
    let following = async {
        match follower {
            Some(follower) => {
                watch_following(health, follower.status());
                // A task: what wakes the relay must not wait for it.
                let following = tokio::spawn(follower.run(stop.clone()));
                let _ = following.await;
            }
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = relay.run() => ended.map_err(RunError::from),
        _ = &mut beating => Err(RunError::Uninvited("the heartbeat")),
        _ = &mut coordinating => Err(RunError::Uninvited("the assignment of partitions")),
        replaced = &mut keeping_name => Err(RunError::Replaced(replaced)),
        () = broken => Err(RunError::Uninvited(LANE)),
        () = keeping => Err(RunError::Uninvited("the keeper of this instance's share")),
        () = counting => Err(RunError::Uninvited("the survey of the outbox")),
        () = following => Err(RunError::Uninvited("the follower of the change stream")),
    };
    if let Err(RunError::Replaced(_)) = &ended {
        // Other instances must not wait until it is stale.
        sign_off(&heartbeat, None, Instant::now()).await;
    } else if stop.is_cancelled() {
        drained.cancel();
        // It logs its own failures.
        let _ = coordinating.await;
        if let Ok(deadline) = deadline.await {
            // It would take the name again.
            keeping_name.set(kept(None));
            sign_off(&heartbeat, name.map(|name| (protocol, name, instance)), deadline).await;
        }
    }
    if ended.is_ok() {
        info!("stopped: everything in flight was settled or released");
    }
    ended
}

/// Time for a shutdown beyond `relay.shutdown_timeout`; the chart gives a pod as much.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Time limit to release the name of the instance.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// Resolves at a stop with the deadline of the shutdown.
async fn deadline(stop: CancellationToken, shutdown_timeout: Duration) -> Instant {
    stop.cancelled().await;
    Instant::now() + shutdown_timeout + SHUTDOWN_GRACE
}

/// Removes this instance's document and releases its name. A failure does not fail the shutdown.
async fn sign_off(
    heartbeat: &Heartbeat,
    held: Option<(Collections, String, InstanceId)>,
    deadline: Instant,
) {
    // (The next holder takes it over if MongoDB does not respond.)
    if let Some((collections, name, instance)) = held.filter(|_| heartbeat.is_alive())
        && let Err(error) =
            names::release_name(&collections, &name, instance, GIVE_UP_TIMEOUT).await
    {
        debug!(error = chain(&error), "the name of this instance was not given up");
    }
    if let Err(error) = heartbeat.leave(deadline).await {
        warn!(error = chain(&error), "this instance was not signed off: it will go stale");
    }
}

/// Resolves when another instance holds the name of this one; never where it has none.
async fn kept(keeper: Option<AbortOnDropHandle<Replaced>>) -> Replaced {
    if let Some(keeper) = keeper
        && let Ok(replaced) = keeper.await
    {
        return replaced;
    }
    std::future::pending().await
}

/// Removes the documents of earlier holders of this name once this instance has its own.
async fn remove_predecessors(
    collections: &Collections,
    name: &str,
    instance: InstanceId,
    heartbeat: &Heartbeat,
) {
    let mut pulse = heartbeat.pulse();
    // The heartbeat runs until the process ends.
    let _ = pulse.wait_for(|pulse| *pulse == Pulse::Alive).await;
    if let Err(error) = names::remove_predecessors(collections, name, instance).await {
        // They become stale.
        warn!(error = chain(&error), "failed to remove the predecessor of this instance");
    }
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
