//! The stored form of a snapshot.

use bson::{Bson, Document, doc};

use super::state::Snapshot;
use crate::integer::{integral, smallest};
use crate::names::{AggregateId, AggregateName};

const ID: &str = "_id";
const CONTEXT_NAME: &str = "contextName";
const AGGREGATE_NAME: &str = "aggregateName";
pub(super) const TENANT_ID: &str = "tenantId";
const OWNER_ID: &str = "ownerId";
pub(super) const VERSION: &str = "version";
const EVENT_ID: &str = "eventId";
const FIRST_OPERATOR: &str = "firstOperator";
const OPERATOR: &str = "operator";
const FIRST_EVENT_TIME: &str = "firstEventTime";
const EVENT_TIME: &str = "eventTime";
const SNAPSHOT_TIME: &str = "snapshotTime";
const DELETED: &str = "deleted";
const STATE: &str = "state";
/// True where the stream has ended: no save replaces it.
pub(super) const ENDED: &str = "ended";

/// The pipeline of an upsert that replaces the stored snapshot unless that is newer, or of an ended
/// stream.
pub(super) fn saved_unless_newer(
    context: &str,
    name: &AggregateName,
    snapshot: &Snapshot,
) -> Vec<Document> {
    let mut new = doc! {
        ID: "$_id",
        CONTEXT_NAME: { "$literal": context },
        AGGREGATE_NAME: { "$literal": name.as_str() },
    };
    // As literals, values of users are never evaluated as expressions.
    let mut give = |field, value: Option<Bson>| {
        if let Some(value) = value {
            new.insert(field, doc! { "$literal": value });
        }
    };
    let text = |text: &Option<String>| text.clone().map(Bson::from);
    give(TENANT_ID, text(&snapshot.tenant_id));
    give(OWNER_ID, text(&snapshot.owner_id));
    give(VERSION, Some(smallest(snapshot.version)));
    give(EVENT_ID, text(&snapshot.event_id));
    give(FIRST_OPERATOR, text(&snapshot.first_operator));
    give(OPERATOR, text(&snapshot.operator));
    give(FIRST_EVENT_TIME, snapshot.first_event_time.map(Bson::from));
    give(EVENT_TIME, snapshot.event_time.map(Bson::from));
    new.insert(SNAPSHOT_TIME, doc! { "$toLong": "$$NOW" });
    new.insert(DELETED, snapshot.deleted);
    // Those of the first snapshot are kept.
    for first in [FIRST_OPERATOR, FIRST_EVENT_TIME] {
        if !new.contains_key(first) {
            new.insert(first, format!("${first}"));
        }
    }
    new.insert(STATE, doc! { "$literal": &snapshot.state });
    let is_ended = doc! { "$eq": [format!("${ENDED}"), true] };
    let stays = doc! { "$or": [is_newer_than(snapshot.version), is_ended] };
    vec![doc! { "$replaceWith": { "$cond": [stays, "$$ROOT", new] } }]
}

/// The pipeline that marks a stored snapshot whose stream has ended at this version. Of an erased stream
/// it has no state.
///
/// The version is the end's, so that a save of another program that goes by versions loses.
pub(crate) fn mark_ended(version: i64, is_erased: bool) -> Vec<Document> {
    let mut set = doc! { DELETED: true, ENDED: true, VERSION: { "$literal": smallest(version) } };
    if is_erased {
        set.insert(STATE, doc! { "$literal": {} });
    }
    vec![doc! { "$set": set }]
}

/// Whether a stored snapshot is of an ended stream.
pub(super) fn is_ended(stored: &Document) -> bool {
    stored.get_bool(ENDED).unwrap_or(false)
}

/// The expression that the stored snapshot is newer. A stored version that is not an integral number of
/// 64 bits (a shell writes doubles) does not count.
fn is_newer_than(version: i64) -> Document {
    let stored = format!("${VERSION}");
    let newer = doc! { "$and": [
        { "$eq": [&stored, { "$trunc": &stored }] },
        { "$gt": [&stored, version] },
        { "$lte": [&stored, i64::MAX] },
    ] };
    // Not in one `$and`, which has no order: only a number can be truncated.
    let number = doc! { "$in": [{ "$type": &stored }, ["int", "long", "double"]] };
    doc! { "$cond": [number, newer, false] }
}

/// The version of a stored snapshot, by the same rule.
pub(super) fn version(stored: &Document) -> Option<i64> {
    integral(stored.get(VERSION)?)
}

/// Reads a stored snapshot, some of whose fields are invalid; `None` without a version or a state.
pub(super) fn snapshot(
    id: &AggregateId,
    mut stored: Document,
    invalid: Vec<String>,
) -> Option<Snapshot> {
    let text = |field| stored.get_str(field).ok().map(ToOwned::to_owned);
    let time = |field| integral(stored.get(field)?);
    Some(Snapshot {
        aggregate_id: id.clone(),
        tenant_id: text(TENANT_ID),
        owner_id: text(OWNER_ID),
        version: version(&stored)?,
        event_id: text(EVENT_ID),
        first_operator: text(FIRST_OPERATOR),
        operator: text(OPERATOR),
        first_event_time: time(FIRST_EVENT_TIME),
        event_time: time(EVENT_TIME),
        snapshot_time: time(SNAPSHOT_TIME),
        deleted: stored.get_bool(DELETED).unwrap_or(false),
        state: match stored.remove(STATE)? {
            Bson::Document(state) => state,
            _ => return None,
        },
        invalid,
    })
}
