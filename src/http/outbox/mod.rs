//! The outbox over HTTP: a record of one's own, and what a person looks at and does.

mod enqueue;
mod look;
mod redrive;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::problem::Problem;
use crate::http::state::Shared;
use crate::outbox::undecoded::RawId;

pub(super) use enqueue::schema as new_record;
pub(super) use redrive::schema as requeue;

pub(super) fn calls() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(look::stats))
        .routes(routes!(look::groups))
        .routes(routes!(look::list, enqueue::enqueue))
        .routes(routes!(look::show, redrive::discard))
        .routes(routes!(redrive::requeue_one))
        .routes(routes!(redrive::requeue))
}

/// The ids that a text can mean: one at least.
fn readings(field: &str, text: &str) -> Result<Vec<RawId>, Problem> {
    let ids = RawId::readings(text);
    if text.is_empty() || ids.is_empty() {
        let detail =
            "is no id: a UUID, ObjectId, integer or text (uuid:, oid:, int:, str:, raw: force one)";
        return Err(Problem::wrong(field, detail));
    }
    Ok(ids)
}

fn no_record(id: &str) -> Problem {
    Problem::not_found(format!("there is no record with the id {id:?}"))
}
