//! The outboxes whose shape is known.

use std::time::Duration;

use crate::config::{FieldsConfig, PayloadForm};

/// A known outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Debezium's outbox event router for MongoDB: documents without a status.
    Debezium,
    /// namastack-outbox.
    Namastack,
    /// DotNetCore.CAP.
    Cap,
    /// `{_id, data, published}`, as in articles about outboxes in Go.
    GoArticle,
    /// All of it is in the configuration.
    Fields,
}

/// How long CAP keeps a delivered message (`SucceedMessageExpiredAfter`).
const CAP_RETENTION: Duration = Duration::from_secs(24 * 3_600);

/// CAP's limit of retries (`FailedRetryCount`).
const CAP_RETRIES: i64 = 50;

impl Preset {
    /// The presets by name.
    pub const ALL: [(&str, Self); 5] = [
        ("debezium", Self::Debezium),
        ("namastack", Self::Namastack),
        ("cap", Self::Cap),
        ("go-article", Self::GoArticle),
        ("fields", Self::Fields),
    ];

    /// The database, where it is not the outbox's.
    pub(crate) fn database(self) -> Option<&'static str> {
        (self == Self::Cap).then_some("cap")
    }

    /// The collection; `None` where the operator must name it.
    pub(crate) fn collection(self) -> Option<&'static str> {
        match self {
            Self::Namastack => Some("outbox_records"),
            Self::Cap => Some("cap.published"),
            Self::Debezium | Self::GoArticle | Self::Fields => None,
        }
    }

    /// Whether a document without a key is as it should be.
    pub(crate) fn key_is_optional(self) -> bool {
        self == Self::Cap
    }

    /// The mapping.
    pub(crate) fn fields(self) -> FieldsConfig {
        let text = |text: &str| Some(text.to_owned());
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        match self {
            Self::Debezium => FieldsConfig {
                key: text("aggregateid"),
                kind: text("type"),
                payload: text("payload"),
                payload_form: Some(PayloadForm::Canonical),
                destination: text("=outbox.event.{aggregatetype}"),
                header: [("id".to_owned(), "={_id}".to_owned())].into(),
                ..FieldsConfig::default()
            },
            Self::Namastack => FieldsConfig {
                key: text("recordKey"),
                kind: text("recordType"),
                payload: text("payload"),
                payload_form: Some(PayloadForm::Json),
                headers: text("context"),
                time: text("createdAt"),
                status: text("status"),
                undelivered: words(&["NEW"]),
                delivered: words(&["COMPLETED"]),
                failed: words(&["FAILED"]),
                done_at: text("completedAt"),
                ..FieldsConfig::default()
            },
            Self::Cap => FieldsConfig {
                key: text("Content.Headers.cap-kafka-key"),
                kind: text("Name"),
                payload: text("Content.Value"),
                payload_form: Some(PayloadForm::Json),
                headers: text("Content.Headers"),
                time: text("Added"),
                due: text("ExpiresAt"),
                status: text("StatusName"),
                undelivered: words(&["Scheduled"]),
                delayed: words(&["Delayed", "Queued"]),
                delivered: words(&["Succeeded"]),
                failed: words(&["Failed"]),
                retries: text("Retries"),
                max_retries: Some(CAP_RETRIES),
                done_at: text("ExpiresAt"),
                done_after: CAP_RETENTION,
                ..FieldsConfig::default()
            },
            Self::GoArticle => FieldsConfig {
                payload: text("data"),
                status: text("published"),
                undelivered: words(&["false"]),
                delivered: words(&["true"]),
                ..FieldsConfig::default()
            },
            Self::Fields => FieldsConfig::default(),
        }
    }
}
