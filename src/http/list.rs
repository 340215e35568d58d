//! The form of every list.

use serde::Serialize;
use utoipa::ToSchema;

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Listed<T> {
    /// In the list's order.
    pub items: Vec<T>,
    /// What `after` is to be for the part behind it; null at the end.
    #[schema(required = true)]
    pub next: Option<String>,
    /// What the list leaves out, in words; absent where it leaves out nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub note: Option<String>,
}
