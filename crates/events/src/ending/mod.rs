//! The end of a stream, and the erasure of its content.
//!
//! ```text
//!  end, erase ── a reserved append ──▶ lane ──▶ one transaction: stream, record, snapshot, work
//!  (call)                                                       (effects)
//!                 erasure, page by page ◀── the call itself, and each process (worker)
//!                 (eraser): bodies and headers, then the records' payloads
//! ```
//!
//! An end is an append of a reserved event, so that it has a version: an append at the same time
//! collides with it. The transaction marks the snapshot too. That of an erasure inserts a work document
//! into [`COLLECTION`], which is removed when everything is erased. Each step of an erasure can be
//! repeated, by any process, at any time.

mod answer;
mod call;
pub(crate) mod effects;
mod eraser;
mod request;
pub(crate) mod work;
mod worker;

pub use crate::open_erasures::COLLECTION;
pub use answer::{Erasure, ErasureCounts, ErasureState, Unreachable};
pub use call::EndError;
pub use request::StreamEnding;
#[cfg(feature = "json")]
pub(crate) use request::check_reason;
