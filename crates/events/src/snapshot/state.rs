//! What a snapshot holds.

use bson::Document;

use crate::names::AggregateId;

/// The state of an aggregate as of a version. What is `None` is not written; times are epoch
/// milliseconds.
///
/// ```
/// use bson::doc;
/// use postrider_events::names::AggregateId;
/// use postrider_events::snapshot::Snapshot;
///
/// # fn main() -> Result<(), postrider_events::names::WrongName> {
/// let snapshot = Snapshot {
///     tenant_id: Some("tenant-1".into()),
///     operator: Some("ada".into()),
///     ..Snapshot::new(AggregateId::new("order-1")?, 3, doc! { "status": "PAID" })
/// };
/// assert!(!snapshot.deleted);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Which aggregate.
    pub aggregate_id: AggregateId,
    /// Whose it is, where a store is shared.
    pub tenant_id: Option<String>,
    /// Who owns the aggregate.
    pub owner_id: Option<String>,
    /// The version of the last event in it: 1 or more.
    pub version: i64,
    /// The id of that event's stream.
    pub event_id: Option<String>,
    /// Who did the first event; once saved, that of the first snapshot stays unless given.
    pub first_operator: Option<String>,
    /// Who did the last event.
    pub operator: Option<String>,
    /// When the first event was; once saved, that of the first snapshot stays unless given.
    pub first_event_time: Option<i64>,
    /// When the last event was.
    pub event_time: Option<i64>,
    /// When it was saved, on the server's clock; set by loading, ignored by saving.
    pub snapshot_time: Option<i64>,
    /// Whether the aggregate is deleted.
    pub deleted: bool,
    /// The state, kept as written.
    pub state: Document,
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
        }
    }
}
