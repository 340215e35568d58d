//! What should be there, in one database: the one thing that making, verifying and printing
//! go by.

use bson::Document;
use mongodb::Database;

use crate::schema::index::Index;

/// Collections that belong together.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Where they are.
    pub(super) database: Database,
    /// The collections, in the order in which they are created.
    pub(super) parts: Vec<Part>,
    /// In seconds, for indexes that go by it.
    pub(super) retention: i32,
    /// The settings by which they would be elsewhere.
    pub(super) elsewhere: &'static str,
}

/// One collection.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Its full name.
    pub(super) name: String,
    /// What it is created with, where it is absent.
    pub(super) options: Document,
    /// Its indexes, in the order in which they are created.
    pub(super) indexes: Vec<&'static Index>,
}
