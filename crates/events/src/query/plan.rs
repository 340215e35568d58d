//! The plans of MongoDB: whether a query reads a whole collection.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Bson, Document, bson, doc};
use mongodb::{Collection, Database};
use parking_lot::Mutex;
use postrider_store::connect::primary;
use postrider_store::{StoreError, limits, within};

use super::compile::DELETED;

/// How long a plan that uses an index is trusted.
const INDEXED_RETENTION: Duration = Duration::from_secs(300);

/// How long a plan that scans is remembered: an index may be created meanwhile.
const SCAN_RETENTION: Duration = Duration::from_secs(10);

/// The shapes that are remembered at most.
const MAX_SHAPES: usize = 1_000;

const ACTION: &str = "explain a query";

/// The plans of the shapes of queries: their fields and operators, without values.
#[derive(Clone, Debug, Default)]
pub(super) struct Plans {
    known: Arc<Mutex<HashMap<u64, Known>>>,
}

#[derive(Clone, Debug)]
struct Known {
    until: Instant,
    scan: Option<Scan>,
}

/// A plan that reads a whole collection or index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The collection.
    pub collection: String,
    /// About how many documents it has.
    pub documents: u64,
}

/// A query, as far as its plan depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'q> {
    pub(super) filter: &'q Document,
    pub(super) order: &'q Document,
}

impl Plans {
    /// Returns the scan by which MongoDB would answer a query, if it reads all of a collection that has
    /// more documents than `limit`.
    pub(super) async fn scan(
        &self,
        database: &Database,
        collection: &Collection<Document>,
        shape: Shape<'_>,
        limit: u64,
    ) -> Result<Option<Scan>, StoreError> {
        let key = shape.key(database.name(), collection.name());
        if let Some(known) = self.known.lock().get(&key)
            && Instant::now() < known.until
        {
            return Ok(known.scan.clone());
        }
        let Shape { filter, order } = shape;
        let find = doc! { "find": collection.name(), "filter": filter, "sort": order };
        let explain = doc! { "explain": find, "verbosity": "queryPlanner" };
        let explaining = database.run_command(explain).selection_criteria(primary());
        let plan = within(ACTION, limits::BATCH_TIMEOUT, explaining).await?;
        let mut scan = None;
        let scans = plan.get_document("queryPlanner").is_ok_and(is_scan);
        if scans {
            let counting = collection.estimated_document_count();
            let documents = within(ACTION, limits::BATCH_TIMEOUT, counting).await?;
            scan = (documents > limit)
                .then(|| Scan { collection: collection.name().to_owned(), documents });
        }
        let retention = if scans { SCAN_RETENTION } else { INDEXED_RETENTION };
        let known = Known { until: Instant::now() + retention, scan: scan.clone() };
        let mut all = self.known.lock();
        if all.len() >= MAX_SHAPES {
            all.clear();
        }
        all.insert(key, known);
        Ok(scan)
    }
}

impl Shape<'_> {
    fn key(&self, database: &str, collection: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (database, collection).hash(&mut hasher);
        hash_document(self.filter, &mut hasher);
        hash_document(self.order, &mut hasher);
        hasher.finish()
    }
}

/// Hashes names and operators, and of the values what a plan may depend on.
fn hash_document(document: &Document, hasher: &mut DefaultHasher) {
    document.len().hash(hasher);
    for (name, value) in document {
        name.hash(hasher);
        match value {
            Bson::String(pattern) if name == "$regex" => {
                // An index is read from the literal text at the beginning on. MongoDB finds none in a
                // pattern with a bar.
                let has_prefix = pattern.starts_with('^') && pattern.len() > 1;
                (has_prefix, pattern.replace("\\|", "").contains('|')).hash(hasher);
            }
            value if name == "$type" => value.to_string().hash(hasher),
            Bson::String(options) if name == "$options" => options.hash(hasher),
            value => hash_value(value, hasher),
        }
    }
}

fn hash_value(value: &Bson, hasher: &mut DefaultHasher) {
    (value.element_type() as u8).hash(hasher);
    match value {
        Bson::Document(document) => hash_document(document, hasher),
        Bson::Boolean(value) => value.hash(hasher),
        Bson::String(text) => text.is_empty().hash(hasher),
        Bson::Int32(sign) => (*sign < 0).hash(hasher),
        // Conditions; of values only the kind of the first.
        Bson::Array(items) if items.iter().all(|item| item.as_document().is_some()) => {
            items.len().hash(hasher);
            items.iter().for_each(|item| hash_value(item, hasher));
        }
        Bson::Array(items) => {
            items.first().map(Bson::element_type).map(|kind| kind as u8).hash(hasher)
        }
        _ => {}
    }
}

/// Whether MongoDB can only read every document or every key of an index, and test or sort what it finds.
/// Where it could do otherwise, and chose not to, it expects to find enough soon.
fn is_scan(planner: &Document) -> bool {
    let Ok(winning) = planner.get_document("winningPlan") else { return false };
    if let Ok(shards) = winning.get_array("shards") {
        return shards.iter().filter_map(Bson::as_document).any(is_scan);
    }
    let rejected = planner.get_array("rejectedPlans").into_iter().flatten();
    std::iter::once(winning).chain(rejected.filter_map(Bson::as_document)).all(|plan| {
        let mut stages = Stages::default();
        stages.collect(plan);
        stages.reads_all && (stages.sorts || stages.tests)
    })
}

#[derive(Default)]
struct Stages {
    /// All documents, or all keys of an index.
    reads_all: bool,
    sorts: bool,
    tests: bool,
}

impl Stages {
    fn collect(&mut self, stage: &Document) {
        match stage.get_str("stage").unwrap_or_default() {
            "COLLSCAN" => self.reads_all = true,
            "IXSCAN" => self.reads_all |= is_unbounded(stage),
            "SORT" => self.sorts = true,
            _ => {}
        }
        self.tests |= tests(stage);
        // Not what the query says.
        for (_, value) in stage.iter().filter(|(name, _)| *name != "filter") {
            match value {
                Bson::Document(inner) => self.collect(inner),
                Bson::Array(items) => {
                    items
                        .iter()
                        .filter_map(Bson::as_document)
                        .for_each(|inner| self.collect(inner));
                }
                _ => {}
            }
        }
    }
}

/// Whether a stage leaves documents out, but for deleted ones, which are few.
fn tests(stage: &Document) -> bool {
    let filter = stage.get_document("filter");
    filter.is_ok_and(|filter| *filter != doc! { DELETED: { "$eq": false } })
}

/// Whether an index is read from its beginning to its end, or all texts of its first field are, or all
/// documents that are not deleted.
fn is_unbounded(stage: &Document) -> bool {
    let Ok(bounds) = stage.get_document("indexBounds") else { return false };
    let is_all = |ranges: &Bson| {
        let mut ranges = ranges.as_array().into_iter().flatten().filter_map(Bson::as_str);
        // Forwards or backwards.
        let all = ["[MinKey, MaxKey]", "[MaxKey, MinKey]", "[\"\", {})", "({}, \"\"]"];
        ranges.any(|range| all.contains(&range))
    };
    let mut fields = bounds.iter();
    match fields.next() {
        Some((name, ranges)) if name == DELETED && *ranges != bson!(["[true, true]"]) => {
            fields.next().is_none_or(|(_, ranges)| is_all(ranges))
        }
        Some((_, ranges)) => is_all(ranges),
        None => false,
    }
}
