//! What an append asks the event stream: the newest version of aggregates, the fate of requests.

use std::collections::HashMap;

use bson::{Bson, Document, doc};
use futures_util::{StreamExt, TryStreamExt, stream};
use postrider_store::{StoreError, limits, within};
use uuid::Uuid;

use crate::append::Appended;
use crate::context::{Context, Kind, RequestIds};
use crate::heads::Head;
use crate::names::AggregateName;
use crate::prepared::{Aggregate, Prepared};
use crate::stream::fields::{AGGREGATE_ID, CREATE_TIME, ID, REQUEST_ID, SIZE, VERSION};
use crate::stream::record_ids;

/// Reads under way at once: as many as the driver's pool has connections by default.
const AT_ONCE: usize = 8;

/// Requests asked for in one query.
const PAGE: usize = 100;

/// Reads the heads of aggregates, each by one seek of the version index.
///
/// # Errors
///
/// Those of the store.
pub(super) async fn heads(
    context: &Context,
    aggregates: Vec<Aggregate>,
) -> Result<Vec<(Aggregate, Head)>, StoreError> {
    let reading = stream::iter(aggregates).map(|aggregate| async move {
        let head = head(context, &aggregate).await?;
        Ok((aggregate, head))
    });
    reading.buffer_unordered(AT_ONCE).try_collect().await
}

async fn head(context: &Context, (name, id): &Aggregate) -> Result<Head, StoreError> {
    let streams = context.collection(Kind::Events, name.as_str());
    let finding = streams
        .find_one(doc! { AGGREGATE_ID: id.as_str() })
        .sort(doc! { VERSION: -1 })
        .projection(doc! { VERSION: 1, CREATE_TIME: 1 });
    let found = within("read an aggregate's version", limits::BATCH, finding.into_future()).await?;
    Ok(found.map_or_else(Head::default, |found| Head {
        version: integer(&found, VERSION),
        create_time: integer(&found, CREATE_TIME),
    }))
}

/// What has become of a request before.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fate {
    /// This, in the same aggregate.
    Replayed(Appended),
    /// Another aggregate has it.
    Elsewhere(String),
}

/// Asks which requests of these appends were appended already; the others are not in the answer.
/// The key is the position in `appends`.
///
/// # Errors
///
/// Those of the store.
pub(super) async fn fates(
    context: &Context,
    appends: &[&Prepared],
) -> Result<HashMap<usize, Fate>, StoreError> {
    let mut of_name: HashMap<&AggregateName, Vec<usize>> = HashMap::new();
    for (position, append) in appends.iter().enumerate() {
        of_name.entry(&append.append.name).or_default().push(position);
    }
    let mut fates = HashMap::new();
    for (name, positions) in of_name {
        for page in positions.chunks(PAGE) {
            let asked: Vec<&Prepared> = page.iter().map(|position| appends[*position]).collect();
            for found in requests(context, name, &asked).await? {
                for (position, append) in page.iter().zip(&asked) {
                    if let Some(fate) = fate(append, &found, context.settings().request_ids) {
                        fates.insert(*position, fate);
                    }
                }
            }
        }
    }
    Ok(fates)
}

async fn requests(
    context: &Context,
    name: &AggregateName,
    asked: &[&Prepared],
) -> Result<Vec<Document>, StoreError> {
    let ids = || asked.iter().map(|append| Bson::from(append.append.request_id.as_str()));
    let filter = match context.settings().request_ids {
        RequestIds::Global => doc! { REQUEST_ID: { "$in": ids().collect::<Vec<_>>() } },
        RequestIds::Aggregate => {
            let one = |append: &&Prepared| {
                let (id, request) = (append.append.id.as_str(), append.append.request_id.as_str());
                doc! { AGGREGATE_ID: id, REQUEST_ID: request }
            };
            doc! { "$or": asked.iter().map(one).collect::<Vec<_>>() }
        }
    };
    let projection = doc! {
        ID: 1, AGGREGATE_ID: 1, REQUEST_ID: 1, VERSION: 1, SIZE: 1, CREATE_TIME: 1,
    };
    let streams = context.collection(Kind::Events, name.as_str());
    let reading = async { streams.find(filter).projection(projection).await?.try_collect().await };
    within("look up a request", limits::BATCH, reading).await
}

fn fate(append: &Prepared, found: &Document, request_ids: RequestIds) -> Option<Fate> {
    let text = |field| found.get_str(field).unwrap_or_default();
    if text(REQUEST_ID) != append.append.request_id {
        return None;
    }
    if text(AGGREGATE_ID) == append.append.id.as_str() {
        return Some(Fate::Replayed(replayed(found)));
    }
    let is_elsewhere = request_ids == RequestIds::Global;
    is_elsewhere.then(|| Fate::Elsewhere(text(AGGREGATE_ID).to_owned()))
}

/// The first answer, once more.
fn replayed(found: &Document) -> Appended {
    let id = found.get_str(ID).unwrap_or_default().to_owned();
    let size = integer(found, SIZE);
    // A stream that another program has written has no records of ours.
    let records = Uuid::parse_str(&id)
        .map(|id| record_ids(&id, usize::try_from(size).unwrap_or(0)))
        .unwrap_or_default();
    Appended {
        aggregate_id: found.get_str(AGGREGATE_ID).unwrap_or_default().to_owned(),
        version: integer(found, VERSION),
        create_time: integer(found, CREATE_TIME),
        id,
        size,
        records,
        replayed: true,
    }
}

/// Whatever kind of number another program has written.
fn integer(document: &Document, field: &str) -> i64 {
    match document.get(field) {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        Some(Bson::Double(number)) => *number as i64,
        _ => 0,
    }
}
