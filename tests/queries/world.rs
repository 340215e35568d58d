//! The collections of a test, and queries of them.

use bson::{Bson, Document};
use futures_util::TryStreamExt;
use mongodb::{Client, Collection};
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::events::EventStore;
use postrider::events::query::{
    Condition, FieldName, Found, Query, QueryError, QueryService, QuerySettings, SortKey, Target,
};
use postrider::names::AggregateName;
use postrider::snapshot::SnapshotStore;
use serde_json::Value;

use crate::support::outbox::TestOutbox;

/// A context in a database of its own.
pub struct World {
    pub outbox: TestOutbox,
    pub context: Context,
}

impl World {
    pub async fn new() -> Self {
        let outbox = TestOutbox::new().await;
        let context = context(&outbox, outbox.admin.client().clone());
        Self { outbox, context }
    }

    pub fn snapshots(&self) -> SnapshotStore {
        SnapshotStore::new(self.context.clone())
    }

    pub fn events(&self) -> EventStore {
        EventStore::new(self.context.clone(), self.outbox.admin.clone())
    }

    /// Queries, with RAW.
    pub fn queries(&self) -> QueryService {
        self.queries_with(QuerySettings { raw: true, ..QuerySettings::default() })
    }

    pub fn queries_with(&self, settings: QuerySettings) -> QueryService {
        QueryService::new(self.context.clone(), settings)
    }

    pub fn collection(&self, target: Target) -> Collection<Document> {
        let kind = match target {
            Target::Events => CollectionKind::Events,
            Target::Snapshots => CollectionKind::Snapshots,
        };
        self.context.collection(kind, "order")
    }

    /// Stores documents as they are.
    pub async fn insert(&self, target: Target, documents: impl IntoIterator<Item = Document>) {
        self.collection(target).insert_many(documents).await.unwrap();
    }

    pub async fn create_index(&self, target: Target, keys: Document) {
        let index = mongodb::IndexModel::builder().keys(keys).build();
        self.collection(target).create_index(index).await.unwrap();
    }
}

/// A context in the database of an outbox, through a client.
pub fn context(outbox: &TestOutbox, client: Client) -> Context {
    Context::new(client, ContextSettings::new(&outbox.database))
}

pub fn order() -> AggregateName {
    AggregateName::new("order").unwrap()
}

pub fn field(name: &str) -> FieldName {
    FieldName::new(name).unwrap()
}

/// A condition by its JSON.
pub fn condition(json: Value) -> Condition {
    let text = json.to_string();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub fn query(condition: Condition) -> Query {
    Query { condition, ..Query::default() }
}

/// All of events, or snapshots, in an order.
pub fn sorted(sort: Vec<SortKey>) -> Query {
    Query { sort, ..query(Condition::All) }
}

/// A part of a list, and the cursor of the next one.
pub async fn part(
    queries: &QueryService,
    target: Target,
    query: &Query,
    limit: u32,
    after: Option<&str>,
) -> Result<(Vec<Document>, Option<String>), QueryError> {
    let found = queries.list(target, &order(), query, limit, after).await?;
    let (mut documents, mut next) = (Vec::new(), None);
    for item in found.try_collect::<Vec<_>>().await? {
        assert_eq!(next, None, "the cursor is the last item");
        match item {
            Found::Document(document) => documents.push(document),
            Found::Next(cursor) => next = Some(cursor),
        }
    }
    Ok((documents, next))
}

/// What a condition finds, by id.
pub async fn found(queries: &QueryService, target: Target, condition: &Condition) -> Vec<Bson> {
    let query = query(condition.clone());
    let (found, next) = part(queries, target, &query, 1_000, None).await.unwrap();
    assert_eq!(next, None);
    ids(&found)
}

pub fn ids(documents: &[Document]) -> Vec<Bson> {
    documents.iter().map(|document| document["_id"].clone()).collect()
}
