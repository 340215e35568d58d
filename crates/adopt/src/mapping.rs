//! The mapping of a source, checked.

use std::time::Duration;

use bson::{Bson, Document, doc};
use uuid::Uuid;

use crate::config::{AdoptConfig, FieldsConfig, PayloadForm};
use crate::presets::Preset;
use crate::value::{FieldValue, check_path};

/// What is wrong with the mapping: a key of the configuration, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {detail}")]
pub struct MappingError {
    /// The key.
    pub key: String,
    /// What is wrong, and what to do.
    pub detail: String,
}

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
    pub fn new(
        preset: Preset,
        config: &AdoptConfig,
        outbox: &str,
    ) -> Result<Self, Vec<MappingError>> {
        let fields = merged(preset.fields(), config.fields.clone());
        let mut errors = Vec::new();
        let mut wrong = |key: &str, detail: &str| {
            errors.push(MappingError { key: format!("adopt.{key}"), detail: detail.to_owned() });
        };
        let mut value = |key: &str, text: &Option<String>| {
            let text = text.as_ref()?;
            match FieldValue::parse(text) {
                Ok(value) => Some(value),
                Err(detail) => {
                    wrong(&format!("fields.{key} = {text:?}"), &detail);
                    None
                }
            }
        };
        let id = value("id", &fields.id).unwrap_or(FieldValue::Path("_id".to_owned()));
        let key = value("key", &fields.key);
        let kind = value("type", &fields.kind);
        let payload = value("payload", &fields.payload);
        let headers = value("headers", &fields.headers);
        let destination = value("destination", &fields.destination);
        let header = fields.header.iter().filter_map(|(name, text)| {
            Some((name.clone(), value(&format!("header.{name}"), &Some(text.clone()))?))
        });
        let header = header.collect();
        let required = "is not set; name the path of it in the source's documents, such as data.type, \
                        or a constant, such as =order";
        if fields.key.is_none() && !config.unordered {
            let detail = "is not set, so that records would have no order; name the path of the key in \
                          the source's documents, or set adopt.unordered = true";
            wrong("fields.key", detail);
        }
        for (key, is_set) in
            [("type", fields.kind.is_some()), ("payload", fields.payload.is_some())]
        {
            if !is_set {
                wrong(&format!("fields.{key}"), required);
            }
        }
        let collection = config.collection.clone().or(preset.collection().map(str::to_owned));
        if collection.is_none() {
            wrong("collection", "is not set; name the collection of the old outbox");
        }
        let mut filter = match fields.filter.as_deref().map(parse_filter) {
            None => Document::new(),
            Some(Ok(filter)) => filter,
            Some(Err(detail)) => {
                wrong("fields.filter", &format!("{detail}; write a condition as extended JSON"));
                Document::new()
            }
        };
        match (preset, &config.handler) {
            (Preset::Namastack, Some(handler)) => drop(filter.insert("handlerId", handler)),
            (Preset::Namastack, None) => {
                let detail = "is not set; there is a document for each handler, and all of them would be \
                              sent: name one handler (the field handlerId)";
                wrong("handler", detail);
            }
            _ => {}
        }
        for (key, path) in [
            ("time", &fields.time),
            ("status", &fields.status),
            ("due", &fields.due),
            ("retries", &fields.retries),
            ("done_at", &fields.done_at),
        ] {
            if let Some(Err(detail)) = path.as_deref().map(check_path) {
                wrong(&format!("fields.{key}"), &detail);
            }
        }
        let copied = [
            ("id", Some(&id)),
            ("key", key.as_ref()),
            ("type", kind.as_ref()),
            ("payload", payload.as_ref()),
            ("headers", headers.as_ref()),
        ];
        for (mark, path) in [("done_at", &fields.done_at), ("status", &fields.status)] {
            let Some(path) = path.as_deref() else { continue };
            for (name, value) in copied {
                let copied = value.and_then(FieldValue::path);
                if copied.is_some_and(|copied| {
                    overlap(copied, path) && (mark == "done_at" || copied == path)
                }) {
                    let detail = format!(
                        "= {path:?} is set when a document is copied, and adopt.fields.{name} is read there; name \
                         another field"
                    );
                    wrong(&format!("fields.{mark}"), &detail);
                }
            }
            if path == "_id" && fields.id.is_some() {
                wrong(&format!("fields.{mark}"), "= \"_id\" cannot be changed; name another field");
            }
        }
        let status = status_words(&fields, &mut wrong);
        if status.is_none() && fields.status.is_none() && fields.filter.is_some() {
            let detail =
                "needs a status: a deleted document cannot be read again; remove the filter";
            wrong("fields.filter", detail);
        }
        let (Some(kind), Some(payload), Some(collection), true) =
            (kind, payload, collection, errors.is_empty())
        else {
            return Err(errors);
        };
        Ok(Self {
            preset,
            database: config
                .database
                .clone()
                .unwrap_or_else(|| preset.database().unwrap_or(outbox).to_owned()),
            collection,
            id,
            key,
            key_is_optional: config.fields.key.is_none()
                && (preset.key_is_optional() || fields.key.is_none()),
            kind,
            payload,
            form: fields.payload_form.unwrap_or_default(),
            headers,
            header,
            destination,
            time: fields.time.clone().unwrap_or_else(|| "_id".to_owned()),
            status,
            filter,
            copy_failed: config.copy_failed,
            batch_size: config.batch_size.max(1),
        })
    }

    /// Whether the source's documents have a status.
    pub fn has_state(&self) -> bool {
        self.status.is_some()
    }

    /// Names what this mapping selects and how it reads: with another one, documents that were skipped may have to be
    /// copied.
    pub(crate) fn fingerprint(&self) -> String {
        let mapping = format!("{:?}", Self { batch_size: 0, ..self.clone() });
        Uuid::new_v5(&Uuid::NAMESPACE_OID, mapping.as_bytes()).to_string()
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

fn parse_filter(text: &str) -> Result<Document, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match Bson::try_from(value) {
        Ok(Bson::Document(filter)) => Ok(filter),
        Ok(_) => Err("is not a document".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn status_words(fields: &FieldsConfig, wrong: &mut impl FnMut(&str, &str)) -> Option<StatusWords> {
    let Some(path) = fields.status.clone() else {
        for (key, is_set) in [
            ("undelivered", fields.undelivered.is_some()),
            ("delayed", fields.delayed.is_some()),
            ("failed", fields.failed.is_some()),
            ("delivered", fields.delivered.is_some()),
            ("due", fields.due.is_some()),
            ("retries", fields.retries.is_some()),
            ("max_retries", fields.max_retries.is_some()),
            ("done_at", fields.done_at.is_some()),
        ] {
            if is_set {
                let detail = "has no effect without adopt.fields.status; name the path of the status, or remove it";
                wrong(&format!("fields.{key}"), detail);
            }
        }
        return None;
    };
    let words = |words: &Option<Vec<String>>| words.clone().unwrap_or_default();
    let (undelivered, delayed) = (words(&fields.undelivered), words(&fields.delayed));
    if undelivered.is_empty() && delayed.is_empty() {
        wrong(
            "fields.undelivered",
            "is not set; list the statuses of documents that must be delivered",
        );
    }
    if !delayed.is_empty() && fields.due.is_none() {
        wrong(
            "fields.due",
            "is not set; name the date from which a document with a status of `delayed` is due",
        );
    }
    let delivered = words(&fields.delivered);
    let failed = words(&fields.failed);
    let meanings = [
        ("undelivered", &undelivered),
        ("delayed", &delayed),
        ("failed", &failed),
        ("delivered", &delivered),
    ];
    for (at, (key, words)) in meanings.iter().enumerate() {
        for (other, others) in &meanings[..at] {
            if let Some(word) = words.iter().find(|word| others.contains(word)) {
                let detail = format!(
                    "has the status {word:?}, which adopt.fields.{other} has too; a status has one meaning: remove \
                     it from one of them"
                );
                wrong(&format!("fields.{key}"), &detail);
            }
        }
    }
    let lonely = match (fields.retries.is_some(), fields.max_retries.is_some()) {
        (true, false) => Some(("retries", "max_retries")),
        (false, true) => Some(("max_retries", "retries")),
        _ => None,
    };
    if let Some((key, other)) = lonely {
        let detail = format!("has no effect without adopt.fields.{other}; set both, or none");
        wrong(&format!("fields.{key}"), &detail);
    }
    if let Some(done_at) = &fields.done_at
        && overlap(done_at, &path)
    {
        let detail =
            format!("= {done_at:?} overlaps adopt.fields.status = {path:?}; name another field");
        wrong("fields.done_at", &detail);
    }
    let Some(mark) = delivered.first().cloned() else {
        wrong("fields.delivered", "is not set; its first status marks what was copied");
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
