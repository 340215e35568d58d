//! Definitions of indexes.

use bson::{Bson, Document, doc};

/// An index. Unique ones protect writes; each of the others serves a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// Its name.
    pub name: &'static str,
    /// The fields that it orders by.
    pub keys: &'static [IndexKey],
    /// The documents that it contains; all if absent.
    pub partial: Option<PartialFilter>,
    /// Whether keys are unique.
    pub unique: bool,
    /// When it deletes documents.
    pub expiry: Option<Expiry>,
    /// An index that must not exist next to it.
    pub rival: Option<ConflictingIndex>,
    /// The query that it serves: the lines of a comment.
    pub serves: &'static [&'static str],
}

/// One field of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKey {
    /// By the order of its values.
    Ascending(&'static str),
    /// By the hash of its value: supports equality, and can be a shard key.
    Hashed(&'static str),
}

/// The documents that an index contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialFilter {
    /// Those of this status.
    Status(&'static str),
    /// Those in which this field is true.
    True(&'static str),
    /// Those in which this field is text. A `sparse` unique index would reject the second record
    /// whose driver writes null.
    Text(&'static str),
}

/// When an index deletes documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// When the date is older than the retention, which can be changed in place.
    Retention,
    /// When the date has passed.
    AtDate,
}

/// A unique index with another guarantee; the two exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConflictingIndex {
    /// Its unique fields.
    pub keys: &'static [IndexKey],
    /// The setting that creates it.
    pub setting: &'static str,
}

impl Index {
    /// Defaults of all fields but name and keys.
    pub const PLAIN: Self = Self {
        name: "",
        keys: &[],
        partial: None,
        unique: false,
        expiry: None,
        rival: None,
        serves: &[],
    };

    /// Returns its keys, for MongoDB.
    pub fn key(&self) -> Document {
        document(self.keys)
    }

    /// Returns the names of its fields, for messages.
    pub fn fields(&self) -> String {
        self.keys.iter().map(IndexKey::field).collect::<Vec<_>>().join(", ")
    }

    /// Returns its definition, as `createIndexes` takes and `listIndexes` returns it.
    ///
    /// `retention`: in seconds, for indexes that depend on it.
    pub fn definition(&self, retention: i32) -> Document {
        let mut definition = doc! { "name": self.name, "key": self.key() };
        if let Some(partial) = self.partial {
            definition.insert("partialFilterExpression", partial.filter());
        }
        if self.unique {
            definition.insert("unique", true);
        }
        match self.expiry {
            Some(Expiry::Retention) => drop(definition.insert("expireAfterSeconds", retention)),
            Some(Expiry::AtDate) => drop(definition.insert("expireAfterSeconds", 0)),
            None => {}
        }
        definition
    }
}

impl IndexKey {
    /// Returns the field.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Ascending(field) | Self::Hashed(field) => field,
        }
    }
}

/// Returns keys, for MongoDB.
pub fn document(keys: &[IndexKey]) -> Document {
    let entry = |key: &IndexKey| {
        let order = match key {
            IndexKey::Ascending(_) => Bson::Int32(1),
            IndexKey::Hashed(_) => "hashed".into(),
        };
        (key.field().to_owned(), order)
    };
    keys.iter().map(entry).collect()
}

impl PartialFilter {
    /// Returns the filter, for MongoDB.
    pub fn filter(&self) -> Document {
        match *self {
            Self::Status(status) => doc! { "status": status },
            Self::True(field) => doc! { field: true },
            Self::Text(field) => doc! { field: { "$type": "string" } },
        }
    }
}
