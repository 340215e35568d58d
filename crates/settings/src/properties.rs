//! Properties by dotted names, as in the configuration files of Kafka's clients.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// What is shown in place of a secret.
pub const HIDDEN: &str = "***";

/// Words in the names of properties that hold a secret.
const SECRET_WORDS: [&str; 6] =
    ["password", "secret", "passphrase", "oauthbearer.config", "jaas", ".pem"];

/// Names and values, both text. `Debug` hides the secrets among them.
///
/// `sasl.mechanism = "PLAIN"`, which is a table in TOML, and `"sasl.mechanism" = "PLAIN"` are the same
/// property. Numbers and booleans become text.
#[derive(Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// Name and value of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Sets a property.
    pub fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }

    /// Whether a property of this name holds a secret.
    pub fn is_secret(name: &str) -> bool {
        let name = name.to_lowercase();
        SECRET_WORDS.iter().any(|word| name.contains(word))
    }

    fn add(&mut self, name: String, value: Value) -> Result<(), String> {
        let text = match value {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(value) => value.to_string(),
            Value::Table(below) => {
                for (last, value) in below {
                    self.add(format!("{name}.{last}"), value)?;
                }
                return Ok(());
            }
            Value::Array(_) | Value::Datetime(_) => {
                return Err(format!("{name} must be text, a number, true or false"));
            }
        };
        match self.0.insert(name.clone(), text) {
            None => Ok(()),
            Some(_) => Err(format!("{name} is set twice")),
        }
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self
            .iter()
            .map(|(name, value)| (name, if Self::is_secret(name) { HIDDEN } else { value }));
        f.debug_map().entries(shown).finish()
    }
}

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let mut properties = Self::default();
        for (name, value) in Table::deserialize(input)? {
            properties.add(name, value).map_err(D::Error::custom)?;
        }
        Ok(properties)
    }
}

impl JsonSchema for Properties {
    fn schema_name() -> Cow<'static, str> {
        "Properties".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "additionalProperties": { "type": ["string", "number", "boolean", "object", "null"] },
            "x-dotted": true,
            "x-multiline": true,
        })
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Properties {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Self(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Properties, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn a_dot_in_a_name_may_be_quoted_or_not() {
        let parsed =
            parse("sasl.mechanism = \"PLAIN\"\n\"linger.ms\" = 5\nssl.a.b = true").unwrap();

        let expected = [("sasl.mechanism", "PLAIN"), ("linger.ms", "5"), ("ssl.a.b", "true")];
        assert_eq!(parsed, Properties::from(expected));
    }

    #[test]
    fn what_is_not_text_is_an_error_that_names_it() {
        for (text, words) in [
            ("a.b = [1]", "a.b must be text"),
            ("a.b = \"1\"\n\"a.b\" = \"2\"", "a.b is set twice"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn secrets_are_hidden() {
        let properties =
            Properties::from([("sasl.password", "p"), ("ssl.key.pem", "q"), ("a", "b")]);

        let shown = format!("{properties:?}");

        assert_eq!(shown, r#"{"a": "b", "sasl.password": "***", "ssl.key.pem": "***"}"#);
    }
}
