//! The check of a feed: what is stored, and what each reader saw. The chaos histories use it too.

use std::collections::{BTreeMap, HashMap};

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Database;
use mongodb::options::ReadConcern;
use postrider::events::feed::FeedEvent;

/// The end of the name of each collection of event streams.
const SUFFIX: &str = "_event_stream";

/// An append that a majority has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAppend {
    /// Its name and id, as `order/1`.
    pub aggregate: String,
    pub version: i64,
    pub events: i64,
    pub position: Option<i64>,
}

/// One event, as it is stored or as a reader saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedItem {
    pub position: i64,
    pub aggregate: String,
    pub version: i64,
    pub index: i64,
}

impl From<&FeedEvent> for FeedItem {
    fn from(event: &FeedEvent) -> Self {
        Self {
            position: event.position,
            aggregate: format!("{}/{}", event.aggregate_name, event.aggregate_id),
            version: event.version,
            index: event.index,
        }
    }
}

/// What is wrong with a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedFault {
    /// A committed append has no position.
    Unpositioned { aggregate: String, version: i64 },
    /// No event has this position, and a later one has.
    Hole { position: i64 },
    /// Two events have this position: so the events of two appends are not adjacent either.
    Shared { position: i64 },
    /// A version has a lower position than its predecessor.
    Inverted { aggregate: String, version: i64 },
    /// A version has a position, and its predecessor does not exist.
    WithoutPredecessor { aggregate: String, version: i64 },
    /// The head is not the last position.
    Head { head: i64, last: i64 },
    /// A reader did not see an event.
    Skipped { reader: usize, position: i64 },
    /// A reader saw a position twice, or after a later one.
    Repeated { reader: usize, position: i64 },
    /// A reader saw another event at this position than the one that is stored there.
    Other { reader: usize, seen: FeedItem },
    /// A reader got an error that a retry does not resolve.
    Refused { reader: usize, error: String },
}

/// What one reader saw from position 0 on.
#[derive(Clone, Debug, Default)]
pub struct ReaderLog {
    pub items: Vec<FeedItem>,
    /// Errors that are not of MongoDB.
    pub errors: Vec<String>,
}

/// Reads all streams from a majority.
pub async fn stored(database: &Database) -> Vec<StoredAppend> {
    let mut appends = Vec::new();
    let filter = doc! { "name": { "$regex": format!("{SUFFIX}$") } };
    for collection in database.list_collection_names().filter(filter).await.unwrap() {
        let name = collection.strip_suffix(SUFFIX).unwrap();
        let streams = database.collection::<Document>(&collection);
        let found = streams.find(doc! {}).read_concern(ReadConcern::majority()).await.unwrap();
        let found: Vec<Document> = found.try_collect().await.unwrap();
        appends.extend(found.iter().map(|found| StoredAppend {
            aggregate: format!("{name}/{}", found.get_str("aggregateId").unwrap()),
            version: number(found, "version").unwrap(),
            events: i64::try_from(found.get_array("body").unwrap().len()).unwrap(),
            position: number(found, "position"),
        }));
    }
    appends
}

fn number(of: &Document, field: &str) -> Option<i64> {
    match of.get(field)? {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        other => panic!("{field} = {other}"),
    }
}

/// Compares what is stored with the head and with what readers saw.
pub fn judge(appends: &[StoredAppend], head: i64, readers: &[ReaderLog]) -> Vec<FeedFault> {
    let mut faults = Vec::new();
    let mut items: BTreeMap<i64, FeedItem> = BTreeMap::new();
    for append in appends {
        let StoredAppend { aggregate, version, events, position } = append;
        let Some(last) = position else {
            let aggregate = aggregate.clone();
            faults.push(FeedFault::Unpositioned { aggregate, version: *version });
            continue;
        };
        for index in 0..*events {
            let position = last - events + 1 + index;
            let aggregate = aggregate.clone();
            let item = FeedItem { position, aggregate, version: *version, index };
            if items.insert(position, item).is_some() {
                faults.push(FeedFault::Shared { position });
            }
        }
    }
    faults.extend(streams(appends));
    for (expected, position) in (1..).zip(items.keys()) {
        if *position != expected {
            faults.push(FeedFault::Hole { position: expected });
            break;
        }
    }
    let last = items.last_key_value().map_or(0, |(position, _)| *position);
    if last != head {
        faults.push(FeedFault::Head { head, last });
    }
    for (reader, log) in readers.iter().enumerate() {
        faults.extend(seen(reader, log, &items));
    }
    faults
}

/// The order of each stream.
fn streams(appends: &[StoredAppend]) -> Vec<FeedFault> {
    let mut of_aggregate: HashMap<&str, BTreeMap<i64, Option<i64>>> = HashMap::new();
    for append in appends {
        let versions = of_aggregate.entry(&append.aggregate).or_default();
        versions.insert(append.version, append.position);
    }
    let mut faults = Vec::new();
    for (aggregate, versions) in of_aggregate {
        for (version, position) in versions.iter().filter(|(_, position)| position.is_some()) {
            let (aggregate, version) = (aggregate.to_owned(), *version);
            match versions.get(&(version - 1)) {
                Some(before) if before >= position => {
                    faults.push(FeedFault::Inverted { aggregate, version });
                }
                Some(Some(_)) => {}
                _ if version == 1 => {}
                _ => faults.push(FeedFault::WithoutPredecessor { aggregate, version }),
            }
        }
    }
    faults
}

/// What a reader saw against what is stored.
fn seen(reader: usize, log: &ReaderLog, items: &BTreeMap<i64, FeedItem>) -> Vec<FeedFault> {
    let error = |error: &String| FeedFault::Refused { reader, error: error.clone() };
    let mut faults: Vec<FeedFault> = log.errors.iter().map(error).collect();
    let mut last = 0;
    let mut expected = items.keys().copied().peekable();
    for item in &log.items {
        let position = item.position;
        if position <= last {
            faults.push(FeedFault::Repeated { reader, position });
            continue;
        }
        last = position;
        while let Some(skipped) = expected.next_if(|expected| *expected < position) {
            faults.push(FeedFault::Skipped { reader, position: skipped });
        }
        let _ = expected.next_if_eq(&position);
        if items.get(&position) != Some(item) {
            faults.push(FeedFault::Other { reader, seen: item.clone() });
        }
    }
    faults.extend(expected.map(|position| FeedFault::Skipped { reader, position }));
    faults
}
