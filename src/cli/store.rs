//! Opens the event store for one command.

use anyhow::Context as _;

use crate::cli::existing;
use crate::cli::global::Failure;
use crate::config::Resolved;
use crate::context::Context;
use crate::events::{EventStore, Flaw};
use crate::names::{AggregateId, AggregateName};
use crate::outbox::collections::Collections;
use crate::run::RunError;
use crate::schema;
use crate::store::connect::{self, Topology};

/// Opens the event store of a configuration, whose outbox exists and is complete.
pub(super) async fn open(plan: &Resolved) -> Result<EventStore, Failure> {
    let outbox = reached(plan).await?;
    existing::check(&outbox).await?;
    let outbox = complete(plan, outbox).await?;
    let context = Context::new(outbox.client().clone(), plan.context.clone());
    Ok(EventStore::new(context, outbox))
}

/// Opens the outbox of a configuration, which is created if necessary.
pub(super) async fn outbox(plan: &Resolved) -> Result<Collections, Failure> {
    complete(plan, reached(plan).await?).await
}

/// Reaches the outbox of a configuration, which may not exist.
async fn reached(plan: &Resolved) -> Result<Collections, Failure> {
    let reached = connect::reach(&plan.mongo, &[&plan.database]).await;
    let (client, topology) = reached.map_err(anyhow::Error::from)?;
    if topology == Topology::Standalone {
        return Err(Failure::Failed(RunError::Standalone.into()));
    }
    Ok(Collections::new(client, &plan.database, &plan.prefix))
}

async fn complete(plan: &Resolved, outbox: Collections) -> Result<Collections, Failure> {
    // As `run` does: MongoDB would insert into a missing collection too, without indexes.
    let options = plan.schema;
    let missing = if plan.auto_init_schema {
        schema::apply(&outbox, &options).await.map(|_| Vec::new())
    } else {
        schema::verify(&outbox, &options).await
    };
    let missing = missing.context("cannot use the schema of the outbox")?;
    if let Some(difference) = missing.first() {
        let error = anyhow::anyhow!("{difference}; run `postrider schema apply`");
        return Err(Failure::Failed(error));
    }
    Ok(outbox)
}

/// Reads the arguments that name an aggregate.
pub(super) fn aggregate(name: &str, id: &str) -> Result<(AggregateName, AggregateId), Failure> {
    let usage = |what: &str, wrong: String| Failure::Usage(vec![format!("{what}: {wrong}")]);
    let name = AggregateName::new(name);
    let name = name.map_err(|wrong| usage("NAME", wrong.to_string()))?;
    let id = AggregateId::new(id);
    let id = id.map_err(|wrong| usage("ID", wrong.to_string()))?;
    Ok((name, id))
}

/// The failure of values that are wrong.
pub(super) fn invalid(flaws: &[Flaw]) -> Failure {
    Failure::Usage(flaws.iter().map(ToString::to_string).collect())
}
