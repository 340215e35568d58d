//! The mapping of a source, checked.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Bson, Document, doc};
use postrider_settings::{Rules, Violation, quoted};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::config::{AdoptConfig, FieldsConfig, PayloadForm};
use crate::presets::Preset;
use crate::value::{FieldValue, check_path};

/// Which field of a source is what.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    /// The preset that it began with.
    pub preset: Preset,
    /// The database of the source.
    pub database: String,
    /// Its collection.
    pub collection: String,
    pub(crate) id: FieldValue,
    pub(crate) key: Option<FieldValue>,
    pub(crate) key_is_optional: bool,
    pub(crate) kind: FieldValue,
    pub(crate) payload: FieldValue,
    pub(crate) form: PayloadForm,
    pub(crate) headers: Option<FieldValue>,
    pub(crate) header: Vec<(String, FieldValue)>,
    pub(crate) destination: Option<FieldValue>,
    pub(crate) time: String,
    /// `None`: the source has no state.
    pub(crate) status: Option<StatusWords>,
    pub(crate) filter: Document,
    pub(crate) copy_failed: bool,
    /// The most documents of one transaction.
    pub(crate) batch_size: usize,
    /// Names what this mapping selects and how it reads: with another one, documents that were skipped may have to be
    /// copied.
    pub(crate) fingerprint: String,
}

/// What the status of a document means.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatusWords {
    pub(crate) path: String,
    pub(crate) undelivered: Vec<String>,
    pub(crate) delayed: Vec<String>,
    pub(crate) failed: Vec<String>,
    pub(crate) delivered: Vec<String>,
    /// What marks a copied document.
    pub(crate) mark: String,
    pub(crate) due: Option<String>,
    pub(crate) retries: Option<(String, i64)>,
    pub(crate) done_at: Option<(String, Duration)>,
}

impl StatusWords {
    /// The statuses of delivered documents, as the values that they can be in a document.
    pub(crate) fn delivered_values(&self) -> Vec<Bson> {
        let mut values = Vec::new();
        for word in &self.delivered {
            values.push(Bson::String(word.clone()));
            values.extend(word.parse().ok().map(Bson::Boolean));
            values.extend(word.parse().ok().map(Bson::Int64));
        }
        values
    }
}

impl Mapping {
    /// Reads the mapping of a preset and the configuration; `outbox` is the outbox's database.
    ///
    /// # Errors
    ///
    /// Everything that is wrong.
    pub fn new(preset: Preset, config: &AdoptConfig, outbox: &str) -> Result<Self, Vec<Violation>> {
        let mut rules = Rules::default();
        let mapping = rules.within("adopt", |rules| Self::read(preset, config, outbox, rules));
        mapping.filter(|_| rules.violations().is_empty()).ok_or_else(|| rules.into())
    }

    fn read(preset: Preset, config: &AdoptConfig, outbox: &str, rules: &mut Rules) -> Option<Self> {
        let fields = merged(preset.fields(), config.fields.clone());
        let collection = config.collection.clone().or(preset.collection().map(str::to_owned));
        let detail = "is not set; name the collection of the old outbox";
        rules.require(collection.is_some(), "collection", detail);
        let of_handler = handler_filter(preset, config.handler.as_deref(), rules);
        let (values, status, mut filter) = rules.within("fields", |rules| {
            let values = Values::read(&fields, config.unordered, rules);
            check_paths(&fields, rules);
            values.check_marks(&fields, rules);
            (values, status_words(&fields, rules), read_filter(&fields, rules))
        });
        filter.extend(of_handler);
        let key_is_optional =
            config.fields.key.is_none() && (preset.key_is_optional() || fields.key.is_none());
        let more = json!([config.handler, key_is_optional, config.copy_failed]);
        let fingerprint = fingerprint(&fields, &more);
        Some(Self {
            preset,
            database: config
                .database
                .clone()
                .unwrap_or_else(|| preset.database().unwrap_or(outbox).to_owned()),
            collection: collection?,
            id: values.id,
            key: values.key,
            key_is_optional,
            kind: values.kind?,
            payload: values.payload?,
            form: fields.payload_form.unwrap_or_default(),
            headers: values.headers,
            header: values.header,
            destination: values.destination,
            time: fields.time.unwrap_or_else(|| "_id".to_owned()),
            status,
            filter,
            copy_failed: config.copy_failed,
            batch_size: config.batch_size.max(1),
            fingerprint,
        })
    }

    /// Whether the source's documents have a status.
    pub fn has_state(&self) -> bool {
        self.status.is_some()
    }

    /// The source as text.
    pub fn source(&self) -> String {
        format!("{}.{}", self.database, self.collection)
    }

    /// The documents that may have to be copied, and those that are counted: dead ones, and those whose status is
    /// unknown.
    pub(crate) fn condition(&self) -> Document {
        let Some(status) = &self.status else { return self.filter.clone() };
        let of_status = doc! { &status.path: { "$nin": status.delivered_values() } };
        if self.filter.is_empty() {
            of_status
        } else {
            doc! { "$and": [self.filter.clone(), of_status] }
        }
    }
}

/// Whether one of two paths is the other, or leads into it.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let is_within = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    is_within(one, other) || is_within(other, one)
}

/// A name for these fields and what else decides. It stays the same when Postrider knows more fields, which are not
/// set.
fn fingerprint(fields: &FieldsConfig, more: &Value) -> String {
    let fields = serde_json::to_value(fields).ok();
    let fields = fields.as_ref().and_then(Value::as_object).into_iter().flatten();
    let fields: BTreeMap<_, _> = fields.filter(|(_, value)| !value.is_null()).collect();
    let text = json!([fields, more]).to_string();
    Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()).to_string()
}

/// Where the values of a record come from.
struct Values {
    id: FieldValue,
    key: Option<FieldValue>,
    kind: Option<FieldValue>,
    payload: Option<FieldValue>,
    headers: Option<FieldValue>,
    header: Vec<(String, FieldValue)>,
    destination: Option<FieldValue>,
}

impl Values {
    fn read(fields: &FieldsConfig, is_unordered: bool, rules: &mut Rules) -> Self {
        let detail = "is not set, so that records would have no order; name the path of the key in \
                      the source's documents, or set adopt.unordered = true";
        rules.require(fields.key.is_some() || is_unordered, "key", detail);
        for (key, is_set) in
            [("type", fields.kind.is_some()), ("payload", fields.payload.is_some())]
        {
            let detail = "is not set; name the path of it in the source's documents, such as data.type, \
                          or a constant, such as =order";
            rules.require(is_set, key, detail);
        }
        let mut value = |key: &str, text: Option<&String>| match FieldValue::parse(text?) {
            Ok(value) => Some(value),
            Err(detail) => {
                rules.wrong(key, detail);
                None
            }
        };
        Self {
            id: value("id", fields.id.as_ref()).unwrap_or(FieldValue::Path("_id".to_owned())),
            key: value("key", fields.key.as_ref()),
            kind: value("type", fields.kind.as_ref()),
            payload: value("payload", fields.payload.as_ref()),
            headers: value("headers", fields.headers.as_ref()),
            destination: value("destination", fields.destination.as_ref()),
            header: fields
                .header
                .iter()
                .filter_map(|(name, text)| {
                    Some((name.clone(), value(&format!("header.{}", quoted(name)), Some(text))?))
                })
                .collect(),
        }
    }

    /// Checks that a mark does not change what is copied, nor the `_id`.
    fn check_marks(&self, fields: &FieldsConfig, rules: &mut Rules) {
        let copied = [
            ("id", Some(&self.id)),
            ("key", self.key.as_ref()),
            ("type", self.kind.as_ref()),
            ("payload", self.payload.as_ref()),
            ("headers", self.headers.as_ref()),
        ];
        for (mark, path) in [("done_at", &fields.done_at), ("status", &fields.status)] {
            let Some(path) = path.as_deref() else { continue };
            for (name, value) in copied {
                let copied = value.and_then(FieldValue::path);
                if copied.is_some_and(|copied| {
                    overlap(copied, path) && (mark == "done_at" || copied == path)
                }) {
                    let detail = format!(
                        "is set when a document is copied, and adopt.fields.{name} is read there; name another field"
                    );
                    rules.wrong(mark, detail);
                }
            }
            if path == "_id" && fields.id.is_some() {
                rules.wrong(mark, "cannot be changed; name another field");
            }
        }
        if let (Some(done_at), Some(status)) = (&fields.done_at, &fields.status)
            && overlap(done_at, status)
        {
            rules.wrong("done_at", "overlaps adopt.fields.status; name another field");
        }
    }
}

fn check_paths(fields: &FieldsConfig, rules: &mut Rules) {
    for (key, path) in [
        ("time", &fields.time),
        ("status", &fields.status),
        ("due", &fields.due),
        ("retries", &fields.retries),
        ("done_at", &fields.done_at),
    ] {
        if let Some(Err(detail)) = path.as_deref().map(check_path) {
            rules.wrong(key, detail);
        }
    }
}

/// The condition on the documents of one handler, for the preset that has handlers.
fn handler_filter(preset: Preset, handler: Option<&str>, rules: &mut Rules) -> Document {
    match (preset, handler) {
        (Preset::Namastack, Some(handler)) => return doc! { "handlerId": handler },
        (Preset::Namastack, None) => rules.wrong(
            "handler",
            "is not set; there is a document for each handler, and all of them would be sent: name one handler (the \
             field handlerId)",
        ),
        (_, Some(_)) => {
            rules.wrong("handler", "has no effect without --preset namastack; remove it");
        }
        (_, None) => {}
    }
    Document::new()
}

fn read_filter(fields: &FieldsConfig, rules: &mut Rules) -> Document {
    let Some(text) = fields.filter.as_deref() else { return Document::new() };
    let detail =
        "needs adopt.fields.status: a deleted document cannot be read again; remove the filter";
    rules.require(fields.status.is_some(), "filter", detail);
    let value = serde_json::from_str(text).map_err(|error| error.to_string());
    let value =
        value.and_then(|value: Value| Bson::try_from(value).map_err(|error| error.to_string()));
    match value {
        Ok(Bson::Document(filter)) => return filter,
        Ok(_) => rules.wrong("filter", "is not a document; write a condition as extended JSON"),
        Err(detail) => {
            rules.wrong("filter", format!("{detail}; write a condition as extended JSON"));
        }
    }
    Document::new()
}

fn status_words(fields: &FieldsConfig, rules: &mut Rules) -> Option<StatusWords> {
    let lists = [
        ("undelivered", &fields.undelivered),
        ("delayed", &fields.delayed),
        ("failed", &fields.failed),
        ("delivered", &fields.delivered),
    ];
    let has_no_effect_without =
        |other: &str| format!("has no effect without adopt.fields.{other}; set both, or none");
    for (key, is_set, other, is_other_set) in [
        ("done_after", !fields.done_after.is_zero(), "done_at", fields.done_at.is_some()),
        ("retries", fields.retries.is_some(), "max_retries", fields.max_retries.is_some()),
        ("max_retries", fields.max_retries.is_some(), "retries", fields.retries.is_some()),
    ] {
        rules.require(!is_set || is_other_set, key, has_no_effect_without(other));
    }
    let Some(path) = fields.status.clone() else {
        let others = [
            ("due", fields.due.is_some()),
            ("retries", fields.retries.is_some()),
            ("max_retries", fields.max_retries.is_some()),
            ("done_at", fields.done_at.is_some()),
        ];
        let lists = lists.map(|(key, words)| (key, words.is_some()));
        for (key, is_set) in lists.into_iter().chain(others) {
            rules.require(!is_set, key, has_no_effect_without("status"));
        }
        return None;
    };
    let [undelivered, delayed, failed, delivered] =
        lists.map(|(_, words)| words.clone().unwrap_or_default());
    if undelivered.is_empty() && delayed.is_empty() {
        rules.wrong(
            "undelivered",
            "is not set; list the statuses of documents that must be delivered",
        );
    }
    if !delayed.is_empty() && fields.due.is_none() {
        rules.wrong(
            "due",
            "is not set; name the date from which a document with a status of `delayed` is due",
        );
    }
    for (at, (key, words)) in lists.iter().enumerate() {
        for (other, others) in &lists[..at] {
            let mut words = words.iter().flatten();
            if let Some(word) = words.find(|word| others.iter().flatten().any(|it| it == *word)) {
                let detail = format!(
                    "has the status {word:?}, which adopt.fields.{other} has too; a status has one meaning: remove \
                     it from one of them"
                );
                rules.wrong(key, detail);
            }
        }
    }
    let Some(mark) = delivered.first().cloned() else {
        rules.wrong("delivered", "is not set; its first status marks what was copied");
        return None;
    };
    Some(StatusWords {
        path,
        undelivered,
        delayed,
        failed,
        delivered,
        mark,
        due: fields.due.clone(),
        retries: fields.retries.clone().zip(fields.max_retries),
        done_at: fields.done_at.clone().map(|path| (path, fields.done_after)),
    })
}

/// The fields of the configuration, and where they are absent, those of the preset.
fn merged(preset: FieldsConfig, own: FieldsConfig) -> FieldsConfig {
    let mut header = preset.header;
    header.extend(own.header);
    FieldsConfig {
        id: own.id.or(preset.id),
        key: own.key.or(preset.key),
        kind: own.kind.or(preset.kind),
        payload: own.payload.or(preset.payload),
        payload_form: own.payload_form.or(preset.payload_form),
        headers: own.headers.or(preset.headers),
        destination: own.destination.or(preset.destination),
        header,
        time: own.time.or(preset.time),
        due: own.due.or(preset.due),
        status: own.status.or(preset.status),
        undelivered: own.undelivered.or(preset.undelivered),
        delayed: own.delayed.or(preset.delayed),
        failed: own.failed.or(preset.failed),
        delivered: own.delivered.or(preset.delivered),
        retries: own.retries.or(preset.retries),
        max_retries: own.max_retries.or(preset.max_retries),
        done_at: own.done_at.or(preset.done_at),
        done_after: if own.done_after.is_zero() { preset.done_after } else { own.done_after },
        filter: own.filter.or(preset.filter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After an upgrade, another one would make every bridge scan its source.
    #[test]
    fn fingerprint_stays_the_same() {
        let fingerprint =
            |config: &AdoptConfig| Mapping::new(Preset::Cap, config, "app").unwrap().fingerprint;
        let default = AdoptConfig::default();

        assert_eq!(fingerprint(&default), "565b4b04-6cd0-5775-819d-fc7241c8d0f7");
        let other_size = AdoptConfig { batch_size: 7, ..default.clone() };
        assert_eq!(fingerprint(&other_size), fingerprint(&default));
        let other = AdoptConfig { copy_failed: true, ..default.clone() };
        assert_ne!(fingerprint(&other), fingerprint(&default));
    }
}
