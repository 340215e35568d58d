//! Creates, lists, pauses, replays and deletes subscriptions.

use axum::Json;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tracing::info;
use utoipa::{IntoParams, ToSchema};

use crate::events::Flaw;
use crate::events::feed::FeedFilter;
use crate::events::json::Request;
use crate::events::subscriptions::new::{DEFAULT_LEASE, DEFAULT_MAX_PENDING};
use crate::events::subscriptions::{
    NewSubscription, ParkedEvent, SubscriptionDelivery, SubscriptionEntry, SubscriptionKind,
    SubscriptionReport,
};
use crate::http::answers::Answering;
use crate::http::extract::{AdminScope, Body, Call, NoBody, NoParameters, ReadScope};
use crate::http::limits::InSubscriptions;
use crate::http::list::Listed;
use crate::http::location::{below, location};
use crate::http::params::{Bounded, DurationText, Limit};
use crate::http::problem::Problem;
use crate::http::subscriptions::SubscriptionPath;
use crate::names::SubscriptionName;
use crate::store::page::PageSize;

/// Parked events of one answer, by default.
const DEFAULT_PARKED: u32 = 100;

/// A subscription: `push` with a `destination`, or `pull`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SubscriptionRequest {
    /// The name.
    #[schema(inline)]
    name: SubscriptionName,
    /// `push`: events are copied as outbox records. `pull`: a member reads and acknowledges them.
    #[schema(inline, required = true, value_type = SubscriptionKind)]
    kind: Option<SubscriptionKind>,
    /// The position after which it begins. By default 0: all events.
    #[schema(value_type = Option<i64>, minimum = 0)]
    after: Option<Bounded<0, { i64::MAX }>>,
    /// Only these aggregate names. By default all.
    aggregates: Option<Vec<String>>,
    /// Only these event names. By default all.
    events: Option<Vec<String>>,
    /// Only this tenant.
    tenant_id: Option<String>,
    /// For `push`: the exchange or topic of the records.
    destination: Option<String>,
    /// For `push`: the most records that wait for their delivery. By default 1000.
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 10_000)]
    max_pending: Option<Bounded<1, 10_000>>,
    /// For `pull`: the time after which a member that neither reads nor acknowledges can be replaced. By default 30s.
    #[schema(inline)]
    lease: Option<DurationText>,
}

impl SubscriptionRequest {
    fn subscription(&self) -> NewSubscription {
        let delivery = match self.kind.unwrap_or(SubscriptionKind::Pull) {
            SubscriptionKind::Push => SubscriptionDelivery::Push {
                destination: self.destination.clone().unwrap_or_default(),
                max_pending: self.max_pending.map_or(DEFAULT_MAX_PENDING, |most| most.0),
            },
            SubscriptionKind::Pull => {
                SubscriptionDelivery::Pull { lease: self.lease.map_or(DEFAULT_LEASE, |it| it.0) }
            }
        };
        let filter = FeedFilter {
            aggregates: self.aggregates.clone().unwrap_or_default(),
            events: self.events.clone().unwrap_or_default(),
            tenant_id: self.tenant_id.clone(),
        };
        let after = self.after.map_or(0, |after| after.0);
        NewSubscription { name: self.name.to_string(), delivery, filter, after }
    }
}

impl Request for SubscriptionRequest {
    fn conflicts(&self) -> Vec<Flaw> {
        let Some(kind) = self.kind else {
            // The members of either kind are not judged without it.
            let missing = Flaw::new("kind", "is missing");
            return std::iter::once(missing).chain(self.subscription().flaws()).collect();
        };
        let foreign = match kind {
            SubscriptionKind::Push => vec![("lease", self.lease.is_some())],
            SubscriptionKind::Pull => vec![
                ("destination", self.destination.is_some()),
                ("maxPending", self.max_pending.is_some()),
            ],
        };
        let kind = kind.word();
        let foreign = foreign.into_iter().filter(|(_, is_given)| *is_given);
        let foreign = foreign
            .map(|(field, _)| Flaw::new(field, format!("a {kind} subscription has none; omit it")));
        // (Placeholders of members that are wrong by themselves have flaws that are known already.)
        let own = self.subscription().flaws().into_iter();
        foreign.chain(own).collect()
    }
}

/// Create a subscription to the feed
#[utoipa::path(post, path = "/v1/subscriptions", tag = "subscriptions",
    request_body(content = SubscriptionRequest, example = json!({
        "name": "billing", "kind": "pull", "aggregates": ["order"], "lease": "30s",
    })),
    responses(
        (status = 201, description = "a majority has the subscription", body = SubscriptionReport,
            headers(("Location" = String, description = "the path of the subscription"))),
        (status = 404, description = "`not_found`: the feed is not enabled on this instance"),
        (status = 409, description = "`subscription_exists`; `too_many_subscriptions`; `position_ahead`: `after` is beyond the head"),
    ),
)]
pub(super) async fn create_subscription(
    call: Call<AdminScope>,
    uri: Uri,
    Body(body): Body<SubscriptionRequest>,
) -> Result<impl IntoResponse, Problem> {
    let created = call.state.subscriptions()?.create(&body.subscription()).await?;
    info!(actor = &*call.actor, subscription = created.name, "created a subscription");
    let location = location(&below(uri.path(), &created.name));
    Ok((StatusCode::CREATED, location, Json(created)))
}

/// List all subscriptions, with their positions and lags
#[utoipa::path(get, path = "/v1/subscriptions", tag = "subscriptions", responses(
    (status = 200, description = "all subscriptions", body = Listed<SubscriptionEntry>),
    (status = 404, description = "`not_found`: the feed is not enabled on this instance"),
))]
pub(super) async fn list_subscriptions(
    call: Call<ReadScope>,
    answering: Answering,
) -> Result<Response, Problem> {
    let turn = answering.report_turn().await?;
    let found = call.state.subscriptions_to_read()?.list().await?;
    turn.json(&Listed::from(found))
}

/// Read a subscription, with its position and lag
#[utoipa::path(get, path = "/v1/subscriptions/{name}", tag = "subscriptions",
    params(SubscriptionPath),
    responses(
        (status = 200, description = "the subscription", body = SubscriptionEntry),
        (status = 404, description = "`not_found`: no subscription has this name"),
    ),
)]
pub(super) async fn get_subscription(
    call: Call<ReadScope, SubscriptionPath, NoParameters, InSubscriptions>,
    answering: Answering,
) -> Result<Response, Problem> {
    let turn = answering.report_turn().await?;
    let found = call.state.subscriptions_to_read()?.show(call.path.name.as_str()).await?;
    turn.json(&found)
}

/// Delete a subscription and its parked events
///
/// Records that it has copied stay in the outbox, and are delivered.
#[utoipa::path(delete, path = "/v1/subscriptions/{name}", tag = "subscriptions",
    params(SubscriptionPath),
    responses(
        (status = 204, description = "the subscription was deleted"),
        (status = 404, description = "`not_found`: no subscription has this name"),
    ),
)]
pub(super) async fn delete_subscription(
    call: Call<AdminScope, SubscriptionPath, NoParameters, InSubscriptions>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    let name = call.path.name.as_str();
    call.state.subscriptions()?.delete(name).await?;
    info!(actor = &*call.actor, subscription = name, "deleted a subscription");
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a subscription
#[utoipa::path(post, path = "/v1/subscriptions/{name}/pause", tag = "subscriptions",
    params(SubscriptionPath),
    responses(
        (status = 200, description = "the subscription returns and copies no more events", body = SubscriptionReport),
        (status = 404, description = "`not_found`: no subscription has this name"),
        (status = 409, description = "`wrong_feed`: the subscription has stopped; replay it; `subscription_invalid`: this version cannot read it"),
    ),
)]
pub(super) async fn pause_subscription(
    call: Call<AdminScope, SubscriptionPath, NoParameters, InSubscriptions>,
    _: NoBody,
) -> Result<Json<SubscriptionReport>, Problem> {
    let name = call.path.name.as_str();
    let paused = call.state.subscriptions()?.pause(name).await?;
    info!(actor = &*call.actor, subscription = name, "paused a subscription");
    Ok(Json(paused))
}

/// Resume a paused subscription
#[utoipa::path(post, path = "/v1/subscriptions/{name}/resume", tag = "subscriptions",
    params(SubscriptionPath),
    responses(
        (status = 200, description = "the subscription continues after its position", body = SubscriptionReport),
        (status = 404, description = "`not_found`: no subscription has this name"),
        (status = 409, description = "`wrong_feed`: the subscription has stopped; replay it; `subscription_invalid`: this version cannot read it"),
    ),
)]
pub(super) async fn resume_subscription(
    call: Call<AdminScope, SubscriptionPath, NoParameters, InSubscriptions>,
    _: NoBody,
) -> Result<Json<SubscriptionReport>, Problem> {
    let name = call.path.name.as_str();
    let resumed = call.state.subscriptions()?.resume(name).await?;
    info!(actor = &*call.actor, subscription = name, "resumed a subscription");
    Ok(Json(resumed))
}

/// The position to start from.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReplayQuery {
    /// The position after which it starts again. By default 0: all events.
    #[param(value_type = Option<i64>, minimum = 0)]
    position: Option<Bounded<0, { i64::MAX }>>,
}

/// Replay a subscription: start it again after an earlier position of the current feed
#[utoipa::path(post, path = "/v1/subscriptions/{name}/replay", tag = "subscriptions",
    params(SubscriptionPath, ReplayQuery),
    responses(
        (status = 200, description = "earlier leases have ended; parked events after the position were removed, because they come again", body = SubscriptionReport),
        (status = 404, description = "`not_found`: no subscription has this name"),
        (status = 409, description = "`position_ahead`: the position is beyond the head; `subscription_invalid`: this version cannot read it"),
    ),
)]
pub(super) async fn replay_subscription(
    call: Call<AdminScope, SubscriptionPath, ReplayQuery, InSubscriptions>,
    _: NoBody,
) -> Result<Json<SubscriptionReport>, Problem> {
    let name = call.path.name.as_str();
    let position = call.query.position.map_or(0, |position| position.0);
    let replayed = call.state.subscriptions()?.replay(name, position).await?;
    info!(actor = &*call.actor, subscription = name, position, "replayed a subscription");
    Ok(Json(replayed))
}

/// Which parked events to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ParkedQuery {
    /// Only events after this position: the `next` of the previous page.
    #[param(value_type = Option<i64>, minimum = 0)]
    after: Option<Bounded<0, { i64::MAX }>>,
    /// The most events. By default 100. A page may be shorter, because of the size of its events.
    #[param(value_type = Option<i32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit<1_000>>,
}

/// List parked events
///
/// For `push` they are the events whose records are dead.
#[utoipa::path(get, path = "/v1/subscriptions/{name}/parked", tag = "subscriptions",
    params(SubscriptionPath, ParkedQuery),
    responses(
        (status = 200, description = "a page of the list, ascending by position", body = Listed<ParkedEvent>),
        (status = 404, description = "`not_found`: no subscription has this name"),
    ),
)]
pub(super) async fn list_parked_events(
    call: Call<ReadScope, SubscriptionPath, ParkedQuery, InSubscriptions>,
    answering: Answering,
) -> Result<Response, Problem> {
    let turn = answering.report_turn().await?;
    let after = call.query.after.map_or(0, |after| after.0);
    let size = PageSize::of_answer(call.query.limit.map_or(DEFAULT_PARKED, u32::from));
    let outbox = call.state.records()?;
    let subscriptions = call.state.subscriptions_to_read()?;
    let page = subscriptions.parked(outbox, call.path.name.as_str(), after, size).await?;
    let next = page.next.map(|position| position.to_string());
    turn.json(&Listed { items: page.events, next, note: page.note })
}

/// The parked events to discard.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DiscardQuery {
    /// Only the event at this position. By default all.
    #[param(value_type = Option<i64>, minimum = 1)]
    position: Option<Bounded<1, { i64::MAX }>>,
}

/// Parked events that were discarded.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DiscardAnswer {
    /// The number of events that were discarded.
    discarded: i64,
}

/// Discard parked events of a pull subscription
#[utoipa::path(delete, path = "/v1/subscriptions/{name}/parked", tag = "subscriptions",
    params(SubscriptionPath, DiscardQuery),
    responses(
        (status = 200, description = "the events were discarded", body = DiscardAnswer),
        (status = 404, description = "`not_found`: no subscription has this name"),
        (status = 409, description = "`wrong_kind`: it is a push subscription; discard its dead records under `/v1/outbox`"),
    ),
)]
pub(super) async fn discard_parked_events(
    call: Call<AdminScope, SubscriptionPath, DiscardQuery, InSubscriptions>,
    _: NoBody,
) -> Result<Json<DiscardAnswer>, Problem> {
    let name = call.path.name.as_str();
    let position = call.query.position.map(|position| position.0);
    let discarded = call.state.subscriptions()?.discard_parked(name, position).await?;
    info!(actor = &*call.actor, subscription = name, discarded, "discarded parked events");
    Ok(Json(DiscardAnswer { discarded }))
}
