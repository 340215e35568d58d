//! The configuration of the bridge.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_settings::units::HumanDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The section `[adopt]`: the outbox of another system, for `postrider adopt` (docs/adopt.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdoptConfig {
    /// The database of the source. Without it: that of the preset, else the outbox's.
    #[schemars(example = &"cap")]
    pub database: Option<String>,
    /// The collection of the source. Without it: that of the preset.
    #[schemars(example = &"Outbox")]
    pub collection: Option<String>,
    /// The handler whose documents are copied, for the preset `namastack`.
    #[schemars(example = &"orderHandler")]
    pub handler: Option<String>,
    /// Whether documents without a key are copied where the mapping names none: such records have no order.
    pub unordered: bool,
    /// Whether dead and exhausted documents are copied too.
    pub copy_failed: bool,
    /// The most documents of one transaction.
    #[schemars(range(min = 1, max = 5_000))]
    pub batch_size: usize,
    /// The mapping. Each field overrides that of the preset. A value is a path (`data.order.id`, also into a text that is JSON), a constant (`=OrderCreated`), or a constant with paths in braces (`=outbox.event.{aggregatetype}`).
    pub fields: FieldsConfig,
}

impl Default for AdoptConfig {
    fn default() -> Self {
        Self {
            database: None,
            collection: None,
            handler: None,
            unordered: false,
            copy_failed: false,
            batch_size: 500,
            fields: FieldsConfig::default(),
        }
    }
}

/// The table `[adopt.fields]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FieldsConfig {
    /// The message id: a UUID, ObjectId, text or integer. Without it: `_id`.
    #[schemars(example = &"_id")]
    pub id: Option<String>,
    /// The key: text, integer, UUID or ObjectId.
    #[schemars(example = &"EntityId")]
    pub key: Option<String>,
    /// The message type.
    #[schemars(example = &"Operation")]
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The payload.
    #[schemars(example = &"PayloadJson")]
    pub payload: Option<String>,
    /// What the payload is: `bson` (any value, sent as Postrider sends payloads), `json` (a text with JSON), `extended_json` (a text with extended JSON, sent as plain values where JSON has them), or `canonical` (any value, sent as canonical extended JSON, as Debezium does).
    #[schemars(example = PayloadForm::Json)]
    pub payload_form: Option<PayloadForm>,
    /// The headers: a document, or a text with a JSON object.
    #[schemars(example = &"Headers")]
    pub headers: Option<String>,
    /// The exchange or topic, past all routes.
    #[schemars(example = &"=orders")]
    pub destination: Option<String>,
    /// Further headers: a value for each name.
    #[schemars(example = example_header())]
    pub header: BTreeMap<String, String>,
    /// When the document was written: the order of the documents that are there at the start. Without it: `_id`.
    #[schemars(example = &"OccurredAt")]
    pub time: Option<String>,
    /// When a document with one of the `delayed` statuses is due: a date.
    #[schemars(example = &"VisibleAt")]
    pub due: Option<String>,
    /// The status: a text, an integer, `true` or `false`.
    #[schemars(example = &"Status")]
    pub status: Option<String>,
    /// The statuses of documents that must be delivered.
    #[schemars(example = ["Pending"])]
    pub undelivered: Option<Vec<String>>,
    /// The statuses of documents that must be delivered when they are due.
    #[schemars(example = ["Delayed"])]
    pub delayed: Option<Vec<String>>,
    /// The statuses of documents whose delivery failed. They are exhausted, unless `retries` is below `max_retries`.
    #[schemars(example = ["Dead"])]
    pub failed: Option<Vec<String>>,
    /// The statuses of documents that were delivered. The first one marks a copied document.
    #[schemars(example = ["Done"])]
    pub delivered: Option<Vec<String>>,
    /// How often the delivery was tried.
    #[schemars(example = &"Retries")]
    pub retries: Option<String>,
    /// From how many retries a failed document is exhausted.
    #[schemars(example = 50)]
    pub max_retries: Option<i64>,
    /// A date that is set when a document is marked.
    #[schemars(example = &"DoneAt")]
    pub done_at: Option<String>,
    /// How long after the copy the date `done_at` is. `0s`: that of the preset.
    #[serde(with = "HumanDuration")]
    pub done_after: Duration,
    /// A condition on the source's documents, as MongoDB's extended JSON.
    #[schemars(example = &r#"{"Version": "v1"}"#)]
    pub filter: Option<String>,
}

fn example_header() -> BTreeMap<String, String> {
    [("source".to_owned(), "=koan".to_owned())].into()
}

/// What the payload of a source is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PayloadForm {
    /// Any value.
    #[default]
    Bson,
    /// A text with JSON.
    Json,
    /// A text with extended JSON.
    ExtendedJson,
    /// Any value, sent as canonical extended JSON.
    Canonical,
}
