//! The expected collections of one database: creation, verification and scripts use it.

use bson::Document;
use mongodb::Database;

use crate::schema::index::Index;

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
}
