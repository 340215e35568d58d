//! The indexes of `outbox_records`, each beside the query that it serves.

use bson::{Bson, Document, doc};

use crate::outbox::fields::{
    BLOCKS, DEAD, DEAD_AT, DEDUP_KEY, DONE, DONE_AT, KEY, PARTITION, PENDING, SCHEDULED, SEQ,
    STATUS, VISIBLE_AT,
};
use crate::outbox::inspect::{DEAD_INDEX, DONE_TTL_INDEX};
use crate::outbox::repair::SCHEDULED_INDEX;
use crate::outbox::snapshot::{BLOCKS_INDEX, LANE_INDEX};

/// Refuses a `dedupKey` that another record has.
pub const DEDUP_INDEX: &str = "dedup_idx";

/// One index. All of them are partial and ascending: a record is only in those of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// Its name.
    pub name: &'static str,
    /// The fields that it orders by.
    pub keys: &'static [&'static str],
    /// Which records are in it.
    pub partial: Partial,
    /// Whether two records may share a key.
    pub unique: bool,
    /// Whether records go when their date is older than the retention.
    pub expires: bool,
    /// The query that it is for, in words: the lines of a comment.
    pub serves: &'static [&'static str],
}

/// Which records are in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partial {
    /// Those of this status.
    Status(&'static str),
    /// Those in which this field is true.
    True(&'static str),
    /// Those in which this field is text. Null and absent differ in a unique index, so that
    /// a `sparse` one would refuse the second record whose driver writes null.
    Text(&'static str),
}

/// All of them, in the order in which they are created.
pub const ALL: [Index; 6] = [
    Index {
        name: LANE_INDEX,
        keys: &[PARTITION, KEY, SEQ],
        partial: Partial::Status(PENDING),
        unique: false,
        expires: false,
        serves: &[
            "Every read of a take: the pending records of the partitions owned, by key and seq,",
            "those whose partition is yet to be stamped, and one key from its very beginning.",
        ],
    },
    Index {
        name: BLOCKS_INDEX,
        keys: &[KEY],
        partial: Partial::True(BLOCKS),
        unique: false,
        expires: false,
        serves: &[
            "Keys that a dead record holds (relay.on_dead = \"block\"): all, or some by name.",
        ],
    },
    Index {
        name: SCHEDULED_INDEX,
        keys: &[VISIBLE_AT],
        partial: Partial::Status(SCHEDULED),
        unique: false,
        expires: false,
        serves: &["Scheduled records that are due, earliest first, and when the next one is due."],
    },
    Index {
        name: DONE_TTL_INDEX,
        keys: &[DONE_AT],
        partial: Partial::Status(DONE),
        unique: false,
        expires: true,
        serves: &[
            "MongoDB's TTL monitor: deletes delivered records when the retention has passed.",
            "A changed retention is adjusted in place. Done records by date, for operators.",
        ],
    },
    Index {
        name: DEDUP_INDEX,
        keys: &[DEDUP_KEY],
        partial: Partial::Text(DEDUP_KEY),
        unique: true,
        expires: false,
        serves: &[
            "Insertions: refuses a second record with the same dedupKey (error 11000). Partial on",
            "text, since null and absent differ in a unique index and neither may clash; a query",
            "by dedupKey must say so too: {dedupKey: {$eq: …, $type: \"string\"}}.",
        ],
    },
    Index {
        name: DEAD_INDEX,
        keys: &[DEAD_AT],
        partial: Partial::Status(DEAD),
        unique: false,
        expires: false,
        serves: &["Dead records by date, for operators: list, requeue, discard, prune, stats."],
    },
];

impl Index {
    /// Its keys, as MongoDB takes them.
    pub fn key(&self) -> Document {
        self.keys.iter().map(|field| ((*field).to_owned(), Bson::Int32(1))).collect()
    }

    /// Its definition, as `createIndexes` takes it and `listIndexes` gives it back.
    pub fn definition(&self, expire_after_seconds: i32) -> Document {
        let mut definition = doc! {
            "name": self.name,
            "key": self.key(),
            "partialFilterExpression": self.partial.filter(),
        };
        if self.unique {
            definition.insert("unique", true);
        }
        if self.expires {
            definition.insert("expireAfterSeconds", expire_after_seconds);
        }
        definition
    }
}

impl Partial {
    /// The filter, as MongoDB takes it.
    pub fn filter(&self) -> Document {
        match *self {
            Self::Status(status) => doc! { STATUS: status },
            Self::True(field) => doc! { field: true },
            Self::Text(field) => doc! { field: { "$type": "string" } },
        }
    }
}
