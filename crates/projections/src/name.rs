//! The name of a read model, its generations, and their collections.

use std::fmt;
use std::sync::Arc;

use mongodb::{Collection, Database};

/// The most characters of a name.
const MAX_NAME_CHARS: usize = 64;

/// The name of a read model: a lower-case letter, then lower-case letters, digits, `_` and `-`.
///
/// It has no dot, so that no two generations share the name of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadModelName(Arc<str>);

impl ReadModelName {
    /// The name, if it is valid.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let is_valid = name.starts_with(|first: char| first.is_ascii_lowercase())
            && name.len() <= MAX_NAME_CHARS
            && name.chars().all(|char| matches!(char, 'a'..='z' | '0'..='9' | '_' | '-'));
        is_valid.then(|| Self(name.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// One build of a read model, with collections of its own. The first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub(crate) i64);

impl Generation {
    /// Its number.
    pub fn number(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The collections of one generation: `carts.2.lines` for the collection `lines` of generation 2 of
/// the read model `carts`.
#[derive(Clone, Debug)]
pub struct GenerationCollections {
    pub(crate) database: Database,
    pub(crate) name: ReadModelName,
    pub(crate) generation: Generation,
}

impl GenerationCollections {
    /// The generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The database.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// A collection of this generation, with the options of the database handle.
    pub fn collection<T: Send + Sync>(&self, name: &str) -> Collection<T> {
        self.database.collection(&format!("{}{name}", self.prefix()))
    }

    /// What the names of all its collections begin with.
    pub(crate) fn prefix(&self) -> String {
        format!("{}.{}.", self.name.as_str(), self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_a_dot_or_capital_is_refused() {
        for name in ["carts", "c", "cart-lines_2"] {
            assert!(ReadModelName::new(name).is_some(), "{name}");
        }
        for name in ["", "Carts", "2", "a.b", "a$", "-a", "a b", &"a".repeat(65)] {
            assert!(ReadModelName::new(name).is_none(), "{name}");
        }
    }
}
