//! The HTTP API behind `api.listen`.
//!
//! ```text
//! connection → (TLS) → hyper: HTTP/1.1, limits of size and time     server, tls, crate::listener
//!   → metrics                                                       metrics
//!   → request id, permit, time limit, panics                        middleware
//!     → route → Call<scope, path, query, reach>, Body, Command: types   extract, headers, params, auth, limits, command
//!       → the call        events, snapshots, queries, feed, subscriptions, prepare, outbox, fleet
//!     ← a type as JSON, or problem+json           answers, list, stream, stored, entity_tag, problem
//! ```
//!
//! A call is a function with `#[utoipa::path]`, from which its route and its part of `/openapi.json`
//! come.

mod answers;
pub mod auth;
mod command;
pub mod config;
mod entity_tag;
mod events;
mod extract;
mod feed;
mod fleet;
mod headers;
mod limits;
mod list;
mod location;
mod metrics;
mod middleware;
mod openapi;
mod outbox;
mod params;
mod prepare;
mod problem;
mod queries;
mod server;
mod snapshots;
mod state;
mod stored;
mod stream;
mod subscriptions;
mod tls;
mod token_limits;
mod trace;

use axum::Router;
use axum::body::Bytes;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;

use crate::http::problem::Problem;

pub use server::{ApiServer, StartError};
pub use state::{Api, Reading, Services};

/// All calls; those of Wow's clients if `api.wow_routes`.
fn calls(has_wow: bool) -> OpenApiRouter<Api> {
    let wow = if has_wow { queries::wow::calls() } else { OpenApiRouter::new() };
    OpenApiRouter::new()
        .merge(events::calls())
        .merge(snapshots::calls())
        .merge(queries::calls())
        .merge(feed::calls())
        .merge(wow)
        .merge(prepare::calls())
        .merge(subscriptions::calls())
        .merge(outbox::calls())
        .merge(fleet::calls())
}

/// All routes.
fn routes(shared: Api) -> Router {
    let (calls, api) = calls(shared.wow_routes).split_for_parts();
    let description = Bytes::from(openapi::describe(api));
    calls
        .route(
            "/openapi.json",
            get(async move || answers::constant("application/json", description.clone())),
        )
        .fallback(async || Problem::not_found("unknown path; see /openapi.json"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(from_fn(middleware::fail_point))
        .layer(CatchPanicLayer::custom(middleware::answer_panic))
        .layer(from_fn_with_state(shared.clone(), middleware::surround))
        .layer(from_fn(metrics::measure))
        .with_state(shared)
}
