//! What a collection of prepare keys is called after.

use std::fmt;
use std::sync::Arc;

use crate::names::{WrongName, check_name};

/// The name of a kind of prepare key, such as `username`: `[a-zA-Z][a-zA-Z0-9_.-]{0,63}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrepareName(Arc<str>);

impl PrepareName {
    /// The name, if it is one.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub fn new(text: &str) -> Result<Self, WrongName> {
        check_name(text)?;
        Ok(Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PrepareName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
