//! Parked events: those that a member could not handle, and an operator looks at.
//!
//! A parked event has a document `{_id: "{uid}/{position}", …}` without the event's body, which the event
//! stream has. The subscription counts them, so that the ceiling holds exactly.

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{DateTime, Document, doc};
use futures_util::TryStreamExt;
use mongodb::{ClientSession, Collection};
use postrider_store::{StoreError, connect, limits, within};
use serde::Serialize;

use crate::context::{CollectionKind, Context};
use crate::decode::decode_any;
use crate::feed::FeedEvent;
use crate::integer::integral;
use crate::subscriptions::store::PARKED_EVENTS;
use crate::subscriptions::subscription::Subscription;

/// The most parked events of a pull subscription.
pub const MAX_PARKED: i64 = 1_000;

/// The digits of the largest position: so ids sort by position.
const POSITION_DIGITS: usize = 19;

/// An event that was parked, or (push) whose record is dead.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ParkedEvent {
    /// Its position.
    #[cfg_attr(feature = "json", schema(example = 1))]
    pub position: i64,
    /// The kind of aggregate.
    pub aggregate_name: String,
    /// The aggregate.
    pub aggregate_id: String,
    /// The aggregate's version after the append.
    pub version: i64,
    /// The index of the event in its append, from 0.
    pub index: i64,
    /// The event's name.
    pub name: String,
    /// Why it was parked, or why its record is dead.
    pub reason: String,
    /// When, in milliseconds since 1970 by MongoDB's clock.
    pub parked_at: i64,
    /// Pull: the member that has parked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub member: Option<String>,
    /// Push: the dead record, for `postrider outbox requeue` and `discard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub record_id: Option<String>,
}

/// The parked events of a context.
#[derive(Clone, Debug)]
pub(super) struct ParkedStore {
    context: Context,
}

impl ParkedStore {
    pub(super) fn new(context: &Context) -> Self {
        Self { context: context.clone() }
    }

    fn in_transaction(&self) -> Collection<Document> {
        self.context.database(CollectionKind::Events).collection(PARKED_EVENTS)
    }

    /// Parks an event.
    pub(super) async fn insert(
        &self,
        session: &mut ClientSession,
        subscription: &Subscription,
        event: &FeedEvent,
        reason: &str,
        at: DateTime,
    ) -> Result<(), StoreError> {
        let document = doc! {
            "_id": id(&subscription.uid, event.position),
            "subscription": &subscription.name,
            "feed": &subscription.feed,
            "position": event.position,
            "aggregateName": &event.aggregate_name,
            "aggregateId": &event.aggregate_id,
            "version": event.version,
            "index": event.index,
            "eventId": &event.id,
            "name": &event.name,
            "reason": reason,
            "parkedAt": at,
            "member": subscription.owner.as_deref(),
        };
        let collection = self.in_transaction();
        let inserting = collection.insert_one(document).session(session);
        within("park an event", limits::BATCH_TIMEOUT, inserting).await.map(drop)
    }

    /// Whether the event at this position is parked.
    pub(super) async fn has(
        &self,
        subscription: &Subscription,
        position: i64,
    ) -> Result<bool, StoreError> {
        let collection = self.collection();
        let finding = collection.find_one(doc! { "_id": id(&subscription.uid, position) });
        let found = within("read parked events", limits::BATCH_TIMEOUT, finding).await?;
        Ok(found.is_some())
    }

    fn collection(&self) -> Collection<Document> {
        let database = self.context.database(CollectionKind::Events);
        connect::collection(&database, PARKED_EVENTS)
    }

    /// Those behind a position, ascending.
    pub(super) async fn list(
        &self,
        subscription: &Subscription,
        after: i64,
        limit: i64,
    ) -> Result<Vec<ParkedEvent>, StoreError> {
        let collection = self.collection().clone_with_type::<RawDocumentBuf>();
        let found = collection
            .find(doc! { "_id": behind(&subscription.uid, after) })
            .sort(doc! { "_id": 1 })
            .limit(limit);
        let reading = async { found.await?.try_collect().await };
        let found: Vec<RawDocumentBuf> =
            within("read parked events", limits::BATCH_TIMEOUT, reading).await?;
        Ok(found.iter().map(|found| parked(found)).collect())
    }

    /// Removes those behind a position, and returns how many there were.
    pub(super) async fn remove_behind(
        &self,
        session: &mut ClientSession,
        uid: &str,
        after: i64,
    ) -> Result<i64, StoreError> {
        self.remove(session, doc! { "_id": behind(uid, after) }).await
    }

    /// Removes one, and returns how many there were.
    pub(super) async fn remove_one(
        &self,
        session: &mut ClientSession,
        subscription: &Subscription,
        position: i64,
    ) -> Result<i64, StoreError> {
        self.remove(session, doc! { "_id": id(&subscription.uid, position) }).await
    }

    async fn remove(
        &self,
        session: &mut ClientSession,
        filter: Document,
    ) -> Result<i64, StoreError> {
        let collection = self.in_transaction();
        let removing = collection.delete_many(filter).session(session);
        let removed = within("remove parked events", limits::BATCH_TIMEOUT, removing).await?;
        Ok(i64::try_from(removed.deleted_count).unwrap_or(i64::MAX))
    }
}

fn id(uid: &str, position: i64) -> String {
    format!("{uid}/{position:0POSITION_DIGITS$}")
}

fn behind(uid: &str, after: i64) -> Document {
    doc! { "$gt": id(uid, after), "$lte": id(uid, i64::MAX) }
}

/// A parked event as far as it can be decoded. Its position is that of its id.
fn parked(raw: &RawDocument) -> ParkedEvent {
    let (found, _) = decode_any(raw);
    let number = |field| found.get(field).and_then(integral).unwrap_or(0);
    let text = |field| found.get_str(field).unwrap_or_default().to_owned();
    let of_id = || raw.get_str("_id").ok()?.rsplit('/').next()?.parse().ok();
    ParkedEvent {
        position: of_id().unwrap_or_else(|| number("position")),
        aggregate_name: text("aggregateName"),
        aggregate_id: text("aggregateId"),
        version: number("version"),
        index: number("index"),
        name: text("name"),
        reason: text("reason"),
        parked_at: found.get_datetime("parkedAt").map_or(0, |at| DateTime::timestamp_millis(*at)),
        member: found.get_str("member").ok().map(str::to_owned),
        record_id: None,
    }
}
