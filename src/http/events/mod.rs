//! The append path over HTTP.

pub(crate) mod append;
mod read;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::context::Context;
use crate::events::{EventStore, LoadError};
use crate::http::problem::{FieldError, Problem};
use crate::http::query::Path;
use crate::http::state::Shared;
use crate::names::{AggregateId, AggregateName};

pub(super) use append::schema as append_body;
pub(super) use read::schema as event_stream;

pub(super) fn calls() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(append::append, read::events))
        .routes(routes!(read::single))
        .routes(routes!(read::last))
        .routes(routes!(read::aggregates))
}

fn store(shared: &Shared) -> Result<&EventStore, Problem> {
    let store = shared.services()?.events.as_ref();
    store.ok_or_else(|| {
        let detail =
            "events.enabled = false: this instance hosts no events, snapshots or prepare keys";
        Problem::not_found(detail)
    })
}

/// Where snapshots and prepare keys live, too.
pub(super) fn context(shared: &Shared) -> Result<&Context, Problem> {
    Ok(store(shared)?.context())
}

pub(super) fn name_of(path: &Path) -> Result<AggregateName, Problem> {
    let name = AggregateName::new(path.part("name"));
    name.map_err(|wrong| Problem::wrong("name", wrong.to_string()))
}

pub(super) fn id_of(path: &Path) -> Result<AggregateId, Problem> {
    let id = AggregateId::new(path.part("id"));
    id.map_err(|wrong| Problem::wrong("id", wrong.to_string()))
}

impl From<LoadError> for Problem {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Range(flaw) => {
                Self::invalid(vec![FieldError { field: flaw.field, detail: flaw.detail }])
            }
            LoadError::Store(error) => error.into(),
            LoadError::Decode(_) => Self::fault(&error),
        }
    }
}
