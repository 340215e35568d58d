//! The collections of events, snapshots and prepare keys, and their indexes with the queries that each
//! serves. The names are those of the Wow framework, whose data can be used.

use bson::Document;
use mongodb::Database;
use postrider_store::schema::index::IndexKey::{Ascending, Hashed};
use postrider_store::schema::index::{ConflictingIndex, Expiry, Index, IndexKey};
use postrider_store::schema::layout::{CollectionLayout, Layout, Protection};

use crate::context::kind::{CollectionKind, RequestIds};

/// One document per append; sharded, if at all, by the hash of `aggregateId`. A unique index must begin
/// with the shard key.
const EVENTS: [Index; 4] = [
    plain(
        "aggregateId_hashed",
        &[Hashed("aggregateId")],
        &["sh.shardCollection(…, {aggregateId: \"hashed\"}), which requires it."],
    ),
    Index {
        name: "aggregateId_1_version_1",
        keys: &[Ascending("aggregateId"), Ascending("version")],
        unique: true,
        serves: &[
            "Appends: refuses a second document of a version (error 11000). Every read of an",
            "aggregate, by version; and aggregates in the order of their ids.",
        ],
        ..Index::PLAIN
    },
    plain("tenantId_hashed", &[Hashed("tenantId")], &["Queries of the events of one tenant."]),
    plain("ownerId_hashed", &[Hashed("ownerId")], &["Queries of the events of one owner."]),
];

/// The index of positions, of event streams with a feed (`feed.enabled`).
pub const POSITION: Index = Index {
    name: "position_1_createTime_1",
    keys: &[Ascending("position"), Ascending("createTime")],
    serves: &[
        "The feed: events in the order of their positions, and appends without a position by",
        "createTime, for its audits.",
    ],
    ..Index::PLAIN
};

/// `events.request_id_unique = "aggregate"`.
const REQUEST_IN_AGGREGATE: Index = Index {
    name: "aggregateId_1_requestId_1",
    keys: &[Ascending("aggregateId"), Ascending("requestId")],
    unique: true,
    rival: Some(ConflictingIndex {
        keys: &[Ascending("requestId")],
        setting: "events.request_id_unique = \"global\"",
    }),
    serves: &[
        "Appends: refuses a repeated request of the aggregate (error 11000), and finds its first",
        "answer.",
    ],
    ..Index::PLAIN
};

/// `events.request_id_unique = "global"`.
const REQUEST_ANYWHERE: Index = Index {
    name: "requestId_1",
    keys: &[Ascending("requestId")],
    unique: true,
    rival: Some(ConflictingIndex {
        keys: &[Ascending("aggregateId"), Ascending("requestId")],
        setting: "events.request_id_unique = \"aggregate\"",
    }),
    serves: &[
        "Appends: refuses a repeated request of any aggregate (error 11000), and finds its first",
        "answer. Not possible on a sharded collection.",
    ],
    ..Index::PLAIN
};

/// One document per aggregate.
const SNAPSHOTS: [Index; 5] = [
    plain("tenantId_hashed", &[Hashed("tenantId")], &["Queries of the snapshots of one tenant."]),
    plain("ownerId_hashed", &[Hashed("ownerId")], &["Queries of the snapshots of one owner."]),
    plain(
        "_id_hashed",
        &[Hashed("_id")],
        &["sh.shardCollection(…, {_id: \"hashed\"}), which requires it."],
    ),
    plain(
        "deleted_hashed",
        &[Hashed("deleted")],
        &["Queries of deleted or not deleted snapshots."],
    ),
    plain(
        "deleted_1__id_1",
        &[Ascending("deleted"), Ascending("_id")],
        &["Lists, pages and counts of all snapshots that are not deleted."],
    ),
];

/// One document per key.
const PREPARE: [Index; 2] = [
    Index {
        name: "ttlAt_1",
        keys: &[Ascending("ttlAt")],
        expiry: Some(Expiry::AtDate),
        serves: &[
            "MongoDB's TTL monitor: deletes expired keys, a minute late or more. Therefore every",
            "operation checks the time itself.",
        ],
        ..Index::PLAIN
    },
    plain(
        "_id_hashed",
        &[Hashed("_id")],
        &["sh.shardCollection(…, {_id: \"hashed\"}), which requires it."],
    ),
];

/// An index that guards nothing.
const fn plain(
    name: &'static str,
    keys: &'static [IndexKey],
    serves: &'static [&'static str],
) -> Index {
    Index { name, keys, serves, ..Index::PLAIN }
}

/// The indexes of a collection of this kind, in the order of their creation.
pub fn indexes(
    kind: CollectionKind,
    request_ids: RequestIds,
    has_feed: bool,
) -> Vec<&'static Index> {
    let request = match request_ids {
        RequestIds::Aggregate => &REQUEST_IN_AGGREGATE,
        RequestIds::Global => &REQUEST_ANYWHERE,
    };
    match kind {
        CollectionKind::Events => {
            let [shard, version, tenant, owner] = &EVENTS;
            let position = has_feed.then_some(&POSITION);
            [shard, version, request, tenant, owner].into_iter().chain(position).collect()
        }
        CollectionKind::Snapshots => SNAPSHOTS.iter().collect(),
        CollectionKind::Prepare => PREPARE.iter().collect(),
    }
}

/// The layout of the collection of a kind and name.
pub(crate) fn layout(
    database: Database,
    kind: CollectionKind,
    name: &str,
    request_ids: RequestIds,
    has_feed: bool,
) -> Layout {
    one(database, kind, name, indexes(kind, request_ids, has_feed))
}

/// The index of positions alone.
pub(crate) fn position_layout(database: Database, name: &str) -> Layout {
    one(database, CollectionKind::Events, name, vec![&POSITION])
}

fn one(
    database: Database,
    kind: CollectionKind,
    name: &str,
    indexes: Vec<&'static Index>,
) -> Layout {
    plainly(database, kind, vec![(kind.collection(name), indexes)])
}

/// Collections without options in the database of a kind.
pub(crate) fn plainly(
    database: Database,
    kind: CollectionKind,
    collections: Vec<(String, Vec<&'static Index>)>,
) -> Layout {
    let parts = collections.into_iter().map(|(name, indexes)| CollectionLayout {
        name,
        options: Document::new(),
        indexes,
        protection: Protection::All,
    });
    // None of them has a retention.
    Layout { database, parts: parts.collect(), retention: 0, elsewhere: kind.setting() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_indexes_begin_with_the_shard_key() {
        for kind in CollectionKind::ALL {
            let shard_key = match kind {
                CollectionKind::Events => "aggregateId",
                // `_id` is unique by itself.
                CollectionKind::Snapshots | CollectionKind::Prepare => "_id",
            };
            let indexes = indexes(kind, RequestIds::Aggregate, true);

            for index in indexes.iter().filter(|index| index.unique) {
                assert_eq!(index.keys[0].field(), shard_key, "{}", index.name);
            }
            let hashed = [Hashed(shard_key)];
            assert!(indexes.iter().any(|index| index.keys == hashed), "{kind:?}");
        }
        let global = indexes(CollectionKind::Events, RequestIds::Global, true);
        assert!(global.iter().any(|index| index.unique && index.keys[0].field() == "requestId"));
    }

    #[test]
    fn indexes_have_the_names_that_mongodb_would_give() {
        for request_ids in [RequestIds::Aggregate, RequestIds::Global] {
            for index in
                CollectionKind::ALL.into_iter().flat_map(|kind| indexes(kind, request_ids, true))
            {
                let words = index.key().into_iter().map(|(field, order)| match order.as_str() {
                    Some(order) => format!("{field}_{order}"),
                    None => format!("{field}_1"),
                });
                assert_eq!(index.name, words.collect::<Vec<_>>().join("_"));
            }
        }
    }
}
