//! Reads of the event stream for appends: the latest versions of aggregates, and prior requests.

use std::collections::HashMap;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};
use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::options::ReadConcern;
use postrider_store::{StoreError, limits, within};
use uuid::Uuid;

use crate::append::Appended;
use crate::context::{CollectionKind, Context, RequestIds};
use crate::decode::decode_any;
use crate::integer::integral;
use crate::names::{AggregateKey, AggregateName};
use crate::prepared::PreparedAppend;
use crate::state::{StreamState, is_of_kind};
use crate::stream::fields::{
    AGGREGATE_ID, CREATE_TIME, ENDED, ERASURE, ID, REQUEST_ID, SIZE, VERSION,
};
use crate::stream::record_ids;
use crate::version_cache::LatestVersion;

/// The most reads at once.
const MAX_CONCURRENT_READS: usize = 8;

/// Requests in one query.
const REQUESTS_PER_QUERY: usize = 100;

/// What a read must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// What a majority has, as far as the primary knows. After an election it may know less than what
    /// earlier reads have shown.
    Majority,
    /// All that was committed before the read: a majority confirms it, which costs it a write.
    Confirmed,
}

impl Certainty {
    pub(super) fn read_concern(self) -> ReadConcern {
        match self {
            Self::Majority => ReadConcern::majority(),
            Self::Confirmed => ReadConcern::linearizable(),
        }
    }
}

/// Reads the latest versions of aggregates, each by one seek of the version index.
pub(super) async fn latest_versions(
    context: &Context,
    aggregates: Vec<AggregateKey>,
    certainty: Certainty,
) -> Result<Vec<(AggregateKey, LatestVersion)>, StoreError> {
    let reading = stream::iter(aggregates).map(|aggregate| async move {
        let latest_version = latest_version(context, &aggregate, certainty).await?;
        Ok((aggregate, latest_version))
    });
    reading.buffer_unordered(MAX_CONCURRENT_READS).try_collect().await
}

/// Reads the latest version of an aggregate, from a majority.
pub(super) async fn latest_version(
    context: &Context,
    (name, id): &AggregateKey,
    certainty: Certainty,
) -> Result<LatestVersion, StoreError> {
    let streams = context.collection(CollectionKind::Events, name.as_str());
    let streams = streams.clone_with_type::<RawDocumentBuf>();
    let finding = streams
        .find_one(doc! { AGGREGATE_ID: id.as_str() })
        .sort(doc! { VERSION: -1 })
        .projection(doc! { ID: 0, VERSION: 1, CREATE_TIME: 1, ENDED: 1, ERASURE: 1 })
        .read_concern(certainty.read_concern())
        .max_time(limits::BATCH_TIMEOUT);
    let found = within("read an aggregate's version", limits::BATCH_TIMEOUT, finding).await?;
    let found = found.map(|raw| decode_any(&raw).0);
    Ok(found.map_or_else(LatestVersion::default, |found| LatestVersion {
        version: integer(&found, VERSION),
        create_time: integer(&found, CREATE_TIME),
        state: StreamState::of(&found),
    }))
}

/// An earlier append of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PriorAppend {
    /// To the same aggregate, with this answer.
    Replayed(Appended),
    /// For another purpose: to this other aggregate, or to the same one by another kind of append.
    Elsewhere(String),
}

/// Looks up which requests of these appends were appended already. The key is the position in `appends`;
/// the others are not in the answer.
pub(super) async fn prior_appends(
    context: &Context,
    appends: &[&PreparedAppend],
    certainty: Certainty,
) -> Result<HashMap<usize, PriorAppend>, StoreError> {
    let mut of_name: HashMap<&AggregateName, Vec<usize>> = HashMap::new();
    for (position, append) in appends.iter().enumerate() {
        of_name.entry(&append.append.name).or_default().push(position);
    }
    let mut prior_appends = HashMap::new();
    for (name, positions) in of_name {
        for page in positions.chunks(REQUESTS_PER_QUERY) {
            let asked: Vec<&PreparedAppend> =
                page.iter().map(|position| appends[*position]).collect();
            for found in find_requests(context, name, &asked, certainty).await? {
                for (position, append) in page.iter().zip(&asked) {
                    if let Some(prior_append) =
                        prior_append(append, &found, context.settings().request_ids)
                    {
                        prior_appends.insert(*position, prior_append);
                    }
                }
            }
        }
    }
    Ok(prior_appends)
}

async fn find_requests(
    context: &Context,
    name: &AggregateName,
    asked: &[&PreparedAppend],
    certainty: Certainty,
) -> Result<Vec<Document>, StoreError> {
    let ids = || asked.iter().map(|append| Bson::from(append.append.request_id.as_str()));
    let filter = match context.settings().request_ids {
        RequestIds::Global => doc! { REQUEST_ID: { "$in": ids().collect::<Vec<_>>() } },
        RequestIds::Aggregate => {
            let one = |append: &&PreparedAppend| {
                let (id, request) = (append.append.id.as_str(), append.append.request_id.as_str());
                doc! { AGGREGATE_ID: id, REQUEST_ID: request }
            };
            doc! { "$or": asked.iter().map(one).collect::<Vec<_>>() }
        }
    };
    let projection = doc! {
        ID: 1, AGGREGATE_ID: 1, REQUEST_ID: 1, VERSION: 1, SIZE: 1, CREATE_TIME: 1, ENDED: 1, ERASURE: 1,
    };
    let streams = context.collection(CollectionKind::Events, name.as_str());
    let streams = streams.clone_with_type::<RawDocumentBuf>();
    let finding = streams
        .find(filter)
        .projection(projection)
        .read_concern(certainty.read_concern())
        .max_time(limits::BATCH_TIMEOUT);
    let reading = async { finding.await?.try_collect::<Vec<_>>().await };
    let found = within("look up a request", limits::BATCH_TIMEOUT, reading).await?;
    Ok(found.iter().map(|raw| decode_any(raw).0).collect())
}

fn prior_append(
    append: &PreparedAppend,
    found: &Document,
    request_ids: RequestIds,
) -> Option<PriorAppend> {
    let text = |field| found.get_str(field).unwrap_or_default();
    if text(REQUEST_ID) != append.append.request_id {
        return None;
    }
    if text(AGGREGATE_ID) == append.append.id.as_str() {
        if !is_of_kind(found, append.ending) {
            // Its answer would be that of another kind of request.
            return Some(PriorAppend::Elsewhere(text(AGGREGATE_ID).to_owned()));
        }
        return Some(PriorAppend::Replayed(replayed(found)));
    }
    let is_elsewhere = request_ids == RequestIds::Global;
    is_elsewhere.then(|| PriorAppend::Elsewhere(text(AGGREGATE_ID).to_owned()))
}

/// The first answer.
fn replayed(found: &Document) -> Appended {
    let id = found.get_str(ID).unwrap_or_default().to_owned();
    let size = integer(found, SIZE);
    // A stream of another program has no records here.
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

fn integer(document: &Document, field: &str) -> i64 {
    document.get(field).and_then(integral).unwrap_or(0)
}
