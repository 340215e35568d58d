//! The tokens of the HTTP API, as they stand in a configuration.

use postrider_settings::secret::SecretText;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One of `api.tokens`: a text, which may do everything, or a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// The token itself.
    Text(SecretText),
    /// With a name, and what it may do.
    Table(TokenTable),
}

/// `{ name, token | token_file, scopes }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenTable {
    /// Who acts, in logs.
    pub name: String,
    /// The token itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretText>,
    /// A file that holds it; one newline at its end is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// `append`, `read`, `admin`; all without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
}

impl<'de> Deserialize<'de> for Token {
    /// By its kind, so that what is wrong with a table is told; never by quoting a value.
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match toml::Value::deserialize(input)? {
            toml::Value::String(text) => Ok(Self::Text(SecretText::from(text.as_str()))),
            toml::Value::Table(table) => {
                let wrong_type = table.iter().find(|(name, value)| match name.as_str() {
                    "scopes" => !value
                        .as_array()
                        .is_some_and(|scopes| scopes.iter().all(toml::Value::is_str)),
                    _ => !value.is_str(),
                });
                if let Some((name, value)) = wrong_type {
                    let kind = value.type_str();
                    return Err(Error::custom(format!("{name:?} cannot be of type {kind}")));
                }
                let table = TokenTable::deserialize(table);
                table.map(Self::Table).map_err(|error| Error::custom(error.message()))
            }
            other => Err(Error::custom(format!(
                "must be text, or {{ name = \"…\", token = \"…\", scopes = [\"append\", \"read\", \
                 \"admin\"] }}, and is of type {}",
                other.type_str()
            ))),
        }
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(output),
            Self::Table(table) => table.serialize(output),
        }
    }
}
