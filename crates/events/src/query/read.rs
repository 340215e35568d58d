//! What a plan of MongoDB reads.

use bson::{Document, doc};
use mongodb::options::Hint;

/// What one plan reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Read {
    /// The indexes.
    pub(super) indexes: Vec<IndexRead>,
    /// Whether it is a search in the text index.
    pub(super) is_text: bool,
    /// Whether it reads the documents in the order of the query.
    pub(super) is_sorted: bool,
}

/// An index that a plan reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct IndexRead {
    /// Its name.
    pub(super) name: String,
    /// The fields of its keys.
    pub(super) fields: Vec<String>,
    /// Whether a document may have several keys.
    pub(super) is_multikey: bool,
    /// The filter of the documents that it has; `None` for all.
    pub(super) partial: Option<Document>,
}

impl Read {
    /// By what MongoDB reads the documents in the order of the query; `None` if it does not, or by several
    /// indexes.
    pub(super) fn in_order(&self) -> Option<Hint> {
        match &*self.indexes {
            _ if !self.is_sorted => None,
            [] => Some(Hint::Keys(doc! { "$natural": 1 })),
            [index] => Some(Hint::Name(index.name.clone())),
            _ => None,
        }
    }
}
