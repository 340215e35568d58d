//! The expected collections of one database: creation, verification and scripts use it.

use bson::Document;
use mongodb::Database;

use crate::schema::index::{Index, PartialFilter};

/// Collections that belong together.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The database.
    pub database: Database,
    /// The collections, in the order in which they are created.
    pub parts: Vec<CollectionLayout>,
    /// The retention in seconds, for indexes that depend on it.
    pub retention: i32,
    /// The settings that choose another place.
    pub elsewhere: &'static str,
}

/// One collection.
#[derive(Clone, Debug)]
pub struct CollectionLayout {
    /// Its full name.
    pub name: String,
    /// The options to create it with.
    pub options: Document,
    /// Its indexes, in the order in which they are created.
    pub indexes: Vec<&'static Index>,
    /// What settings of others must not do to its documents.
    pub protection: Protection,
}

/// What settings of others must not do to the documents of a collection.
#[derive(Clone, Copy, Debug)]
pub enum Protection {
    /// Only Postrider writes them: none may be removed, and no write refused.
    All,
    /// Others write them too, and some may be removed.
    Except {
        /// Those that may be removed.
        removable: PartialFilter,
        /// The fields that Postrider changes in existing documents.
        changed: &'static [&'static str],
        /// A document as others write it.
        example: fn() -> Document,
        /// What Postrider writes into a document, and when: a verb phrase.
        changes: fn() -> Vec<(&'static str, Document)>,
    },
}
