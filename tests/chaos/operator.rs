//! The operators' actions in a history: by the real commands, and by updates of the collection.

use std::collections::HashSet;
use std::time::Duration;

use bson::{Bson, DateTime, Document, Timestamp, doc};
use futures_util::TryStreamExt;

use crate::history::History;
use crate::plan::OperatorChange;
use crate::support::process::{Ended, call_with};
use crate::traffic::{FAR, GHOST, STREAM};

/// How many records an operator changes at a time.
const AT_A_TIME: usize = 3;

/// How often an operator replaces records, one time after the other.
const ROUNDS: usize = 40;

/// A record that is due later than this is due by an operator's action alone.
const FAR_AWAY: Duration = Duration::from_secs(600);

impl History {
    /// Runs a command. It may meet a failover; the operator tries again later.
    pub async fn operator(&self, arguments: &[&str]) -> Ended {
        let uri = self.outbox.uri.replacen("/?", &format!("/{}?", self.outbox.database), 1);
        let settings = [format!("mongo.uri={uri}"), "sinks.out.kind=stdout".to_owned()];
        call_with(&settings, arguments).await
    }

    /// Discards what can never be delivered.
    pub async fn discard(&self) {
        self.operator(&["outbox", "discard", "--all", "--yes", "--reason", "refused:"]).await;
    }

    /// Changes waiting records.
    pub async fn tamper(&self, how: OperatorChange) {
        let records = self.outbox.records();
        match how {
            OperatorChange::Discard => self.by_id("discard", &self.heads().await).await,
            OperatorChange::Requeue => {
                self.by_id("requeue", &self.some(doc! { "status": "dead" }).await).await
            }
            OperatorChange::Ghosts => self.discard_waiting(GHOST).await,
            // A write that fails in a failover is not repeated.
            OperatorChange::Delete => {
                for id in self.heads().await {
                    let _ = records.delete_one(free(&id)).await;
                }
            }
            OperatorChange::Postpone => {
                for id in self.heads().await {
                    let soon = Duration::from_millis(rand::random_range(500..4000));
                    let soon = DateTime::now().saturating_add_duration(soon);
                    let change = doc! { "$set": { "visibleAt": soon } };
                    let _ = records.update_one(free(&id), change).await;
                }
            }
            OperatorChange::Hasten => {
                let later = DateTime::now().saturating_add_duration(FAR_AWAY);
                let far = doc! { "status": "pending", "visibleAt": { "$gt": later } };
                let change = doc! { "$set": { "visibleAt": DateTime::now() } };
                let _ = records.update_many(far, change).await;
            }
            OperatorChange::Replace => {
                for round in 0..ROUNDS {
                    for record in self.latest().await {
                        let (id, again) = another(record, round);
                        let _ = records
                            .replace_one(doc! { "_id": id, "status": "pending" }, again)
                            .await;
                    }
                }
            }
            OperatorChange::Reinsert => {
                for round in 0..ROUNDS {
                    for record in self.latest().await {
                        let (id, again) = another(record, round);
                        let deleted = records.delete_one(free(&id)).await;
                        if deleted.is_ok_and(|deleted| deleted.deleted_count == 1) {
                            let _ = records.insert_one(again).await;
                        }
                    }
                }
            }
        }
    }

    /// The latest records that wait, except events.
    async fn latest(&self) -> Vec<Document> {
        let plain = doc! {
            "_id": { "$type": "string" }, "key": { "$regex": "^p" }, "status": "pending",
            "payload": { "$type": "object" },
        };
        let records = self.outbox.records();
        let find = records.find(plain).sort(doc! { "seq": -1 }).limit(AT_A_TIME as i64);
        match find.await {
            Ok(found) => found.try_collect().await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// Ends what waits for an operator alone.
    pub async fn resolve_waiting(&self) {
        self.discard_waiting(GHOST).await;
        if self.plan.seed.is_multiple_of(2) {
            self.tamper(OperatorChange::Hasten).await;
        } else {
            self.discard_waiting(FAR).await;
            self.discard_waiting(&format!("{STREAM}{FAR}")).await;
        }
    }

    async fn discard_waiting(&self, kind: &str) {
        let which = ["--all", "--status", "pending", "--type", kind, "--yes"];
        self.operator(&[&["outbox", "discard"], which.as_slice()].concat()).await;
    }

    async fn by_id(&self, act: &str, ids: &[String]) {
        if ids.is_empty() {
            return;
        }
        let ids: Vec<String> = ids.iter().map(|id| format!("str:{id}")).collect();
        let ids = ids.iter().map(String::as_str);
        let arguments: Vec<&str> = ["outbox", act, "--yes"].into_iter().chain(ids).collect();
        self.operator(&arguments).await;
    }

    /// The first records of some keys that no relay has leased.
    async fn heads(&self) -> Vec<String> {
        self.some(doc! { "status": "pending", "leaseId": { "$exists": false } }).await
    }

    /// The first record of each of some keys, except events: each event must have its record.
    async fn some(&self, mut filter: Document) -> Vec<String> {
        filter.insert("_id", doc! { "$type": "string" });
        filter.insert("key", doc! { "$regex": "^p" });
        let records = self.outbox.records();
        let find = records.find(filter).sort(doc! { "seq": 1 }).limit(100);
        let found: Vec<Document> = match find.await {
            Ok(found) => found.try_collect().await.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        let mut keys = HashSet::new();
        let first = found.iter().filter(|record| keys.insert(record.get_str("key").unwrap()));
        let ids = first.map(|record| record.get_str("_id").unwrap().to_owned());
        ids.take(AT_A_TIME).collect()
    }
}

/// Another record with the same id, as its producer would write it.
fn another(record: Document, round: usize) -> (String, Document) {
    const PRODUCED: [&str; 8] =
        ["_id", "key", "type", "payload", "destination", "headers", "partition", "status"];
    let id = record.get_str("_id").expect("it was selected by that").to_owned();
    let produced = record.into_iter().filter(|(name, _)| PRODUCED.contains(&name.as_str()));
    let mut record: Document = produced.collect();
    if let Ok(payload) = record.get_document_mut("payload") {
        payload.insert("again", format!("{round} {}", rand::random::<u64>()));
    }
    record.insert("seq", Timestamp { time: 0, increment: 0 });
    (id, record)
}

/// A waiting record that no relay has leased.
fn free(id: &str) -> Document {
    doc! { "_id": id, "status": "pending", "leaseId": Bson::Null }
}
