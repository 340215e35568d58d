//! The outbox: enqueue, read, requeue and discard records.

mod enqueue;
mod read;
mod redrive;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::problem::Problem;
use crate::http::state::Api;

pub(super) use enqueue::one_payload_schema;

pub(super) fn calls() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(read::get_outbox_stats))
        .routes(routes!(read::list_outbox_groups))
        .routes(routes!(read::list_outbox_records, enqueue::enqueue_outbox_record))
        .routes(routes!(read::get_outbox_record, redrive::discard_outbox_record))
        .routes(routes!(redrive::requeue_outbox_record))
        .routes(routes!(redrive::requeue_outbox_records))
}

fn unknown_record(id: &str) -> Problem {
    Problem::not_found(format!("unknown record {id:?}"))
}
