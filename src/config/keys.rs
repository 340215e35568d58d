//! The known keys, from the JSON Schema of [`Config`]: their types, bounds and texts.

use std::sync::LazyLock;

use postrider_settings::quoted;
use postrider_settings::units::{HumanDuration, HumanSize};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value as Json};
use toml::Value;

use crate::config::sections::Config;

/// How text from the environment or from `--set` becomes the value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyForm {
    /// The text itself.
    Text,
    /// A value of TOML: a number, a boolean, a list.
    Value,
    /// Text, or a list of texts in TOML.
    TextOrList,
    /// Texts by names that may have dots.
    Dotted,
}

/// One key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its path; `*` stands for a name of the operator's, or for a position in a list.
    pub pattern: Vec<String>,
    /// How text becomes its value.
    pub form: KeyForm,
    /// Its JSON Schema.
    pub schema: Map<String, Json>,
    /// The kinds of sinks that have it; empty for a key of another section.
    pub kinds: Vec<String>,
    /// Whether it is a key of the tables of a list, and so is set only with the whole list.
    pub is_of_item: bool,
    /// Whether its value, or a part of it, may be a secret.
    pub is_secret: bool,
}

impl Key {
    /// The path with dots.
    pub fn name(&self) -> String {
        self.pattern.join(".")
    }

    fn matches(&self, path: &[String]) -> bool {
        let long_enough = match self.form {
            KeyForm::Dotted => path.len() >= self.pattern.len(),
            _ => path.len() == self.pattern.len(),
        };
        long_enough && is_like(&self.pattern, path)
    }

    /// Whether it is below `path`.
    fn is_below(&self, path: &[String]) -> bool {
        self.pattern.len() > path.len() && is_like(&self.pattern[..path.len()], path)
    }

    /// Checks a value against the bounds of its key; `None` where it keeps them, or has another type.
    pub fn broken_bound(&self, value: &Value) -> Option<String> {
        let bound = |name: &str| self.schema.get(name);
        let unit = bound("x-unit").and_then(Json::as_str);
        let (low, high) = (bound("x-at-least"), bound("x-at-most"));
        let within = |parse: &dyn Fn(&str) -> Option<u128>| {
            let limit = |bound: Option<&Json>| parse(bound?.as_str()?);
            let value = parse(value.as_str()?)?;
            Some(
                limit(low).is_none_or(|low| value >= low)
                    && limit(high).is_none_or(|high| value <= high),
            )
        };
        let is_within = match (value, unit) {
            (Value::String(_), Some("duration")) => {
                within(&|text| Some(HumanDuration::parse(text).ok()?.as_nanos()))?
            }
            (Value::String(_), Some("size")) => {
                within(&|text| Some(HumanSize::parse(text).ok()? as u128))?
            }
            (Value::String(text), None) => {
                let least = bound("minLength").and_then(Json::as_u64).unwrap_or(0);
                text.chars().count() as u64 >= least
            }
            (Value::Integer(number), None) => self.has_in_range(*number as f64),
            (Value::Float(number), None) => number.is_finite() && self.has_in_range(*number),
            _ => true,
        };
        if is_within { None } else { Some(format!("must be {}", self.bounds()?)) }
    }

    fn has_in_range(&self, number: f64) -> bool {
        let bound = |name: &str| self.schema.get(name).and_then(Json::as_f64);
        bound("minimum").is_none_or(|low| number >= low)
            && bound("maximum").is_none_or(|high| number <= high)
    }

    /// The bounds in words, such as `between 1 and 10000`; `None` without any.
    pub fn bounds(&self) -> Option<String> {
        let bound = |names: [&str; 2]| {
            let bound = names.into_iter().find_map(|name| self.schema.get(name))?;
            Some(bound.as_str().map_or_else(|| bound.to_string(), str::to_owned))
        };
        if self.schema.contains_key("minLength") {
            return Some("not empty".to_owned());
        }
        match (bound(["minimum", "x-at-least"]), bound(["maximum", "x-at-most"])) {
            (Some(low), Some(high)) => Some(format!("between {low} and {high}")),
            // Every unsigned integer has this one.
            (Some(low), None) if low == "0" => None,
            (Some(low), None) => Some(format!("at least {low}")),
            (None, Some(high)) => Some(format!("at most {high}")),
            (None, None) => None,
        }
    }
}

/// A table of the configuration, for its documentation.
#[derive(Clone, Debug)]
pub struct Section {
    /// Its path.
    pub pattern: Vec<String>,
    /// The text of its field.
    pub description: String,
    /// The kind of sink that has it, where it is a sink's.
    pub kind: Option<String>,
    /// Whether it is absent unless it is written.
    pub is_optional: bool,
}

/// Every key and section, in the order of the types.
#[derive(Debug, Default)]
pub struct Keys {
    /// The keys.
    pub all: Vec<Key>,
    /// The sections.
    pub sections: Vec<Section>,
    /// The lists of tables.
    lists: Vec<Vec<String>>,
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let mut keys = Keys::default();
    keys.read(schema().as_object().unwrap_or(&Map::new()), &mut Vec::new(), None);
    keys
});

/// Patterns of keys that had another name, and their name now.
const RENAMED: [(&str, &str); 4] = [
    ("api.insecure", "api.allow_unauthenticated"),
    ("relay.follow", "relay.change_stream"),
    ("relay.probe_max", "relay.sink_probe_interval_max"),
    ("sinks.*.allow", "sinks.*.allowed_destinations"),
];

/// The likeness below which two keys have little in common but their section.
const MIN_LIKENESS: f64 = 0.8;

/// Every key and section.
pub fn keys() -> &'static Keys {
    &KEYS
}

/// The JSON Schema of the configuration (draft 7, without references).
pub fn schema() -> Json {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Config>().into()
}

impl Keys {
    fn read(&mut self, schema: &Map<String, Json>, path: &mut Vec<String>, kind: Option<&str>) {
        let schema = &without_null(schema);
        if let Some(kinds) = kinds_of(schema) {
            for (kind, schema) in kinds {
                self.read(schema, path, Some(kind));
            }
        } else if let Some(properties) = schema.get("properties").and_then(Json::as_object) {
            for (name, below) in properties {
                let Some(below) = below.as_object() else { continue };
                path.push(name.clone());
                self.note_section(below, path, kind);
                self.read(below, path, kind);
                path.pop();
            }
        } else if schema.contains_key("x-dotted") {
            path.push("*".to_owned());
            self.add(KeyForm::Dotted, schema, path, kind);
            path.pop();
        } else if let Some(below) = schema.get("additionalProperties").and_then(Json::as_object) {
            path.push("*".to_owned());
            let mut below = below.clone();
            // A map of plain values has its text and example at the field.
            if !below.contains_key("properties") && !below.contains_key("oneOf") {
                for inherited in ["description", "examples", "x-multiline"] {
                    let own = schema.get(inherited).map(|own| (inherited.to_owned(), own.clone()));
                    below.extend(own);
                }
            }
            self.read(&below, path, kind);
            path.pop();
        } else {
            self.add(form_of(schema), schema, path, kind);
            let items = schema.get("items").and_then(Json::as_object);
            if let Some(items) = items.filter(|items| items.contains_key("properties")) {
                self.lists.push(path.clone());
                path.push("*".to_owned());
                self.read(items, path, kind);
                path.pop();
            }
        }
    }

    fn note_section(&mut self, field: &Map<String, Json>, path: &[String], kind: Option<&str>) {
        let schema = without_null(field);
        let is_table = ["properties", "oneOf", "additionalProperties"]
            .iter()
            .any(|it| schema.contains_key(*it));
        let is_list = schema.get("items").is_some_and(|items| items.get("properties").is_some());
        if !(is_table
            && (schema.get("type") == Some(&"object".into()) || kinds_of(&schema).is_some())
            || is_list && path.len() == 1)
        {
            return;
        }
        let pattern = path.to_vec();
        self.sections.push(Section {
            pattern,
            description: description(field),
            kind: kind.map(str::to_owned),
            is_optional: field.contains_key("anyOf"),
        });
    }

    fn add(
        &mut self,
        form: KeyForm,
        schema: &Map<String, Json>,
        path: &[String],
        kind: Option<&str>,
    ) {
        let is_same = |key: &&mut Key| key.pattern == path && key.schema == *schema;
        let kinds = kind.map(str::to_owned);
        if let Some(known) = self.all.iter_mut().find(is_same) {
            known.kinds.extend(kinds);
            return;
        }
        let is_of_item =
            self.lists.iter().any(|list| path.len() > list.len() && path.starts_with(list));
        self.all.push(Key {
            pattern: path.to_vec(),
            form,
            schema: schema.clone(),
            kinds: kinds.into_iter().collect(),
            is_of_item,
            is_secret: Json::Object(schema.clone()).to_string().contains("\"writeOnly\""),
        });
    }
}

/// The text of a key or section on one line.
pub fn description(schema: &Map<String, Json>) -> String {
    let text = schema.get("description").and_then(Json::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The schema of an optional field's value, with the field's own text.
fn without_null(schema: &Map<String, Json>) -> Map<String, Json> {
    let mut schema = schema.clone();
    if let Some(Json::Array(types)) = schema.get("type") {
        let value = types.iter().find(|one| *one != "null").cloned();
        schema.extend(value.map(|value| ("type".to_owned(), value)));
    }
    let others = schema.get("anyOf").and_then(Json::as_array).cloned().unwrap_or_default();
    let is_optional = others.iter().any(|one| one["type"] == "null");
    let mut values = others.into_iter().filter(|one| one["type"] != "null");
    if let (true, Some(Json::Object(mut value)), None) = (is_optional, values.next(), values.next())
    {
        schema.remove("anyOf");
        value.extend(schema);
        return value;
    }
    schema
}

/// The kinds of a tagged union, each with its schema.
fn kinds_of(schema: &Map<String, Json>) -> Option<Vec<(&str, &Map<String, Json>)>> {
    let kinds = schema.get("oneOf")?.as_array()?;
    kinds
        .iter()
        .map(|one| Some((one["properties"]["kind"]["const"].as_str()?, one.as_object()?)))
        .collect()
}

fn form_of(schema: &Map<String, Json>) -> KeyForm {
    let is_text = |one: &Json| one["type"] == "string" || one["const"].is_string();
    let alternatives = |name: &str| schema.get(name).and_then(Json::as_array);
    if let Some(either) = alternatives("anyOf") {
        let has_text = either.iter().any(is_text);
        return if has_text { KeyForm::TextOrList } else { KeyForm::Value };
    }
    let is_enum = alternatives("oneOf").is_some_and(|all| all.iter().all(is_text));
    if is_enum || is_text(&Json::Object(schema.clone())) { KeyForm::Text } else { KeyForm::Value }
}

fn is_like(pattern: &[String], path: &[String]) -> bool {
    pattern.iter().zip(path).all(|(part, name)| part == "*" || part == name)
}

/// A path as TOML writes it, on one line: names are quoted where they must be.
pub fn dotted(path: &[String]) -> String {
    path.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(".")
}

/// The path that a dotted key names, with quoted names; `None` where it is not a key of TOML.
pub fn path_of(key: &str) -> Option<Vec<String>> {
    // A table's header on a line before it would be another path.
    if key.contains(['\n', '\r']) {
        return None;
    }
    let mut value = Value::Table(format!("{key} = 0").parse().ok()?);
    let mut path = Vec::new();
    while let Value::Table(table) = value {
        let (name, below) = table.into_iter().next()?;
        path.push(name);
        value = below;
    }
    Some(path)
}

/// The keys at `path`: one, or one for each kind of sink.
pub fn at(path: &[String]) -> impl Iterator<Item = &'static Key> {
    keys().all.iter().filter(move |key| key.matches(path))
}

/// How text becomes the value of the key at `path`; `None` where there is no such key.
pub fn form(path: &[String]) -> Option<KeyForm> {
    at(path).next().map(|key| key.form)
}

/// Whether the value at `path` may hold a secret.
pub fn is_secret(path: &[String]) -> bool {
    // Of a list, its items too.
    (1..=path.len()).any(|length| at(&path[..length]).any(|key| key.is_secret))
}

/// Whether the value at `path` is the name of a file that the operator provides.
pub fn is_file(path: &[String]) -> bool {
    // Tokens are texts or tables, so that the keys of the tables are not known here.
    let is_key = is_of_token(path) || at(path).any(|key| key.pattern.last() == path.last());
    is_key && path.last().is_some_and(|name| name.ends_with("_file"))
}

fn is_of_token(path: &[String]) -> bool {
    path.starts_with(&["api".to_owned(), "tokens".to_owned()])
}

/// Whether a text at `path` may have several lines, or other control characters: certificates, the
/// properties of brokers, and headers.
pub fn may_have_lines(path: &[String]) -> bool {
    // They have a rule of their own, for all characters that a header can carry.
    is_of_token(path)
        || (1..=path.len())
            .any(|length| at(&path[..length]).any(|key| key.schema.contains_key("x-multiline")))
}

/// Whether a key of the operator's may be below `path`, as below `sinks` or `relay.backoff`.
pub fn is_section(path: &[String]) -> bool {
    // A list of tables is not a section.
    keys().all.iter().any(|key| key.is_below(path) && !key.is_of_item)
        || keys().sections.iter().any(|section| {
            section.is_optional
                && section.pattern.len() == path.len()
                && is_like(&section.pattern, path)
        })
}

/// The list of tables that is above `path`, if any.
pub fn list_above(path: &[String]) -> Option<&[String]> {
    let list = keys().lists.iter().find(|list| path.len() > list.len() && is_like(list, path))?;
    Some(&path[..list.len()])
}

/// Whether there is such a key, or a key below it.
pub fn is_known(path: &[String]) -> bool {
    form(path).is_some() || keys().all.iter().any(|key| key.is_below(path))
}

/// Whether the lists of tables include `path`.
pub fn is_list(path: &[String]) -> bool {
    keys().lists.iter().any(|list| list.len() == path.len() && is_like(list, path))
}

/// The new name of a key that was renamed, with the operator's own names in it.
pub fn renamed(path: &[String]) -> Option<String> {
    let split = |key: &str| key.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (_, new) = RENAMED.iter().find(|(old, _)| {
        let old = split(old);
        old.len() == path.len() && is_like(&old, path)
    })?;
    Some(dotted(&with_own_names(&split(new), path)))
}

/// A pattern with the operator's own names of `path` in the place of `*`.
fn with_own_names(pattern: &[String], path: &[String]) -> Vec<String> {
    let own = |(at, part): (usize, &String)| match path.get(at) {
        Some(own) if part == "*" => own.clone(),
        _ => part.clone(),
    };
    pattern.iter().enumerate().map(own).collect()
}

/// The known key nearest to an unknown path, with the operator's own names in it.
pub fn nearest(path: &[String]) -> Option<String> {
    let wanted = path.join(".");
    let candidates = keys().all.iter().map(|key| with_own_names(&key.pattern, path).join("."));
    let last = path.last().map_or("", String::as_str);
    candidates
        .map(|candidate| {
            // `prefix` means `collection_prefix` more than a key that begins alike.
            let part_of = candidate.rsplit('.').next().is_some_and(|name| name.contains(last));
            let bonus = if part_of { 0.2 } else { 0.0 };
            (strsim::jaro_winkler(&wanted, &candidate) + bonus, candidate)
        })
        .filter(|(likeness, _)| *likeness > MIN_LIKENESS)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn dotted_key_reads_back_to_its_path() {
        for (names, written) in [
            (&["relay", "lease"][..], "relay.lease"),
            (&["sinks", "a.b", "uri"], "sinks.\"a.b\".uri"),
            (&["sinks", "a\nb\"c", ""], r#"sinks."a\nb\"c"."""#),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();

            let key = dotted(&names);

            assert_eq!(path_of(&key), Some(names), "{key}");
            assert_eq!(key.replace('\'', "\""), written);
        }
        for wrong in ["", "a b", "a = 1, b", "[relay]\nlease"] {
            assert_eq!(path_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unknown_key_is_answered_with_the_nearest() {
        for (wrong, right) in [
            ("relay.batchsize", "relay.batch_size"),
            ("relay.max_attemps", "relay.max_attempts"),
            ("sinks.orders.url", "sinks.orders.uri"),
            ("outbox.prefix", "outbox.collection_prefix"),
        ] {
            assert_eq!(form(&path(wrong)), None);
            assert_eq!(nearest(&path(wrong)).as_deref(), Some(right));
        }
    }

    #[test]
    fn form_follows_from_the_type() {
        for (key, wanted) in [
            ("mongo.uri", KeyForm::Text),
            ("relay.lease", KeyForm::Text),
            ("relay.ordering", KeyForm::Text),
            ("relay.batch_size", KeyForm::Value),
            ("relay.backoff.factor", KeyForm::Value),
            ("relay.dead_letter.sink", KeyForm::Text),
            ("partitions.static", KeyForm::Text),
            ("sinks.k.brokers", KeyForm::TextOrList),
            ("sinks.k.properties.ssl.key", KeyForm::Dotted),
            ("sinks.k.declare.topics", KeyForm::Value),
            ("sinks.k.tls.ca_file", KeyForm::Text),
            ("routes", KeyForm::Value),
            ("routes.0.headers.x", KeyForm::Text),
            ("api.tokens", KeyForm::Value),
            ("connection_strings.x", KeyForm::Text),
        ] {
            assert_eq!(form(&path(key)), Some(wanted), "{key}");
        }
        assert_eq!(form(&path("sinks.k.uri.x")), None);
    }

    #[test]
    fn secrets_and_texts_of_many_lines_are_marked() {
        for key in ["mongo.uri", "sinks.r.uri", "connection_strings.x", "mongo.sources.a.uri"] {
            assert!(is_secret(&path(key)), "{key}");
        }
        assert!(is_secret(&path("api.tokens.0.token")));
        assert!(!is_secret(&path("mongo.database")));
        for key in ["sinks.k.properties.ssl.key.pem", "routes.0.headers.x"] {
            assert!(may_have_lines(&path(key)), "{key}");
        }
        assert!(!may_have_lines(&path("sinks.k.topic")));
    }

    #[test]
    fn every_key_has_a_text() {
        let without: Vec<String> = keys()
            .all
            .iter()
            .filter(|key| description(&key.schema).is_empty())
            .map(Key::name)
            .collect();

        assert_eq!(without, [""; 0]);
    }
}
