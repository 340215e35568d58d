//! The content of a snapshot.

use bson::Document;
use serde::Serialize;

use crate::document::as_json;
use crate::names::AggregateId;

/// The state of an aggregate as of a version. Absent fields are not written.
///
/// ```
/// use bson::doc;
/// use postrider_events::names::AggregateId;
/// use postrider_events::snapshot::Snapshot;
///
/// # fn main() -> Result<(), postrider_events::names::InvalidName> {
/// let snapshot = Snapshot {
///     tenant_id: Some("tenant-1".into()),
///     operator: Some("ada".into()),
///     ..Snapshot::new(AggregateId::new("order-1")?, 3, doc! { "status": "PAID" })
/// };
/// assert!(!snapshot.deleted);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "json", schema(description = "The state of an aggregate as of a version."))]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The aggregate.
    #[cfg_attr(feature = "json", schema(value_type = String))]
    pub aggregate_id: AggregateId,
    /// The tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub tenant_id: Option<String>,
    /// The owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub owner_id: Option<String>,
    /// The version of the last event in it: 1 or above.
    pub version: i64,
    /// The id of the last event's stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub event_id: Option<String>,
    /// The operator of the first event; saved without it, that of an earlier snapshot stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub first_operator: Option<String>,
    /// The operator of the last event.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub operator: Option<String>,
    /// The time of the first event, in milliseconds since 1970; saved without it, that of an earlier
    /// snapshot stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub first_event_time: Option<i64>,
    /// The time of the last event, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub event_time: Option<i64>,
    /// The time when it was saved, by MongoDB's clock, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub snapshot_time: Option<i64>,
    /// Whether the aggregate is deleted.
    pub deleted: bool,
    /// The state, as it was written.
    #[serde(serialize_with = "as_json")]
    #[cfg_attr(feature = "json", schema(value_type = crate::json::JsonObject))]
    pub state: Document,
    /// The fields of the stored snapshot that cannot be decoded, and why; never written, and absent where everything
    /// can.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "json", schema(required = false))]
    pub invalid: Vec<String>,
}

impl Snapshot {
    /// A snapshot with nothing else than these.
    pub fn new(aggregate_id: AggregateId, version: i64, state: Document) -> Self {
        Self {
            aggregate_id,
            tenant_id: None,
            owner_id: None,
            version,
            event_id: None,
            first_operator: None,
            operator: None,
            first_event_time: None,
            event_time: None,
            snapshot_time: None,
            deleted: false,
            state,
            invalid: Vec::new(),
        }
    }
}
