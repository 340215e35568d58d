//! Enqueues records from Rust, in the caller's transaction.

use std::fmt;
use std::sync::Arc;

use bson::Document;
use mongodb::error::{ErrorKind, Result};
use mongodb::{ClientSession, Collection, Database};

use crate::collections::names;
use crate::ids::RecordId;
use crate::new_record::{EnqueueRefusal, NewRecord};

/// The producer's side of an outbox, for applications in Rust.
///
/// ```no_run
/// # use mongodb::{Client, bson::{Document, doc}};
/// use postrider_outbox::{NewRecord, Outbox};
///
/// # async fn run(client: Client) -> mongodb::error::Result<()> {
/// let database = client.database("shop");
/// let orders = database.collection::<Document>("orders");
/// let outbox = Outbox::new(&database, "");
///
/// // Made before the transaction, so that a repeated transaction enqueues the same message.
/// let created = NewRecord::new("OrderCreated", doc! { "order": 7 }).key("order-7");
/// let mut session = client.start_session().await?;
/// let order = doc! { "_id": 7, "total": 120 };
/// let placing = session.start_transaction().and_run2(async |session| {
///     orders.insert_one(&order).session(&mut *session).await?;
///     outbox.enqueue(session, created.clone()).await
/// });
/// placing.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Outbox {
    records: Collection<Document>,
    trace_headers: Option<TraceHeaders>,
}

/// Returns headers for the record that is being enqueued.
type TraceHeaders = Arc<dyn Fn() -> Document + Send + Sync>;

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Outbox");
        shown.field("records", &self.records.namespace()).finish_non_exhaustive()
    }
}

impl Outbox {
    /// The outbox in `database` (of the client whose sessions are used), whose collections have
    /// `prefix` in front of their names (`outbox.collection_prefix`).
    pub fn new(database: &Database, prefix: &str) -> Self {
        let name = format!("{prefix}{}", names::RECORDS);
        Self { records: database.collection(&name), trace_headers: None }
    }

    /// Adds the headers that `headers` returns to each record that is enqueued: `traceparent` and
    /// `tracestate` of the current span. The record's own headers take precedence.
    pub fn with_trace_headers(
        mut self,
        headers: impl Fn() -> Document + Send + Sync + 'static,
    ) -> Self {
        self.trace_headers = Some(Arc::new(headers));
        self
    }

    /// The collection of the records.
    pub(crate) fn records(&self) -> &Collection<Document> {
        &self.records
    }

    /// Inserts a record in the session's transaction, and returns its id: the message id that
    /// consumers receive. It is delivered after the transaction has committed, and never if
    /// the transaction aborts.
    ///
    /// # Errors
    ///
    /// The driver's own, labels included, so that
    /// [`and_run2`](mongodb::action::StartTransaction::and_run2) can repeat the transaction: a
    /// `dedupKey` or id that exists is code 11000.
    ///
    /// A custom error with an [`EnqueueRefusal`] if a field is invalid, or if the session has no running
    /// transaction. Nothing is sent then.
    pub async fn enqueue(
        &self,
        session: &mut ClientSession,
        record: NewRecord,
    ) -> Result<RecordId> {
        let id = record.record_id().clone();
        let record = match &self.trace_headers {
            Some(headers) => record.default_headers(headers()),
            None => record,
        };
        let document = record.into_document()?;
        if !is_in_transaction(session).await? {
            let why = "has no running transaction; start one, and write your own change in it too";
            return Err(EnqueueRefusal::new("session", why).into());
        }
        self.records.insert_one(document).session(session).await?;
        Ok(id)
    }
}

/// Returns whether the session has a running transaction, without asking MongoDB.
///
/// The driver does not say so, but refuses to start a second one. One that did start has sent nothing yet, and its abort
/// sends nothing either.
async fn is_in_transaction(session: &mut ClientSession) -> Result<bool> {
    match session.start_transaction().await {
        Ok(()) => {
            session.abort_transaction().await?;
            Ok(false)
        }
        Err(error) => match &*error.kind {
            ErrorKind::Transaction { message, .. } if message.contains("already in progress") => {
                Ok(true)
            }
            // A snapshot session, or a server without transactions.
            ErrorKind::Transaction { .. } => Ok(false),
            _ => Err(error),
        },
    }
}
