//! Types for the configuration of each part: values with units, secrets, files, rules.
//!
//! A part owns its section: a struct with `Default`, serde, [`schemars::JsonSchema`] and a doc comment per
//! field. The schema is the single description of a key: its name, type, default, bounds and text. These
//! extensions of JSON Schema say what its standard keywords cannot:
//!
//! | keyword | meaning |
//! |---|---|
//! | `x-unit` | a text that is a `duration` or a `size` |
//! | `x-at-least`, `x-at-most` | the bounds of a duration or a size, in its unit |
//! | `x-dotted` | a table of texts whose names may have dots |
//! | `x-multiline` | a text that may have several lines |
//! | `writeOnly` | a value that may hold a secret |
//!
//! | module | contents |
//! |---|---|
//! | [`units`] | durations and sizes |
//! | [`secret`] | URIs and texts that may hold a password; files that hold one |
//! | [`properties`] | properties by dotted names |
//! | [`glob`] | patterns over names |
//! | [`rules`] | the violations that a part finds in its section |
//! | [`tls`] | the files of a TLS connection |
//! | [`files`] | reading the files that a configuration names |

pub mod files;
pub mod glob;
pub mod properties;
pub mod rules;
pub mod secret;
pub mod tls;
pub mod units;

pub use glob::Glob;
pub use rules::{Rules, Violation, did_you_mean};
pub use tls::TlsConfig;

/// One name of a path, quoted as TOML requires.
pub fn quoted(name: &str) -> String {
    let line = toml::Table::from_iter([(name.to_owned(), toml::Value::Boolean(true))]).to_string();
    line.trim_end().strip_suffix(" = true").unwrap_or_default().to_owned()
}
