//! `postrider run`: builds every part, supervises them, and ends them in good order.
//!
//! ```text
//! ops server, API → MongoDB (waits) → context → schema → sinks → heartbeat → partitions → relay ← follower
//!                                                                                               start
//! signal → stop taking → settle or release what is in flight → let go of partitions
//!        → sign off                                                                           stop
//! ```
//!
//! A part that ends uninvited ends the process with failure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::try_join;
use metrics_exporter_prometheus::PrometheusHandle;
use mongodb::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, error, info, warn};

use crate::change_stream::{Follower, Following};
use crate::config::resolve::{Resolved, SinkPlan};
use crate::context::Context;
use crate::events::EventStore;
use crate::events::metrics::AppendMetrics;
use crate::http::{Api, ApiServer, Drained, Services, StartError};
use crate::ids::{InstanceId, SinkName};
use crate::ops::{BindError, BlockedKeys, Health, OpsServer, Part, survey};
use crate::outbox::collections::Collections;
use crate::outbox::inspect::Inspector;
use crate::outbox::lease::OwnerId;
use crate::partition::coordinator::{Coordinator, Standing};
use crate::partition::fleet::Fleet;
use crate::partition::heartbeat::{Heartbeat, Profile, Pulse};
use crate::partition::names::{self, HeldName, NameError, Replaced, WantedName};
use crate::partition::share::{self, Allotted, Share};
use crate::partition::vigil::Vigil;
use crate::relay::destination_circuits::OpenDestination;
use crate::relay::metrics::RelayMetrics;
use crate::relay::report::RelayReport;
use crate::relay::wakeup::Wakeup;
use crate::relay::{Relay, RelayError, RelayParts};
use crate::schema::access::{Access, Lacking, Part as Allowed, access};
use crate::schema::{self, SchemaError, SchemaOptions};
use crate::sink::Address;
use crate::sink::any::AnySink;
use crate::sink::kafka::{Kafka, WrongProperties};
use crate::sink::rabbitmq::RabbitMq;
use crate::sink::stdout::Stdout;
use crate::store::connect::{self, Topology};
use crate::store::{Meaning, StoreError};
use crate::telemetry::chain;
use crate::telemetry::metrics::store_up;

/// Pauses between two tries to reach MongoDB at start, from and to.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// A part, as its uninvited end names it.
const LANE: &str = "a lane of the event store";

/// How often histograms are tidied where nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why a run ended in failure.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An address that can't be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// MongoDB refuses us, and will go on refusing: credentials, privileges.
    #[error(
        "MongoDB refuses this instance; mend the credentials or privileges of mongo.uri \
         (`postrider check` tells which)"
    )]
    Refused(#[source] StoreError),
    /// Its user may not do all that is to be done.
    #[error(
        "MongoDB refuses this instance; mend the credentials or privileges of mongo.uri: {lacking}; {}",
        lacking.remedy()
    )]
    Lacking {
        /// What he may not do.
        lacking: Box<Lacking>,
    },
    /// MongoDB can't be spoken to in the way that the URI wants.
    #[error("mongo.uri can't be used")]
    Mongo(#[source] StoreError),
    /// The HTTP API can't be served.
    #[error(transparent)]
    Api(#[from] StartError),
    /// Requests took longer than `relay.shutdown_timeout` at the stop.
    #[error("{0} connections of the HTTP API were cut: their requests took too long")]
    Cut(usize),
    /// The schema is in conflict with what Postrider needs.
    #[error("the outbox's schema can't be used")]
    Schema(#[source] SchemaError),
    /// The append path has no transactions there.
    #[error(
        "the append path needs transactions, and MongoDB is a standalone server: make it a replica set \
         of one member (mongod --replSet rs0, then rs.initiate()), or set events.enabled = false"
    )]
    Standalone,
    /// A database of the append path is another context's.
    #[error("the append path can't use its databases")]
    Context(#[source] SchemaError),
    /// A sink that can't be made.
    #[error("sinks.{name}: {detail}")]
    Sink {
        /// Its name.
        name: String,
        /// Why not.
        detail: String,
    },
    /// The relay ended in failure.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// It did not get its name.
    #[error(transparent)]
    Name(NameError),
    /// Another instance has taken its name.
    #[error(transparent)]
    Replaced(Replaced),
    /// A part that should run as long as the process ended.
    #[error("{0} ended by itself")]
    Uninvited(&'static str),
}

/// Runs until `stop`, then ends in good order. A relay takes the name `name`.
///
/// # Errors
///
/// [`RunError`]: a start that can't succeed, a stop that took too long, a part that ended.
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
    health.set("store", Part::down("MongoDB was not reached yet"));
    let ops = OpsServer::bind(&plan.ops_listen).await?;
    info!(address = %ops.address(), "serving /livez, /readyz, /metrics and /blocked-keys");
    let blocked = BlockedKeys::default();
    let serving = ops.serve(health.clone(), metrics.clone(), blocked.clone());
    let api = match &plan.api {
        Some(api) => Some(ApiServer::bind(api, stop.clone()).await?),
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
            // Of whoever did not wait for his answer.
            let _ = tokio::time::timeout(patience, events.close()).await;
        }
        Ok(drained)
    };
    let working = async {
        // Both end at the stop; a part that fails ends them at once.
        match try_join(work(&plan, &name, &health, &blocked, opened, &stop), answering).await? {
            ((), Drained::Whole) => Ok(()),
            ((), Drained::Cut(connections)) => Err(RunError::Cut(connections)),
        }
    };
    let upkeep = async {
        loop {
            tokio::time::sleep(UPKEEP).await;
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
    if plan.relay_enabled {
        // Counters are there from the start, however long MongoDB is waited for.
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
        // Connections of its own: slow reads of the API must not keep heartbeats and leases waiting.
        let own = connect::relay_client(plan.mongo.expose()).await.map_err(RunError::Mongo)?;
        let protocol = collections.through(own);
        let held =
            if plan.relay_enabled { until_named(&protocol, instance, name).await? } else { None };
        Ok::<_, RunError>((collections, protocol, context, held))
    };
    let (collections, protocol, context, held) = tokio::select! {
        started = starting => started?,
        () = stop.cancelled() => return Ok(()),
    };
    // What can fail has failed before this instance tells that it is there.
    let sinks = match plan.relay_enabled {
        true => sinks(plan)?,
        false => BTreeMap::new(),
    };
    let wake = Wakeup::default();
    let events =
        plan.events_enabled.then(|| EventStore::waking(context, collections.clone(), wake.clone()));
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
        let keeping = names::keep(protocol.clone(), name, instance);
        // As a task: newcomers must not wait for what else this process does.
        AbortOnDropHandle::new(tokio::spawn(keeping))
    });
    let mut keeping_name = std::pin::pin!(kept(keeper));
    let owner = OwnerId::new(instance);
    let profile = Profile { name: name.clone(), ..plan.profile.clone() };
    let heartbeat =
        Heartbeat::new(protocol.clone(), instance, owner.clone(), profile, plan.heartbeat);
    let mut beating = tokio::spawn(heartbeat.clone().run(stop.clone()));
    let deadline = tokio::spawn(deadline(stop.clone(), plan.relay.shutdown_timeout));
    watch_store(health, heartbeat.pulse());
    if let Some(api) = api {
        api.open(Services {
            collections: collections.clone(),
            fleet: Fleet::new(collections.clone(), plan.fleet.stale_after),
            events: events.clone(),
            wake: plan.relay_enabled.then(|| wake.clone()),
        });
    }
    if !plan.relay_enabled {
        info!("relay.enabled = false: nothing is relayed");
        let ended = tokio::select! {
            () = stop.cancelled() => Ok(()),
            _ = beating => Err(RunError::Uninvited("the heartbeat")),
            () = &mut broken => Err(RunError::Uninvited(LANE)),
        };
        // (Nothing is drained: there is time.)
        sign_off(&heartbeat, None, Instant::now() + GRACE).await;
        return ended;
    }
    let (share, shared_out) = watch::channel(Share::default());
    let follower = || Follower::new(protocol.clone(), wake.clone());
    let follower = plan.follow.then(follower);
    let vigil = Vigil::new();
    let parts = RelayParts {
        settings: plan.relay.clone(),
        collections: protocol.clone(),
        owner,
        router: plan.router.clone(),
        sinks,
        share: shared_out,
        wakeup: wake,
        delete_done: plan.retention.is_zero(),
        vigil: vigil.clone(),
        predecessor,
    };
    let relay = Relay::new(parts, stop.clone());
    watch_relay(health, heartbeat.pulse(), &relay);
    let fleet = Fleet::new(protocol.clone(), plan.fleet.stale_after);
    let (allotted, partitions) = watch::channel(Allotted::default());
    let context = relay.context();
    blocked.set(move |key, limit| RelayReport::new(&context).blocked_keys(key, limit));
    let context = relay.context();
    heartbeat.tell(move || RelayReport::new(&context).state());
    let context = relay.context();
    let in_flight = move || context.state.key_table.partitions_in_flight();
    let coordinator = Coordinator::new(
        fleet,
        instance,
        plan.fleet.clone(),
        heartbeat.clone(),
        allotted,
        in_flight,
    );
    watch_partitions(health, coordinator.standing());
    let drained = CancellationToken::new();
    let (beats, stopping, ending) = (heartbeat.clone(), stop.clone(), drained.clone());
    let replacing = name.clone().map(|name| (protocol.clone(), name));
    let mut coordinating = tokio::spawn(async move {
        // Its peers see this instance before its predecessor is gone, so that none of them claims the
        // partitions between the two.
        if let Some((collections, name)) = replacing {
            tokio::select! {
                () = replace_others(&collections, &name, instance, &beats) => {}
                () = stopping.cancelled() => {}
            }
        }
        coordinator.run(stopping, ending).await
    });
    let stale_after = plan.fleet.stale_after;
    let keeping = share::keep(partitions.clone(), &heartbeat, &vigil, stale_after, share);
    for name in plan.sinks.keys() {
        let (context, name) = (relay.context(), name.as_str().to_owned());
        let part = format!("sink {name}");
        health.watch(&part, move || match context.sinks.get(&name) {
            Some(handle) => match handle.circuit.trouble() {
                Some(down) => Part::degraded(down.detail),
                None => confirming(&handle.destinations.open()),
            },
            None => Part::ok(),
        });
    }
    let draining = stop.clone();
    health.watch("relay", move || match draining.is_cancelled() {
        true => Part::down("draining: what is in flight is settled or released"),
        false => Part::ok(),
    });
    let counting = survey(Inspector::new(collections), heartbeat.pulse(), partitions);
    let following = async {
        match follower {
            Some(follower) => {
                watch_following(health, follower.following());
                // As a task: what wakes the relay is not to wait for it.
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
        // Peers must not count on it until it is stale.
        sign_off(&heartbeat, None, Instant::now()).await;
    } else if stop.is_cancelled() {
        drained.cancel();
        // It says itself what it could not do.
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

/// What a stop may take beyond `relay.shutdown_timeout`: the chart gives a pod as much.
const GRACE: Duration = Duration::from_secs(5);

/// How long a stop tries to give up the name of the instance.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// Resolves at a stop: until when it is to be over.
async fn deadline(stop: CancellationToken, shutdown_timeout: Duration) -> Instant {
    stop.cancelled().await;
    Instant::now() + shutdown_timeout + GRACE
}

/// Removes this instance's document, and gives its name up. That it cannot be is no failure of the stop.
async fn sign_off(
    heartbeat: &Heartbeat,
    held: Option<(Collections, String, InstanceId)>,
    deadline: Instant,
) {
    // (The next one asks, where MongoDB does not answer.)
    if let Some((collections, name, instance)) = held.filter(|_| heartbeat.is_alive())
        && let Err(error) = names::give_up(&collections, &name, instance, GIVE_UP_TIMEOUT).await
    {
        debug!(error = chain(&error), "the name of this instance was not given up");
    }
    if let Err(error) = heartbeat.leave(deadline).await {
        warn!(error = chain(&error), "this instance was not signed off: it will go stale");
    }
}

/// Waits for MongoDB, however long it takes, unless it refuses for good.
async fn until_reached(plan: &Resolved, health: &Health) -> Result<Collections, RunError> {
    let mut pause = AGAIN.0;
    loop {
        match reach(plan).await {
            Ok((.., Access::Lacking(lacking))) => return Err(RunError::Lacking { lacking }),
            Ok((client, topology, _)) => {
                let collections = Collections::new(client, &plan.database, &plan.prefix);
                if topology == Topology::Standalone && plan.events_enabled {
                    return Err(RunError::Standalone);
                }
                if topology == Topology::Standalone {
                    warn!(
                        "MongoDB is a standalone server: what an application writes there beside a \
                         record is in no transaction with it, and polling is the only way to find \
                         it; a replica set of one member will do (mongod --replSet, rs.initiate())"
                    );
                    return Ok(collections.standalone());
                }
                if topology == Topology::Sharded {
                    return Ok(collections.sharded());
                }
                return Ok(collections);
            }
            Err(error) if error.is_refusal() => return Err(RunError::Refused(error)),
            Err(error) if error.meaning() == Meaning::Permanent => {
                return Err(RunError::Mongo(error));
            }
            Err(error) => {
                let detail = chain(&error);
                warn!(error = detail, retry_in = ?pause, "MongoDB is not reached");
                health.set("store", Part::down(detail));
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN.1);
    }
}

/// Reaches MongoDB, and learns what we may do there.
async fn reach(plan: &Resolved) -> Result<(Client, Topology, Access), StoreError> {
    let (client, topology) = connect::reach(plan.mongo.expose(), &plan.database).await?;
    // A user that may not make the schema learns it where there is something to make. One that may not
    // follow polls, as after any other loss of the change stream; one that may not write names has none.
    let part =
        Allowed::Relay { records: plan.relay_enabled, follow: false, names: false, making: &[] };
    let access = access(&client.database("admin"), &plan.wanted(part)).await?;
    Ok((client, topology, access))
}

/// Looks whether the databases of the append path are this context's or nobody's, until that is
/// known. Who lacks what it needs is told so, and relays all the same.
async fn until_guarded(
    plan: &Resolved,
    context: &Context,
    health: &Health,
) -> Result<(), RunError> {
    let mut lacks = false;
    let mut looking = async || {
        if !lacks {
            let wanted = plan.wanted(Allowed::Append);
            let access = access(&context.client().database("admin"), &wanted).await?;
            if let Access::Lacking(lacking) = access {
                let remedy = lacking.remedy();
                warn!(%lacking, remedy, "appends will be refused: the user of mongo.uri may not do all of it");
                lacks = true;
            }
        }
        match context.guard().await {
            Err(SchemaError::Store(error)) if lacks && error.is_refusal() => Ok(()),
            guarded => guarded,
        }
    };
    let mut pause = AGAIN.0;
    loop {
        let detail = match looking().await {
            Ok(()) => return Ok(()),
            Err(SchemaError::Store(error)) if error.is_refusal() => {
                return Err(RunError::Refused(error));
            }
            Err(error) if error.meaning() == Meaning::Permanent => {
                return Err(RunError::Context(error));
            }
            Err(error) => chain(&error),
        };
        warn!(detail, retry_in = ?pause, "whose databases they are is not known");
        health.set("store", Part::down(detail));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN.1);
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

/// Takes a name for this instance, however long MongoDB does not answer. `None` where MongoDB refuses
/// that: the instance works without a name.
async fn until_named(
    collections: &Collections,
    instance: InstanceId,
    wanted: &WantedName,
) -> Result<Option<HeldName>, RunError> {
    let mut pause = AGAIN.0;
    loop {
        match names::claim(collections, instance, wanted).await {
            Ok(held) => {
                info!(name = held.name, replaces = ?held.predecessor, "this instance has a name");
                return Ok(Some(held));
            }
            Err(NameError::Store(error)) if error.meaning() == Meaning::Permanent => {
                warn!(
                    error = error.brief(),
                    remedy = "permit insert, update and remove on outbox_control (postrider schema \
                              print --roles)",
                    "MongoDB refuses a name for this instance; after a crash its leases and \
                     partitions wait until they are stale"
                );
                return Ok(None);
            }
            Err(NameError::Store(error)) => {
                warn!(error = chain(&error), retry_in = ?pause, "failed to take a name");
            }
            Err(error) => return Err(RunError::Name(error)),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN.1);
    }
}

/// Removes the documents of other instances of this name once this instance's own is there.
async fn replace_others(
    collections: &Collections,
    name: &str,
    instance: InstanceId,
    heartbeat: &Heartbeat,
) {
    let mut pulse = heartbeat.pulse();
    // The heartbeat ends with the process.
    let _ = pulse.wait_for(|pulse| *pulse == Pulse::Alive).await;
    if let Err(error) = names::remove_others(collections, name, instance).await {
        // They go stale.
        warn!(error = chain(&error), "failed to remove the predecessor of this instance");
    }
}

/// Creates or verifies the schema, until it is there.
async fn until_schema(
    plan: &Resolved,
    collections: &Collections,
    health: &Health,
) -> Result<(), RunError> {
    let options = plan.schema_options();
    let mut pause = AGAIN.0;
    loop {
        let detail = match once(plan, collections, &options).await {
            Ok(None) => {
                health.set("schema", Part::ok());
                return Ok(());
            }
            Ok(Some(differences)) => format!(
                "the schema differs ({differences}); run `postrider schema apply`, or set \
                 outbox.auto_init_schema = true"
            ),
            Err(SchemaError::Store(error)) if error.is_refusal() => {
                return Err(RunError::Refused(error));
            }
            Err(error) if error.meaning() == Meaning::Permanent => {
                return Err(RunError::Schema(error));
            }
            Err(error) => chain(&error),
        };
        warn!(detail, retry_in = ?pause, "the schema is not verified");
        health.set("schema", Part::down(detail));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN.1);
    }
}

async fn once(
    plan: &Resolved,
    collections: &Collections,
    options: &SchemaOptions,
) -> Result<Option<String>, SchemaError> {
    if plan.auto_init_schema {
        let applied = schema::apply(collections, options).await?;
        if applied != schema::Applied::default() {
            info!(collections = ?applied.collections, indexes = ?applied.indexes, "schema applied");
        }
        return Ok(None);
    }
    let differences = schema::verify(collections, options).await?;
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    Ok((!lines.is_empty()).then(|| lines.join("; ")))
}

fn watch_store(health: &Health, pulse: watch::Receiver<Pulse>) {
    health.watch("store", move || store(&pulse.borrow()));
}

/// The same with what the relay meets: MongoDB may acknowledge heartbeats and refuse the rest.
fn watch_relay(health: &Health, pulse: watch::Receiver<Pulse>, relay: &Relay<AnySink>) {
    let context = relay.context();
    health.watch("store", move || match (&*pulse.borrow(), context.store_trouble()) {
        (Pulse::Alive, Some(trouble)) => Part::degraded(trouble),
        (pulse, _) => store(pulse),
    });
}

fn store(pulse: &Pulse) -> Part {
    match pulse {
        Pulse::Alive => Part::ok(),
        Pulse::Starting => Part::down("no heartbeat was acknowledged yet"),
        Pulse::Lost(why) => Part::down(format!("no majority acknowledges heartbeats: {why}")),
        Pulse::Refused(why) => Part::down(why),
    }
}

/// The state of a sink that is up.
fn confirming(paused: &[OpenDestination]) -> Part {
    let Some(first) = paused.first() else { return Part::ok() };
    let Address { destination, key } = &first.destination;
    let key = key.as_ref().map(|key| format!(" ({key:?})")).unwrap_or_default();
    let others = match paused.len() - 1 {
        0 => String::new(),
        others => format!(" (and {others} other destinations)"),
    };
    let cause = &first.cause;
    Part::degraded(format!("destination {destination:?}{key} does not confirm{others}: {cause}"))
}

fn watch_following(health: &Health, following: watch::Receiver<Following>) {
    health.watch("follow", move || match &*following.borrow() {
        Following::Up => Part::ok(),
        Following::Starting => Part::degraded("no change stream was opened yet"),
        Following::Lost(why) => Part::degraded(why),
    });
}

/// The sinks by name.
fn sinks(plan: &Resolved) -> Result<BTreeMap<String, AnySink>, RunError> {
    let made = plan.sinks.iter().map(|(name, plan)| Ok((name.to_string(), sink(name, plan)?)));
    made.collect()
}

/// One sink, made from its plan; nothing is contacted yet.
///
/// # Errors
///
/// [`RunError::Sink`].
pub fn sink(name: &SinkName, plan: &SinkPlan) -> Result<AnySink, RunError> {
    let wrong = |detail: String| RunError::Sink { name: name.to_string(), detail };
    Ok(match plan {
        SinkPlan::Stdout(timeout) => AnySink::Stdout(Stdout::new(*timeout)),
        SinkPlan::Kafka(settings) => {
            let made = Kafka::new(settings.clone());
            AnySink::Kafka(made.map_err(|error: WrongProperties| wrong(error.to_string()))?)
        }
        SinkPlan::RabbitMq(settings) => {
            AnySink::RabbitMq(RabbitMq::new(settings.clone()).map_err(wrong)?)
        }
    })
}

/// No partitions and a pause are no reason to restart.
fn watch_partitions(health: &Health, standing: watch::Receiver<Standing>) {
    health.watch("partitions", move || {
        let Standing { owned, differs, paused, trouble, unreadable } = &*standing.borrow();
        let unreadable = unreadable.as_ref().map(|(first, count)| match count - 1 {
            0 => first.to_string(),
            others => format!("{first} (and {others} other documents)"),
        });
        match (trouble.clone().or(unreadable), differs, owned) {
            (Some(trouble), ..) => Part::degraded(trouble),
            _ if *paused => Part::degraded("the fleet is paused: postrider relay resume"),
            (None, Some(fleet), _) => Part::degraded(format!(
                "none: the running instances have another configuration ({fleet})"
            )),
            (None, None, None | Some(0)) => Part::degraded("none as yet: others have them"),
            (None, None, Some(_)) => Part::ok(),
        }
    });
}
