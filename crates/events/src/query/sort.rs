//! Orders.

use bson::Document;

use super::compile::Target;
use super::field::FieldName;

/// A field that a query sorts by. Values of different kinds sort as in MongoDB: null and absent,
/// numbers, texts, documents, binaries, ids, booleans, times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The field.
    pub field: FieldName,
    /// Its direction.
    pub direction: Direction,
}

/// A direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(serde::Serialize, serde::Deserialize, utoipa::ToSchema))]
#[cfg_attr(feature = "json", serde(rename_all = "UPPERCASE"))]
pub enum Direction {
    /// Ascending.
    #[default]
    Asc,
    /// Descending.
    Desc,
}

impl Direction {
    pub(super) fn sign(self) -> i32 {
        match self {
            Self::Asc => 1,
            Self::Desc => -1,
        }
    }
}

/// The order of a query with the stored names of its fields; the last one is `_id` if it must be total.
pub(super) fn order(sort: &[SortKey], target: Target, is_total: bool) -> Document {
    let mut order = Document::new();
    for SortKey { field, direction } in sort {
        order.entry(target.stored(field).to_owned()).or_insert(direction.sign().into());
    }
    if is_total {
        order.entry("_id".to_owned()).or_insert(1.into());
    }
    order
}
