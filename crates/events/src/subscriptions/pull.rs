//! Reads and acknowledgements of a pull subscription, under a lease.
//!
//! The lease names the epoch. Each write of a member filters on it, so a member that was suspended and has
//! lost its lease changes nothing, and learns so.

use std::time::Duration;

use bson::{Document, doc};
use mongodb::ClientSession;
use postrider_store::StoreError;

use crate::error::Flaw;
use crate::feed::{FeedError, FeedEvent, FeedPage};
use crate::names::check_id;
use crate::subscriptions::error::SubscriptionError;
use crate::subscriptions::new::DEFAULT_LEASE;
use crate::subscriptions::parked::MAX_PARKED;
use crate::subscriptions::registry::{Subscriptions, stopped};
use crate::subscriptions::store::{has_ended, literal, until};
use crate::subscriptions::subscription::fields::{
    EPOCH, FEED, GIVEN, ID, OWNED_UNTIL, OWNER, PARKED, POSITION, REPLAY, STATE, UID,
};
use crate::subscriptions::subscription::{Subscription, SubscriptionKind, SubscriptionState};
use crate::subscriptions::transact::{Statements, transact};

/// The most events of one read.
pub const MAX_PULLED: usize = 1_000;

/// The longest reason for parking an event, in characters.
pub const MAX_REASON_CHARS: usize = 2_000;

/// The pause after a page without events of the subscription.
const EMPTY_PAUSE: Duration = Duration::from_millis(10);

/// The tries of a read while others change the subscription.
const MAX_TRIES: u32 = 5;

/// Events for the member that has the lease.
#[derive(Clone, Debug, PartialEq)]
pub struct PulledEvents {
    /// Proof of the lease: each acknowledgement names it.
    pub lease: String,
    /// When the lease ends, unless the member reads or acknowledges before.
    pub leased_for: Duration,
    /// The id of the feed.
    pub feed: String,
    /// The events behind the acknowledged position, ascending by position.
    pub items: Vec<FeedEvent>,
    /// The position that acknowledges all of them.
    pub next: i64,
    /// The last position of the feed.
    pub head: i64,
    /// Whether the member has taken the lease by this read: before, another one or none had it.
    pub is_new_lease: bool,
}

/// What a lease names.
#[derive(Clone, Debug, PartialEq)]
struct LeaseToken<'a> {
    uid: &'a str,
    epoch: i64,
    member: &'a str,
}

impl<'a> LeaseToken<'a> {
    fn text(subscription: &Subscription, member: &str) -> String {
        format!("{}.{}.{member}", subscription.uid, subscription.epoch)
    }

    fn parse(text: &'a str) -> Option<Self> {
        let (uid, rest) = text.split_once('.')?;
        let (epoch, member) = rest.split_once('.')?;
        let epoch = epoch.parse().ok()?;
        (!uid.is_empty() && !member.is_empty()).then_some(Self { uid, epoch, member })
    }

    /// Whether it is of the current epoch.
    fn is_of(&self, subscription: &Subscription) -> bool {
        subscription.uid == self.uid
            && subscription.epoch == self.epoch
            && subscription.owner.as_deref() == Some(self.member)
    }

    /// The document, as long as the lease is of its epoch, for a position that was given out and not
    /// acknowledged.
    fn filter(&self, name: &str, position: i64) -> Document {
        doc! {
            ID: name,
            UID: self.uid,
            EPOCH: self.epoch,
            OWNER: self.member,
            POSITION: { "$lt": position },
            GIVEN: { "$gte": position },
        }
    }
}

impl Subscriptions {
    /// Reads events behind the acknowledged position for a member, which takes or renews the lease. The same
    /// events come again until they are acknowledged.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn pull(
        &self,
        name: &str,
        member: &str,
        limit: usize,
    ) -> Result<PulledEvents, SubscriptionError> {
        if let Err(rule) = check_id(member) {
            return Err(SubscriptionError::Invalid(vec![Flaw::new("member", rule.to_string())]));
        }
        let limit = limit.clamp(1, MAX_PULLED);
        for _ in 0..MAX_TRIES {
            let found = self.usable(name, member).await?;
            let page = self.page(&found, limit).await?;
            // Otherwise it was changed since it was read.
            if let Some(held) = self.hold(&found, member, &page).await? {
                let FeedPage { feed, items, next, head } = page;
                return Ok(PulledEvents {
                    lease: LeaseToken::text(&held, member),
                    leased_for: lease_of(&held),
                    feed,
                    items,
                    next,
                    head,
                    is_new_lease: found.owner.as_deref() != Some(member),
                });
            }
        }
        Err(SubscriptionError::LeaseLost(name.to_owned()))
    }

    /// Waits up to `most` after a read without events, until another read may find some or must renew the
    /// lease.
    pub async fn wait_after(&self, empty: &PulledEvents, most: Duration) {
        // Not a read after each append that the filter does not let pass.
        tokio::time::sleep(EMPTY_PAUSE.min(most)).await;
        if empty.next >= empty.head {
            let slice = most.min(empty.leased_for / 3);
            // (Both outcomes lead to another read.)
            let _ = tokio::time::timeout(slice, self.feed.wait_beyond(empty.next)).await;
        }
    }

    /// The subscription, if this member may read from it now.
    async fn usable(&self, name: &str, member: &str) -> Result<Subscription, SubscriptionError> {
        let found = self.pulled(name).await?;
        if found.state != SubscriptionState::Running {
            return Err(stopped(&found));
        }
        match &found.owner {
            Some(owner) if owner != member && found.is_owned() => {
                Err(SubscriptionError::MemberActive {
                    name: name.to_owned(),
                    member: owner.clone(),
                    until: found.owned_until.unwrap_or(found.created_at),
                    remaining: found.owned_for(),
                })
            }
            _ => Ok(found),
        }
    }

    /// The subscription, if it is a pull subscription.
    async fn pulled(&self, name: &str) -> Result<Subscription, SubscriptionError> {
        let found = self.load(name).await?;
        if found.kind == SubscriptionKind::Pull {
            return Ok(found);
        }
        let remedy = "its events are delivered to its destination and cannot be read";
        Err(SubscriptionError::WrongKind { name: found.name, kind: found.kind, remedy })
    }

    /// Reads a page behind the acknowledged position. Stops the subscription if that is of another feed.
    async fn page(
        &self,
        found: &Subscription,
        limit: usize,
    ) -> Result<FeedPage, SubscriptionError> {
        let page = self.feed.page(Some(&found.feed), found.position, &found.filter, limit).await;
        match page {
            Err(error @ (FeedError::WrongFeed { .. } | FeedError::PositionAhead { .. })) => {
                let reason = error.to_string();
                if self.store.stop(found, &reason).await? {
                    let (name, remedy) = (&found.name, "postrider subscriptions replay");
                    tracing::error!(
                        subscription = name,
                        reason,
                        remedy,
                        "the subscription has stopped, since its position belongs to another feed"
                    );
                }
                Err(SubscriptionError::WrongFeed { name: found.name.clone(), reason })
            }
            page => Ok(page?),
        }
    }

    /// Takes or renews the lease, and notes what is given out: unless another member has the lease, or the
    /// subscription was changed since it was read.
    async fn hold(
        &self,
        found: &Subscription,
        member: &str,
        page: &FeedPage,
    ) -> Result<Option<Subscription>, StoreError> {
        let filter = doc! {
            ID: &found.name,
            UID: &found.uid,
            EPOCH: found.epoch,
            POSITION: found.position,
            REPLAY: found.replay,
            FEED: &found.feed,
            STATE: SubscriptionState::Running.word(),
            "$or": [{ OWNER: member }, { "$expr": has_ended() }],
        };
        let is_same = doc! { "$eq": [format!("${OWNER}"), literal(member)] };
        let given = doc! { "$max": [format!("${GIVEN}"), page.next] };
        let mut set = doc! {
            EPOCH: {
                "$cond": [is_same.clone(), format!("${EPOCH}"), { "$add": [format!("${EPOCH}"), 1_i64] }],
            },
            GIVEN: { "$cond": [is_same, given, page.next] },
            OWNER: literal(member),
            OWNED_UNTIL: until(lease_of(found)),
        };
        if page.items.is_empty() {
            // There is nothing to acknowledge.
            set.insert(POSITION, page.next);
        }
        self.store.change(filter, set, &[]).await
    }

    /// Acknowledges all events up to a position, which a read under this lease has given out. A repetition
    /// has no effect. Returns the acknowledged position.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn acknowledge(
        &self,
        name: &str,
        lease: &str,
        position: i64,
    ) -> Result<i64, SubscriptionError> {
        let token = token(lease)?;
        let found = self.pulled(name).await?;
        let set = doc! { POSITION: position, OWNED_UNTIL: until(lease_of(&found)) };
        let changed = self.store.change(token.filter(name, position), set, &[]).await?;
        if changed.is_some() {
            return Ok(position);
        }
        self.refused(name, &token, position).await.map(|()| position)
    }

    /// Parks the event at a position, which a read under this lease has given out, and acknowledges all up
    /// to it. A repetition has no effect. Returns the acknowledged position.
    ///
    /// # Errors
    ///
    /// [`SubscriptionError`].
    pub async fn park(
        &self,
        name: &str,
        lease: &str,
        position: i64,
        reason: &str,
    ) -> Result<i64, SubscriptionError> {
        let flaws = request_flaws(lease, Some(reason));
        if !flaws.is_empty() {
            return Err(SubscriptionError::Invalid(flaws));
        }
        let token = token(lease)?;
        let found = self.pulled(name).await?;
        if !token.is_of(&found) || position <= found.position || position > found.given {
            self.refused(name, &token, position).await?;
            if self.parked.has(&found, position).await? {
                return Ok(position);
            }
            let acknowledged = found.position;
            return Err(SubscriptionError::PositionBehind { position, acknowledged });
        }
        if found.parked >= MAX_PARKED {
            return Err(SubscriptionError::ParkedFull(MAX_PARKED));
        }
        let page = self.feed.page(Some(&found.feed), position - 1, &found.filter, 1).await?;
        let event = page.items.into_iter().next().filter(|event| event.position == position);
        let event = event.ok_or_else(|| {
            let flaw = Flaw::new("position", "no event of this subscription has this position");
            SubscriptionError::Invalid(vec![flaw])
        })?;
        let parking = Parking { of: self, token: &token, found: &found, event: &event, reason };
        if transact(self.store.context(), "park an event", &mut None, &parking).await? {
            return Ok(position);
        }
        self.refused(name, &token, position).await?;
        // It was repeated at the same time, or the ceiling was reached.
        if self.parked.has(&found, position).await? {
            return Ok(position);
        }
        Err(SubscriptionError::ParkedFull(MAX_PARKED))
    }

    /// Why a position was not acknowledged; nothing if it was before.
    async fn refused(
        &self,
        name: &str,
        token: &LeaseToken<'_>,
        position: i64,
    ) -> Result<(), SubscriptionError> {
        let found = self.pulled(name).await?;
        if !token.is_of(&found) {
            return Err(SubscriptionError::LeaseLost(name.to_owned()));
        }
        if position > found.given {
            let (limit, what) = (found.given, "a read under this lease returned");
            return Err(SubscriptionError::PositionAhead { position, limit, what });
        }
        if position < found.position {
            let acknowledged = found.position;
            return Err(SubscriptionError::PositionBehind { position, acknowledged });
        }
        Ok(())
    }
}

struct Parking<'a> {
    of: &'a Subscriptions,
    token: &'a LeaseToken<'a>,
    found: &'a Subscription,
    event: &'a FeedEvent,
    reason: &'a str,
}

impl Statements for Parking<'_> {
    type Done = bool;

    async fn run(&self, session: &mut ClientSession) -> Result<bool, SubscriptionError> {
        let Self { of: Subscriptions { store, parked, .. }, token, found, event, reason } = *self;
        let mut filter = token.filter(&found.name, event.position);
        filter.insert(PARKED, doc! { "$lt": MAX_PARKED });
        let set = doc! {
            POSITION: event.position,
            OWNED_UNTIL: until(lease_of(found)),
            PARKED: { "$add": [format!("${PARKED}"), 1_i64] },
        };
        let Some(changed) = store.change_within(session, filter, set, &[]).await? else {
            return Ok(false);
        };
        parked.insert(session, &changed, event, reason, found.read_at()).await?;
        Ok(true)
    }
}

/// All that is wrong with the lease of an acknowledgement, and with the reason for parking.
pub fn request_flaws(lease: &str, reason: Option<&str>) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    if LeaseToken::parse(lease).is_none() {
        flaws.push(Flaw::new("lease", "must be the lease that a read returned"));
    }
    if let Some(reason) = reason
        && !(1..=MAX_REASON_CHARS).contains(&reason.chars().count())
    {
        let rule = format!("must have between 1 and {MAX_REASON_CHARS} characters");
        flaws.push(Flaw::new("reason", rule));
    }
    flaws
}

fn token(lease: &str) -> Result<LeaseToken<'_>, SubscriptionError> {
    let wrong = || SubscriptionError::Invalid(request_flaws(lease, None));
    LeaseToken::parse(lease).ok_or_else(wrong)
}

fn lease_of(subscription: &Subscription) -> Duration {
    let millis = subscription.lease_millis.and_then(|millis| u64::try_from(millis).ok());
    millis.map_or(DEFAULT_LEASE, Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_names_members_with_any_characters() {
        let token = LeaseToken::parse("a-1.7.host.example:/etc.toml").unwrap();

        assert_eq!(token, LeaseToken { uid: "a-1", epoch: 7, member: "host.example:/etc.toml" });
        for wrong in ["", "a", "a.b", "a.b.c", ".1.m", "a.1.", "a.1"] {
            assert_eq!(LeaseToken::parse(wrong), None, "{wrong}");
        }
    }
}
