//! The form of lists.

use serde::Serialize;
use utoipa::ToSchema;

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Listed<T> {
    /// The items, in the order of the list.
    pub items: Vec<T>,
    /// The `after` of the next page; null at the end.
    #[schema(required = true)]
    pub next: Option<String>,
    /// What the list leaves out; absent if it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub note: Option<String>,
}

impl<T> From<Vec<T>> for Listed<T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, next: None, note: None }
    }
}
