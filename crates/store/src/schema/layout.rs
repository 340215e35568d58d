//! What should be there, in one database: the one thing that making, verifying and printing
//! go by.

use bson::Document;
use mongodb::Database;

use crate::schema::index::Index;

/// Collections that belong together.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Where they are.
    pub database: Database,
    /// The collections, in the order in which they are created.
    pub parts: Vec<Part>,
    /// In seconds, for indexes that go by it.
    pub retention: i32,
    /// The settings by which they would be elsewhere.
    pub elsewhere: &'static str,
}

/// One collection.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its full name.
    pub name: String,
    /// What it is created with, where it is absent.
    pub options: Document,
    /// Its indexes, in the order in which they are created.
    pub indexes: Vec<&'static Index>,
}
