//! Queries of events and snapshots by conditions.
//!
//! ```text
//!  JSON of a condition ──▶ Condition ──▶ filter of MongoDB ──▶ what would it read? ──▶ find, count
//!     json                 condition     compile, date         plan, bounds, budget    service
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`condition`], [`field`], `builder` | the conditions, and how a Rust program builds them |
//! | [`date`], `pattern`, [`zone`] | days, weeks and months of a time zone |
//! | `check`, `raw` | limits, and which operators of MongoDB a [`Condition::Raw`] may contain |
//! | `compile` | the filter for events or snapshots |
//! | [`projection`], [`sort`], `cursor` | which fields, in which order, from where on |
//! | `plan`, `bounds` | how MongoDB could answer a query, and which part of its condition bounds an index |
//! | `budget` | measures how many documents a query would read, and refuses it, or has it read those alone |
//! | `batch` | how many documents a batch has |
//! | [`service`] | runs queries |
//! | `turn` | how many are executed at a time; lists and pages, which are held while they are answered |
//! | `json` | the JSON form, which is that of the Wow framework |
//!
//! ```no_run
//! use std::pin::pin;
//!
//! use futures_util::TryStreamExt;
//! use mongodb::Client;
//! use postrider_events::context::{Context, ContextSettings};
//! use postrider_events::names::AggregateName;
//! use postrider_events::query::{
//!     Condition, FieldName, Found, Query, QueryService, QuerySettings, Target,
//! };
//!
//! # async fn run(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::new(client, ContextSettings::new("shop"));
//! let queries = QueryService::new(context, QuerySettings::default());
//! let is_paid = FieldName::new("state.status")?.eq("PAID");
//! let is_large = FieldName::new("state.total")?.gte(100);
//! let query = Query { condition: Condition::And(vec![is_paid, is_large]), ..Query::default() };
//! let order = AggregateName::new("order")?;
//! let mut found = pin!(queries.list(Target::Snapshots, &order, &query, 20, None).await?);
//! while let Some(Found::Document(snapshot)) = found.try_next().await? {
//!     println!("{snapshot}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The 43 operators, their JSON and their meaning are those of the Wow framework (8.10.10), but for
//! time zones, whose rules are followed also around a change of the clock.

mod batch;
mod bounds;
mod budget;
mod builder;
mod check;
mod compile;
pub mod condition;
mod cursor;
pub mod date;
pub mod field;
#[cfg(feature = "json")]
pub mod json;
mod pattern;
mod plan;
pub mod projection;
mod raw;
mod read;
pub mod service;
mod settings;
pub mod sort;
#[cfg(test)]
#[cfg(feature = "json")]
mod tests;
mod turn;
pub mod zone;

pub use compile::Target;
pub use condition::{Comparison, Condition, DeletionState, Test, TextTest};
pub use date::{DateForm, DateTest};
pub use field::{FieldName, InvalidField};
pub use projection::Projection;
pub use service::{Found, Page, Paged, Query, QueryError, QueryScope, QueryService};
pub use settings::{QuerySettings, ScanPolicy};
pub use sort::{Direction, SortKey};
pub use turn::QueryTurn;

/// The most conditions in one, children included.
pub const MAX_NODES: usize = 64;

/// The most levels of children.
pub const MAX_LEVELS: usize = 16;

/// The most values in one condition, of all its lists together.
pub const MAX_VALUES: usize = 1_000;

/// The most bytes of a text that is searched for.
pub const MAX_TEXT_BYTES: usize = 4_096;

/// The most documents of one list.
pub const MAX_LIST: u32 = 1_000;

/// The last document that a page may reach: `index` × `size`.
pub const MAX_WINDOW: u64 = 10_000;

/// The most documents of a page, which is held in memory.
pub const MAX_PAGE: u32 = 100;

/// The most fields of a projection.
pub const MAX_FIELDS: usize = 100;

/// The most fields of a sort: MongoDB sorts by one more, the id.
pub const MAX_SORT: usize = 31;
