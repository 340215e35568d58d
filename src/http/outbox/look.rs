//! Figures, lists, one record.

use axum::Json;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bson::{Bson, Document, doc};
use serde_json::Value;

use crate::http::auth::{Caller, Read};
use crate::http::list::Listed;
use crate::http::outbox::{no_record, readings};
use crate::http::problem::Problem;
use crate::http::query::{Path, Query};
use crate::http::state::Shared;
use crate::ids::RecordId;
use crate::outbox::fields::{DEAD, DONE, ID, PENDING, SCHEDULED};
use crate::outbox::inspect::{Filter, Inspector};
use crate::outbox::stats::Stats;
use crate::shown;

/// Items of a list where nothing is said, and at most.
const LIMIT: (u32, u32) = (50, 1_000);

/// In front of a cursor at a record whose `_id` no text can mean.
const RAW: &str = "raw:";

/// Count every record by status; reads the whole collection
#[utoipa::path(get, path = "/v1/outbox/stats", tag = "outbox", responses(
    (status = 200, description = "the figures", body = Stats),
))]
pub(super) async fn stats(
    _: Caller<Read>,
    query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Stats>, Problem> {
    query.finish()?;
    let inspector = Inspector::new(shared.services()?.collections.clone());
    Ok(Json(inspector.stats().await?))
}

/// List records in the order of their ids, without payloads and headers
#[utoipa::path(get, path = "/v1/outbox/records", tag = "outbox",
    params(
        ("status" = Option<String>, Query, description = "of this status"),
        ("key" = Option<String>, Query, description = "of this key"),
        ("type" = Option<String>, Query, description = "of this type"),
        ("after" = Option<String>, Query, description = "behind this: `next`, or an id"),
        ("limit" = Option<i32>, Query, description = "how many at most; 50", minimum = 1, maximum = 1000),
    ),
    responses((status = 200, description = "a part of the list", body = Listed<Object>)),
)]
pub(super) async fn list(
    _: Caller<Read>,
    mut query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Listed<Value>>, Problem> {
    let status = query.one_of("status", &[PENDING, SCHEDULED, DONE, DEAD]);
    let (key, kind) = (query.text("key"), query.text("type"));
    let after = query.text("after");
    let limit = query.integer("limit", 1..=LIMIT.1.into());
    query.finish()?;
    let limit = limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(LIMIT.0);
    let inspector = Inspector::new(shared.services()?.collections.clone());
    let after = match after {
        None => None,
        Some(text) => Some(behind(&inspector, &text).await?),
    };
    let filter = Filter { status, key, kind, after };
    // One more tells whether there is a next part.
    let mut found = inspector.list(&filter, limit + 1).await?;
    let has_more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next = found.last().filter(|_| has_more).and_then(|last| last.get(ID)).map(cursor);
    Ok(Json(Listed { items: found.iter().map(shown::record).collect(), next }))
}

/// The id that a list goes on behind.
async fn behind(inspector: &Inspector, text: &str) -> Result<RecordId, Problem> {
    if let Some(raw) = text.strip_prefix(RAW) {
        let bytes = URL_SAFE_NO_PAD.decode(raw).ok();
        let id = bytes.and_then(|bytes| Document::from_reader(bytes.as_slice()).ok());
        let id = id.and_then(|mut document| document.remove(ID));
        return id.map(RecordId::from).ok_or_else(|| Problem::wrong("after", "is no cursor"));
    }
    let mut ids = readings("after", text)?;
    if ids.len() == 1 {
        return Ok(ids.remove(0));
    }
    // Ids of different kinds sort apart: the one that there is, else the likeliest.
    let found = inspector.show(&ids).await?;
    Ok(found.and_then(|mut record| record.remove(ID)).map_or_else(|| ids.remove(0), Into::into))
}

/// A text that means this id and no other.
fn cursor(id: &Bson) -> String {
    match RecordId::from(id.clone()) {
        RecordId::Uuid(id) => format!("uuid:{id}"),
        RecordId::ObjectId(id) => format!("oid:{id}"),
        RecordId::Int(id) => format!("int:{id}"),
        RecordId::String(id) => format!("str:{id}"),
        RecordId::Other(id) => {
            let bytes = doc! { ID: id }.to_vec().unwrap_or_default();
            format!("{RAW}{}", URL_SAFE_NO_PAD.encode(bytes))
        }
    }
}

/// One record, payload and all
#[utoipa::path(get, path = "/v1/outbox/records/{id}", tag = "outbox",
    params(("id" = String, Path, description = "UUID, ObjectId, integer or text; uuid:, oid:, int:, str: force one")),
    responses(
        (status = 200, description = "the record", body = Object),
        (status = 404, description = "`not_found`"),
    ),
)]
pub(super) async fn show(
    _: Caller<Read>,
    path: Path,
    query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Value>, Problem> {
    query.finish()?;
    let id = path.part("id");
    let ids = readings("id", id)?;
    let inspector = Inspector::new(shared.services()?.collections.clone());
    let found = inspector.show(&ids).await?.ok_or_else(|| no_record(id))?;
    Ok(Json(shown::record(&found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_means_one_id_only() {
        for id in [Bson::Int32(7), Bson::String("7".into()), Bson::String("uuid:x".into())] {
            let text = cursor(&id);

            assert_eq!(RecordId::readings(&text), [RecordId::from(id)], "{text}");
        }
    }
}
