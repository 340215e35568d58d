//! The HTTP API behind `api.listen` (contract, section 7).
//!
//! ```text
//! connection → (TLS) → hyper: HTTP/1.1, limits of size and time     server, tls
//!   → guard: request id, a place, a time limit, panics              guard
//!     → route → Caller<scope>: whose token this is                  auth
//!       → Path, Query, Body: what is wrong is told all at once      query, json, scan, fields
//!         → the call                          events, snapshots, prepare, outbox, fleet
//!     ← JSON, or problem+json                                       list, stream, problem
//! ```
//!
//! A call is a function with `#[utoipa::path]`: routes and `/openapi.json` are made from the same
//! line, so that none is served that is not described.

pub mod auth;
pub(crate) mod events;
mod fields;
mod fleet;
mod guard;
mod json;
mod list;
mod openapi;
mod outbox;
mod prepare;
mod problem;
mod query;
mod scan;
mod schemas;
mod server;
mod snapshots;
mod state;
mod stream;
mod tls;
mod trace;

use axum::http::header;
use axum::routing::get;
use axum::{Router, middleware};
use utoipa_axum::router::OpenApiRouter;

use crate::http::problem::Problem;
use crate::http::state::Shared;

pub use problem::FieldError;
pub use server::{ApiServer, StartError};
pub use state::{Services, Shared as Api};

/// How the API ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every request was answered.
    Whole,
    /// So many connections were cut: their requests took too long.
    Cut(usize),
}

/// Every call.
fn calls() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .merge(events::calls())
        .merge(snapshots::calls())
        .merge(prepare::calls())
        .merge(outbox::calls())
        .merge(fleet::calls())
}

/// All that is served.
fn routes(shared: Shared) -> Router {
    let (calls, api) = calls().split_for_parts();
    let description = openapi::described(api);
    let json = [(header::CONTENT_TYPE, "application/json")];
    calls
        .route("/openapi.json", get(async move || (json, description)))
        .fallback(async || Problem::not_found("there is no such path: see /openapi.json"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(middleware::from_fn_with_state(shared.clone(), guard::guard))
        .with_state(shared)
}
