//! One transaction: the records of some events, and the position behind them.

use std::collections::HashMap;

use bson::raw::RawDocumentBuf;
use bson::{Document, doc};
use mongodb::ClientSession;
use mongodb::options::Hint;
use postrider_outbox::collections::{Collections, names};
use postrider_store::insert::insert;
use postrider_store::{StoreError, failpoint, limits, within};

use crate::context::CollectionKind;
use crate::feed::FeedEvent;
use crate::schema::POSITION as POSITION_INDEX;
use crate::stream::fields::{ERASED, ID, POSITION as STREAM_POSITION};
use crate::subscriptions::error::SubscriptionError;
use crate::subscriptions::store::{PUSH_LEASE, SubscriptionStore, at_position, until};
use crate::subscriptions::subscription::Subscription;
use crate::subscriptions::subscription::fields::{ERROR, OWNED_UNTIL, POSITION};
use crate::subscriptions::transact::{Statements, transact};

const ACTION: &str = "copy events to the outbox";

/// Inserts the records of events, and moves the position of their subscription: both, or nothing. Returns the
/// subscription as it is afterwards.
///
/// # Errors
///
/// [`SubscriptionError::LeaseLost`] if the subscription has changed in any way;
/// [`SubscriptionError::PageErased`] if the content of an event was erased since it was read;
/// [`SubscriptionError::RecordRefused`]; [`SubscriptionError::Store`], after which the outcome may be
/// unknown.
pub(super) async fn copy(
    store: &SubscriptionStore,
    outbox: &Collections,
    owned: &Subscription,
    open_session: &mut Option<ClientSession>,
    (events, records): (&[FeedEvent], &[RawDocumentBuf]),
    position: i64,
) -> Result<Subscription, SubscriptionError> {
    failpoint::hit("subscriptions::before_copy");
    let copying = Copying { store, outbox, owned, events, records, position };
    let copied = transact(store.context(), ACTION, open_session, &copying).await?;
    failpoint::hit("subscriptions::after_commit");
    Ok(copied)
}

struct Copying<'a> {
    store: &'a SubscriptionStore,
    outbox: &'a Collections,
    owned: &'a Subscription,
    events: &'a [FeedEvent],
    records: &'a [RawDocumentBuf],
    position: i64,
}

impl Statements for Copying<'_> {
    type Done = Subscription;

    async fn run(&self, session: &mut ClientSession) -> Result<Subscription, SubscriptionError> {
        let Self { store, outbox, owned, records, position, .. } = *self;
        // First: of two owners, one meets a write conflict here and has written nothing.
        let set = moved(position);
        let changed = store.change_within(session, at_position(owned), set, &[ERROR]).await?;
        let changed = changed.ok_or_else(|| SubscriptionError::LeaseLost(owned.name.clone()))?;
        if changed.erasures > 0 && self.has_erased(session).await? {
            return Err(SubscriptionError::PageErased(owned.name.clone()));
        }
        let collection = outbox.name(names::RECORDS);
        let inserting = insert(session, outbox.database(), &collection, records);
        let refused = within(ACTION, limits::BATCH_TIMEOUT, inserting).await?;
        if let Some(refusal) = refused {
            let (code, message) = (refusal.code, refusal.message);
            return Err(SubscriptionError::RecordRefused { code, message });
        }
        failpoint::hit("subscriptions::before_commit");
        Ok(changed)
    }
}

impl Copying<'_> {
    /// Whether an event has content that its stream has no longer. Erasures of before are in the snapshot of
    /// the transaction; later ones wait for its end.
    async fn has_erased(&self, session: &mut ClientSession) -> Result<bool, StoreError> {
        let mut appends: HashMap<&str, Vec<i64>> = HashMap::new();
        for event in self.events.iter().filter(|event| !event.body.is_empty()) {
            let positions = appends.entry(&event.aggregate_name).or_default();
            let of_append = event.position + event.event_count - 1 - event.index;
            if positions.last() != Some(&of_append) {
                positions.push(of_append);
            }
        }
        let database = self.store.context().database(CollectionKind::Events);
        for (name, positions) in appends {
            let streams = CollectionKind::Events.collection(name);
            let streams = database.collection::<Document>(&streams);
            let erased = doc! { STREAM_POSITION: { "$in": positions }, ERASED: true };
            let finding = streams
                .find_one(erased)
                .projection(doc! { ID: 1 })
                .hint(Hint::Name(POSITION_INDEX.name.to_owned()))
                .session(&mut *session);
            if within(ACTION, limits::BATCH_TIMEOUT, finding).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Moves the position over events that the filter does not let pass.
///
/// # Errors
///
/// [`SubscriptionError::LeaseLost`], [`SubscriptionError::Store`].
pub(super) async fn skip(
    store: &SubscriptionStore,
    owned: &Subscription,
    position: i64,
) -> Result<Subscription, SubscriptionError> {
    let skipped = store.change(at_position(owned), moved(position), &[ERROR]).await;
    let skipped = skipped.map_err(|error: StoreError| SubscriptionError::Store(error))?;
    skipped.ok_or_else(|| SubscriptionError::LeaseLost(owned.name.clone()))
}

fn moved(position: i64) -> Document {
    doc! { POSITION: position, OWNED_UNTIL: until(PUSH_LEASE) }
}
