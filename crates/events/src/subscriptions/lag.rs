//! How far a subscription is behind the feed, and its state for operators.

use bson::DateTime;
use postrider_store::dates::rfc3339;
use serde::Serialize;

use crate::feed::{Feed, FeedError, FeedFilter, FeedState};
use crate::subscriptions::subscription::{Subscription, SubscriptionKind, SubscriptionState};

/// A subscription for operators.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema), schema(as = SubscriptionAnswer))]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionReport {
    /// Its name.
    #[cfg_attr(feature = "json", schema(example = "billing"))]
    pub name: String,
    /// How events leave it.
    #[cfg_attr(feature = "json", schema(inline))]
    pub kind: SubscriptionKind,
    /// Whether it proceeds.
    #[cfg_attr(feature = "json", schema(inline))]
    pub state: SubscriptionState,
    /// Why it does not proceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub error: Option<String>,
    /// Of these aggregate names; of all if absent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "json", schema(required = false))]
    pub aggregates: Vec<String>,
    /// With these event names; with all if absent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "json", schema(required = false))]
    pub events: Vec<String>,
    /// Of this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub tenant_id: Option<String>,
    /// The id of the feed that the position is of.
    pub feed: String,
    /// The position up to which events are acknowledged (pull) or copied to the outbox (push).
    pub position: i64,
    /// The last position of the feed, if it is the feed of the subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub head: Option<i64>,
    /// Events of the feed after the position, whether or not the filter lets them pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub lag_events: Option<i64>,
    /// The age of the first event after the position, whether or not the filter lets it pass; 0 at the head.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub lag_seconds: Option<f64>,
    /// The number of replays.
    pub replay: i64,
    /// The daemon (push) or member (pull) that has the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub owner: Option<String>,
    /// When the lease ends, unless it is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false, format = DateTime))]
    pub owned_until: Option<String>,
    /// Push: the exchange or topic of its records.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub destination: Option<String>,
    /// Push: the most of its records that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub max_pending: Option<i64>,
    /// Pull: the length of a lease in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub lease_millis: Option<i64>,
    /// Pull: the number of parked events.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub parked: Option<i64>,
    /// When it was created.
    #[cfg_attr(feature = "json", schema(format = DateTime))]
    pub created_at: String,
}

/// A subscription for operators, also one that this version cannot read.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum SubscriptionEntry {
    /// It is valid.
    Valid(Box<SubscriptionReport>),
    /// It is not.
    Invalid(InvalidReport),
}

/// A stored subscription that this version of Postrider cannot read. It neither proceeds nor changes; it can be deleted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema), schema(as = InvalidSubscriptionAnswer))]
#[serde(rename_all = "camelCase")]
pub struct InvalidReport {
    /// Its name.
    #[cfg_attr(feature = "json", schema(example = "billing"))]
    pub name: String,
    /// `invalid`.
    #[cfg_attr(feature = "json", schema(example = "invalid"))]
    pub state: &'static str,
    /// The field that cannot be read, and why.
    pub error: String,
    /// The first erasures that wait for it, as `NAME/ID` of their aggregates: its records may have the erased content.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "json", schema(required = false))]
    pub erasures: Vec<String>,
}

impl InvalidReport {
    pub(super) fn new(name: String, error: String, erasures: Vec<String>) -> Self {
        Self { name, state: "invalid", error, erasures }
    }
}

/// Events and time behind the position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Lag {
    pub(super) events: i64,
    pub(super) seconds: f64,
}

/// The lag of a subscription; `None` if its position is not of this feed.
///
/// Events are those of the whole feed: to count those that the filter lets pass would read all of them.
pub(super) async fn lag(
    feed: &Feed,
    subscription: &Subscription,
    state: Option<&FeedState>,
) -> Result<Option<Lag>, FeedError> {
    let Some(state) = state.filter(|state| state.feed == subscription.feed) else {
        return Ok(None);
    };
    let events = state.head - subscription.position;
    if events < 0 {
        return Ok(None);
    }
    if events == 0 {
        return Ok(Some(Lag { events, seconds: 0.0 }));
    }
    let page = feed.page(Some(&state.feed), subscription.position, &FeedFilter::default(), 1).await;
    let created = match page {
        Ok(page) => page.items.first().map(|event| event.create_time),
        Err(FeedError::WrongFeed { .. } | FeedError::PositionAhead { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let now = subscription.read_at().timestamp_millis();
    let millis = created.map_or(0, |created| now.saturating_sub(created).max(0));
    Ok(Some(Lag { events, seconds: millis as f64 / 1_000.0 }))
}

/// The report of a subscription.
pub(super) async fn report(
    feed: &Feed,
    subscription: Subscription,
    state: Option<&FeedState>,
) -> Result<SubscriptionReport, FeedError> {
    let lag = lag(feed, &subscription, state).await?;
    let is_owned = subscription.is_owned();
    let date = |date: DateTime| rfc3339(date).unwrap_or_default();
    let of_feed = state.filter(|state| state.feed == subscription.feed);
    Ok(SubscriptionReport {
        head: of_feed.map(|state| state.head),
        lag_events: lag.map(|lag| lag.events),
        lag_seconds: lag.map(|lag| lag.seconds),
        owned_until: subscription.owned_until.filter(|_| is_owned).map(date),
        owner: subscription.owner.filter(|_| is_owned),
        parked: (subscription.kind == SubscriptionKind::Pull).then_some(subscription.parked),
        name: subscription.name,
        kind: subscription.kind,
        state: subscription.state,
        error: subscription.error,
        aggregates: subscription.filter.aggregates,
        events: subscription.filter.events,
        tenant_id: subscription.filter.tenant_id,
        feed: subscription.feed,
        position: subscription.position,
        replay: subscription.replay,
        destination: subscription.destination,
        max_pending: subscription.max_pending,
        lease_millis: subscription.lease_millis,
        created_at: date(subscription.created_at),
    })
}
