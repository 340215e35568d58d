//! Errors of subscriptions.

use std::time::Duration;

use bson::DateTime;
use postrider_store::StoreError;
use postrider_store::dates::rfc3339;

use crate::error::{Flaw, join};
use crate::feed::FeedError;
use crate::subscriptions::subscription::SubscriptionKind;

/// Why an operation on a subscription had no effect.
#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    /// Fields are invalid: all of them.
    #[error("{}", join(.0))]
    Invalid(Vec<Flaw>),
    /// No subscription has this name.
    #[error("unknown subscription {0:?}")]
    Unknown(String),
    /// This version cannot read the stored subscription.
    #[error(
        "subscription {name:?} is invalid: {detail}; if a newer version of Postrider has written it, use that, else \
         correct the document in postrider_subscriptions, or delete the subscription"
    )]
    Unreadable {
        /// The subscription.
        name: String,
        /// The field, and what is wrong with it.
        detail: String,
    },
    /// A subscription has this name already.
    #[error("subscription {0:?} already exists; delete it first, or choose another name")]
    Exists(String),
    /// There are as many subscriptions as one context may have.
    #[error("a context has at most {0} subscriptions; delete one first")]
    TooMany(u64),
    /// The operation is of the other kind of subscription.
    #[error("subscription {name:?} is a {} subscription; {remedy}", .kind.word())]
    WrongKind {
        /// The subscription.
        name: String,
        /// Its kind.
        kind: SubscriptionKind,
        /// What to do instead.
        remedy: &'static str,
    },
    /// An operator has paused it.
    #[error("subscription {0:?} is paused; an operator can resume it")]
    Paused(String),
    /// Its position is of another feed.
    #[error("subscription {name:?} has stopped: {reason}; replay it, by default from position 0")]
    WrongFeed {
        /// The subscription.
        name: String,
        /// Why.
        reason: String,
    },
    /// Another member has the lease.
    #[error(
        "member {member:?} reads subscription {name:?} until at least {}; this member is on \
         standby",
        rfc3339(*.until).unwrap_or_default()
    )]
    MemberActive {
        /// The subscription.
        name: String,
        /// The member that has the lease.
        member: String,
        /// When its lease ends, unless it is renewed.
        until: DateTime,
        /// The time until then.
        remaining: Duration,
    },
    /// The lease is of an earlier epoch: another member has taken over, or there was a replay.
    #[error(
        "the lease of subscription {0:?} is lost, since another member took over, or an \
         operator replayed the subscription; read again, and expect events that were read before"
    )]
    LeaseLost(String),
    /// The position is beyond what was given out under this lease, or beyond the head.
    #[error("position {position} is ahead of {limit}, the last one that {what}")]
    PositionAhead {
        /// The position of the request.
        position: i64,
        /// The largest that is permitted.
        limit: i64,
        /// Of what it is the last.
        what: &'static str,
    },
    /// The position was acknowledged before, and a later one too.
    #[error(
        "position {position} is behind: everything up to {acknowledged} is already acknowledged"
    )]
    PositionBehind {
        /// The position of the request.
        position: i64,
        /// The position of the subscription.
        acknowledged: i64,
    },
    /// As many events are parked as a subscription may have.
    #[error(
        "{0} events are parked, the maximum of a subscription; discard some of them, or replay \
         the subscription from an earlier position"
    )]
    ParkedFull(i64),
    /// An erasure has emptied events that were read and not copied yet.
    #[error("an erasure emptied events of subscription {0:?} before they were copied")]
    PageErased(String),
    /// MongoDB refuses the record of an event.
    #[error("MongoDB rejects the record of an event (code {code}): {message}")]
    RecordRefused {
        /// The server's code.
        code: i32,
        /// The server's message.
        message: String,
    },
    /// The feed could not be read.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// MongoDB failed.
    #[error("cannot read or change the subscription")]
    Store(#[from] StoreError),
}
