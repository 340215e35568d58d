//! Lists the existing collections and indexes, from the primary.

use std::collections::BTreeMap;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Database;

use crate::connect::primary;
use crate::schema::layout::Layout;
use crate::{StoreError, limits, within};

/// NamespaceNotFound: the collection of the requested indexes does not exist.
const NO_COLLECTION: i32 = 26;

/// Existing collections and indexes of a layout.
#[derive(Debug)]
pub(super) struct ExistingSchema {
    /// The `listCollections` entries, by name.
    collections: BTreeMap<String, Document>,
    /// The `listIndexes` entries, by name of the collection.
    indexes: BTreeMap<String, Vec<Document>>,
}

impl ExistingSchema {
    /// Lists the database.
    pub async fn look(layout: &Layout) -> Result<Self, StoreError> {
        let collections = Self::collections(layout).await?;
        let mut found = Self { collections, indexes: BTreeMap::new() };
        for part in layout.parts.iter().filter(|part| !part.indexes.is_empty()) {
            if found.what_is_wrong_with(&part.name).is_some() || !found.has(&part.name) {
                continue;
            }
            let indexes = list_indexes(&layout.database, &part.name).await?;
            found.indexes.insert(part.name.clone(), indexes);
        }
        Ok(found)
    }

    /// Lists the collections of a layout: the `listCollections` entries, by name.
    pub async fn collections(layout: &Layout) -> Result<BTreeMap<String, Document>, StoreError> {
        let wanted: Vec<&str> = layout.parts.iter().map(|part| part.name.as_str()).collect();
        let filter = doc! { "name": { "$in": &wanted } };
        let command = doc! { "listCollections": 1, "filter": filter };
        let listed = list(&layout.database, "list the collections", command).await?;
        let named = listed.into_iter().filter_map(|entry| {
            let name = entry.get_str("name").ok()?.to_owned();
            Some((name, entry))
        });
        Ok(named.collect())
    }

    /// Returns the indexes of a collection.
    pub fn indexes(&self, name: &str) -> &[Document] {
        self.indexes.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns whether something with this name exists.
    pub fn has(&self, name: &str) -> bool {
        self.collections.contains_key(name)
    }

    /// Returns why what has this name cannot be used; `None` if it can.
    pub fn what_is_wrong_with(&self, name: &str) -> Option<String> {
        Self::unusable(self.collections.get(name)?)
    }

    /// The same for an entry of `listCollections`.
    ///
    /// A capped collection removes its oldest documents, whatever they are, and so does one with an
    /// expiry. A collation could make different keys equal, and prevents hashed indexes.
    pub fn unusable(entry: &Document) -> Option<String> {
        let kind = entry.get_str("type").unwrap_or("collection");
        if kind != "collection" {
            return Some(format!("a {kind}"));
        }
        let options = entry.get_document("options").ok()?;
        if options.get_bool("capped").unwrap_or(false) {
            return Some("a capped collection".into());
        }
        if options.contains_key("expireAfterSeconds") {
            return Some("a collection that deletes its documents after a time".into());
        }
        options.contains_key("collation").then(|| "a collection with a default collation".into())
    }
}

/// Lists the indexes of a collection; none if it does not exist.
pub async fn list_indexes(
    database: &Database,
    collection: &str,
) -> Result<Vec<Document>, StoreError> {
    let command = doc! { "listIndexes": collection };
    match list(database, "list the indexes", command).await {
        Err(error) if error.code() == Some(NO_COLLECTION) => Ok(Vec::new()),
        listed => listed,
    }
}

/// Reads all results of a command with a cursor.
pub(super) async fn list(
    database: &Database,
    action: &'static str,
    mut command: Document,
) -> Result<Vec<Document>, StoreError> {
    command.insert("cursor", Bson::Document(Document::new()));
    let listing = async {
        let cursor = database.run_cursor_command(command).selection_criteria(primary()).await?;
        cursor.try_collect().await
    };
    within(action, limits::SCHEMA_TIMEOUT, listing).await
}
