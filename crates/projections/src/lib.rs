//! Read models of Postrider's events. They run in the process of the user, who writes the function.
//!
//! ```text
//!  feed ── pages ──▶ whole appends ──▶ one transaction: checkpoint (compare-and-set), the function's writes
//!                    appends           transaction, runner
//!  broker ── message ──▶ place of its event ──▶ one conditional update: the change, and the place
//!                        place                  stream_guard
//! ```
//!
//! **Why no event is applied twice or skipped.** From the feed, the checkpoint moves in the transaction of
//! the writes, from the value that was read: both are there, or neither, and of two processes one fails.
//! From a broker, each document remembers the place of the last event of each stream, and the update
//! names what was read.
//!
//! | module | what it does |
//! |---|---|
//! | [`read_model`](ReadModel), `checkpoint`, `name` | a read model, its generations, and what it stores about itself |
//! | [`projector`](Projector) | the function that a user writes |
//! | `runner`, `appends`, `transaction` | follows the feed with one generation |
//! | `rebuild` | the next generation, next to the live one; the switch |
//! | [`resolver`](GenerationResolver), [`status`](ReadModelStatus) | for readers and operators |
//! | [`place`](EventPlace), [`stream_guard`](StreamGuard) | messages of a broker |
//! | [`retry`](RetryPolicy) | pauses |
//!
//! The guide for users is `docs/projections.md`.

pub use checkpoint::Failure;
pub use error::{ApplyError, ProjectionError};
pub use name::{Generation, GenerationCollections};
pub use place::{EventPlace, PlaceError};
pub use projector::{GenerationWriter, Projector};
pub use read_model::{ReadModel, ReadModelSettings};
pub use resolver::{GenerationResolver, MAX_STALENESS};
pub use retry::RetryPolicy;
pub use status::{GenerationState, GenerationStatus, ReadModelStatus};
pub use stream_guard::{Change, GuardError, Guarded, REVISIONS, StreamGuard};

mod appends;
mod checkpoint;
mod error;
mod name;
mod place;
mod projector;
mod read_model;
mod rebuild;
mod resolver;
mod retry;
mod runner;
mod status;
mod stream_guard;
mod transaction;
