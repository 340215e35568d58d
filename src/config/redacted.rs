//! One value of the configuration as text, without secrets.

use std::path::Path;

use postrider_settings::properties::{HIDDEN, Properties};
use postrider_settings::secret::{
    check_hosts, is_secret_header, shown_name, shown_path, shown_text,
};
use toml::{Table, Value};

use crate::config::keys;
use crate::config::sections::Config;

/// The longest value in an error, in characters.
const MAX_VALUE_CHARS: usize = 100;

/// One value of the configuration as TOML; `None` for a list, a table and what is not there.
pub(super) fn in_config(config: &Config, path: &[String]) -> Option<String> {
    scalar(path, at(&Table::try_from(config).ok()?, path)?)
}

/// The same of values whose types were not judged yet, so that a URI is text like any other: those
/// that may hold a secret are not there.
pub(super) fn in_table(table: &Table, path: &[String]) -> Option<String> {
    unread(path, at(table, path)?)
}

/// A value of the key at `path` whose type was not checked yet; `None` for one that may be a secret, a list
/// and a table.
pub(super) fn unread(path: &[String], value: &Value) -> Option<String> {
    if keys::is_secret(path) { None } else { scalar(path, value) }
}

fn scalar(path: &[String], value: &Value) -> Option<String> {
    if value.is_table() || value.is_array() {
        return None;
    }
    let text = match hide(path, value) {
        // TOML's own writer puts it on several lines.
        Value::String(text) if text.contains(['\n', '\r']) => serde_json::json!(text).to_string(),
        value => value.to_string(),
    };
    let text = text.replace(char::is_control, " ");
    Some(match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    })
}

/// The value at a path, with positions in lists as names.
pub(super) fn at<'a>(table: &'a Table, path: &[String]) -> Option<&'a Value> {
    let (first, below) = path.split_first()?;
    below.iter().try_fold(table.get(first)?, |value, name| match value {
        Value::Table(table) => table.get(name),
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => None,
    })
}

/// The value without secrets, those under a key of another kind among them. (Tokens hide their own.)
pub(super) fn hide(path: &[String], value: &Value) -> Value {
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    let below = |name: String| [path, &[name]].concat();
    match (names.as_slice(), value) {
        (["sinks", _, "properties", name], _) if Properties::is_secret(name) => {
            Value::String(HIDDEN.into())
        }
        (_, Value::String(text)) if keys::is_file(path) => {
            Value::String(shown_path(Path::new(text)))
        }
        (["routes", _, "headers", name], _) if is_secret_header(name) => {
            Value::String(HIDDEN.into())
        }
        ([.., "sink" | "default_sink"], Value::String(name)) => {
            Value::String(shown_name(name).to_owned())
        }
        (["sinks", _, "brokers", ..] | [_, "listen"], Value::String(text))
            if check_hosts(text).is_err() =>
        {
            Value::String(HIDDEN.into())
        }
        (_, Value::String(text)) => Value::String(shown_text(text).into_owned()),
        (_, Value::Array(items)) => {
            let items = items.iter().enumerate();
            Value::Array(items.map(|(at, item)| hide(&below(at.to_string()), item)).collect())
        }
        (_, Value::Table(table)) => {
            let shown =
                |(name, item): (&String, _)| (name.clone(), hide(&below(name.clone()), item));
            Value::Table(table.iter().map(shown).collect())
        }
        (_, value) => value.clone(),
    }
}
