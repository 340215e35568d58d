//! The document of the feed: its id, its head, and who may move it.
//!
//! `postrider_feed` has one document, `{_id: "feed", feed, head, names, recent, owner, ownedUntil, session}`. Every
//! transaction that assigns positions moves `head` from the value that it has read, so two sequencers
//! can never assign the same position. The owner's lease only avoids useless work. `session` is that of
//! the owner's transactions: one that a dead owner has left open is ended by its successor.

use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};
use mongodb::options::{ReadConcern, ReturnDocument};
use mongodb::{ClientSession, Collection};
use postrider_store::{DUPLICATE_KEY, StoreError, connect, limits, within};
use uuid::Uuid;

use crate::context::{CollectionKind, Context};
use crate::feed::recent::{RECENT, Recent};
use crate::integer::integral;
use crate::names::AggregateName;

/// The collection.
pub const COLLECTION: &str = "postrider_feed";

/// The document's id.
const ID: &str = "feed";

/// How long an owner may be silent before another process takes its place.
pub(super) const LEASE: Duration = Duration::from_secs(10);

pub(super) mod fields {
    pub(crate) const FEED: &str = "feed";
    pub(crate) const HEAD: &str = "head";
    pub(crate) const NAMES: &str = "names";
    pub(crate) const OWNER: &str = "owner";
    pub(crate) const OWNED_UNTIL: &str = "ownedUntil";
    pub(crate) const SESSION: &str = "session";
}

use fields::{FEED, HEAD, NAMES, OWNED_UNTIL, OWNER, SESSION};

/// What the document says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedState {
    /// Identifies the positions: after a restore they name other events, under another id.
    pub feed: String,
    /// The last position.
    pub head: i64,
    /// The aggregate names whose streams may have positions.
    pub names: Vec<AggregateName>,
    /// The process that assigns positions; it may be gone.
    pub owner: Option<String>,
    /// Until when it may, by the server's clock, unless it renews; `None` once it has given that up.
    pub owned_until: Option<DateTime>,
}

/// The filter of the document.
pub(super) fn filter() -> Document {
    doc! { "_id": ID }
}

/// Reads the document.
///
/// # Errors
///
/// Its id, head or names are invalid. With others in their place readers would pass over events.
pub(super) fn read(found: &Document) -> Result<FeedState, StoreError> {
    let invalid = |field: &str| StoreError::Answer {
        action: "read the state of the feed",
        detail: format!(
            "invalid document {ID:?} in {COLLECTION}: {field} is absent or of another type; correct it, or delete the \
             document, so that a new feed begins behind the last position"
        ),
    };
    let name = |name: &Bson| AggregateName::new(name.as_str()?).ok();
    let names = match found.get(NAMES) {
        None => Some(Vec::new()),
        Some(Bson::Array(names)) => names.iter().map(name).collect(),
        Some(_) => None,
    };
    Ok(FeedState {
        feed: found.get_str(FEED).map_err(|_| invalid(FEED))?.to_owned(),
        head: found.get(HEAD).and_then(integral).ok_or_else(|| invalid(HEAD))?,
        names: names.ok_or_else(|| invalid(NAMES))?,
        owner: found.get_str(OWNER).ok().map(str::to_owned),
        owned_until: found.get_datetime(OWNED_UNTIL).ok().copied(),
    })
}

/// The document of a context.
#[derive(Clone, Debug)]
pub(super) struct StateStore {
    collection: Collection<Document>,
}

impl StateStore {
    pub(super) fn new(context: &Context) -> Self {
        let database = context.database(CollectionKind::Events);
        Self { collection: connect::collection(&database, COLLECTION) }
    }

    /// Reads it from a majority.
    pub(super) async fn load(&self) -> Result<Option<FeedState>, StoreError> {
        let finding = self.collection.find_one(filter()).projection(doc! { RECENT: 0 });
        let found = within("read the state of the feed", limits::BATCH_TIMEOUT, finding).await?;
        found.as_ref().map(read).transpose()
    }

    /// Reads it behind all that was written before: a majority confirms that this is the last state.
    pub(super) async fn confirm(&self) -> Result<FeedState, StoreError> {
        let finding = self.collection.find_one(filter()).read_concern(ReadConcern::linearizable());
        let finding = finding.max_time(limits::BATCH_TIMEOUT);
        let found = within("confirm the state of the feed", limits::BATCH_TIMEOUT, finding).await?;
        Ok(found.as_ref().map(read).transpose()?.unwrap_or_default())
    }

    /// Reads it, and whether its owner may assign positions now.
    pub(super) async fn load_owned(&self) -> Result<Option<(FeedState, bool)>, StoreError> {
        let is_owned = doc! { "$gt": [format!("${OWNED_UNTIL}"), "$$NOW"] };
        let finding = self.collection.find_one(filter()).projection(
            doc! { FEED: 1, HEAD: 1, NAMES: 1, OWNER: 1, OWNED_UNTIL: 1, "isOwned": is_owned },
        );
        let found = within("read the state of the feed", limits::BATCH_TIMEOUT, finding).await?;
        let is_owned = |found: &Document| found.get_bool("isOwned").unwrap_or(false);
        found.map(|found| Ok((read(&found)?, is_owned(&found)))).transpose()
    }

    /// Creates it, unless it exists. The names are those of all streams with positions: without them,
    /// readers would pass over their events.
    pub(super) async fn create(
        &self,
        head: i64,
        names: &[AggregateName],
    ) -> Result<(), StoreError> {
        let mut document = filter();
        let feed = Uuid::new_v4().to_string();
        document.extend(doc! { FEED: feed, HEAD: head, NAMES: texts(names) });
        let inserting = self.collection.insert_one(document);
        match within("create the feed", limits::BATCH_TIMEOUT, inserting).await {
            Err(error) if error.code() == Some(DUPLICATE_KEY) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The session of another owner whose lease is over: its transaction may still be open.
    pub(super) async fn silent_session(&self, owner: &str) -> Result<Option<Document>, StoreError> {
        let mut silent = filter();
        silent.extend(doc! {
            OWNER: { "$ne": owner },
            "$expr": { "$lte": [format!("${OWNED_UNTIL}"), "$$NOW"] },
        });
        let finding = self.collection.find_one(silent);
        let found = within("read the state of the feed", limits::BATCH_TIMEOUT, finding).await?;
        Ok(found.and_then(|found| found.get_document(SESSION).ok().cloned()))
    }

    /// Takes or renews the right to assign positions, in this session; `None` while another process has
    /// it.
    pub(super) async fn own(
        &self,
        owner: &str,
        session: &Document,
    ) -> Result<Option<(FeedState, Recent)>, StoreError> {
        let mut free = filter();
        free.insert(
            "$or",
            vec![
                doc! { OWNER: owner },
                doc! { OWNED_UNTIL: null },
                doc! { "$expr": { "$lte": [format!("${OWNED_UNTIL}"), "$$NOW"] } },
            ],
        );
        let update = vec![doc! { "$set": {
            OWNER: owner, OWNED_UNTIL: until(), SESSION: { "$literal": session },
        } }];
        let taking = self
            .collection
            .find_one_and_update(free, update)
            .return_document(ReturnDocument::After);
        let found = within("acquire the feed", limits::BATCH_TIMEOUT, taking).await?;
        found.map(|found| Ok((read(&found)?, Recent::read(&found)))).transpose()
    }

    /// Gives the right up, so that another process does not wait for the end of the lease. Where the
    /// transactions of the owner have ended, its session is of no use to a successor.
    pub(super) async fn disown(&self, owner: &str, is_ended: bool) -> Result<(), StoreError> {
        let mut ours = filter();
        ours.insert(OWNER, owner);
        let mut gone = doc! { OWNED_UNTIL: "" };
        if is_ended {
            gone.insert(SESSION, "");
        }
        let update = doc! { "$unset": gone };
        let leaving = self.collection.update_one(ours, update);
        within("release the feed", limits::BATCH_TIMEOUT, leaving).await.map(drop)
    }

    /// Adds a name, before any of its streams gets a position: readers read the names of the document.
    /// (Its collection may have had another name, and then it has recent positions.)
    pub(super) async fn add_names(&self, names: &[AggregateName]) -> Result<(), StoreError> {
        let update = doc! {
            "$addToSet": { NAMES: { "$each": texts(names) } },
            "$unset": { RECENT: "" },
        };
        let adding = self.collection.update_one(filter(), update);
        within("add an aggregate name to the feed", limits::BATCH_TIMEOUT, adding).await.map(drop)
    }

    /// Changes the id of the feed, adds names, and moves the head to `head` where it is below.
    pub(super) async fn renew(
        &self,
        head: i64,
        names: &[AggregateName],
    ) -> Result<Option<FeedState>, StoreError> {
        let known = doc! { "$ifNull": [format!("${NAMES}"), []] };
        let update = vec![doc! { "$set": {
            FEED: Uuid::new_v4().to_string(),
            HEAD: { "$max": [format!("${HEAD}"), head] },
            NAMES: { "$setUnion": [known, texts(names)] },
            RECENT: "$$REMOVE",
        } }];
        let renewing = self
            .collection
            .find_one_and_update(filter(), update)
            .return_document(ReturnDocument::After);
        let found = within("renew the feed", limits::BATCH_TIMEOUT, renewing).await?;
        found.as_ref().map(read).transpose()
    }

    /// Moves the head in a transaction, from the state that the owner knows. `false`: it has changed. The
    /// `stages` of the same update say of which names the new positions are.
    pub(super) async fn advance(
        &self,
        session: &mut ClientSession,
        owner: &str,
        from: &FeedState,
        (head, stages): (i64, Vec<Document>),
    ) -> mongodb::error::Result<bool> {
        let mut known = filter();
        known.extend(doc! { OWNER: owner, FEED: &from.feed, HEAD: from.head });
        let mut update = vec![doc! { "$set": { HEAD: head, OWNED_UNTIL: until() } }];
        update.extend(stages);
        // (A transaction has one write concern, that of its commit.)
        let database = self.collection.client().database(&self.collection.namespace().db);
        let collection = database.collection::<Document>(COLLECTION);
        let moved = collection.update_one(known, update).session(session).await?;
        Ok(moved.matched_count == 1)
    }
}

fn texts(names: &[AggregateName]) -> Vec<&str> {
    names.iter().map(AggregateName::as_str).collect()
}

fn until() -> Document {
    let lease = i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX);
    doc! { "$add": ["$$NOW", lease] }
}
