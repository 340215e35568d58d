//! Checks that a key's records are on one shard, which their order requires. Written from MongoDB's
//! documentation and not tested with a sharded cluster.

use ::mongodb::Database;
use ::mongodb::options::ReadConcern;
use bson::{Document, doc};

use crate::check::finding::Finding;
use crate::outbox::collections::{Collections, names};
use crate::outbox::fields::KEY;
use crate::store::connect::primary;
use crate::store::{StoreError, limits, within};

pub(super) const NAME: &str = "shard key";

/// Reads how the records are sharded.
pub(super) async fn probe(
    admin: &Database,
    collections: &Collections,
) -> Result<Finding, StoreError> {
    let records = format!("{}.{}", collections.database().name(), collections.name(names::RECORDS));
    let config = admin.client().database("config").collection::<Document>("collections");
    let finding = config
        .find_one(doc! { "_id": &records })
        .read_concern(ReadConcern::majority())
        .selection_criteria(primary());
    match within("read the shard key", limits::BATCH_TIMEOUT, finding.into_future()).await {
        Ok(found) => Ok(report(&records, found.as_ref())),
        Err(error) if error.is_refusal() => Ok(Finding::good(
            NAME,
            format!(
                "unknown, since the user has no privilege to read config.collections; if {records} is \
                 sharded, its shard key must be {{key: \"hashed\"}}"
            ),
        )),
        Err(error) => Err(error),
    }
}

fn report(records: &str, found: Option<&Document>) -> Finding {
    let Some(key) = found.and_then(|found| found.get_document("key").ok()) else {
        return Finding::good(NAME, format!("{records} is not sharded"));
    };
    if *key == (doc! { KEY: "hashed" }) {
        return Finding::good(NAME, "{key: \"hashed\"}");
    }
    let detail =
        format!("{records} is sharded by {key}: records of one key may be on different shards");
    let remedy = format!("run sh.reshardCollection({records:?}, {{ key: \"hashed\" }})");
    Finding::bad(NAME, detail, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_key_keeps_records_of_a_key_together() {
        let sharded = |key: Document| report("app.outbox_records", Some(&doc! { "key": key }));

        assert!(sharded(doc! { "key": "hashed" }).ok);
        assert!(report("app.outbox_records", None).ok);
        for key in [doc! { "_id": "hashed" }, doc! { "key": 1 }, doc! { "key": "hashed", "seq": 1 }]
        {
            let found = sharded(key);
            assert!(!found.ok && found.remedy.contains("reshardCollection"), "{found:?}");
        }
    }
}
