//! Reads of streams: what precedes appends, and what became of them.

use std::collections::{BTreeMap, HashMap};

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::Hint;
use mongodb::{ClientSession, Collection};
use postrider_store::{StoreError, limits, within};

use crate::commits::CommittedAppend;
use crate::context::{CollectionKind, Context};
use crate::feed::collections::StreamCollections;
use crate::feed::found::{FoundStream, Predecessor, projection, read, read_predecessor};
use crate::feed::planner::beginnings;
use crate::names::{AggregateKey, AggregateName};
use crate::stream::fields::{AGGREGATE_ID, ID, POSITION, VERSION};

const ACTION: &str = "read the predecessors of appends";

/// The most predecessors without a position that are read at once.
const MAX_CHAIN: i64 = 1_000;

/// An append whose predecessor has no position.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Early {
    pub(super) aggregate: AggregateKey,
    pub(super) version: i64,
    /// Whether there is no predecessor.
    pub(super) is_missing: bool,
}

/// Reads in a transaction which appends of a batch must wait, since what precedes them in their stream has
/// no position or does not exist.
pub(super) async fn early(
    session: &mut ClientSession,
    context: &Context,
    collections: &StreamCollections,
    batch: &[CommittedAppend],
) -> Result<Vec<Early>, StoreError> {
    let mut of_name: HashMap<&AggregateName, Vec<&CommittedAppend>> = HashMap::new();
    for append in beginnings(batch) {
        of_name.entry(&append.aggregate.0).or_default().push(append);
    }
    let mut early = Vec::new();
    for (name, appends) in of_name {
        let mut before: BTreeMap<i64, Vec<&str>> = BTreeMap::new();
        for append in &appends {
            before.entry(append.version - 1).or_default().push(append.aggregate.1.as_str());
        }
        let streams: Collection<RawDocumentBuf> = context
            .database(CollectionKind::Events)
            .collection(&CollectionKind::Events.collection(name.as_str()));
        let fields = doc! { ID: 0, AGGREGATE_ID: 1, VERSION: 1, POSITION: 1 };
        let mut finding = streams.find(among(before)).projection(fields);
        if let Some(index) = collections.version_index(name) {
            finding = finding.hint(Hint::Name(index.to_owned()));
        }
        let reading = async {
            let mut cursor = finding.session(&mut *session).await?;
            cursor.stream(&mut *session).try_collect::<Vec<RawDocumentBuf>>().await
        };
        let found = within(ACTION, limits::BATCH_TIMEOUT, reading).await?;
        let found: Vec<Predecessor<'_>> =
            found.iter().filter_map(|raw| read_predecessor(raw)).collect();
        let positioned: HashMap<(&str, i64), bool> =
            found.iter().map(|it| ((it.id, it.version), it.has_position)).collect();
        for CommittedAppend { aggregate, version, .. } in appends {
            let has_position = positioned.get(&(aggregate.1.as_str(), version - 1));
            if has_position != Some(&true) {
                let is_missing = has_position.is_none();
                early.push(Early { aggregate: aggregate.clone(), version: *version, is_missing });
            }
        }
    }
    Ok(early)
}

/// The filter of these aggregates at each version. One clause for each version: MongoDB plans each clause.
fn among(versions: BTreeMap<i64, Vec<&str>>) -> Document {
    let of_version =
        |(version, ids)| doc! { VERSION: version, AGGREGATE_ID: { "$in": Bson::from(ids) } };
    let mut clauses: Vec<Document> = versions.into_iter().map(of_version).collect();
    match clauses.len() {
        1 => clauses.remove(0),
        _ => doc! { "$or": clauses },
    }
}

/// Reads the versions without a position that precede one, ascending; of a long chain its beginning.
pub(super) async fn chain(
    context: &Context,
    (name, id): &AggregateKey,
    before: i64,
) -> Result<Vec<CommittedAppend>, StoreError> {
    let mut earlier = doc! { AGGREGATE_ID: id.as_str(), VERSION: { "$lt": before } };
    let found = find(context, name, earlier.clone(), doc! { VERSION: -1 }, MAX_CHAIN).await?;
    let without = found.into_iter().take_while(|it| it.position.is_none());
    let mut chain: Vec<CommittedAppend> = without.map(|it| it.append).collect();
    if i64::try_from(chain.len()).is_ok_and(|length| length < MAX_CHAIN) {
        chain.reverse();
        return Ok(chain);
    }
    earlier.insert(POSITION, Bson::Null);
    let found = find(context, name, earlier, doc! { VERSION: 1 }, MAX_CHAIN).await?;
    Ok(found.into_iter().map(|it| it.append).collect())
}

/// Reads the documents of these ids again, and returns those that exist.
pub(super) async fn reread(
    context: &Context,
    batch: &[CommittedAppend],
) -> Result<Vec<FoundStream>, StoreError> {
    let mut of_name: HashMap<&AggregateName, Vec<Bson>> = HashMap::new();
    for append in batch {
        of_name.entry(&append.aggregate.0).or_default().push(append.id.clone());
    }
    let mut all = Vec::new();
    for (name, ids) in of_name {
        all.extend(find(context, name, doc! { ID: { "$in": ids } }, doc! {}, 0).await?);
    }
    Ok(all)
}

/// A limit of 0 is none.
async fn find(
    context: &Context,
    name: &AggregateName,
    filter: Document,
    sort: Document,
    limit: i64,
) -> Result<Vec<FoundStream>, StoreError> {
    let streams = context.collection(CollectionKind::Events, name.as_str());
    let streams = streams.clone_with_type::<RawDocumentBuf>();
    let finding = streams.find(filter).projection(projection()).sort(sort).limit(limit);
    let reading = async { finding.await?.try_collect::<Vec<_>>().await };
    let found = within(ACTION, limits::BATCH_TIMEOUT, reading).await?;
    Ok(found.iter().filter_map(|raw| read(name, raw)).collect())
}
