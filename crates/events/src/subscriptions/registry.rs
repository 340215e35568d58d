//! Subscriptions of a context: created, listed, paused, replayed, deleted.

use bson::{Bson, DateTime, Document, doc};
use mongodb::ClientSession;
use postrider_outbox::collections::Collections;
use postrider_store::ServerClock;
use postrider_store::page::PageSize;
use uuid::Uuid;

use crate::context::{CollectionKind, Context};
use crate::error::Flaw;
use crate::feed::{Feed, FeedError, FeedState};
use crate::open_erasures::erasures_waiting_for;
use crate::subscriptions::dead::dead_events;
use crate::subscriptions::error::SubscriptionError;
use crate::subscriptions::lag::{self, InvalidReport, SubscriptionEntry, SubscriptionReport};
use crate::subscriptions::new::{NewSubscription, SubscriptionDelivery};
use crate::subscriptions::parked::{ParkedPage, ParkedStore};
use crate::subscriptions::store::{FoundSubscription, SubscriptionStore, literal};
use crate::subscriptions::subscription::fields::{
    EPOCH, ERROR, FEED, GIVEN, ID, OWNED_UNTIL, OWNER, PARKED, POSITION, REPLAY, SESSION, STATE,
    UID,
};
use crate::subscriptions::subscription::{
    InvalidSubscription, Subscription, SubscriptionKind, SubscriptionState,
};
use crate::subscriptions::transact::{Statements, transact};

/// The most subscriptions of a context: each has its own series of metrics and, if it pushes, its own worker.
pub const MAX_SUBSCRIPTIONS: u64 = 100;

/// The subscriptions of a context. Clones share what is known of the head of the feed.
#[derive(Clone, Debug)]
pub struct Subscriptions {
    pub(super) store: SubscriptionStore,
    pub(super) parked: ParkedStore,
    pub(super) feed: Feed,
}

impl Subscriptions {
    /// The subscriptions of this context, to this feed of it.
    pub fn new(context: &Context, feed: Feed) -> Self {
        let (store, parked) = (SubscriptionStore::new(context), ParkedStore::new(context));
        Self { store, parked, feed }
    }

    /// Creates a subscription.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn create(
        &self,
        new: &NewSubscription,
    ) -> Result<SubscriptionReport, SubscriptionError> {
        let flaws = new.flaws();
        if !flaws.is_empty() {
            return Err(SubscriptionError::Invalid(flaws));
        }
        let feed = self.feed_at(new.after).await?;
        if self.store.count().await? >= MAX_SUBSCRIPTIONS {
            return Err(SubscriptionError::TooMany(MAX_SUBSCRIPTIONS));
        }
        let database = self.store.context().database(CollectionKind::Events);
        let document = document(new, &feed, ServerClock::asked(&database).await?)?;
        if !self.store.insert(document).await? {
            return Err(SubscriptionError::Exists(new.name.clone()));
        }
        self.get(&new.name).await
    }

    /// The state of the feed, for a position of it.
    async fn feed_at(&self, position: i64) -> Result<FeedState, SubscriptionError> {
        let state = self.feed.state().await?.ok_or(FeedError::Missing)?;
        if position > state.head {
            let (limit, what) = (state.head, "the feed has");
            return Err(SubscriptionError::PositionAhead { position, limit, what });
        }
        Ok(state)
    }

    /// Reads one.
    pub(super) async fn load(&self, name: &str) -> Result<Subscription, SubscriptionError> {
        self.find(name).await?.map_err(|InvalidSubscription { name, detail, .. }| {
            SubscriptionError::Unreadable { name, detail }
        })
    }

    async fn find(&self, name: &str) -> Result<FoundSubscription, SubscriptionError> {
        let found = self.store.load(name).await?;
        found.ok_or_else(|| SubscriptionError::Unknown(name.to_owned()))
    }

    /// One subscription, and its lag.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn get(&self, name: &str) -> Result<SubscriptionReport, SubscriptionError> {
        let subscription = self.load(name).await?;
        let state = self.feed.state().await?;
        Ok(lag::report(&self.feed, subscription, state.as_ref()).await?)
    }

    /// The same, also of one that this version cannot read.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn show(&self, name: &str) -> Result<SubscriptionEntry, SubscriptionError> {
        let found = self.find(name).await?;
        let state = self.feed.state().await?;
        self.entry(found, state.as_ref()).await
    }

    /// All subscriptions by name, and their lag.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn list(&self) -> Result<Vec<SubscriptionEntry>, SubscriptionError> {
        let state = self.feed.state().await?;
        let mut entries = Vec::new();
        for found in self.store.all().await? {
            entries.push(self.entry(found, state.as_ref()).await?);
        }
        Ok(entries)
    }

    async fn entry(
        &self,
        found: FoundSubscription,
        state: Option<&FeedState>,
    ) -> Result<SubscriptionEntry, SubscriptionError> {
        Ok(match found {
            Ok(found) => {
                SubscriptionEntry::Valid(Box::new(lag::report(&self.feed, found, state).await?))
            }
            Err(InvalidSubscription { name, detail, .. }) => {
                let erasures = erasures_waiting_for(self.store.context(), &name).await?;
                SubscriptionEntry::Invalid(InvalidReport::new(name, detail, erasures))
            }
        })
    }

    /// Pauses a subscription; a second time, it has no effect.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn pause(&self, name: &str) -> Result<SubscriptionReport, SubscriptionError> {
        self.switch(name, SubscriptionState::Running, SubscriptionState::Paused).await
    }

    /// Resumes a paused subscription; a second time, it has no effect.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn resume(&self, name: &str) -> Result<SubscriptionReport, SubscriptionError> {
        self.switch(name, SubscriptionState::Paused, SubscriptionState::Running).await
    }

    async fn switch(
        &self,
        name: &str,
        from: SubscriptionState,
        to: SubscriptionState,
    ) -> Result<SubscriptionReport, SubscriptionError> {
        // (Nothing is changed in one that cannot be read.)
        let before = self.load(name).await?;
        let filter = doc! { ID: name, UID: &before.uid, STATE: from.word() };
        if self.store.change(filter, doc! { STATE: to.word() }, &[]).await?.is_none() {
            let found = self.load(name).await?;
            if found.state != to {
                return Err(stopped(&found));
            }
        }
        self.get(name).await
    }

    /// Starts a subscription again behind a position of the current feed. Parked events behind it are
    /// forgotten: they come again.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn replay(
        &self,
        name: &str,
        position: i64,
    ) -> Result<SubscriptionReport, SubscriptionError> {
        if position < 0 {
            let flaw = Flaw::new("position", "must be 0 or above");
            return Err(SubscriptionError::Invalid(vec![flaw]));
        }
        let before = self.load(name).await?;
        let feed = self.feed_at(position).await?;
        let replaying = Replaying { of: self, before: &before, feed: &feed.feed, position };
        transact(self.store.context(), "replay a subscription", &mut None, &replaying).await?;
        self.get(name).await
    }

    /// Deletes a subscription and its parked events. Records that were copied stay in the outbox.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn delete(&self, name: &str) -> Result<(), SubscriptionError> {
        let found = self.find(name).await?;
        let deleting = Deleting { of: self, name, found: &found };
        transact(self.store.context(), "delete a subscription", &mut None, &deleting).await
    }

    /// The parked events of a pull subscription, or the events of a push subscription whose records
    /// are dead: those behind a position, ascending.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn parked(
        &self,
        outbox: &Collections,
        name: &str,
        after: i64,
        size: PageSize,
    ) -> Result<ParkedPage, SubscriptionError> {
        let found = self.load(name).await?;
        Ok(match found.kind {
            SubscriptionKind::Pull => self.parked.list(&found, after, size).await?,
            SubscriptionKind::Push => dead_events(outbox, name, after, size).await?,
        })
    }

    /// Removes a parked event, or all of them, and returns how many there were.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn discard_parked(
        &self,
        name: &str,
        position: Option<i64>,
    ) -> Result<i64, SubscriptionError> {
        let found = self.load(name).await?;
        if found.kind != SubscriptionKind::Pull {
            let remedy = "discard its dead records with `postrider outbox discard`";
            let (name, kind) = (name.to_owned(), found.kind);
            return Err(SubscriptionError::WrongKind { name, kind, remedy });
        }
        let discarding = Discarding { of: self, found: &found, position };
        transact(self.store.context(), "discard parked events", &mut None, &discarding).await
    }
}

struct Replaying<'a> {
    of: &'a Subscriptions,
    before: &'a Subscription,
    feed: &'a str,
    position: i64,
}

impl Statements for Replaying<'_> {
    type Done = ();

    async fn run(&self, session: &mut ClientSession) -> Result<(), SubscriptionError> {
        let Self { of: Subscriptions { store, parked, .. }, before, feed, position } = *self;
        let removed = parked.remove_behind(session, &before.uid, position).await?;
        let running = SubscriptionState::Running.word();
        let is_stopped = doc! {
            "$eq": [format!("${STATE}"), SubscriptionState::WrongFeed.word()],
        };
        let set = doc! {
            FEED: literal(feed),
            POSITION: position,
            GIVEN: position,
            REPLAY: { "$add": [format!("${REPLAY}"), 1_i64] },
            // What an owner or member of before writes, has no effect.
            EPOCH: { "$add": [format!("${EPOCH}"), 1_i64] },
            PARKED: { "$subtract": [format!("${PARKED}"), removed] },
            STATE: { "$cond": [is_stopped, running, format!("${STATE}")] },
        };
        let filter = doc! { ID: &before.name, UID: &before.uid };
        let unset = [OWNER, OWNED_UNTIL, SESSION, ERROR];
        let changed = store.change_within(session, filter, set, &unset).await?;
        changed.ok_or_else(|| SubscriptionError::Unknown(before.name.clone())).map(drop)
    }
}

struct Deleting<'a> {
    of: &'a Subscriptions,
    name: &'a str,
    found: &'a FoundSubscription,
}

impl Statements for Deleting<'_> {
    type Done = ();

    async fn run(&self, session: &mut ClientSession) -> Result<(), SubscriptionError> {
        let Self { of: Subscriptions { store, parked, .. }, name, found } = *self;
        let uid = match found {
            Ok(found) => Some(found.uid.as_str()),
            Err(invalid) => invalid.uid.as_deref(),
        };
        if !store.delete_within(session, name, uid).await? {
            return Err(SubscriptionError::Unknown(name.to_owned()));
        }
        match uid {
            Some(uid) => Ok(parked.remove_behind(session, uid, 0).await.map(drop)?),
            None => Ok(()),
        }
    }
}

struct Discarding<'a> {
    of: &'a Subscriptions,
    found: &'a Subscription,
    /// Of one event, or of all.
    position: Option<i64>,
}

impl Statements for Discarding<'_> {
    type Done = i64;

    async fn run(&self, session: &mut ClientSession) -> Result<i64, SubscriptionError> {
        let Self { of: Subscriptions { store, parked, .. }, found, position } = *self;
        let removed = match position {
            Some(position) => parked.remove_one(session, found, position).await?,
            None => parked.remove_behind(session, &found.uid, 0).await?,
        };
        let set = doc! { PARKED: { "$subtract": [format!("${PARKED}"), removed] } };
        let filter = doc! { ID: &found.name, UID: &found.uid };
        store.change_within(session, filter, set, &[]).await?;
        Ok(removed)
    }
}

/// Why a subscription that does not run cannot be used.
pub(super) fn stopped(found: &Subscription) -> SubscriptionError {
    let name = found.name.clone();
    match found.state {
        SubscriptionState::WrongFeed => {
            SubscriptionError::WrongFeed { name, reason: found.error.clone().unwrap_or_default() }
        }
        SubscriptionState::Paused | SubscriptionState::Running => SubscriptionError::Paused(name),
    }
}

fn document(
    new: &NewSubscription,
    feed: &FeedState,
    now: DateTime,
) -> Result<Document, SubscriptionError> {
    let (kind, destination, max_pending, lease_millis) = match &new.delivery {
        SubscriptionDelivery::Push { destination, max_pending } => {
            (SubscriptionKind::Push, Some(destination.clone()), Some(*max_pending), None)
        }
        SubscriptionDelivery::Pull { lease } => {
            let millis = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
            (SubscriptionKind::Pull, None, None, Some(millis))
        }
    };
    let subscription = Subscription {
        name: new.name.clone(),
        uid: Uuid::new_v4().to_string(),
        kind,
        filter: new.filter.clone(),
        feed: feed.feed.clone(),
        position: new.after,
        replay: 0,
        state: SubscriptionState::Running,
        error: None,
        owner: None,
        owned_until: None,
        epoch: 0,
        session: None,
        erasures: 0,
        destination,
        max_pending,
        lease_millis,
        given: new.after,
        parked: 0,
        created_at: now,
        now: None,
    };
    let wrong = |error: bson::error::Error| {
        SubscriptionError::Invalid(vec![Flaw::new("filter", error.to_string())])
    };
    let document = bson::serialize_to_document(&subscription).map_err(wrong)?;
    Ok(document.into_iter().filter(|(_, value)| *value != Bson::Null).collect())
}
