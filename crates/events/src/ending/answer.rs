//! The answer of an erasure.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::append::Appended;

/// An erasure that a majority has, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema), schema(as = ErasureAnswer))]
#[serde(rename_all = "camelCase")]
pub struct Erasure {
    /// The id of the event stream document of the erasure.
    pub id: String,
    /// The aggregate.
    pub aggregate_id: String,
    /// The aggregate's version: that of the erasure.
    #[cfg_attr(feature = "json", schema(example = 8))]
    pub version: i64,
    /// The time by MongoDB's clock, in milliseconds since 1970.
    pub create_time: i64,
    /// Whether an earlier request with this id has begun it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "json", schema(required = false))]
    pub replayed: bool,
    /// How far it is.
    pub state: ErasureState,
    /// The records that have their payload still.
    #[cfg_attr(feature = "json", schema(example = 0))]
    pub pending: u64,
    /// The subscriptions that this version cannot read, and for which it waits: their records are not known. Correct or
    /// delete them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "json", schema(required = false))]
    pub invalid_subscriptions: Vec<String>,
    /// What was erased until now.
    pub erased: ErasureCounts,
    /// The copies of the events that an erasure does not reach.
    pub unreachable: Vec<Unreachable>,
}

/// How far an erasure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ErasureState {
    /// All content is erased.
    Complete,
    /// It waits for records that must be delivered first.
    Waiting,
    /// It is under way: an instance completes it.
    Running,
}

/// What an erasure has erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ErasureCounts {
    /// Appends whose bodies and header are empty now.
    #[cfg_attr(feature = "json", schema(example = 7))]
    pub versions: u64,
    /// Their events.
    #[cfg_attr(feature = "json", schema(example = 9))]
    pub events: u64,
    /// Whether there was a snapshot, whose state is empty now.
    pub snapshot: bool,
    /// Outbox records, done or dead, whose payload is empty now. Others were removed by the retention.
    #[cfg_attr(feature = "json", schema(example = 9))]
    pub records: u64,
    /// Outbox records that were removed before their delivery.
    #[cfg_attr(feature = "json", schema(example = 0))]
    pub discarded: u64,
}

/// A place that may have copies of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema))]
pub struct Unreachable {
    /// The place, for programs.
    #[cfg_attr(feature = "json", schema(example = "brokers"))]
    pub place: &'static str,
    /// What it may have, and what to do.
    pub detail: &'static str,
}

/// All places that no erasure reaches.
const UNREACHABLE: [Unreachable; 6] = [
    Unreachable {
        place: "brokers",
        detail: "messages that were published: queues, topics and dead-letter destinations keep them until they \
                 are consumed or expire",
    },
    Unreachable {
        place: "consumers",
        detail: "what consumers have stored: they must act on the event postrider.StreamErased",
    },
    Unreachable {
        place: "read models",
        detail: "collections that your programs build from events, and records of deleted subscriptions",
    },
    Unreachable {
        place: "oplog",
        detail: "MongoDB's oplog has the earlier documents until it has rolled over",
    },
    Unreachable {
        place: "backups",
        detail: "backups from before: after a restore, erase the stream again",
    },
    Unreachable {
        place: "identifiers",
        detail: "aggregate, tenant, owner, request and command ids, event names and times stay in the stream",
    },
];

impl Erasure {
    pub(super) fn new(appended: Appended, progress: Progress) -> Self {
        let Progress { state, pending, invalid, counts: erased } = progress;
        Self {
            id: appended.id,
            aggregate_id: appended.aggregate_id,
            version: appended.version,
            create_time: appended.create_time,
            replayed: appended.replayed,
            state,
            pending,
            invalid_subscriptions: invalid.into_iter().collect(),
            erased,
            unreachable: UNREACHABLE.to_vec(),
        }
    }
}

/// How far an attempt has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) state: ErasureState,
    /// The records that have their payload still.
    pub(super) pending: u64,
    /// The invalid subscriptions whose records are not known.
    pub(super) invalid: BTreeSet<String>,
    pub(super) counts: ErasureCounts,
}

impl Progress {
    pub(super) fn new(state: ErasureState, counts: ErasureCounts) -> Self {
        Self { state, pending: 0, invalid: BTreeSet::new(), counts }
    }
}
