//! Subscriptions to the feed: the calls of operators, and those of members.

mod manage;
mod pull;

use axum::http::header::ALLOW;
use axum::response::IntoResponse;
use axum::routing::any;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::events::feed::FeedError;
use crate::events::subscriptions::SubscriptionError;
use crate::http::limits::{Confined, InSubscriptions};
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::names::SubscriptionName;
use crate::ops::problem_code::ProblemCode;

pub(super) fn calls() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(manage::list_subscriptions, manage::create_subscription))
        .routes(routes!(manage::get_subscription, manage::delete_subscription))
        .routes(routes!(manage::pause_subscription))
        .routes(routes!(manage::resume_subscription))
        .routes(routes!(manage::replay_subscription))
        .routes(routes!(manage::list_parked_events, manage::discard_parked_events))
        .routes(routes!(pull::pull_subscription_events))
        .route("/v1/subscriptions/{name}/events", any(refuse_former_pull))
        .routes(routes!(pull::acknowledge_subscription_events))
        .routes(routes!(pull::park_subscription_event))
}

/// Refuses the earlier form of a pull, in which a link or an image of any page could take the lease.
async fn refuse_former_pull() -> impl IntoResponse {
    // No method is allowed on this path.
    ([(ALLOW, "")], Problem::no_method("pull by POST /v1/subscriptions/{name}/pull"))
}

/// A subscription, in a path.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct SubscriptionPath {
    /// The name of the subscription.
    #[param(inline)]
    name: SubscriptionName,
}

impl Confined<InSubscriptions> for SubscriptionPath {
    fn check(&self, reach: &InSubscriptions) -> Result<(), Problem> {
        reach.name(self.name.as_str())
    }
}

impl From<SubscriptionError> for Problem {
    fn from(error: SubscriptionError) -> Self {
        let detail = error.to_string();
        match error {
            SubscriptionError::Invalid(flaws) => Self::invalid(flaws),
            SubscriptionError::Unknown(_) => Self::not_found(detail),
            SubscriptionError::Unreadable { .. } => {
                Self::conflict(ProblemCode::SubscriptionInvalid, detail)
            }
            SubscriptionError::Exists(_) => Self::conflict(ProblemCode::SubscriptionExists, detail),
            SubscriptionError::TooMany(_) => {
                Self::conflict(ProblemCode::TooManySubscriptions, detail)
            }
            SubscriptionError::WrongKind { .. } => Self::conflict(ProblemCode::WrongKind, detail),
            SubscriptionError::Paused(_) => Self::conflict(ProblemCode::SubscriptionPaused, detail),
            SubscriptionError::WrongFeed { .. } => Self::conflict(ProblemCode::WrongFeed, detail),
            SubscriptionError::MemberActive { remaining, .. } => {
                Self::conflict(ProblemCode::MemberActive, detail).retry_after(remaining)
            }
            SubscriptionError::LeaseLost(_) => Self::conflict(ProblemCode::LeaseLost, detail),
            SubscriptionError::PositionAhead { .. } => {
                Self::conflict(ProblemCode::PositionAhead, detail)
            }
            SubscriptionError::PositionBehind { .. } => {
                Self::conflict(ProblemCode::PositionBehind, detail)
            }
            SubscriptionError::ParkedFull(_) => Self::conflict(ProblemCode::TooManyParked, detail),
            // (No call copies events.)
            SubscriptionError::PageErased(_) => Self::unavailable(detail),
            SubscriptionError::RecordRefused { .. } => Self::fault(&error),
            SubscriptionError::Feed(FeedError::WrongFeed { .. }) => {
                Self::conflict(ProblemCode::WrongFeed, detail)
            }
            SubscriptionError::Feed(FeedError::PositionAhead { .. }) => {
                Self::conflict(ProblemCode::PositionAhead, detail)
            }
            SubscriptionError::Feed(FeedError::Missing) => Self::unavailable(detail),
            SubscriptionError::Feed(FeedError::Store(source))
            | SubscriptionError::Store(source) => source.into(),
        }
    }
}
