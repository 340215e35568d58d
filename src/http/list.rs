//! The form of lists.

use serde::Serialize;
use utoipa::ToSchema;

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Listed<T> {
    /// In the list's order.
    pub items: Vec<T>,
    /// The `after` of the next part; null at the end.
    #[schema(required = true)]
    pub next: Option<String>,
    /// What the list leaves out; absent where it leaves out nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub note: Option<String>,
}

impl<T> From<Vec<T>> for Listed<T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, next: None, note: None }
    }
}
