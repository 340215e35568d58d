//! Parked events: those that a member could not handle, and an operator looks at.
//!
//! A parked event has a document `{_id: "{uid}/{position}", …}` without the event's body, which the event
//! stream has. The subscription counts them, so that the ceiling holds exactly.

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{DateTime, Document, doc};
use mongodb::action::Find;
use mongodb::{ClientSession, Collection};
use postrider_outbox::brief::{brief, with_beginnings};
use postrider_store::page::{Gathered, PageSize};
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

/// Documents of one reply of MongoDB.
const BATCH_DOCUMENTS: u32 = 100;

/// The fields of a parked event in a list, besides its id.
const FIELDS: [&str; 9] = [
    "position",
    "aggregateName",
    "aggregateId",
    "version",
    "index",
    "name",
    "reason",
    "parkedAt",
    "member",
];

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

/// A part of a list of parked events.
#[derive(Clone, Debug, PartialEq)]
pub struct ParkedPage {
    /// Ascending by position. A page may end before its number of events, because of their size. A text of
    /// more than 8 KiB is cut.
    pub events: Vec<ParkedEvent>,
    /// The position after which the next page begins, where there are more.
    pub next: Option<i64>,
    /// What the list leaves out, where it does.
    pub note: Option<String>,
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
        size: PageSize,
    ) -> Result<ParkedPage, StoreError> {
        let collection = self.collection().clone_with_type::<RawDocumentBuf>();
        let found = with_beginnings(|long| {
            let fields = FIELDS.map(|field| (field.to_owned(), brief(field, long).into()));
            let finding = collection
                .find(doc! { "_id": behind(&subscription.uid, after) })
                .sort(doc! { "_id": 1 })
                .projection(Document::from_iter(fields));
            within("read parked events", limits::BATCH_TIMEOUT, page_of(finding, size))
        });
        let found = found.await?;
        let events: Vec<ParkedEvent> = found.documents.iter().map(|found| parked(found)).collect();
        let next = events.last().filter(|_| found.is_full).map(|last| last.position);
        Ok(ParkedPage { events, next, note: None })
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

/// Reads a page of what is found.
pub(super) async fn page_of(
    finding: Find<'_, RawDocumentBuf>,
    size: PageSize,
) -> mongodb::error::Result<Gathered> {
    let mut found = Gathered::new(size);
    let mut cursor = finding.limit(found.limit()).batch_size(BATCH_DOCUMENTS).await?;
    while cursor.advance().await? && found.add(cursor.current()) {}
    Ok(found)
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
