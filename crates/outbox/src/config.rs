//! The configuration of the outbox's collections.

use std::time::Duration;

use postrider_settings::Rules;
use postrider_settings::units::HumanDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::collections::names;
use crate::schema::options::{DEFAULT_RETENTION, SchemaOptions, Validator};

/// The most bytes that MongoDB accepts for a database, a dot and a collection.
const MAX_NAMESPACE_BYTES: usize = 255;

/// The section `[outbox]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutboxConfig {
    /// The database of `outbox_records`. By default: `mongo.database`.
    #[schemars(example = &"app")]
    pub database: Option<String>,
    /// A prefix for the names of `outbox_records` and the three other collections: letters, digits, `_`, `.` and `-`. It must not begin with a dot, and not contain the part `system.`. Database and collection have at most 255 bytes together (MongoDB's limit).
    pub collection_prefix: String,
    /// Whether Postrider creates missing collections and indexes: those of the outbox at its start, those of an aggregate before its first append. `false`: Postrider waits until those of the outbox exist (`postrider schema apply`), and refuses appends to an aggregate without them (`postrider schema apply --aggregate NAME`).
    pub auto_init_schema: bool,
    /// What MongoDB does when an invalid record is inserted into a collection that Postrider created: `error` refuses it, `warn` logs it, `off` sets no validator. An existing collection keeps its validator.
    pub validator: Validator,
    /// How long a delivered record is kept. `0s` deletes it on delivery. At most 68 years, MongoDB's limit. A change adjusts the TTL index at the next start.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-most" = "2147483647s"))]
    pub retention: Duration,
}

impl Default for OutboxConfig {
    fn default() -> Self {
        Self {
            database: None,
            collection_prefix: String::new(),
            auto_init_schema: true,
            validator: Validator::Error,
            retention: DEFAULT_RETENTION,
        }
    }
}

impl OutboxConfig {
    /// The settings that the schema depends on.
    pub fn schema_options(&self) -> SchemaOptions {
        SchemaOptions { retention: self.retention, validator: self.validator }
    }

    /// Checks the prefix for a database of this name.
    pub fn validate(&self, database: &str, rules: &mut Rules) {
        if let Err(detail) = check_prefix(&self.collection_prefix, database) {
            rules.wrong("collection_prefix", detail);
        }
    }
}

/// Checks a prefix by MongoDB's documented limits ("Naming Restrictions").
fn check_prefix(prefix: &str, database: &str) -> Result<(), String> {
    let legal = |character: char| character.is_ascii_alphanumeric() || "_.-".contains(character);
    if !prefix.chars().all(legal) {
        return Err("must contain only letters, digits, _ . and -".to_owned());
    }
    if prefix.starts_with('.') {
        return Err("must not start with a dot, which MongoDB rejects".to_owned());
    }
    if format!(".{prefix}").contains(".system.") {
        return Err("must not contain \"system.\", which MongoDB reserves for its own collections"
            .to_owned());
    }
    let longest = names::ALL.iter().map(|name| name.len()).max().unwrap_or_default();
    let room = MAX_NAMESPACE_BYTES.saturating_sub(database.len() + 1 + longest);
    if prefix.len() > room {
        return Err(format!(
            "must have at most {room} bytes, since MongoDB limits the name of database and \
             collection to {MAX_NAMESPACE_BYTES}; shorten it"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_checked_by_mongodbs_rules() {
        for prefix in ["", "a.", "1-", "system", "System.", "a.systemx.", "a.."] {
            assert_eq!(check_prefix(prefix, "app"), Ok(()), "{prefix}");
        }
        for prefix in ["system.", "a.system.", "..", ".a", "a b", "é"] {
            assert!(check_prefix(prefix, "app").is_err(), "{prefix}");
        }
    }

    #[test]
    fn prefix_leaves_room_for_the_longest_collection() {
        let room = 255 - "app.outbox_partition_assignments".len();

        assert_eq!(check_prefix(&"a".repeat(room), "app"), Ok(()));
        assert!(check_prefix(&"a".repeat(room + 1), "app").unwrap_err().contains("223 bytes"));
        assert!(check_prefix(&"a".repeat(room), "apps").is_err());
    }
}
