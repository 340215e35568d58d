//! Names and ids that users choose, checked when they are made.

use std::fmt;
use std::sync::Arc;

/// The longest name.
const MAX_NAME_CHARS: usize = 64;

/// The longest id.
pub(crate) const MAX_ID_CHARS: usize = 255;

/// The rule that a name or an id breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Not `[a-zA-Z][a-zA-Z0-9_.-]{0,63}`.
    #[error("must start with a letter, followed by at most 63 letters, digits, _ . or -")]
    Name,
    /// A prefix that MongoDB reserves.
    #[error("must not start with \"system.\", which MongoDB reserves for its own collections")]
    System,
    /// Not 1 to 255 characters.
    #[error("must have between 1 and 255 characters")]
    Id,
}

/// Defines a text that is checked when it is made.
macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $check:ident, $pattern:tt, $example:tt) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[cfg_attr(feature = "json", derive(utoipa::ToSchema))]
        // (The schema is that of a path, which cannot have all texts that other writers may use.)
        #[cfg_attr(
            feature = "json",
            schema(value_type = String, pattern = $pattern, example = $example)
        )]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text.
            ///
            /// # Errors
            ///
            /// The rule that it breaks.
            pub fn new(text: &str) -> Result<Self, InvalidName> {
                $check(text)?;
                Ok(Self(text.into()))
            }

            /// In place of a text that breaks the rule, until that is reported.
            #[cfg(feature = "json")]
            pub(crate) fn placeholder() -> Self {
                Self("".into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }
    };
}

checked_text! {
    /// The name of a kind of aggregate, such as `order`: `[a-zA-Z][a-zA-Z0-9_.-]{0,63}`.
    AggregateName, check_name, "^(?!system\\.)[a-zA-Z][a-zA-Z0-9_.-]{0,63}$", "order"
}

checked_text! {
    /// The name of a kind of prepare key, such as `username`: `[a-zA-Z][a-zA-Z0-9_.-]{0,63}`.
    PrepareName, check_name, "^(?!system\\.)[a-zA-Z][a-zA-Z0-9_.-]{0,63}$", "username"
}

checked_text! {
    /// The name of a subscription, such as `billing`: `[a-zA-Z][a-zA-Z0-9_.-]{0,63}`.
    SubscriptionName, check_name, "^(?!system\\.)[a-zA-Z][a-zA-Z0-9_.-]{0,63}$", "billing"
}

checked_text! {
    /// Identifies an aggregate among those of its name: 1 to 255 characters. Also the ordering key of
    /// its events.
    AggregateId, check_id, "^(?!\\.{1,2}$)[^\\u0000]{1,255}$", "o-1"
}

/// Identifies an aggregate of a context.
pub(crate) type AggregateKey = (AggregateName, AggregateId);

/// Checks the name of an aggregate or of prepare keys.
///
/// # Errors
///
/// The rule that it breaks.
pub fn check_name(text: &str) -> Result<(), InvalidName> {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    if !begins || text.len() > MAX_NAME_CHARS || !text.chars().all(is_name_character) {
        return Err(InvalidName::Name);
    }
    if text.starts_with("system.") { Err(InvalidName::System) } else { Ok(()) }
}

/// Whether a name may have this character.
pub(crate) fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.-".contains(c)
}

/// Checks an id.
///
/// # Errors
///
/// The rule that it breaks.
pub fn check_id(text: &str) -> Result<(), InvalidName> {
    if (1..=MAX_ID_CHARS).contains(&text.chars().count()) { Ok(()) } else { Err(InvalidName::Id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_their_pattern() {
        for right in ["a", "Order", "order-item.v2_x", &"n".repeat(64)] {
            assert!(AggregateName::new(right).is_ok(), "{right}");
        }
        for wrong in ["", "1a", "_a", "größe", "a b", "a$", "a/b", &"n".repeat(65)] {
            assert_eq!(AggregateName::new(wrong), Err(InvalidName::Name), "{wrong}");
        }
        assert_eq!(AggregateName::new("system.users"), Err(InvalidName::System));
    }

    #[test]
    fn length_of_an_id_is_in_characters() {
        assert!(AggregateId::new(&"ß".repeat(255)).is_ok());
        assert_eq!(AggregateId::new(&"ß".repeat(256)), Err(InvalidName::Id));
        assert_eq!(AggregateId::new(""), Err(InvalidName::Id));
    }
}
