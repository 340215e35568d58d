//! What is there: collections and indexes as the primary lists them.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;

use crate::outbox::collections::{Collections, names};
use crate::store::connect::primary;
use crate::store::{StoreError, limits, within};

/// NamespaceNotFound: the collection of which the indexes were asked for is not there.
const NO_COLLECTION: i32 = 26;

/// The outbox's part of a database, as it is.
#[derive(Debug)]
pub(super) struct Found {
    /// Those of the four collections that exist: name and `listCollections` entry.
    pub collections: Vec<(String, Document)>,
    /// The `listIndexes` entries of `outbox_records`.
    pub indexes: Vec<Document>,
}

impl Found {
    /// Looks at the database.
    pub async fn look(collections: &Collections) -> Result<Self, StoreError> {
        let wanted: Vec<String> = names::ALL.iter().map(|base| collections.name(base)).collect();
        let filter = doc! { "name": { "$in": &wanted } };
        let command = doc! { "listCollections": 1, "filter": filter };
        let listed = list(collections, "list the collections", command).await?;
        let named = listed.into_iter().filter_map(|entry| {
            let name = entry.get_str("name").ok()?.to_owned();
            Some((name, entry))
        });
        let mut found = Self { collections: named.collect(), indexes: Vec::new() };
        let records = collections.name(names::RECORDS);
        if found.what_is_wrong_with(&records).is_none() && found.has(&records) {
            let command = doc! { "listIndexes": records };
            found.indexes = match list(collections, "list the indexes", command).await {
                Err(error) if error.code() == Some(NO_COLLECTION) => Vec::new(),
                listed => listed?,
            };
        }
        Ok(found)
    }

    /// Whether something of this name exists.
    pub fn has(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    /// Why what exists under this name can't be used, in words; `None` where nothing is wrong.
    ///
    /// Of the records' collection more is asked: a TTL index deletes nothing from a capped
    /// one, and under a collation of its own different keys would be one.
    pub fn what_is_wrong_with(&self, name: &str) -> Option<String> {
        let entry = self.entry(name)?;
        let kind = entry.get_str("type").unwrap_or("collection");
        if kind != "collection" {
            return Some(format!("a {kind}"));
        }
        let options = entry.get_document("options").ok()?;
        if options.get_bool("capped").unwrap_or(false) {
            return Some("a capped collection".into());
        }
        options.contains_key("collation").then(|| "a collection with a default collation".into())
    }

    fn entry(&self, name: &str) -> Option<&Document> {
        self.collections.iter().find(|(found, _)| found == name).map(|(_, entry)| entry)
    }
}

async fn list(
    collections: &Collections,
    action: &'static str,
    mut command: Document,
) -> Result<Vec<Document>, StoreError> {
    command.insert("cursor", Bson::Document(Document::new()));
    let database = collections.database();
    let listing = async {
        let cursor = database.run_cursor_command(command).selection_criteria(primary()).await?;
        cursor.try_collect().await
    };
    within(action, limits::SCHEMA, listing).await
}
