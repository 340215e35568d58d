//! Subscriptions: named readers of the feed whose position Postrider keeps.
//!
//! ```text
//!            ┌─ push: the owner's worker ── one transaction: outbox records, position ──▶ relay
//!  feed ─────┤
//!            └─ pull: a member reads under a lease ◀──▶ acknowledges or parks
//! ```
//!
//! `postrider_subscriptions` has one document for each, and every write is conditional on its epoch, which
//! rises with each owner and each replay. So an owner that was suspended, and wakes up after another one has
//! taken over, writes nothing. There is no second delivery engine: what is pushed is delivered by the relay,
//! with its retries and dead letters.
//!
//! | module | what it does |
//! |---|---|
//! | [`subscription`], [`new`] | the document, and what may be wrong with a new one |
//! | [`registry`] | creates, lists, pauses, replays, deletes |
//! | `store`, `transact` | conditional writes |
//! | [`pusher`], `push`, `copy` | push: owners, their workers, their transactions |
//! | `records`, `waiting`, `dead` | push: the records, those that wait, those that are dead |
//! | `copies` | push: the records of an append, for its erasure |
//! | [`pull`], [`parked`] | pull: leases, acknowledgements, parked events |
//! | [`lag`], [`metrics`] | how far a subscription is behind |

mod copies;
mod copy;
mod dead;
mod error;
pub mod lag;
pub mod metrics;
pub mod new;
pub mod parked;
pub mod pull;
mod push;
pub mod pusher;
mod records;
pub mod registry;
mod store;
pub mod subscription;
mod transact;
mod waiting;

pub(crate) use copies::{Copies, copies_of, count_erasure};
pub use error::SubscriptionError;
pub use lag::{InvalidReport, SubscriptionEntry, SubscriptionReport};
pub use new::{NewSubscription, SubscriptionDelivery};
pub use parked::ParkedEvent;
pub use pull::PulledEvents;
pub use pusher::Pusher;
pub use registry::Subscriptions;
pub use store::{PARKED_EVENTS, SUBSCRIPTIONS};
pub use subscription::{InvalidSubscription, Subscription, SubscriptionKind, SubscriptionState};
