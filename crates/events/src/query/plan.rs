//! The plans of MongoDB: what a query reads, by its shape.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Bson, Document, bson, doc};
use futures_util::TryStreamExt;
use mongodb::{Collection, Database};
use parking_lot::Mutex;
use postrider_store::connect::primary;
use postrider_store::{StoreError, limits, within};

use super::bounds::bounds;
use super::compile::DELETED;
use super::read::{IndexRead, Read};

/// How long a plan that uses an index is trusted.
const INDEXED_RETENTION: Duration = Duration::from_secs(300);

/// How long a plan that scans is remembered: an index may be created meanwhile.
const SCAN_RETENTION: Duration = Duration::from_secs(10);

/// The shapes that are remembered at most.
const MAX_SHAPES: usize = 1_000;

/// The plans of one shape that are considered at most.
const MAX_READS: usize = 8;

const ACTION: &str = "explain a query";

/// The plans of the shapes of queries: their fields and operators, without values.
#[derive(Clone, Debug, Default)]
pub(super) struct Plans {
    known: Arc<Mutex<HashMap<u64, Known>>>,
}

#[derive(Clone, Debug)]
struct Known {
    until: Instant,
    plan: Plan,
}

/// How MongoDB can answer the queries of a shape.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Plan {
    /// It reads the documents of the answer alone, in their order.
    Exact,
    /// It can only read every document, or every key of an index, and test or sort what it finds.
    Scan,
    /// It reads documents, and tests or sorts what it finds; how many, depends on the values.
    Filters(Arc<[Read]>),
}

/// A query, as far as its plan depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'q> {
    pub(super) filter: &'q Document,
    pub(super) order: &'q Document,
}

impl Plans {
    /// Returns how MongoDB can answer a query.
    pub(super) async fn plan(
        &self,
        database: &Database,
        collection: &Collection<Document>,
        shape: Shape<'_>,
    ) -> Result<Plan, StoreError> {
        let key = shape.key(database.name(), collection.name());
        if let Some(known) = self.known.lock().get(&key)
            && Instant::now() < known.until
        {
            return Ok(known.plan.clone());
        }
        let planner = explain(database, collection, shape.filter, shape.order).await?;
        let shards: Vec<Vec<Stages>> = planner.iter().map(Stages::of_planner).collect();
        let plan = if shards.iter().any(|plans| can_only_scan(plans)) {
            Plan::Scan
        } else if shards.iter().all(|plans| plans.iter().any(Stages::is_exact)) {
            Plan::Exact
        } else {
            let plans = shards.into_iter().flatten().collect();
            Plan::Filters(bounded_reads(database, collection, shape, plans).await?.into())
        };
        let retention = if plan == Plan::Scan { SCAN_RETENTION } else { INDEXED_RETENTION };
        let known = Known { until: Instant::now() + retention, plan: plan.clone() };
        let mut all = self.known.lock();
        if all.len() >= MAX_SHAPES {
            all.clear();
        }
        all.insert(key, known);
        Ok(plan)
    }

    /// Remembers the plan of a query that is refused for a short time only, as that of a scan.
    pub(super) fn forget_soon(
        &self,
        database: &Database,
        collection: &Collection<Document>,
        shape: Shape<'_>,
    ) {
        let key = shape.key(database.name(), collection.name());
        if let Some(known) = self.known.lock().get_mut(&key) {
            known.until = known.until.min(Instant::now() + SCAN_RETENTION);
        }
    }
}

/// Explains a query: the planner's answer of each shard.
async fn explain(
    database: &Database,
    collection: &Collection<Document>,
    filter: &Document,
    order: &Document,
) -> Result<Vec<Document>, StoreError> {
    let find = doc! { "find": collection.name(), "filter": filter, "sort": order };
    let explain = doc! { "explain": find, "verbosity": "queryPlanner" };
    let explaining = database.run_command(explain).selection_criteria(primary());
    let explained = within(ACTION, limits::BATCH_TIMEOUT, explaining).await?;
    let Ok(planner) = explained.get_document("queryPlanner") else { return Ok(Vec::new()) };
    let winning = planner.get_document("winningPlan");
    match winning.and_then(|winning| winning.get_array("shards")) {
        Ok(shards) => Ok(shards.iter().filter_map(Bson::as_document).cloned().collect()),
        Err(_) => Ok(vec![planner.clone()]),
    }
}

/// Whether MongoDB can only read all documents or keys, and test or sort what it finds. Where it could do
/// otherwise, and chose not to, it expects to find enough soon.
fn can_only_scan(plans: &[Stages]) -> bool {
    !plans.is_empty() && plans.iter().all(|plan| plan.reads_all && !plan.is_exact())
}

/// What the plans read, of those by which MongoDB reads no more documents than their bounds have.
async fn bounded_reads(
    database: &Database,
    collection: &Collection<Document>,
    Shape { filter, order }: Shape<'_>,
    plans: Vec<Stages>,
) -> Result<Vec<Read>, StoreError> {
    let mut reads: Vec<Read> = Vec::new();
    let partial = if plans.iter().any(Stages::has_partial) {
        partial_filters(database, collection).await?
    } else {
        HashMap::new()
    };
    for plan in plans {
        let read = plan.read(&partial);
        if reads.len() < MAX_READS && !reads.contains(&read) {
            reads.push(read);
        }
    }
    let mut tight = Vec::new();
    for read in reads {
        let bounded = bounds(filter, &read).map(|bounds| bounds.filter);
        if bounded.is_none() && !read.is_sorted {
            continue;
        }
        let none = Document::new();
        let order = if read.is_sorted { order } else { &none };
        let planner = explain(database, collection, &bounded.unwrap_or_default(), order).await?;
        let partial = read.indexes.iter().filter_map(|index| index.partial.as_ref());
        let partial: Vec<&str> =
            partial.flat_map(|filter| filter.keys().map(String::as_str)).collect();
        let winning = planner.iter().filter_map(|planner| planner.get_document("winningPlan").ok());
        if winning.map(Stages::of).all(|plan| plan.is_tight(&partial)) {
            tight.push(read);
        }
    }
    Ok(tight)
}

/// The filters of the partial indexes of a collection, by name.
async fn partial_filters(
    database: &Database,
    collection: &Collection<Document>,
) -> Result<HashMap<String, Document>, StoreError> {
    let listing = async {
        let list = doc! { "listIndexes": collection.name() };
        let cursor = database.run_cursor_command(list).selection_criteria(primary()).await?;
        cursor.try_collect::<Vec<Document>>().await
    };
    let indexes = within(ACTION, limits::BATCH_TIMEOUT, listing).await?;
    let partial = indexes.iter().filter_map(|index| {
        let filter = index.get_document("partialFilterExpression").ok()?;
        Some((index.get_str("name").ok()?.to_owned(), filter.clone()))
    });
    Ok(partial.collect())
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

/// The stages of one plan.
#[derive(Debug, Default)]
struct Stages {
    /// All documents, or all keys of an index.
    reads_all: bool,
    sorts: bool,
    is_text: bool,
    /// What it leaves out of what it reads.
    filters: Vec<Document>,
    indexes: Vec<IndexStage>,
}

#[derive(Debug)]
struct IndexStage {
    read: IndexRead,
    hashed: Vec<String>,
    is_partial: bool,
}

impl Stages {
    /// The plans that MongoDB considers; the first one has won.
    fn of_planner(planner: &Document) -> Vec<Self> {
        let winning = planner.get_document("winningPlan").into_iter();
        let rejected = planner.get_array("rejectedPlans").into_iter().flatten();
        winning.chain(rejected.filter_map(Bson::as_document)).map(Self::of).collect()
    }

    fn of(plan: &Document) -> Self {
        let mut stages = Self::default();
        stages.collect(plan);
        stages
    }

    fn collect(&mut self, stage: &Document) {
        match stage.get_str("stage").unwrap_or_default() {
            "COLLSCAN" => self.reads_all = true,
            "IXSCAN" => {
                self.reads_all |= is_unbounded(stage);
                self.indexes.push(IndexStage::of(stage));
            }
            "SORT" => self.sorts = true,
            kind => self.is_text |= kind.starts_with("TEXT"),
        }
        self.filters.extend(stage.get_document("filter").ok().cloned());
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

    /// Whether it leaves out nothing that it reads but deleted documents, which are few, and values with
    /// the hash of another one.
    fn is_exact(&self) -> bool {
        let mut hashed: Vec<&String> =
            self.indexes.iter().flat_map(|index| &index.hashed).collect();
        let mut is_free = |field: &str, test: &Document| {
            let is_deletion = field == DELETED && *test == doc! { "$eq": false };
            let position = hashed.iter().position(|name| *name == field);
            // A second test of the field is one of more than the hash.
            position.map(|position| hashed.remove(position)).is_some() || is_deletion
        };
        !self.sorts && self.filters.iter().all(|filter| every_test(filter, &mut is_free))
    }

    /// Whether it reads no more documents than it finds, or hardly: an index leaves open what is null or
    /// absent, what has a hash, and some types.
    fn is_tight(&self, partial: &[&str]) -> bool {
        let mut is_free = |field: &str, test: &Document| {
            let is_of_key =
                || test.keys().all(|operator| ["$eq", "$in", "$type"].contains(&&**operator));
            let is_deletion = field == DELETED && *test == doc! { "$eq": false };
            is_deletion || partial.contains(&field) || (!self.reads_all && is_of_key())
        };
        !self.sorts && self.filters.iter().all(|filter| every_test(filter, &mut is_free))
    }

    fn has_partial(&self) -> bool {
        self.indexes.iter().any(|index| index.is_partial)
    }

    fn read(self, partial: &HashMap<String, Document>) -> Read {
        let mut indexes: Vec<IndexRead> = Vec::new();
        for IndexStage { read, is_partial, .. } in self.indexes {
            let filter = if is_partial { partial.get(&read.name).cloned() } else { None };
            let read = IndexRead { partial: filter, ..read };
            if !indexes.contains(&read) {
                indexes.push(read);
            }
        }
        Read { indexes, is_text: self.is_text, is_sorted: !self.sorts && !self.is_text }
    }
}

impl IndexStage {
    fn of(stage: &Document) -> Self {
        let keys = stage.get_document("keyPattern").cloned().unwrap_or_default();
        let is_hashed = |kind: &Bson| kind.as_str() == Some("hashed");
        // Not those of texts and places, and not the path of a wildcard index.
        let is_field = |name: &str, kind: &Bson| {
            !name.starts_with('$') && (kind.as_str().is_none() || is_hashed(kind))
        };
        let named = |is: &dyn Fn(&str, &Bson) -> bool| {
            keys.iter()
                .filter(|(name, kind)| is(name, kind))
                .map(|(name, _)| name.clone())
                .collect()
        };
        let flag = |name: &str| stage.get_bool(name).unwrap_or(false);
        Self {
            read: IndexRead {
                name: stage.get_str("indexName").unwrap_or_default().to_owned(),
                fields: named(&is_field),
                is_multikey: flag("isMultiKey"),
                partial: None,
            },
            hashed: named(&|_, kind| is_hashed(kind)),
            is_partial: flag("isPartial"),
        }
    }
}

/// Whether each test of a filter that is a conjunction is one of these.
fn every_test(filter: &Document, is: &mut dyn FnMut(&str, &Document) -> bool) -> bool {
    filter.iter().all(|(name, value)| match value {
        // (Of a branch of an `$or` MongoDB keeps an `$or` with one child.)
        Bson::Array(children) if name == "$and" || (name == "$or" && children.len() == 1) => {
            children
                .iter()
                .all(|child| child.as_document().is_some_and(|child| every_test(child, is)))
        }
        Bson::Document(test) if !name.starts_with('$') => is(name, test),
        _ => false,
    })
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
