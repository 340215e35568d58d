//! The baseline without Postrider: one transaction for each append, with the same documents,
//! indexes, concerns and driver.

use bson::{Document, doc};
use mongodb::error::{Error, TRANSIENT_TRANSACTION_ERROR};
use mongodb::options::ReadConcern;
use mongodb::{Client, Collection};
use postrider::outbox::{NewRecord, Outbox};
use postrider::store::connect::majority;
use uuid::Uuid;

use crate::body;

pub struct Alone {
    client: Client,
    streams: Collection<Document>,
    outbox: Outbox,
}

impl Alone {
    pub fn new(client: Client, database: &str, name: &str) -> Self {
        let database = client.database(database);
        let streams = database.collection(&format!("{name}_event_stream"));
        let outbox = Outbox::new(&database, "");
        Self { client, streams, outbox }
    }

    /// Appends at the version after `version`, which the caller knows; without one, after the
    /// version that it reads.
    pub async fn append(&self, aggregate: &str, request: &str, version: Option<i32>) {
        while let Err(error) = self.once(aggregate, request, version).await {
            // Another client was first.
            let duplicate = error.to_string().contains("E11000");
            assert!(duplicate || error.contains_label(TRANSIENT_TRANSACTION_ERROR), "{error}");
        }
    }

    async fn once(
        &self,
        aggregate: &str,
        request: &str,
        version: Option<i32>,
    ) -> Result<(), Error> {
        let mut session = self.client.start_session().await?;
        session
            .start_transaction()
            .read_concern(ReadConcern::snapshot())
            .write_concern(majority())
            .await?;
        let version = match version {
            Some(version) => version,
            None => {
                let newest = self.streams.find_one(doc! { "aggregateId": aggregate });
                let newest = newest.sort(doc! { "version": -1 }).session(&mut session).await?;
                newest.map_or(0, |newest| newest.get_i32("version").unwrap())
            }
        } + 1;
        let id = Uuid::new_v4();
        let stream = doc! {
            "_id": id.to_string(),
            "contextName": "default",
            "aggregateName": "order",
            "aggregateId": aggregate,
            "requestId": request,
            "version": version,
            "createTime": bson::DateTime::now().timestamp_millis(),
            "header": {},
            "size": 1,
            "body": [{ "id": id.to_string(), "name": "OrderCreated", "body": body() }],
        };
        self.streams.insert_one(stream).session(&mut session).await?;
        let record = NewRecord::new("OrderCreated", body())
            .key(aggregate)
            .header("aggregate-name", "order")
            .header("aggregate-id", aggregate)
            .header("aggregate-version", version)
            .header("event-index", 0)
            .header("event-count", 1)
            .header("request-id", request);
        self.outbox.enqueue(&mut session, record).await?;
        session.commit_transaction().await
    }
}
