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
use crate::schema::{self, SchemaError, SchemaOptions};
use crate::store::StoreError;
use crate::store::connect::{self, Topology};
use crate::telemetry::chain;

/// Minimum and maximum pause between tries to reach MongoDB at start.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Waits for MongoDB without a limit, unless it refuses permanently.
pub(super) async fn until_reached(
    plan: &Resolved,
    health: &Health,
) -> Result<Collections, RunError> {
    let mut pause = RETRY_PAUSE.0;
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
            Err(error) if error.is_permanent() => {
                return Err(RunError::Mongo(error));
            }
            Err(error) => {
                let detail = chain(&error);
                warn!(error = detail, retry_in = ?pause, "MongoDB is not reached");
                health.set("store", HealthPart::down(detail));
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSE.1);
    }
}

/// Connects to MongoDB and reads the privileges of the user.
async fn reach(plan: &Resolved) -> Result<(Client, Topology, Access), StoreError> {
    let (client, topology) = connect::reach(&plan.mongo, &plan.database).await?;
    // Missing privileges for the schema are reported when there is something to create. Without the
    // privilege to follow, the relay polls; without the privilege to write names, the instance has
    // none.
    let part =
        Allowed::Relay { records: plan.relay.enabled, follow: false, names: false, making: &[] };
    let access = access(&client.database("admin"), &Wanted::by(plan, part)).await?;
    Ok((client, topology, access))
}

/// Checks until it succeeds that the databases of the append path belong to this context or to
/// none. Missing privileges are reported, and the relay starts all the same.
pub(super) async fn until_guarded(
    plan: &Resolved,
    context: &Context,
    health: &Health,
) -> Result<(), RunError> {
    let mut lacks = false;
    let mut looking = async || {
        if !lacks {
            let wanted = Wanted::by(plan, Allowed::Append);
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
    let mut pause = RETRY_PAUSE.0;
    loop {
        let detail = match looking().await {
            Ok(()) => return Ok(()),
            Err(SchemaError::Store(error)) if error.is_refusal() => {
                return Err(RunError::Refused(error));
            }
            Err(error) if error.is_permanent() => {
                return Err(RunError::Context(error));
            }
            Err(error) => chain(&error),
        };
        warn!(detail, retry_in = ?pause, "whose databases they are is not known");
        health.set("store", HealthPart::down(detail));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSE.1);
    }
}

/// Takes a name for this instance, and waits for MongoDB without a limit. `None` if MongoDB
/// refuses: the instance works without a name.
pub(super) async fn until_named(
    collections: &Collections,
    instance: InstanceId,
    wanted: &WantedName,
) -> Result<Option<HeldName>, RunError> {
    let mut pause = RETRY_PAUSE.0;
    loop {
        match names::claim(collections, instance, wanted).await {
            Ok(held) => {
                info!(name = held.name, replaces = ?held.predecessor, "this instance has a name");
                return Ok(Some(held));
            }
            Err(NameError::Store(error)) if error.is_permanent() => {
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
        pause = (pause * 2).min(RETRY_PAUSE.1);
    }
}

/// Creates or verifies the schema, until it exists.
pub(super) async fn until_schema(
    plan: &Resolved,
    collections: &Collections,
    health: &Health,
) -> Result<(), RunError> {
    let options = plan.schema;
    let mut pause = RETRY_PAUSE.0;
    loop {
        let detail = match once(plan, collections, &options).await {
            Ok(None) => {
                health.set("schema", HealthPart::ok());
                return Ok(());
            }
            Ok(Some(differences)) => format!(
                "the schema differs ({differences}); run `postrider schema apply`, or set \
                 outbox.auto_init_schema = true"
            ),
            Err(SchemaError::Store(error)) if error.is_refusal() => {
                return Err(RunError::Refused(error));
            }
            Err(error) if error.is_permanent() => {
                return Err(RunError::Schema(error));
            }
            Err(error) => chain(&error),
        };
        warn!(detail, retry_in = ?pause, "the schema is not verified");
        health.set("schema", HealthPart::down(detail));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSE.1);
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
