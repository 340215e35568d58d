//! Reads and acknowledgements of a member.

use std::time::{Duration, Instant};

use axum::Json;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tracing::info;
use utoipa::ToSchema;

use crate::events::Flaw;
use crate::events::feed::FeedEvent;
use crate::events::json::{IdText, Request};
use crate::events::subscriptions::PulledEvents;
use crate::events::subscriptions::pull::request_flaws;
use crate::http::answers::Answering;
use crate::http::extract::{Body, Call, ConsumeScope, NoParameters};
use crate::http::limits::InSubscriptions;
use crate::http::params::{Bounded, DurationText, Limit};
use crate::http::problem::Problem;
use crate::http::subscriptions::SubscriptionPath;

/// Events of one answer, by default.
const DEFAULT_PULLED: u32 = 100;

/// The member that reads, and how much.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PullRequest {
    /// The member: a name that no other process uses.
    member: IdText,
    /// The most events. By default 100. The read also ends at 1 MiB: acknowledge `next`, and read on while it is below
    /// `head`.
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit<1_000>>,
    /// How long to wait if there are no events, such as `20s`. By default not at all; at most half of
    /// `api.timeout`.
    #[schema(inline)]
    wait: Option<DurationText>,
}

impl Request for PullRequest {}

/// Events for the member that has the lease.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PulledAnswer {
    /// The lease, which each acknowledgement names.
    lease: String,
    /// The milliseconds until another member can take over, unless this one reads or acknowledges before.
    lease_millis: u64,
    /// The id of the feed.
    feed: String,
    /// The events after the acknowledged position, ascending by position. They come again until they are
    /// acknowledged.
    items: Vec<FeedEvent>,
    /// The position that acknowledges all these events.
    next: i64,
    /// The last position of the feed.
    head: i64,
}

/// Read the events after the acknowledged position, as the member that has the lease
///
/// The read takes or renews the lease. A member that repeats it gets the same events again.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/pull", tag = "subscriptions",
    params(SubscriptionPath),
    request_body(content = PullRequest, example = json!({ "member": "worker-1", "limit": 100, "wait": "15s" })),
    responses(
        (status = 200, description = "the member has the lease", body = PulledAnswer),
        (status = 404, description = "`not_found`: no subscription has this name"),
        (status = 409, description = "`member_active`: another member has the lease, with Retry-After; `subscription_paused`; `wrong_feed`; `wrong_kind`; `lease_lost`: the subscription was changed several times in the meantime"),
    ),
)]
pub(super) async fn pull_subscription_events(
    call: Call<ConsumeScope, SubscriptionPath, NoParameters, InSubscriptions>,
    answering: Answering,
    Body(body): Body<PullRequest>,
) -> Result<Response, Problem> {
    let PullRequest { member, limit, wait } = body;
    let limit = limit.map_or(DEFAULT_PULLED, u32::from) as usize;
    let wait = wait.map_or(Duration::ZERO, |wait| wait.0).min(call.state.timeout / 2);
    let (name, member) = (call.path.name.as_str(), member.as_str());
    let subscriptions = call.state.subscriptions()?;
    let deadline = Instant::now() + wait;
    loop {
        // Before the page is read: a member may repeat a read at the same time.
        let turn = answering.turn().await?;
        let pulled = subscriptions.pull(name, member, limit).await?;
        if pulled.is_new_lease {
            info!(actor = &*call.actor, subscription = name, member, "a member took the lease");
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if !pulled.items.is_empty() || left.is_zero() {
            return turn.json(&PulledAnswer::from(pulled));
        }
        drop(turn);
        subscriptions.wait_after(&pulled, left).await;
    }
}

impl From<PulledEvents> for PulledAnswer {
    fn from(pulled: PulledEvents) -> Self {
        Self {
            lease: pulled.lease,
            lease_millis: u64::try_from(pulled.leased_for.as_millis()).unwrap_or(u64::MAX),
            feed: pulled.feed,
            items: pulled.items,
            next: pulled.next,
            head: pulled.head,
        }
    }
}

/// The events to acknowledge.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AckRequest {
    /// The lease of the read.
    lease: String,
    /// All events up to this position: `next` of the read, or the position of one of its events.
    #[schema(value_type = i64, minimum = 1)]
    position: Bounded<1, { i64::MAX }>,
}

impl Request for AckRequest {
    fn conflicts(&self) -> Vec<Flaw> {
        request_flaws(&self.lease, None)
    }
}

/// The acknowledged position.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AckAnswer {
    /// All events up to this position are acknowledged.
    position: i64,
}

/// Acknowledge all events up to a position
#[utoipa::path(post, path = "/v1/subscriptions/{name}/ack", tag = "subscriptions",
    params(SubscriptionPath),
    request_body(content = AckRequest, example = json!({ "lease": "9f….1.worker-1", "position": 7 })),
    responses(
        (status = 200, description = "a majority has the position; a repeated request has no effect", body = AckAnswer),
        (status = 404, description = "`not_found`: no subscription has this name"),
        (status = 409, description = "`lease_lost`: another member has taken over, or there was a replay; `position_ahead`: no read with this lease has returned the position; `position_behind`: a later position is acknowledged; `wrong_kind`"),
    ),
)]
pub(super) async fn acknowledge_subscription_events(
    call: Call<ConsumeScope, SubscriptionPath, NoParameters, InSubscriptions>,
    Body(body): Body<AckRequest>,
) -> Result<Json<AckAnswer>, Problem> {
    let name = call.path.name.as_str();
    let subscriptions = call.state.subscriptions()?;
    let position = subscriptions.acknowledge(name, &body.lease, body.position.0).await?;
    Ok(Json(AckAnswer { position }))
}

/// The event to park.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ParkRequest {
    /// The lease of the read.
    lease: String,
    /// The position of the event.
    #[schema(value_type = i64, minimum = 1)]
    position: Bounded<1, { i64::MAX }>,
    /// The reason, for operators.
    #[schema(min_length = 1, max_length = 2000)]
    reason: String,
}

impl Request for ParkRequest {
    fn conflicts(&self) -> Vec<Flaw> {
        request_flaws(&self.lease, Some(&self.reason))
    }
}

/// Park an event that cannot be handled, and acknowledge all events up to it
#[utoipa::path(post, path = "/v1/subscriptions/{name}/park", tag = "subscriptions",
    params(SubscriptionPath),
    request_body(content = ParkRequest, example = json!({
        "lease": "9f….1.worker-1", "position": 7, "reason": "unknown currency",
    })),
    responses(
        (status = 200, description = "a majority has the position; a repeated request has no effect", body = AckAnswer),
        (status = 404, description = "`not_found`: no subscription has this name"),
        (status = 409, description = "as for an acknowledgement; `too_many_parked`: discard some parked events, or replay"),
    ),
)]
pub(super) async fn park_subscription_event(
    call: Call<ConsumeScope, SubscriptionPath, NoParameters, InSubscriptions>,
    Body(body): Body<ParkRequest>,
) -> Result<Json<AckAnswer>, Problem> {
    let (name, position) = (call.path.name.as_str(), body.position.0);
    let subscriptions = call.state.subscriptions()?;
    let position = subscriptions.park(name, &body.lease, position, &body.reason).await?;
    info!(actor = &*call.actor, subscription = name, position, "parked an event");
    Ok(Json(AckAnswer { position }))
}
