//! Searches all collections of a configuration for settings of others by which documents are lost.

use crate::config::Resolved;
use crate::context::Context;
use crate::events;
use crate::outbox::collections::Collections;
use crate::schema::{Hazards, outbox};
use crate::store::StoreError;

/// Searches the outbox, and the collections of the event store if there is a context. Changes nothing.
///
/// # Errors
///
/// [`StoreError`], except for missing privileges, which the result names.
pub async fn hazards(
    plan: &Resolved,
    collections: &Collections,
    context: Option<&Context>,
) -> Result<Hazards, StoreError> {
    let mut hazards = outbox::hazards(collections, &plan.schema).await?;
    if let Some(context) = context {
        hazards.extend(events::hazards::hazards(context).await?);
    }
    Ok(hazards)
}
