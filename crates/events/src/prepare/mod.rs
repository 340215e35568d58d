//! Prepare keys: a value reserved under a key, for ever or for a time, by one of several callers.
//!
//! One document per key: `{_id: key, value, ttlAt}`, without `ttlAt` for ever; `using_prepared` adds
//! a `reservation`, a UUID by which the call recognises its key. The server decides by its clock
//! whether a key has expired, in the filter or pipeline of each operation: its TTL monitor, which
//! removes expired keys, runs once a minute only.

mod document;
mod error;
mod key;
mod move_key;
mod scoped;
mod ttl;
mod value;
mod value_eq;

pub use crate::names::PrepareName;
pub use error::PrepareError;
pub use key::{KeyOutcome, PrepareKey, Prepared};
pub use scoped::UsingError;
pub use ttl::Ttl;
