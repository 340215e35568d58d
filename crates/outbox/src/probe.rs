//! Finds out whether records can be enqueued as they must be.

use bson::{Bson, Document, doc};
use mongodb::ClientSession;
use mongodb::error::{Error, ErrorKind};
use postrider_store::error::driver_code;

use crate::enqueue::Outbox;
use crate::fields::{ID, SEQ};
use crate::new_record::NewRecord;

/// MongoDB's codes for transactions on a server without them.
const UNSUPPORTED: [i32; 2] = [20, 263];

/// MongoDB's code for a missing right.
const UNAUTHORIZED: i32 = 13;

/// Why records cannot be enqueued.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// MongoDB stored another `seq` than its cluster time.
    #[error(
        "outbox probe: seq is {found} after an insert: a proxy or server changes or removes the \
         zero timestamp, so that records have no order; connect directly to MongoDB 5.0 or newer"
    )]
    SeqNotFilled {
        /// What is there: `zero`, `absent`, or `not a timestamp`.
        found: &'static str,
    },
    /// The server has no transactions.
    #[error(
        "outbox probe: MongoDB is a standalone server without transactions; make it a replica \
         set of at least one member"
    )]
    NoTransactions(#[source] Error),
    /// The user must not read the records.
    #[error(
        "outbox probe: the user has no privilege to read records; grant find on {collection}, \
         or do not probe"
    )]
    NotReadable {
        /// The collection of the records.
        collection: String,
        /// MongoDB's answer.
        #[source]
        source: Error,
    },
    /// MongoDB refuses the insert, or cannot be reached.
    #[error("outbox probe: failed to insert a record and read it")]
    Failed(#[source] Error),
}

impl Outbox {
    /// Inserts a record in a transaction, reads its `seq` there, and aborts the transaction.
    ///
    /// Call it when a program starts. It leaves nothing in the database, and nothing is delivered. The user needs the
    /// right to insert records and to read them, as the role `postrider_producer` has.
    ///
    /// # Errors
    ///
    /// [`ProbeError`], with the cause and the remedy.
    pub async fn probe(&self) -> Result<(), ProbeError> {
        let client = self.records().client();
        let mut session = client.start_session().await.map_err(failed)?;
        session.start_transaction().await.map_err(failed)?;
        let probed = self.probe_in(&mut session).await;
        // An open transaction would end by itself, so the answer does not depend on this.
        let _ = session.abort_transaction().await;
        probed
    }

    async fn probe_in(&self, session: &mut ClientSession) -> Result<(), ProbeError> {
        let record = NewRecord::new("postrider.probe", Bson::Null);
        let id = Bson::from(record.record_id());
        self.enqueue(session, record).await.map_err(failed)?;
        let reading = self.records().find_one(doc! { ID: id }).projection(doc! { SEQ: 1 });
        let read = reading.session(session).await.map_err(|error| match driver_code(&error) {
            Some(UNAUTHORIZED) => {
                let collection = self.records().namespace().to_string();
                ProbeError::NotReadable { collection, source: error }
            }
            _ => failed(error),
        })?;
        is_filled(&read.unwrap_or_default())
    }
}

fn is_filled(record: &Document) -> Result<(), ProbeError> {
    let found = match record.get(SEQ) {
        Some(Bson::Timestamp(seq)) if seq.time != 0 => return Ok(()),
        Some(Bson::Timestamp(_)) => "zero",
        Some(_) => "not a timestamp",
        None => "absent",
    };
    Err(ProbeError::SeqNotFilled { found })
}

fn failed(error: Error) -> ProbeError {
    let is_unsupported = driver_code(&error).is_some_and(|code| UNSUPPORTED.contains(&code));
    if is_unsupported || matches!(&*error.kind, ErrorKind::Transaction { .. }) {
        ProbeError::NoTransactions(error)
    } else {
        ProbeError::Failed(error)
    }
}
