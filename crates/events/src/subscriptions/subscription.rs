//! A subscription as it is stored.

use std::time::Duration;

use bson::raw::RawDocument;
use bson::{Bson, DateTime, Document};
use postrider_store::StoreError;
use serde::{Deserialize, Serialize};

use crate::decode::{decode_any, id_text};
use crate::feed::FeedFilter;
use crate::integer::integral;

/// The fields of the document.
pub(super) mod fields {
    pub(crate) const ID: &str = "_id";
    pub(crate) const UID: &str = "uid";
    pub(crate) const KIND: &str = "kind";
    pub(crate) const FEED: &str = "feed";
    pub(crate) const POSITION: &str = "position";
    pub(crate) const REPLAY: &str = "replay";
    pub(crate) const STATE: &str = "state";
    pub(crate) const ERROR: &str = "error";
    pub(crate) const OWNER: &str = "owner";
    pub(crate) const OWNED_UNTIL: &str = "ownedUntil";
    pub(crate) const EPOCH: &str = "epoch";
    pub(crate) const SESSION: &str = "session";
    pub(crate) const ERASURES: &str = "erasures";
    pub(crate) const FILTERED_NAMES: &str = "filter.aggregates";
    pub(crate) const GIVEN: &str = "given";
    pub(crate) const PARKED: &str = "parked";
    /// Not stored: the time of the server when the document was read.
    pub(crate) const NOW: &str = "now";
}

/// How events leave a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum SubscriptionKind {
    /// A daemon copies them as outbox records.
    Push,
    /// A member reads and acknowledges them.
    Pull,
}

impl SubscriptionKind {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
        }
    }
}

/// Whether a subscription proceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SubscriptionState {
    /// It proceeds.
    Running,
    /// An operator has paused it.
    Paused,
    /// Its position is of another feed, or ahead of it: positions name other events since a restore.
    /// Only a replay starts it again.
    WrongFeed,
}

impl SubscriptionState {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::WrongFeed => "wrong_feed",
        }
    }
}

/// A subscription.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// Its name.
    #[serde(rename = "_id")]
    pub name: String,
    /// Identifies it among those that have had this name.
    pub uid: String,
    /// How events leave it.
    pub kind: SubscriptionKind,
    /// Which events it has.
    #[serde(default)]
    pub filter: FeedFilter,
    /// The id of the feed that the position is of.
    pub feed: String,
    /// The position up to which events are acknowledged (pull) or copied (push).
    pub position: i64,
    /// The number of replays.
    pub replay: i64,
    /// Whether it proceeds.
    pub state: SubscriptionState,
    /// Why it does not proceed.
    #[serde(default)]
    pub error: Option<String>,
    /// The daemon (push) or member (pull) that had the last lease.
    #[serde(default)]
    pub owner: Option<String>,
    /// When the lease ends or ended, by the server's clock.
    #[serde(default)]
    pub owned_until: Option<DateTime>,
    /// Rises with every new owner, and with every replay. Every write of an owner names it.
    pub epoch: i64,
    /// Push: the session of the owner's transactions.
    #[serde(default)]
    pub(super) session: Option<Bson>,
    /// Push: how often an erasure has emptied events that were not copied yet.
    #[serde(default)]
    pub(super) erasures: i64,
    /// Push: the exchange or topic of its records.
    #[serde(default)]
    pub destination: Option<String>,
    /// Push: the most of its records that wait.
    #[serde(default)]
    pub max_pending: Option<i64>,
    /// Pull: the length of a lease.
    #[serde(default)]
    pub lease_millis: Option<i64>,
    /// Pull: the position up to which events were given out under the current epoch.
    #[serde(default)]
    pub given: i64,
    /// Pull: the number of parked events.
    #[serde(default)]
    pub parked: i64,
    /// When it was created.
    pub created_at: DateTime,
    /// The time of the server when it was read.
    #[serde(default, skip_serializing)]
    pub(super) now: Option<DateTime>,
}

/// A stored subscription that this version cannot read: another program or a newer version has written it.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidSubscription {
    /// Its name, as text.
    pub name: String,
    /// The field that is invalid, and why.
    pub detail: String,
    /// What identifies it among those that have had this name.
    pub(super) uid: Option<String>,
    /// The number of replays.
    pub(super) replay: Option<i64>,
    /// Its kind, if this version knows it.
    pub(super) kind: Option<SubscriptionKind>,
}

impl InvalidSubscription {
    fn new(found: &RawDocument, detail: String) -> Self {
        let (document, _) = decode_any(found);
        let kind = match document.get_str(fields::KIND) {
            Ok(word) => {
                let kinds = [SubscriptionKind::Push, SubscriptionKind::Pull];
                kinds.into_iter().find(|kind| kind.word() == word)
            }
            Err(_) => None,
        };
        let uid = found.get_str(fields::UID).ok().map(str::to_owned);
        let replay = document.get(fields::REPLAY).and_then(integral);
        Self { name: id_text(found), detail, uid, replay, kind }
    }
}

impl From<InvalidSubscription> for StoreError {
    fn from(invalid: InvalidSubscription) -> Self {
        let InvalidSubscription { name, detail, .. } = invalid;
        let detail = format!("invalid document {name:?} in postrider_subscriptions: {detail}");
        Self::Answer { action: "read a subscription", detail }
    }
}

impl Subscription {
    pub(super) fn read(found: &RawDocument) -> Result<Self, InvalidSubscription> {
        let invalid = |detail: String| InvalidSubscription::new(found, detail);
        // (Not from the bytes at once: the error names the field.)
        let document = Document::try_from(found).map_err(|_| {
            let (_, fields) = decode_any(found);
            invalid(fields.join("; "))
        })?;
        bson::deserialize_from_document(document).map_err(|error| {
            // (Without the words of the library around it.)
            invalid(error.message.unwrap_or_else(|| "a field is of another type".to_owned()))
        })
    }

    /// Whether its lease had not ended when it was read.
    pub(super) fn is_owned(&self) -> bool {
        self.owner.is_some() && self.owned_until > self.now
    }

    /// The time until its lease ends.
    pub(super) fn owned_for(&self) -> Duration {
        let millis = |date: Option<DateTime>| date.map_or(0, DateTime::timestamp_millis);
        let left = millis(self.owned_until).saturating_sub(millis(self.now));
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }

    /// The time of the server when it was read.
    pub(super) fn read_at(&self) -> DateTime {
        self.now.unwrap_or(self.created_at)
    }
}
