//! Reads the records of a page: known fields alone, long values cut, until the page is full.

use std::ops::ControlFlow;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, Document, doc};
use postrider_store::page::Gathered;
use postrider_store::{StoreError, read};

use crate::brief::{LongText, brief, brief_value, cannot_cut};
use crate::collections::names;
use crate::fields::{self, ERASED, HEADERS, ID, PAYLOAD};
use crate::inspect::Inspector;
use crate::undecoded::{FIELD_NAMES, RawWriter};

/// Records of one reply of MongoDB. Each has at most about 160 KiB: 20 fields of 8 KiB.
pub(super) const BATCH_RECORDS: u32 = 25;

impl Inspector {
    /// Adds the records that match, in this order, until there is no room.
    pub(super) async fn gather(
        &self,
        filter: &RawDocumentBuf,
        order: &Document,
        index: &str,
        found: &mut Gathered,
    ) -> Result<(), StoreError> {
        let before = found.documents.len();
        let limit = found.limit();
        for long in [LongText::Beginning, LongText::Mark] {
            let command = |find: RawWriter| {
                find.document("filter", filter).fields(&doc! {
                    "projection": projection(long), "sort": order, "limit": limit, "hint": index,
                    "batchSize": BATCH_RECORDS,
                })
            };
            let read = self.read_some("find", command, index, found).await;
            match read {
                Err(error) if long == LongText::Beginning && cannot_cut(&error) => {
                    found.truncate(before);
                }
                other => return other,
            }
        }
        Ok(())
    }

    /// Runs a `find` or `aggregate` whose remaining fields are already encoded, and adds what has room.
    pub(super) async fn read_some(
        &self,
        command: &str,
        rest: impl FnOnce(RawWriter) -> RawWriter,
        index: &str,
        found: &mut Gathered,
    ) -> Result<(), StoreError> {
        let command = doc! { command: self.collections.name(names::RECORDS) };
        let command = rest(RawWriter::default().fields(&command)).fields(&read::options());
        let add = |record: &RawDocument| {
            if found.add(record) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let database = self.collections.database();
        let reading = read::some(database, "list records", command.finish(), BATCH_RECORDS, add);
        self.collections.by_index(index, reading).await
    }
}

/// Known fields except payload and headers, and the names of the others.
fn projection(long: LongText) -> Document {
    let mut projection = doc! { ID: 1 };
    for field in fields::ALL.into_iter().chain([ERASED]) {
        if ![ID, PAYLOAD, HEADERS].contains(&field) {
            projection.insert(field, brief(field, long));
        }
    }
    projection.insert(FIELD_NAMES, other_names());
    projection
}

/// The names of unknown fields, which may be no UTF-8; all names if one appears twice.
fn other_names() -> Document {
    let known: Vec<&str> = fields::ALL.into_iter().chain([ERASED]).collect();
    let names = doc! { "$map": { "input": { "$objectToArray": "$$ROOT" }, "in": "$$this.k" } };
    let is_other = doc! { "$not": [{ "$in": ["$$this", known] }] };
    let others = doc! { "$filter": { "input": "$$names", "cond": is_other } };
    let different = doc! { "$size": { "$setUnion": ["$$names"] } };
    let is_each_once = doc! { "$eq": [{ "$size": "$$names" }, different] };
    let listed = doc! { "$cond": [is_each_once, others, "$$names"] };
    let brief = doc! { "$let": {
        "vars": { "listed": listed }, "in": brief_value("$$listed", LongText::Mark),
    } };
    doc! { "$let": { "vars": { "names": names }, "in": Bson::from(brief) } }
}
