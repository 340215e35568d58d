//! Checks that no database of the append path belongs to another context.

use ::mongodb::Client;

use crate::check::finding::Finding;
use crate::config::Resolved;
use crate::context::Context;
use crate::schema::SchemaError;
use crate::store::StoreError;

pub(super) const NAME: &str = "context";

/// # Errors
///
/// [`StoreError`].
pub(super) async fn probe(plan: &Resolved, client: &Client) -> Result<Finding, StoreError> {
    let name = &plan.context.name;
    match Context::new(client.clone(), plan.context.clone()).guard().await {
        Ok(()) => Ok(Finding::good(
            NAME,
            format!("context {name:?} owns its databases, or can claim them"),
        )),
        Err(SchemaError::Store(error)) => Err(error),
        Err(error) => {
            let remedy = "correct events.context, or use other databases: each database belongs to one context";
            Ok(Finding::bad(NAME, error.to_string(), remedy))
        }
    }
}
