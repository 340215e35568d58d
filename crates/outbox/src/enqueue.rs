//! Enqueues records from Rust, in the caller's transaction.

use bson::{Bson, DateTime, Document, doc};
use mongodb::error::{Error, Result};
use mongodb::{ClientSession, Collection, Database};
use uuid::Uuid;

use crate::collections::names;
use crate::fields::{
    CONTENT_TYPE, CREATED_AT, DEDUP_KEY, DESTINATION, HEADERS, ID, KEY, PARTITION, PAYLOAD,
    PENDING, SCHEDULED, SEQ, STATUS, TENANT_ID, TYPE, VISIBLE_AT,
};
use crate::ids::RecordId;
use crate::partition;
use crate::position::NO_SEQ;

/// The producer's side of an outbox, for applications in Rust.
///
/// ```no_run
/// # use mongodb::{Client, bson::doc};
/// use postrider_outbox::{NewRecord, Outbox};
///
/// # async fn run(client: Client) -> mongodb::error::Result<()> {
/// let database = client.database("shop");
/// let orders = database.collection("orders");
/// let outbox = Outbox::new(&database, "");
///
/// let mut session = client.start_session().await?;
/// session.start_transaction().await?;
/// orders.insert_one(doc! { "_id": 7, "total": 120 }).session(&mut session).await?;
/// let created = NewRecord::new("OrderCreated", doc! { "order": 7 }).key("order-7");
/// outbox.enqueue(&mut session, created).await?;
/// session.commit_transaction().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Outbox {
    records: Collection<Document>,
}

/// A record to be enqueued.
#[derive(Clone, Debug)]
pub struct NewRecord {
    id: RecordId,
    document: Document,
    headers: Document,
}

impl Outbox {
    /// The outbox in `database` (of the client that the sessions are of), whose collections
    /// have `prefix` in front of their names.
    pub fn new(database: &Database, prefix: &str) -> Self {
        let name = format!("{prefix}{}", names::RECORDS);
        Self { records: database.collection(&name) }
    }

    /// Inserts a record in the session's transaction, and answers its id: the message id that
    /// consumers will see. It is delivered once the transaction has committed, and never if
    /// it aborts.
    ///
    /// # Errors
    ///
    /// The driver's own, labels and all, so that
    /// [`and_run`](mongodb::action::StartTransaction::and_run) can repeat the transaction: a
    /// `dedupKey` or id that exists is code 11000. A header that is a document or an array is a
    /// custom error, and nothing is sent.
    pub async fn enqueue(
        &self,
        session: &mut ClientSession,
        record: NewRecord,
    ) -> Result<RecordId> {
        let id = record.id.clone();
        let document = record.into_document()?;
        self.records.insert_one(document).session(session).await?;
        Ok(id)
    }
}

impl NewRecord {
    /// A record with a fresh UUID, of this message type (such as `OrderCreated`) and payload.
    /// A document or array is sent as JSON, a binary as its bytes, a string as UTF-8 text.
    pub fn new(kind: impl Into<String>, payload: impl Into<Bson>) -> Self {
        let document = doc! {
            TYPE: kind.into(),
            PAYLOAD: payload.into(),
            STATUS: PENDING,
            // The server replaces it with its cluster time.
            SEQ: NO_SEQ,
            CREATED_AT: DateTime::now(),
        };
        Self { id: RecordId::Uuid(Uuid::new_v4()), document, headers: Document::new() }
    }

    /// Another id than a fresh UUID; one that exists aborts the transaction.
    pub fn id(mut self, id: RecordId) -> Self {
        self.id = id;
        self
    }

    /// Records of one key are delivered in order. Without a key there is none.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        let key = key.into();
        self.document.insert(PARTITION, i32::from(partition::of_key(&key)));
        self.document.insert(KEY, key);
        self
    }

    /// A message header: a scalar or a binary.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bson>) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The content type, where the one that follows from the payload is not meant.
    pub fn content_type(self, content_type: impl Into<String>) -> Self {
        self.with(CONTENT_TYPE, content_type.into())
    }

    /// The exchange or topic, past all routes.
    pub fn destination(self, destination: impl Into<String>) -> Self {
        self.with(DESTINATION, destination.into())
    }

    /// The tenant, passed through as a header.
    pub fn tenant_id(self, tenant: impl Into<String>) -> Self {
        self.with(TENANT_ID, tenant.into())
    }

    /// Unique while the record exists: a second one aborts its transaction.
    pub fn dedup_key(self, key: impl Into<String>) -> Self {
        self.with(DEDUP_KEY, key.into())
    }

    /// Not before `due`, by the server's clock. It takes its place in its key when it is due.
    pub fn scheduled_for(self, due: DateTime) -> Self {
        self.with(STATUS, SCHEDULED).with(VISIBLE_AT, due)
    }

    fn with(mut self, field: &str, value: impl Into<Bson>) -> Self {
        self.document.insert(field, value);
        self
    }

    /// Its id.
    pub fn record_id(&self) -> &RecordId {
        &self.id
    }

    /// The document that is inserted.
    ///
    /// # Errors
    ///
    /// A header that is a document or an array.
    pub fn into_document(self) -> Result<Document> {
        let nested = |value: &Bson| matches!(value, Bson::Document(_) | Bson::Array(_));
        if let Some((name, _)) = self.headers.iter().find(|(_, value)| nested(value)) {
            let detail = format!("header {name:?} of an outbox record is a document or an array");
            return Err(Error::custom(detail));
        }
        let mut document = doc! { ID: Bson::from(&self.id) };
        document.extend(self.document);
        if !self.headers.is_empty() {
            document.insert(HEADERS, self.headers);
        }
        Ok(document)
    }
}
