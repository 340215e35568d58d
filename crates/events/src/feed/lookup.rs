//! Reads the predecessors of appends.

use std::collections::HashMap;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use postrider_store::{StoreError, limits, within};

use crate::commits::CommittedAppend;
use crate::context::{CollectionKind, Context};
use crate::feed::found::{FoundStream, projection, read};
use crate::feed::planner::Lookup;
use crate::names::{AggregateKey, AggregateName};
use crate::stream::fields::{AGGREGATE_ID, ID, POSITION, VERSION};

const ACTION: &str = "read the predecessors of appends";

/// Versions in one query.
const PER_QUERY: usize = 100;

/// The most predecessors without a position that are read at once.
const MAX_CHAIN: i64 = 1_000;

/// What precedes a version.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Predecessors {
    /// The version before has a position.
    Positioned,
    /// These have none yet, ascending; the version before the first one has a position, or there is none.
    Without(Vec<CommittedAppend>),
    /// There is no such version: nothing that follows it gets a position.
    Missing(i64),
}

/// Reads what precedes each of these versions.
pub(super) async fn predecessors(
    context: &Context,
    lookups: &[Lookup],
) -> Result<Vec<(AggregateKey, i64, Predecessors)>, StoreError> {
    let mut of_name: HashMap<&AggregateName, Vec<&Lookup>> = HashMap::new();
    for lookup in lookups {
        of_name.entry(&lookup.aggregate.0).or_default().push(lookup);
    }
    let mut answers = Vec::new();
    for (name, lookups) in of_name {
        for some in lookups.chunks(PER_QUERY) {
            let any: Vec<Document> = some
                .iter()
                .map(|it| doc! { AGGREGATE_ID: it.aggregate.1.as_str(), VERSION: it.before - 1 })
                .collect();
            let found = find(context, name, doc! { "$or": any }, doc! {}, 0).await?;
            let found: HashMap<(AggregateKey, i64), Option<i64>> = found
                .into_iter()
                .map(|it| ((it.append.aggregate, it.append.version), it.position))
                .collect();
            for Lookup { aggregate, before } in some {
                let predecessors = match found.get(&(aggregate.clone(), before - 1)) {
                    None => Predecessors::Missing(before - 1),
                    Some(Some(_)) => Predecessors::Positioned,
                    Some(None) => chain(context, aggregate, *before).await?,
                };
                answers.push((aggregate.clone(), *before, predecessors));
            }
        }
    }
    Ok(answers)
}

/// Reads the versions without a position in front of one, whose predecessor has none.
async fn chain(
    context: &Context,
    (name, id): &AggregateKey,
    before: i64,
) -> Result<Predecessors, StoreError> {
    let earlier = doc! { AGGREGATE_ID: id.as_str(), VERSION: { "$lt": before } };
    let found = find(context, name, earlier.clone(), doc! { VERSION: -1 }, MAX_CHAIN).await?;
    let mut without = Vec::new();
    let mut expected = before - 1;
    for FoundStream { append, position } in found {
        if append.version != expected {
            return Ok(Predecessors::Missing(expected));
        }
        if position.is_some() {
            without.reverse();
            return Ok(Predecessors::Without(without));
        }
        expected -= 1;
        without.push(append);
    }
    if expected < 1 {
        without.reverse();
        return Ok(Predecessors::Without(without));
    }
    if i64::try_from(without.len()).is_ok_and(|length| length < MAX_CHAIN) {
        return Ok(Predecessors::Missing(expected));
    }
    // A longer chain: from its beginning on.
    let mut earliest = earlier;
    earliest.insert(POSITION, Bson::Null);
    let found = find(context, name, earliest, doc! { VERSION: 1 }, MAX_CHAIN).await?;
    let chain: Vec<_> = found.into_iter().map(|it| it.append).collect();
    let before = chain.first().map_or(0, |first| first.version - 1);
    if before < 1 {
        return Ok(Predecessors::Without(chain));
    }
    let last = doc! { AGGREGATE_ID: id.as_str(), VERSION: before };
    Ok(match find(context, name, last, doc! {}, 1).await?.first() {
        Some(last) if last.position.is_some() => Predecessors::Without(chain),
        // It has come between the two reads: the next lookup finds it.
        Some(_) => Predecessors::Without(Vec::new()),
        None => Predecessors::Missing(before),
    })
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
