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
use crate::http::extract::{Call, NoParameters, ReadScope};
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
    /// Behind this position: `next` of the page before; 0 is the beginning.
    #[param(value_type = Option<i64>, minimum = 0)]
    after: Option<Bounded<0, { i64::MAX }>>,
    /// The id of the feed that `after` is of. Always give it with a stored position.
    feed: Option<String>,
    /// Aggregate names, separated by commas; all without it.
    #[param(value_type = Option<String>)]
    aggregates: Option<AggregateNames>,
    /// Names of events, separated by commas; all without it.
    #[param(value_type = Option<String>)]
    events: Option<EventNames>,
    /// Of this tenant only.
    tenant_id: Option<String>,
    /// The most events: 100 of a page by default, all up to the head as NDJSON. Server-sent events have no limit.
    #[param(value_type = Option<i32>, minimum = 1, maximum = 10_000)]
    limit: Option<Limit<10_000>>,
    /// How long to wait for an event where the page has none, such as `30s`; at most 60s.
    #[param(inline)]
    wait: Option<Wait>,
}

/// A page of the feed.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is written piece by piece")]
struct FeedAnswer {
    /// The id of the feed: store it with `next`. It changes when a backup is restored.
    feed: String,
    /// The events, ascending by position.
    items: Vec<FeedEvent>,
    /// The position up to which the page has read: `after` of the next one. It advances where no event
    /// matches.
    #[schema(example = 1)]
    next: i64,
    /// The last position of the feed.
    #[schema(example = 1)]
    head: i64,
}

/// Events of all aggregates in the order of their positions
///
/// As JSON a page, which can wait for an event; as `application/x-ndjson` one event per line up to the head, and a last
/// line with `feed`, `next` and `head`; as `text/event-stream` events as they are appended, without an end. Its ids are
/// `<feed>:<position>`, and `Last-Event-ID` continues behind one.
#[utoipa::path(get, path = "/v1/feed", tag = "feed",
    params(FeedQuery, ("Last-Event-ID" = Option<String>, Header,
        description = "`<feed>:<position>`, in place of `feed` and `after`; for server-sent events")),
    responses(
        (status = 200, description = "a part of the feed", content(
            (FeedAnswer = "application/json"),
            (String = "application/x-ndjson"),
            (String = "text/event-stream"),
        )),
        (status = 404, description = "`not_found`: the feed is not enabled"),
        (status = 409, description = "`wrong_feed`: the position is of another feed, from before a restore; \
                                      `position_ahead`: no event has had the position"),
    ),
)]
async fn read_feed(
    call: Call<ReadScope, NoParameters, FeedQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let is_stream = accepts(&headers, "text/event-stream");
    let is_lines = !is_stream && accepts(&headers, "application/x-ndjson");
    let FeedQuery { after, feed, aggregates, events, tenant_id, limit, wait } = call.query;
    let aggregates = aggregates.unwrap_or_default().0;
    let events = events.unwrap_or_default().0;
    let filter = FeedFilter { aggregates, events, tenant_id };
    let mut flaws = Vec::new();
    let mut place = (feed, after.map_or(0, |after| after.0));
    if is_stream && let Some(id) = LastEventId::of(&headers) {
        match id {
            Ok(LastEventId { feed, position }) => place = (Some(feed), position),
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
    let reader = FeedReader { state: call.state, filter };
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
            FeedError::Decode(_) => Self::fault(&error),
        }
    }
}
