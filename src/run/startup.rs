//! Waits for what `postrider run` requires before it relays: MongoDB, the schema, its name.

use std::time::Duration;

use mongodb::Client;
use tracing::{info, warn};

use crate::config::Resolved;
use crate::context::Context;
use crate::ids::InstanceId;
use crate::ops::{Health, HealthPart};
use crate::outbox::collections::Collections;
use crate::partition::names::{self, HeldName, NameError, WantedName};
use crate::run::error::RunError;
use crate::schema::access::{Access, Part as Allowed, Wanted, access};
use crate::schema::{self, SchemaError};
use crate::store::StoreError;
use crate::store::connect::{self, Topology};
use crate::telemetry::chain;

/// Minimum and maximum pause between tries to reach MongoDB at start.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// What a start yields.
pub(super) struct Prepared {
    /// The outbox through the client of the API.
    pub(super) collections: Collections,
    /// The outbox through a client of its own: slow reads of the API must not delay heartbeats and
    /// leases.
    pub(super) protocol: Collections,
    /// The databases of the append path.
    pub(super) context: Context,
    /// The same through a client of its own, for reads of the API that no append must wait for.
    pub(super) reading: Context,
    /// The name of this instance; a relay has one, unless MongoDB refuses it.
    pub(super) name: Option<HeldName>,
}

/// Waits for MongoDB, for databases that are this context's, for the schema and for a name.
///
/// # Errors
///
/// [`RunError`]: what waiting does not change.
pub(super) async fn prepare(
    plan: &Resolved,
    instance: InstanceId,
    name: &WantedName,
    health: &Health,
) -> Result<Prepared, RunError> {
    let collections = until_reached(plan, health).await?;
    let context = Context::new(collections.client().clone(), plan.context.clone());
    if plan.events_enabled || plan.feed.is_some() {
        until_guarded(plan, &context, health).await?;
    }
    until_schema(plan, &collections, health).await?;
    let own = connect::relay_client(&plan.mongo).await.map_err(RunError::Mongo)?;
    let protocol = collections.through(own);
    let reading = if plan.api.is_some() {
        context.through(connect::reading_client(&plan.mongo).await.map_err(RunError::Mongo)?)
    } else {
        context.clone()
    };
    let name =
        if plan.relay.enabled { until_named(&protocol, instance, name).await? } else { None };
    Ok(Prepared { collections, protocol, context, reading, name })
}

/// Waits for MongoDB without a limit, unless it refuses permanently.
async fn until_reached(plan: &Resolved, health: &Health) -> Result<Collections, RunError> {
    let mut pause = RETRY_PAUSE.0;
    loop {
        match reach(plan).await {
            Ok((.., Access::Lacking(lacking))) => return Err(RunError::Lacking { lacking }),
            Ok((client, topology, _)) => {
                let collections = Collections::new(client, &plan.database, &plan.prefix);
                return match topology {
                    Topology::Standalone if plan.events_enabled || plan.feed.is_some() => {
                        Err(RunError::Standalone)
                    }
                    Topology::Sharded if plan.feed.is_some() => Err(RunError::ShardedFeed),
                    Topology::Standalone => {
                        warn!(
                            "MongoDB is a standalone server, without transactions: records are not \
                             written atomically with the application's changes, and the relay \
                             polls; make it a replica set of one member (mongod --replSet rs0, \
                             then rs.initiate())"
                        );
                        Ok(collections.standalone())
                    }
                    Topology::Sharded => Ok(collections.sharded()),
                    Topology::ReplicaSet(_) => Ok(collections),
                };
            }
            Err(error) if error.is_refusal() => return Err(RunError::Refused(error)),
            Err(error) if error.is_permanent() => return Err(RunError::Mongo(error)),
            Err(error) => {
                let detail = chain(&error);
                warn!(error = detail, retry_in = ?pause, "failed to connect to MongoDB; retrying");
                health.set("store", HealthPart::down(detail));
            }
        }
        wait(&mut pause).await;
    }
}

/// Connects to MongoDB and reads the privileges of the user.
async fn reach(plan: &Resolved) -> Result<(Client, Topology, Access), StoreError> {
    let (client, topology) = connect::reach(&plan.mongo, &plan.databases()).await?;
    // Missing privileges for the schema are reported when there is something to create. Without the
    // privilege to follow, the relay polls; without the privilege to write names, the instance has
    // none.
    let part = Allowed::Relay {
        records: plan.relay.enabled,
        change_stream: false,
        names: false,
        making: &[],
    };
    let access = access(&client.database("admin"), &Wanted::by(plan, part)).await?;
    Ok((client, topology, access))
}

/// Checks until it succeeds that the databases of the append path belong to this context or to
/// none. Missing privileges are reported, and the relay starts all the same.
async fn until_guarded(
    plan: &Resolved,
    context: &Context,
    health: &Health,
) -> Result<(), RunError> {
    let mut lacks = false;
    let looking = async || {
        if !lacks {
            lacks = report_lacking(plan, context).await?;
        }
        match context.guard().await {
            Err(SchemaError::Store(error)) if lacks && error.is_refusal() => Ok(None),
            guarded => guarded.map(|()| None),
        }
    };
    let unverified = "failed to verify the context of the databases; retrying";
    until_done(health, "store", unverified, RunError::Context, looking).await
}

/// Logs the missing privileges of the append path and of the feed. Returns whether there are any.
async fn report_lacking(plan: &Resolved, context: &Context) -> Result<bool, StoreError> {
    let admin = context.client().database("admin");
    let mut lacks = false;
    if plan.events_enabled
        && let Access::Lacking(lacking) = access(&admin, &Wanted::by(plan, Allowed::Append)).await?
    {
        let remedy = lacking.remedy();
        warn!(%lacking, remedy, "appends will be rejected, since the user of mongo.uri lacks \
                                 privileges");
        lacks = true;
    }
    // Without the privilege to follow, the feed scans.
    if plan.feed.is_some()
        && let Access::Lacking(lacking) =
            access(&admin, &Wanted::by(plan, Allowed::Feed { change_stream: false })).await?
    {
        let remedy = lacking.remedy();
        warn!(%lacking, remedy, "the feed will assign no positions, since the user of mongo.uri \
                                 lacks privileges");
        lacks = true;
    }
    Ok(lacks)
}

/// Takes a name for this instance, and waits for MongoDB without a limit. `None` if MongoDB
/// refuses: the instance works without a name.
async fn until_named(
    collections: &Collections,
    instance: InstanceId,
    wanted: &WantedName,
) -> Result<Option<HeldName>, RunError> {
    let mut pause = RETRY_PAUSE.0;
    loop {
        match names::claim(collections, instance, wanted).await {
            Ok(held) => {
                let replaces = held.predecessor.map(tracing::field::display);
                info!(name = held.name, replaces, "acquired the name of this instance");
                return Ok(Some(held));
            }
            Err(NameError::Store(error)) if error.is_permanent() => {
                warn!(
                    error = error.brief(),
                    remedy = "grant insert, update and remove on outbox_control (postrider \
                              schema print --roles)",
                    "MongoDB rejects the name of this instance; after a crash, other instances \
                     take over its leases and partitions only when they are stale"
                );
                return Ok(None);
            }
            Err(NameError::Store(error)) => {
                warn!(error = chain(&error), retry_in = ?pause, "failed to acquire a name; \
                                                                 retrying");
            }
            Err(error) => return Err(RunError::Name(error)),
        }
        wait(&mut pause).await;
    }
}

/// Creates or verifies the schema, until it exists.
async fn until_schema(
    plan: &Resolved,
    collections: &Collections,
    health: &Health,
) -> Result<(), RunError> {
    let unverified = "failed to verify the schema; retrying";
    until_done(health, "schema", unverified, RunError::Schema, || once(plan, collections)).await?;
    health.set("schema", HealthPart::ok());
    Ok(())
}

/// Tries until `attempt` returns no difference. Meanwhile `part` is down, and the log says what is
/// `unverified`.
///
/// # Errors
///
/// MongoDB refuses it, or it is `unusable`.
async fn until_done(
    health: &Health,
    part: &str,
    unverified: &str,
    unusable: fn(SchemaError) -> RunError,
    mut attempt: impl AsyncFnMut() -> Result<Option<String>, SchemaError>,
) -> Result<(), RunError> {
    let mut pause = RETRY_PAUSE.0;
    loop {
        let detail = match attempt().await {
            Ok(None) => return Ok(()),
            Ok(Some(difference)) => difference,
            Err(SchemaError::Store(error)) if error.is_refusal() => {
                return Err(RunError::Refused(error));
            }
            Err(error) if error.is_permanent() => return Err(unusable(error)),
            Err(error) => chain(&error),
        };
        warn!(detail, retry_in = ?pause, "{unverified}");
        health.set(part, HealthPart::down(detail));
        wait(&mut pause).await;
    }
}

/// Waits, and lengthens the next pause.
async fn wait(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(RETRY_PAUSE.1);
}

/// Creates the schema or verifies it, and returns what differs.
async fn once(plan: &Resolved, collections: &Collections) -> Result<Option<String>, SchemaError> {
    if plan.auto_init_schema {
        let applied = schema::apply(collections, &plan.schema).await?;
        if applied != schema::Applied::default() {
            info!(collections = ?applied.collections, indexes = ?applied.indexes, "applied the \
                                                                                   schema");
        }
        return Ok(None);
    }
    let differences = schema::verify(collections, &plan.schema).await?;
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    Ok((!lines.is_empty()).then(|| {
        format!(
            "the schema differs ({}); run `postrider schema apply`, or set \
             outbox.auto_init_schema = true",
            lines.join("; ")
        )
    }))
}
