//! Names of fields.

use std::fmt;

/// The most bytes of a name.
const MAX_NAME_BYTES: usize = 1_024;

/// The most levels: a document has no more.
const MAX_NAME_LEVELS: usize = 100;

/// The name of a field of a document, with dots between the levels: `state.customer.id`.
///
/// Its methods are conditions on that field:
///
/// ```
/// use postrider_events::query::{Condition, FieldName};
///
/// # fn main() -> Result<(), postrider_events::query::InvalidField> {
/// let is_open = FieldName::new("state.status")?.eq("OPEN");
/// let is_large = FieldName::new("state.total")?.gte(1_000);
/// let condition = Condition::And(vec![is_open, is_large]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldName(String);

/// Why a text is not the name of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidField {
    /// It is empty.
    #[error("must name a field")]
    Empty,
    /// A level is empty.
    #[error("has an empty level; write one dot between two names")]
    EmptyLevel,
    /// It has a `$`: a name that MongoDB could take for an operator.
    #[error("contains a $, which is not allowed in a field")]
    Dollar,
    /// It has a NUL.
    #[error("contains U+0000")]
    Nul,
    /// It is too long.
    #[error("is too long; at most {MAX_NAME_BYTES} bytes are allowed")]
    Long,
    /// It has too many levels.
    #[error("has too many levels; at most {MAX_NAME_LEVELS} are allowed")]
    Deep,
}

impl FieldName {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`InvalidField`].
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidField> {
        let name = name.into();
        if name.is_empty() {
            Err(InvalidField::Empty)
        } else if name.len() > MAX_NAME_BYTES {
            Err(InvalidField::Long)
        } else if name.contains('\0') {
            Err(InvalidField::Nul)
        } else if name.contains('$') {
            Err(InvalidField::Dollar)
        } else if name.split('.').any(str::is_empty) {
            Err(InvalidField::EmptyLevel)
        } else if name.split('.').count() > MAX_NAME_LEVELS {
            Err(InvalidField::Deep)
        } else {
            Ok(Self(name))
        }
    }

    /// Stands for an invalid name until the error is reported.
    #[cfg(feature = "json")]
    pub(super) fn placeholder() -> Self {
        Self("invalid".to_owned())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mongodb_could_take_for_something_else_are_refused() {
        for (name, error) in [
            ("", InvalidField::Empty),
            (".", InvalidField::EmptyLevel),
            ("a..b", InvalidField::EmptyLevel),
            ("a.", InvalidField::EmptyLevel),
            (".a", InvalidField::EmptyLevel),
            ("$where", InvalidField::Dollar),
            ("a.$b", InvalidField::Dollar),
            ("a$", InvalidField::Dollar),
            ("a\0", InvalidField::Nul),
        ] {
            assert_eq!(FieldName::new(name), Err(error), "{name:?}");
        }
        assert_eq!(FieldName::new("a".repeat(1_025)), Err(InvalidField::Long));
        assert_eq!(FieldName::new(["a"; 101].join(".")), Err(InvalidField::Deep));
        assert!(FieldName::new(["a"; 100].join(".")).is_ok());
        for name in ["a", "state.x", "body.0.name", "Größe", "a b"] {
            assert!(FieldName::new(name).is_ok(), "{name:?}");
        }
    }
}
