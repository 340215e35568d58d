//! Appends and reads of events.

mod append;
mod ending;
mod read;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::events::LoadError;
use crate::http::problem::Problem;
use crate::http::state::Api;

pub(super) fn calls() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(append::append_events, read::list_events))
        .routes(routes!(ending::end_stream))
        .routes(routes!(ending::erase_stream))
        .routes(routes!(read::get_events_of_version))
        .routes(routes!(read::get_last_events))
        .routes(routes!(read::list_aggregates))
}

impl From<LoadError> for Problem {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Range(flaw) => Self::invalid(vec![flaw]),
            LoadError::Ended { version } => Self::gone(error.to_string()).at_version(version),
            LoadError::Store(error) => error.into(),
        }
    }
}
