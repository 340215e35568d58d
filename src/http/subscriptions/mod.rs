//! Subscriptions to the feed: the calls of operators, and those of members.

mod manage;
mod pull;

use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::events::feed::FeedError;
use crate::events::subscriptions::SubscriptionError;
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::names::SubscriptionName;

pub(super) fn calls() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(manage::list_subscriptions, manage::create_subscription))
        .routes(routes!(manage::get_subscription, manage::delete_subscription))
        .routes(routes!(manage::pause_subscription))
        .routes(routes!(manage::resume_subscription))
        .routes(routes!(manage::replay_subscription))
        .routes(routes!(manage::list_parked_events, manage::discard_parked_events))
        .routes(routes!(pull::pull_events))
        .routes(routes!(pull::acknowledge_events))
        .routes(routes!(pull::park_event))
}

/// A subscription, in a path.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct SubscriptionPath {
    /// The name of the subscription.
    #[param(inline)]
    name: SubscriptionName,
}

impl From<SubscriptionError> for Problem {
    fn from(error: SubscriptionError) -> Self {
        let detail = error.to_string();
        match error {
            SubscriptionError::Invalid(flaws) => Self::invalid(flaws),
            SubscriptionError::Unknown(_) => Self::not_found(detail),
            SubscriptionError::Exists(_) => Self::conflict("subscription_exists", detail),
            SubscriptionError::TooMany(_) => Self::conflict("too_many_subscriptions", detail),
            SubscriptionError::WrongKind { .. } => Self::conflict("wrong_kind", detail),
            SubscriptionError::Paused(_) => Self::conflict("subscription_paused", detail),
            SubscriptionError::WrongFeed { .. } => Self::conflict("wrong_feed", detail),
            SubscriptionError::MemberActive { remaining, .. } => {
                Self::conflict("member_active", detail).retry_after(remaining)
            }
            SubscriptionError::LeaseLost(_) => Self::conflict("lease_lost", detail),
            SubscriptionError::PositionAhead { .. } => Self::conflict("position_ahead", detail),
            SubscriptionError::PositionBehind { .. } => Self::conflict("position_behind", detail),
            SubscriptionError::ParkedFull(_) => Self::conflict("too_many_parked", detail),
            // (No call copies events.)
            SubscriptionError::RecordRefused { .. } => Self::fault(&error),
            SubscriptionError::Feed(FeedError::WrongFeed { .. }) => {
                Self::conflict("wrong_feed", detail)
            }
            SubscriptionError::Feed(FeedError::PositionAhead { .. }) => {
                Self::conflict("position_ahead", detail)
            }
            SubscriptionError::Feed(FeedError::Missing) => Self::unavailable(detail),
            SubscriptionError::Feed(FeedError::Decode(_)) => Self::fault(&error),
            SubscriptionError::Feed(FeedError::Store(source))
            | SubscriptionError::Store(source) => source.into(),
        }
    }
}
