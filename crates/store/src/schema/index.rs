//! What an index is.

use bson::{Bson, Document, doc};

/// One index. The unique ones guard what is written, the others serve a query each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// Its name.
    pub name: &'static str,
    /// The fields that it orders by.
    pub keys: &'static [Key],
    /// Which documents are in it; all of them without this.
    pub partial: Option<Partial>,
    /// Whether two documents may share a key.
    pub unique: bool,
    /// When documents go by it.
    pub expiry: Option<Expiry>,
    /// What must not be there beside it.
    pub rival: Option<Rival>,
    /// The query that it is for, in words: the lines of a comment.
    pub serves: &'static [&'static str],
}

/// One field of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// By the order of its values.
    Ascending(&'static str),
    /// By the hash of its value: finds what is equal, and can be a shard key.
    Hashed(&'static str),
}

/// Which documents are in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partial {
    /// Those of this status.
    Status(&'static str),
    /// Those in which this field is true.
    True(&'static str),
    /// Those in which this field is text. Null and absent differ in a unique index, so that
    /// a `sparse` one would refuse the second record whose driver writes null.
    Text(&'static str),
}

/// When documents go by the date in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// When it is older than the retention, which can be changed in place.
    Retention,
    /// When it has come.
    AtDate,
}

/// A unique index that promises something else than ours: the two exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    /// What it is unique in.
    pub keys: &'static [Key],
    /// The setting with which it is made.
    pub setting: &'static str,
}

impl Index {
    /// What most indexes are, but for their name and keys.
    pub const PLAIN: Self = Self {
        name: "",
        keys: &[],
        partial: None,
        unique: false,
        expiry: None,
        rival: None,
        serves: &[],
    };

    /// Its keys, as MongoDB takes them.
    pub fn key(&self) -> Document {
        document(self.keys)
    }

    /// The names of its fields, for people.
    pub fn fields(&self) -> String {
        self.keys.iter().map(Key::field).collect::<Vec<_>>().join(", ")
    }

    /// Its definition, as `createIndexes` takes it and `listIndexes` gives it back.
    ///
    /// `retention`: in seconds, for those that go by it.
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

impl Key {
    /// The field.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Ascending(field) | Self::Hashed(field) => field,
        }
    }
}

/// Keys, as MongoDB takes them.
pub fn document(keys: &[Key]) -> Document {
    let entry = |key: &Key| {
        let order = match key {
            Key::Ascending(_) => Bson::Int32(1),
            Key::Hashed(_) => "hashed".into(),
        };
        (key.field().to_owned(), order)
    };
    keys.iter().map(entry).collect()
}

impl Partial {
    /// The filter, as MongoDB takes it.
    pub fn filter(&self) -> Document {
        match *self {
            Self::Status(status) => doc! { "status": status },
            Self::True(field) => doc! { field: true },
            Self::Text(field) => doc! { field: { "$type": "string" } },
        }
    }
}
