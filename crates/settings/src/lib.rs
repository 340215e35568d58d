//! Kinds of values in the configuration, for the parts that own its sections.
//!
//! | module | what it holds |
//! |---|---|
//! | [`units`] | durations and sizes with units |
//! | [`secret`] | URIs that may hold a password |
//! | [`properties`] | properties by dotted names |

pub mod properties;
pub mod secret;
pub mod units;

/// One name of a path, as TOML's own writer quotes a key.
pub fn quoted(name: &str) -> String {
    let line = toml::Table::from_iter([(name.to_owned(), toml::Value::Boolean(true))]).to_string();
    line.trim_end().strip_suffix(" = true").unwrap_or_default().to_owned()
}
