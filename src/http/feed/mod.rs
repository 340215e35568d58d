//! Reads the feed: pages with a wait for more, lines, and server-sent events.

mod forms;

use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Deserializer};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::events::Flaw;
use crate::events::feed::{FeedError, FeedEvent, FeedFilter};
use crate::events::json::checked;
use crate::http::answers::Answering;
use crate::http::extract::{Call, NoParameters, ReadScope};
use crate::http::limits::InStreams;
use crate::http::params::{Bounded, Limit, Wait};
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::http::stream::accepts;
use crate::ops::problem_code::ProblemCode;

use self::forms::{FeedReader, LastEventId};

/// Events of a page, by default.
const DEFAULT_LIMIT: u32 = 100;

pub(super) fn calls() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(read_feed))
}

/// Which events to read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FeedQuery {
    /// Only events after this position: the `next` of the previous page. 0 is the beginning.
    #[param(value_type = Option<i64>, minimum = 0)]
    after: Option<Bounded<0, { i64::MAX }>>,
    /// The id of the feed to which `after` belongs. Always send it with a stored position.
    feed: Option<String>,
    /// Only these aggregate names, separated by commas. By default all.
    #[param(value_type = Option<String>)]
    aggregates: Option<AggregateNames>,
    /// Only these names of events, separated by commas. By default all.
    #[param(value_type = Option<String>)]
    events: Option<EventNames>,
    /// Only events of this tenant.
    tenant_id: Option<String>,
    /// The most events. By default 100 for a page, and all up to the head for NDJSON. Server-sent events have no limit.
    /// A page also ends at 1 MiB: read on from `next` while it is below `head`.
    #[param(value_type = Option<i32>, minimum = 1, maximum = 10_000)]
    limit: Option<Limit<10_000>>,
    /// How long a page without events waits for one, such as `30s`; at most 60s.
    #[param(inline)]
    wait: Option<Wait>,
}

/// A page of the feed.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is written piece by piece")]
struct FeedAnswer {
    /// The id of the feed. Store it with `next`: it changes when the feed is renewed after a restore.
    feed: String,
    /// The events, ascending by position.
    items: Vec<FeedEvent>,
    /// The position up to which the page has read: the `after` of the next page. It also advances if no event
    /// matches.
    #[schema(example = 1)]
    next: i64,
    /// The last position of the feed.
    #[schema(example = 1)]
    head: i64,
}

/// Read the events of all aggregates in the order of their positions
///
/// The header `Accept` selects the form. `application/json`: a page, which can wait for an event. `application/x-ndjson`:
/// one event per line up to the head, and a last line with `feed`, `next` and `head`. `text/event-stream`: events as they
/// are appended, without an end; their ids are `<feed>:<position>`, and `Last-Event-ID` continues after one.
#[utoipa::path(get, path = "/v1/feed", tag = "feed",
    params(FeedQuery, ("Last-Event-ID" = Option<String>, Header,
        description = "For server-sent events: `<feed>:<position>`, in place of `feed` and `after`")),
    responses(
        (status = 200, description = "a page, or a stream", content(
            (FeedAnswer = "application/json", example = json!({
                "feed": "7d2a1c3e-5b0e-4f0b-9a51-0d5c5c0e7a11", "next": 1, "head": 1, "items": [{
                    "position": 1, "id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "aggregateName": "order",
                    "aggregateId": "o-1", "version": 1, "index": 0, "eventCount": 1, "name": "OrderPlaced",
                    "body": { "total": 120 }, "header": {}, "requestId": "place-o-1", "createTime": 1795300063572_i64,
                }],
            })),
            (String = "application/x-ndjson"),
            (String = "text/event-stream"),
        )),
        (status = 404, description = "`not_found`: the feed is not enabled"),
        (status = 409, description = "`wrong_feed`: the position is of another feed, from before a restore; \
                                      `position_ahead`: no event has had the position"),
    ),
)]
async fn read_feed(
    call: Call<ReadScope, NoParameters, FeedQuery, InStreams>,
    answering: Answering,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let is_stream = accepts(&headers, "text/event-stream");
    let is_lines = !is_stream && accepts(&headers, "application/x-ndjson");
    let FeedQuery { after, feed, aggregates, events, tenant_id, limit, wait } = call.query;
    let aggregates = call.reach.names(aggregates.unwrap_or_default().0)?;
    let tenant_id = call.reach.tenant(tenant_id)?;
    let events = events.unwrap_or_default().0;
    let filter = FeedFilter { aggregates, events, tenant_id };
    let mut flaws = Vec::new();
    let mut place = (feed, after.map_or(0, |after| after.0));
    if is_stream {
        match LastEventId::of(&headers) {
            Ok(Some(LastEventId { feed, position })) => place = (Some(feed), position),
            Ok(None) => {}
            Err(flaw) => flaws.push(flaw),
        }
    }
    let detail = "is allowed only for pages; omit it for lines and server-sent events";
    if wait.is_some() && (is_stream || is_lines) {
        flaws.push(Flaw::new("wait", detail));
    }
    if limit.is_some() && is_stream {
        flaws.push(Flaw::new(
            "limit",
            "is allowed only for pages and lines; close the connection instead",
        ));
    }
    if !flaws.is_empty() {
        return Err(Problem::invalid(flaws));
    }
    let reader = FeedReader { state: call.state, answering, filter };
    let limit = limit.map(u32::from);
    if is_stream {
        reader.events(place).await
    } else if is_lines {
        reader.lines(place, limit).await
    } else {
        reader.page(place, limit.unwrap_or(DEFAULT_LIMIT), wait.unwrap_or_default().0).await
    }
}

/// Aggregate names, separated by commas.
#[derive(Debug, Default)]
struct AggregateNames(Vec<String>);

impl<'de> Deserialize<'de> for AggregateNames {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |text: String| {
            let filter = FeedFilter { aggregates: names(&text), ..FeedFilter::default() };
            sound(&filter).map(|()| Self(filter.aggregates))
        })
    }
}

/// Names of events, separated by commas.
#[derive(Debug, Default)]
struct EventNames(Vec<String>);

impl<'de> Deserialize<'de> for EventNames {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |text: String| {
            let filter = FeedFilter { events: names(&text), ..FeedFilter::default() };
            sound(&filter).map(|()| Self(filter.events))
        })
    }
}

fn names(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

/// Everything that is wrong with a filter of one field, as one text.
fn sound(filter: &FeedFilter) -> Result<(), String> {
    let details: Vec<String> = filter.flaws().into_iter().map(|flaw| flaw.detail).collect();
    if details.is_empty() { Ok(()) } else { Err(details.join("; ")) }
}

impl From<FeedError> for Problem {
    fn from(error: FeedError) -> Self {
        let detail = error.to_string();
        match error {
            FeedError::WrongFeed { .. } => Self::conflict(ProblemCode::WrongFeed, detail),
            FeedError::PositionAhead { .. } => Self::conflict(ProblemCode::PositionAhead, detail),
            FeedError::Missing => Self::unavailable(detail),
            FeedError::Store(error) => error.into(),
        }
    }
}
