//! Reads and conditional writes of the documents of subscriptions.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::ReturnDocument;
use mongodb::{ClientSession, Collection};
use postrider_store::text::chain;
use postrider_store::transaction::kill_session;
use postrider_store::{DUPLICATE_KEY, StoreError, connect, limits, within};
use tracing::debug;

use crate::context::{CollectionKind, Context};
use crate::subscriptions::subscription::fields::{
    EPOCH, ERASURES, ERROR, FEED, FILTERED_NAMES, ID, KIND, NOW, OWNED_UNTIL, OWNER, POSITION,
    REPLAY, SESSION, STATE, UID,
};
use crate::subscriptions::subscription::{
    InvalidSubscription, Subscription, SubscriptionKind, SubscriptionState,
};

/// The collection of subscriptions.
pub const SUBSCRIPTIONS: &str = "postrider_subscriptions";

/// The collection of parked events.
pub const PARKED_EVENTS: &str = "postrider_parked";

/// How long a daemon that pushes may be silent before another one takes its place.
pub(super) const PUSH_LEASE: Duration = Duration::from_secs(10);

const CHANGE: &str = "change a subscription";

/// What a stored document is.
pub(super) type FoundSubscription = Result<Subscription, InvalidSubscription>;

/// The documents of a context.
#[derive(Clone, Debug)]
pub(super) struct SubscriptionStore {
    context: Context,
    collection: Collection<Document>,
}

impl SubscriptionStore {
    pub(super) fn new(context: &Context) -> Self {
        let database = context.database(CollectionKind::Events);
        let collection = connect::collection(&database, SUBSCRIPTIONS);
        Self { context: context.clone(), collection }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The collection for transactions, which have the write concern of their commit.
    fn in_transaction(&self) -> Collection<Document> {
        self.context.database(CollectionKind::Events).collection(SUBSCRIPTIONS)
    }

    /// Inserts a document; `false`: the name is taken.
    pub(super) async fn insert(&self, subscription: Document) -> Result<bool, StoreError> {
        let inserting = self.collection.insert_one(subscription);
        match within("create a subscription", limits::BATCH_TIMEOUT, inserting).await {
            Err(error) if error.code() == Some(DUPLICATE_KEY) => Ok(false),
            other => other.map(|_| true),
        }
    }

    pub(super) async fn count(&self) -> Result<u64, StoreError> {
        let counting = self.collection.count_documents(Document::new());
        within("count the subscriptions", limits::BATCH_TIMEOUT, counting).await
    }

    /// Reads one, and the time of the server.
    pub(super) async fn load(&self, name: &str) -> Result<Option<FoundSubscription>, StoreError> {
        let found = self.find(doc! { ID: name }).await?;
        Ok(found.first().map(|found| Subscription::read(found)))
    }

    /// Reads all by name, and the time of the server.
    pub(super) async fn all(&self) -> Result<Vec<FoundSubscription>, StoreError> {
        let found = self.find(Document::new()).await?;
        Ok(found.iter().map(|found| Subscription::read(found)).collect())
    }

    async fn find(&self, filter: Document) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let stages = vec![
            doc! { "$match": filter },
            doc! { "$sort": { ID: 1 } },
            doc! { "$set": { NOW: "$$NOW" } },
        ];
        let reading = self.collection.aggregate(stages).with_type::<RawDocumentBuf>();
        let reading = async { reading.await?.try_collect().await };
        within("read the subscriptions", limits::BATCH_TIMEOUT, reading).await
    }

    /// Changes one in one conditional update, and returns it as it is afterwards.
    pub(super) async fn change(
        &self,
        filter: Document,
        set: Document,
        unset: &[&str],
    ) -> Result<Option<Subscription>, StoreError> {
        let collection = self.collection.clone_with_type::<RawDocumentBuf>();
        let changing = collection
            .find_one_and_update(filter, pipeline(set, unset))
            .return_document(ReturnDocument::After);
        changed(within(CHANGE, limits::BATCH_TIMEOUT, changing).await?)
    }

    /// The same in a transaction.
    pub(super) async fn change_within(
        &self,
        session: &mut ClientSession,
        filter: Document,
        set: Document,
        unset: &[&str],
    ) -> Result<Option<Subscription>, StoreError> {
        let collection = self.in_transaction().clone_with_type::<RawDocumentBuf>();
        let changing = collection
            .find_one_and_update(filter, pipeline(set, unset))
            .return_document(ReturnDocument::After)
            .session(session);
        changed(within(CHANGE, limits::BATCH_TIMEOUT, changing).await?)
    }

    /// Deletes the subscription of this name and uid; without a uid, whatever has the name.
    pub(super) async fn delete_within(
        &self,
        session: &mut ClientSession,
        name: &str,
        uid: Option<&str>,
    ) -> Result<bool, StoreError> {
        let collection = self.in_transaction();
        let mut filter = doc! { ID: name };
        if let Some(uid) = uid {
            filter.insert(UID, uid);
        }
        let deleting = collection.delete_one(filter).session(session);
        let deleted = within("delete a subscription", limits::BATCH_TIMEOUT, deleting).await?;
        Ok(deleted.deleted_count == 1)
    }

    /// Takes a push subscription whose owner is gone. `None`: it has one, or does not run.
    pub(super) async fn own(
        &self,
        name: &str,
        owner: &str,
        session: &ClientSession,
    ) -> Result<Option<Subscription>, StoreError> {
        let mut free = doc! {
            ID: name,
            KIND: SubscriptionKind::Push.word(),
            STATE: SubscriptionState::Running.word(),
        };
        free.insert("$expr", has_ended());
        let set = doc! {
            OWNER: literal(owner),
            SESSION: session.id().get("id").cloned().unwrap_or(Bson::Null),
            OWNED_UNTIL: until(PUSH_LEASE),
            EPOCH: { "$add": [format!("${EPOCH}"), 1_i64] },
        };
        self.change(free, set, &[]).await
    }

    /// Opens a session for the transactions of an owner.
    pub(super) async fn session(&self) -> Result<ClientSession, StoreError> {
        let starting = self.context.client().start_session().causal_consistency(false);
        within("open a session", limits::BATCH_TIMEOUT, starting).await
    }

    /// Ends the session of an owner whose lease has ended, and with it a transaction that is still open.
    pub(super) async fn end_session_of(&self, found: &Subscription) {
        let Some(session) = &found.session else { return };
        let session = doc! { "id": session.clone() };
        if let Err(error) = kill_session(self.context.client(), &session).await {
            // MongoDB ends the transaction later (transactionLifetimeLimitSeconds).
            debug!(error = chain(&error), "failed to end the session of an earlier owner");
        }
    }

    /// Renews the lease of an owner. `false`: it is lost.
    pub(super) async fn renew(&self, owned: &Subscription) -> Result<bool, StoreError> {
        let set = doc! { OWNED_UNTIL: until(PUSH_LEASE) };
        Ok(self.change(of_owner(owned), set, &[]).await?.is_some())
    }

    /// Gives the lease up, so that another daemon does not wait for its end.
    pub(super) async fn disown(&self, owned: &Subscription) -> Result<(), StoreError> {
        self.change(of_owner(owned), Document::new(), &[OWNER, OWNED_UNTIL, SESSION])
            .await
            .map(drop)
    }

    /// Counts an erasure of events up to this position, at the push subscriptions that may copy them later. A
    /// transaction that is copying events has ended before, or sees the count.
    pub(super) async fn count_erasure(&self, name: &str, position: i64) -> Result<(), StoreError> {
        let filter = doc! {
            KIND: SubscriptionKind::Push.word(),
            POSITION: { "$lt": position },
            // (A subscription of all names has no list.)
            FILTERED_NAMES: { "$in": [Bson::Null, Bson::from(name)] },
        };
        let counting = self.collection.update_many(filter, doc! { "$inc": { ERASURES: 1_i64 } });
        within(CHANGE, limits::BATCH_TIMEOUT, counting).await.map(drop)
    }

    /// Stops a subscription whose position is of another feed, unless it was changed meanwhile.
    pub(super) async fn stop(
        &self,
        subscription: &Subscription,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let filter = doc! {
            ID: &subscription.name,
            UID: &subscription.uid,
            FEED: &subscription.feed,
            REPLAY: subscription.replay,
        };
        let set = doc! { STATE: SubscriptionState::WrongFeed.word(), ERROR: literal(reason) };
        Ok(self.change(filter, set, &[]).await?.is_some())
    }

    /// Stores why a subscription does not proceed, if it is still this owner's.
    pub(super) async fn report(&self, owned: &Subscription, error: &str) -> Result<(), StoreError> {
        self.change(of_owner(owned), doc! { ERROR: literal(error) }, &[]).await.map(drop)
    }
}

fn changed(found: Option<RawDocumentBuf>) -> Result<Option<Subscription>, StoreError> {
    Ok(found.map(|found| Subscription::read(&found)).transpose()?)
}

/// The document, as long as it is this owner's.
pub(super) fn of_owner(owned: &Subscription) -> Document {
    doc! { ID: &owned.name, UID: &owned.uid, EPOCH: owned.epoch }
}

/// The same, and its position has not changed: what every step of an owner depends on.
pub(super) fn at_position(owned: &Subscription) -> Document {
    let mut filter = of_owner(owned);
    filter.insert(POSITION, owned.position);
    filter.insert(REPLAY, owned.replay);
    filter.insert(FEED, &owned.feed);
    filter.insert(STATE, SubscriptionState::Running.word());
    filter
}

/// Whether the lease has ended, by the server's clock.
pub(super) fn has_ended() -> Document {
    doc! { "$lte": [format!("${OWNED_UNTIL}"), "$$NOW"] }
}

/// The end of a lease that begins now.
pub(super) fn until(lease: Duration) -> Document {
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    doc! { "$add": ["$$NOW", lease] }
}

/// A text as a value of an update: it may begin with `$`.
pub(super) fn literal(text: &str) -> Bson {
    doc! { "$literal": text }.into()
}

fn pipeline(set: Document, unset: &[&str]) -> Vec<Document> {
    let mut stages = Vec::new();
    if !set.is_empty() {
        stages.push(doc! { "$set": set });
    }
    if !unset.is_empty() {
        stages.push(doc! { "$unset": unset });
    }
    stages
}
